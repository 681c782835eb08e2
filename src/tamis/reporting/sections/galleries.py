"""Pairs at the line that a recipe draws, kept and dropped, and pairs of either side drawn at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tamis.reporting.cards import card, cards
from tamis.reporting.context import GALLERIES, Context
from tamis.reporting.formats import number, share
from tamis.reporting.html import Child, Markup, join, tag
from tamis.reporting.pairs import Pair
from tamis.reporting.picking import around, first_by
from tamis.reporting.sections.funnels import says
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.selectors.expression import parse
from tamis.store import Run

#: Pairs in each strip.
STRIP = 12

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
    """Where the recipe cuts.

    Attributes:
        step: the last step that drew a line and dropped something there.
        score: what it cuts.
        marks: the value, or both ends.
    """

    step: str
    score: str
    marks: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Pairs of one subset, and of what it drops.

    Attributes:
        line: None where the recipe cuts no score.
        just_kept, just_dropped: the nearest to the line first.
        kept, dropped: drawn at random, by uid.
        columns: those that cards show at once: what the line is drawn on, else what the recipe reads.
        beside: columns that explain those, such as the generated caption that is nearest.
    """

    subset: SubsetName
    line: Line | None
    just_kept: Sequence[Shown]
    just_dropped: Sequence[Shown]
    kept: Sequence[Shown]
    dropped: Sequence[Shown]
    columns: Sequence[str]
    beside: Sequence[str]


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
class _Picked:
    """The rows of one gallery: with their scores at the line, and alone."""

    line: Line | None
    just_kept: Sequence[tuple[int, float]]
    just_dropped: Sequence[tuple[int, float]]
    kept: Sequence[int]
    dropped: Sequence[int]
    reasons: Mapping[int, str]


def gather(context: Context) -> GalleriesFacts | None:
    """Picks the pairs of every gallery, then reads them together; None where there is no subset."""
    if not context.subsets:
        return None
    picked = [_pick(context, place) for place in range(min(GALLERIES, len(context.subsets)))]
    context.read([row for each in picked for row in _rows(each)])
    return GalleriesFacts(
        rows=context.rows,
        galleries=[_gallery(context, place, each) for place, each in enumerate(picked)],
        left_out=len(context.subsets) - len(picked),
    )


def _pick(context: Context, place: int) -> _Picked:
    explained, keep = context.explanations[place], context.keeps[place]
    cut, fell = explained.ranking, explained.dropped_by
    values = context.values(cut.score, explained.names) if cut is not None else None
    just_kept: list[tuple[int, float]] = []
    just_dropped: list[tuple[int, float]] = []
    line = None
    if cut is not None and values is not None and fell is not None:
        line = Line(step=cut.step, score=cut.score, marks=cut.marks)
        just_kept, just_dropped = around(context.table, values, cut, keep, fell == cut.code, STRIP)
    dropped = first_by(context.order, STRIP, ~keep).tolist()
    known = [] if fell is None else [*dropped, *(row for row, _ in just_dropped)]
    return _Picked(
        line=line,
        just_kept=just_kept,
        just_dropped=just_dropped,
        kept=first_by(context.order, STRIP, keep).tolist(),
        dropped=dropped,
        reasons={row: explained.reasons[fell[row]] for row in known} if fell is not None else {},
    )


def _rows(picked: _Picked) -> list[int]:
    return [*(row for row, _ in (*picked.just_kept, *picked.just_dropped)), *picked.kept, *picked.dropped]


def _gallery(context: Context, place: int, picked: _Picked) -> Gallery:
    explained, subset = context.explanations[place], context.subsets[place]
    cut = explained.ranking
    own = sorted(parse(cut.score).columns) if cut is not None else ()
    reads = [explained.names.get(name, name) for name in own] or subset.reads
    columns = [name for name in reads if name in context.run.columns]

    def strip(rows: Sequence[tuple[int, float | None]]) -> list[Shown]:
        return [Shown(pair=context.pair(row), score=score, why=picked.reasons.get(row)) for row, score in rows]

    return Gallery(
        subset=context.names[place],
        line=picked.line,
        just_kept=strip(picked.just_kept),
        just_dropped=strip(picked.just_dropped),
        kept=strip([(row, None) for row in picked.kept]),
        dropped=strip([(row, None) for row in picked.dropped]),
        columns=[context.short(name) for name in columns],
        beside=[context.short(name) for name in _beside(context.run, columns)],
    )


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
    about = "Pairs at each recipe's line, and pairs drawn at random; their uids decide which, so they stay the same."
    limit = f"Galleries are shown of the first {GALLERIES} subsets." if facts.left_out else None
    return join(
        tag("p", about, class_="quiet"),
        [_folded(each, facts.rows) for each in facts.galleries],
        tag("p", limit, class_="quiet") if limit else None,
    )


def _folded(gallery: Gallery, rows: int) -> Markup:
    subset = gallery.subset
    total = tag("span", share(subset.kept, rows) + " kept", class_="total")
    return tag(
        "details",
        tag("summary", tag("h3", swatched(subset), total)),
        _strips(gallery),
        class_=f"card gallery {colour(subset)}",
        open=subset.place == 0,
    )


def _strips(gallery: Gallery) -> Markup:
    parts: list[Child] = []
    if gallery.line is not None:
        marks = gallery.line.marks
        cut = f" · cut at {' and '.join(number(mark, 5) for mark in marks)}"
        told = all(says(gallery.line.step, mark) for mark in marks)
        parts.append(tag("p", "Line: ", tag("code", gallery.line.step), None if told else cut))
        kept = _strip(gallery, "Just kept", "in", gallery.just_kept, "Nothing is kept at this line.")
        dropped = _strip(gallery, "Just dropped", "out", gallery.just_dropped, "Nothing was dropped at this line.")
        parts.append(tag("div", kept, dropped, class_="sides"))
    kept = _strip(gallery, "Kept, at random", "in", gallery.kept, "The subset keeps no pair.")
    dropped = _strip(gallery, "Dropped, at random", "out", gallery.dropped, "The subset drops no pair.")
    return join(parts, tag("div", kept, dropped, class_="sides"))


def _strip(gallery: Gallery, title: str, side: str, pairs: Sequence[Shown], empty: str) -> Markup:
    first = [*gallery.columns[:_COLUMNS], *gallery.beside]
    line = gallery.columns[0] if len(gallery.columns) == 1 else None  # then the score on the picture says it
    drawn = [
        card(
            each.pair,
            first=[name for name in first if each.score is None or name != line],
            score=each.score,
            why=each.why,
        )
        for each in pairs
    ]
    return tag(
        "div",
        tag("h4", title),
        cards(drawn) if drawn else tag("p", empty, class_="quiet"),
        class_=f"strip-{side}",
    )
