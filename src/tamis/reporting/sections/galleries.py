"""Of every step of a recipe the pairs at its line, kept and dropped, and pairs of either side drawn at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tamis.reporting.cards import card, cards
from tamis.reporting.context import GALLERIES, Context
from tamis.reporting.formats import count, number, share
from tamis.reporting.html import Child, Markup, join, tag
from tamis.reporting.pairs import Pair
from tamis.reporting.picking import around, first_by
from tamis.reporting.sections import repeated
from tamis.reporting.sections.funnels import dropped_anchor, says
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.selectors.expression import parse
from tamis.store import Run
from tamis.store.reasons import Cut

#: Pairs in each strip.
STRIP = 8

#: Lines of one reason that have strips.
LINES = 4

#: Columns that a card shows at once.
_COLUMNS = 3


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A pair in a strip.

    Attributes:
        score: the score that the line lies on, where the strip is sorted by it.
        why: why it is not in the subset; None where it is, or where that is not known.
    """

    pair: Pair
    score: float | None = None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """Where a step cuts, and the pairs there.

    Attributes:
        part: the step or the part of it that cuts.
        score: what it cuts.
        marks: the value, or both ends.
        just_kept, just_dropped: the nearest to the line first.
        columns: those that cards show at once: what the line is drawn on.
        beside: columns that explain those, such as the generated caption that is nearest.
    """

    part: str
    score: str
    marks: Sequence[float]
    just_kept: Sequence[Shown]
    just_dropped: Sequence[Shown]
    columns: Sequence[str]
    beside: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Fallen:
    """What a step drops by one reason.

    Attributes:
        code: the reason's number among those of the recipe, from 1.
        reason: in words.
        rows: how many pairs fell by it.
        lines: where it cuts; none where it cuts no score.
        dropped: pairs that fell by it, drawn by uid; none where there are lines, which have theirs.
        repeats: True where `repeated` shows them beside what they repeat.
    """

    code: int
    reason: str
    rows: int
    lines: Sequence[Line]
    dropped: Sequence[Shown]
    repeats: bool


@dataclass(frozen=True, kw_only=True)
class OfStep:
    """The gallery of one step.

    Attributes:
        number: from 1.
        step: as the funnel has it.
        before, kept: rows before it and after it.
    """

    number: int
    step: str
    before: int
    kept: int
    fallen: Sequence[Fallen]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Pairs of one subset, and of what it drops.

    Attributes:
        steps: a gallery each.
        kept, dropped: drawn at random, by uid, among all that are kept and all that are not.
        columns: those that cards of these show at once: what the recipe reads.
    """

    subset: SubsetName
    steps: Sequence[OfStep]
    kept: Sequence[Shown]
    dropped: Sequence[Shown]
    columns: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class GalleriesFacts:
    """The galleries of the first subsets.

    Attributes:
        rows: of the run.
        left_out: how many subsets have none.
    """

    rows: int
    galleries: Sequence[Gallery]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class _AtLine:
    cut: Cut
    kept: Sequence[tuple[int, float]]
    dropped: Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class _Picked:
    """The rows of one gallery: by reason at its lines, with their scores, or at random; then those of the whole."""

    lines: Mapping[int, Sequence[_AtLine]]
    fallen: Mapping[int, Sequence[int]]
    kept: Sequence[int]
    dropped: Sequence[int]

    @property
    def rows(self) -> list[int]:
        at = [row for lines in self.lines.values() for line in lines for row, _ in (*line.kept, *line.dropped)]
        return [*at, *(row for rows in self.fallen.values() for row in rows), *self.kept, *self.dropped]


def gather(context: Context) -> GalleriesFacts | None:
    """Picks the pairs of every gallery, then reads them together; None where there is no subset."""
    if not context.subsets:
        return None
    picked = [_pick(context, place) for place in range(min(GALLERIES, len(context.subsets)))]
    context.read([row for each in picked for row in each.rows])
    return GalleriesFacts(
        rows=context.rows,
        galleries=[_gallery(context, place, each) for place, each in enumerate(picked)],
        left_out=len(context.subsets) - len(picked),
    )


def _pick(context: Context, place: int) -> _Picked:
    explained, keep = context.explanations[place], context.keeps[place]
    lines: dict[int, list[_AtLine]] = {}
    fallen: dict[int, Sequence[int]] = {}
    counts = context.fallen(place)
    for code in context.shown_reasons(place):
        assert explained.dropped_by is not None, "rows are counted by reason"
        fell = explained.dropped_by == code
        for cut in [cut for cut in explained.cuts if cut.code == code][:LINES]:
            values = context.values(cut.score, explained.names)
            if values is not None:
                kept, dropped = around(context.table, values, cut, keep, fell, STRIP)
                lines.setdefault(code, []).append(_AtLine(cut=cut, kept=kept, dropped=dropped))
        if counts[code - 1] and code not in lines and not _repeats(context, place, explained.why[code - 1].step):
            fallen[code] = first_by(context.order, STRIP, fell).tolist()
    return _Picked(
        lines=lines,
        fallen=fallen,
        kept=first_by(context.order, STRIP, keep).tolist(),
        dropped=first_by(context.order, STRIP, ~keep).tolist(),
    )


def _repeats(context: Context, place: int, step: int | None) -> bool:
    """Returns whether a step tells of groups of repeated pictures that the page shows."""
    funnel = context.subsets[place].funnel
    known = step is not None and step <= len(funnel) and (funnel[step - 1].get("facts") or {}).get("largest_groups")
    return bool(known) and place in context.groups


def _gallery(context: Context, place: int, picked: _Picked) -> Gallery:
    subset, explained = context.subsets[place], context.explanations[place]
    of_step: dict[int | None, list[Fallen]] = {}
    for code in context.shown_reasons(place):
        of_step.setdefault(explained.why[code - 1].step, []).append(_fallen(context, place, code, picked))
    reads = [name for name in subset.reads if name in context.run.columns]
    steps = [
        OfStep(
            number=number_,
            step=str(line.get("step", "")),
            before=int(line["before"]),
            kept=int(line["kept"]),
            fallen=of_step.get(number_, []),
        )
        for number_, line in enumerate(subset.funnel, start=1)
    ]
    return Gallery(
        subset=context.names[place],
        steps=steps,
        kept=[Shown(pair=context.pair(row)) for row in picked.kept],
        dropped=[Shown(pair=context.pair(row), why=_why(context, place, row)) for row in picked.dropped],
        columns=_shown_columns(context, reads),
    )


def _fallen(context: Context, place: int, code: int, picked: _Picked) -> Fallen:
    reason, rows = context.explanations[place].why[code - 1], context.fallen(place)[code - 1]
    return Fallen(
        code=code,
        reason=reason.text,
        rows=rows,
        lines=[_line(context, place, each) for each in picked.lines.get(code, ())],
        dropped=[Shown(pair=context.pair(row)) for row in picked.fallen.get(code, ())],
        repeats=rows > 0 and code not in picked.lines and _repeats(context, place, reason.step),
    )


def _line(context: Context, place: int, at: _AtLine) -> Line:
    names = context.explanations[place].names
    columns = [names.get(name, name) for name in sorted(parse(at.cut.score).columns)]
    columns = [name for name in columns if name in context.run.columns]
    return Line(
        part=at.cut.step,
        score=at.cut.score,
        marks=at.cut.marks,
        just_kept=[Shown(pair=context.pair(row), score=score) for row, score in at.kept],
        just_dropped=[Shown(pair=context.pair(row), score=score) for row, score in at.dropped],
        columns=_shown_columns(context, columns),
        beside=_shown_columns(context, _beside(context.run, columns)),
    )


def _shown_columns(context: Context, names: Sequence[str]) -> list[str]:
    """Returns the names that the page uses, of columns that it shows: hashes are not among them."""
    return [short for short in map(context.short, names) if short in context.numbers or short in context.words]


def _why(context: Context, place: int, row: int) -> str | None:
    explained = context.explanations[place]
    return explained.reasons[explained.dropped_by[row]] if explained.dropped_by is not None else None


def _beside(run: Run, names: Sequence[str]) -> list[str]:
    """Returns the full names of the columns that explain others."""
    found = []
    for name in names:
        _, group, column = run.columns[name]
        if group is not None and column.beside and (full := f"{group.label}.{column.beside}") in run.columns:
            found.append(full)
    return found


def draw(facts: GalleriesFacts) -> Markup:
    """Draws a gallery per subset, the first one open."""
    about = (
        "Of each step of a recipe the pairs nearest to its line, and pairs drawn at random; their uids decide which, "
        "so they stay the same."
    )
    limit = f"Galleries are shown of the first {GALLERIES} subsets." if facts.left_out else None
    return join(
        tag("p", about, class_="quiet"),
        [_folded(each, facts.rows) for each in facts.galleries],
        tag("p", limit, class_="quiet") if limit else None,
    )


def _folded(gallery: Gallery, rows: int) -> Markup:
    subset = gallery.subset
    total = tag("span", share(subset.kept, rows) + " kept", class_="total")
    kept = _strip("Kept, at random", "in", gallery.kept, gallery.columns, "The subset keeps no pair.", 4)
    dropped = _strip("Dropped, at random", "out", gallery.dropped, gallery.columns, "The subset drops no pair.", 4)
    return tag(
        "details",
        tag("summary", tag("h3", swatched(subset), total)),
        [_step(subset, step) for step in gallery.steps],
        tag("div", kept, dropped, class_="sides"),
        class_=f"card gallery {colour(subset)}",
        open=subset.place == 0,
    )


def _step(subset: SubsetName, step: OfStep) -> Markup:
    lost = step.before - step.kept
    said = f"drops {count(lost)} of {count(step.before)}" if lost else "drops nothing"
    title = tag("h4", f"Step {step.number} ", tag("code", step.step), tag("small", said))
    return tag("div", title, [_reason(subset, step, each) for each in step.fallen], class_="of-step")


def _reason(subset: SubsetName, step: OfStep, fallen: Fallen) -> Markup:
    parts: list[Child] = []
    for line in fallen.lines:
        told = line.part == step.step and all(says(step.step, mark) for mark in line.marks)
        where = f"{line.part}: cut at {' and '.join(number(mark, 5) for mark in line.marks)}"
        first = [*line.columns[:_COLUMNS], *line.beside]
        alone = line.columns[0] if len(line.columns) == 1 and line.score == line.columns[0] else None
        first = [name for name in first if name != alone]  # then the score on the picture says it
        if not told:
            parts.append(tag("p", where, class_="quiet"))
        if not line.just_dropped:
            parts.append(_strip("Nearest to the line; none was dropped", "in", line.just_kept, first, "None is kept."))
            continue
        kept = _strip("Just kept", "in", line.just_kept, first, "Nothing is kept at this line.")
        dropped = _strip("Just dropped", "out", line.just_dropped, first, "")
        parts.append(tag("div", kept, dropped, class_="sides"))
    if fallen.dropped:
        title = f"{count(fallen.rows)} dropped: {fallen.reason}"
        parts.append(_strip(title, "out", fallen.dropped, (), ""))
    if fallen.repeats:
        link = tag("a", "each group beside the pair that stays", href=f"#{repeated.anchor(subset)}")
        parts.append(tag("p", f"{count(fallen.rows)} dropped: {fallen.reason}: ", link))
    return tag("div", parts, id=dropped_anchor(subset, fallen.code), class_="of-reason")


def _strip(title: str, side: str, pairs: Sequence[Shown], first: Sequence[str], empty: str, level: int = 5) -> Markup:
    drawn = [card(each.pair, first=first[:_COLUMNS], score=each.score, why=each.why) for each in pairs]
    return tag(
        "div",
        tag(f"h{level}", title),
        cards(drawn) if drawn else tag("p", empty, class_="quiet"),
        class_=f"strip-{side}",
    )
