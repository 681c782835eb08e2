"""What the report found, in sentences: each number leads to its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.charts import bar
from tamis.reporting.context import GALLERIES, Context
from tamis.reporting.formats import count, number, plural, share
from tamis.reporting.html import Child, Markup, join, tag
from tamis.reporting.in_words import in_words, status_words
from tamis.reporting.sections import correlation, found, overlap, rejects, repeated
from tamis.reporting.sections.funnels import dropped_anchor
from tamis.reporting.subset_names import SubsetName, colour, swatched

#: Disagreements that are told, and pairs of scores that say much the same.
_TOLD = 3

#: Scores of two scorers whose ranks correlate so much say much the same.
_ALIKE = 0.9


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number of pairs.

    Attributes:
        rows: how many.
        what: what they are called.
        anchor: where the page shows some of them; "" where it does not.
    """

    rows: int
    what: str
    anchor: str


@dataclass(frozen=True, kw_only=True)
class OfSubset:
    """What a recipe drops, by reason, the most first."""

    subset: SubsetName
    drops: Sequence[Number]


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """Two recipes.

    Attributes:
        only_one, only_two: what one of them alone keeps.
        both: how many pairs both keep.
    """

    one: SubsetName
    two: SubsetName
    only_one: Number
    only_two: Number
    both: int


@dataclass(frozen=True, kw_only=True)
class Alike:
    """Two scores that rank pairs much alike."""

    one: str
    two: str
    correlation: float


@dataclass(frozen=True, kw_only=True)
class FindingsFacts:
    """What was found.

    Attributes:
        pool: what is so of pairs of the pool, the most first.
        asked: whether anything was scored that could tell.
        subsets: what each keeps and drops.
        disagreements: the largest ones.
        alike: scores of different scorers that need not both be computed.
    """

    rows: int
    pool: Sequence[Number]
    asked: bool
    subsets: Sequence[OfSubset]
    disagreements: Sequence[Disagreement]
    alike: Sequence[Alike]


def gather(context: Context) -> FindingsFacts:
    """Collects what other sections show."""
    return FindingsFacts(
        rows=context.rows,
        pool=sorted([*_statuses(context), *_traits(context), *_repeats(context)], key=lambda each: -each.rows),
        asked=bool(context.numbers or context.words),
        subsets=[OfSubset(subset=name, drops=_drops(context, name)) for name in context.names],
        disagreements=_disagreements(context),
        alike=_alike(context),
    )


def _statuses(context: Context) -> list[Number]:
    found_ = []
    for status, rows in context.statuses.items():
        if status != "ok":
            found_.append(Number(rows=rows, what=status_words(status, rows), anchor=rejects.anchor(status)))
    return found_


def _traits(context: Context) -> list[Number]:
    return [
        Number(
            rows=each.count,
            what=each.trait.one if each.count == 1 else each.trait.many,
            anchor=found.anchor(each.trait.ident),
        )
        for each in context.traits
    ]


def _repeats(context: Context) -> list[Number]:
    if context.repeats is None or not context.repeats.pairs:
        return []
    told = next((name for name in context.names if name.place in context.groups), None)
    pairs = context.repeats.pairs
    return [Number(rows=pairs, what="repeat" if pairs == 1 else "repeats", anchor=repeated.anchor(told))]


def _drops(context: Context, subset: SubsetName) -> list[Number]:
    explained, shown = context.explanations[subset.place], context.shown_reasons(subset.place)
    drops = [
        Number(
            rows=rows,
            what=in_words(explained.why[code - 1].text),
            anchor=dropped_anchor(subset, code) if code in shown else "",
        )
        for code, rows in enumerate(context.fallen(subset.place), start=1)
        if rows
    ]
    return sorted(drops, key=lambda each: -each.rows)


def _disagreements(context: Context) -> list[Disagreement]:
    shared, names = context.shared, context.names
    found_ = []
    for place, one in enumerate(names):
        for two in names[place + 1 :]:
            both = int(shared[one.place, two.place])
            sides = [
                Number(
                    rows=(rows := int(shared[mine.place, mine.place]) - both),
                    what=f"only {mine.label} keeps",
                    anchor=overlap.anchor(mine, theirs) if rows and max(mine.place, theirs.place) < GALLERIES else "",
                )
                for mine, theirs in ((one, two), (two, one))
            ]
            if sides[0].rows or sides[1].rows:
                found_.append(Disagreement(one=one, two=two, only_one=sides[0], only_two=sides[1], both=both))
    # Two that contradict each other come before one that lies within the other.
    found_.sort(
        key=lambda each: (-min(each.only_one.rows, each.only_two.rows), -each.only_one.rows - each.only_two.rows)
    )
    return found_[:_TOLD]


def _alike(context: Context) -> list[Alike]:
    names, matrix = context.correlations
    scorer = {name: getattr(context.run.columns[name][1], "label", "") for name in names}
    found_ = [
        Alike(one=one, two=two, correlation=float(matrix[row, column]))
        for row, one in enumerate(names)
        for column, two in enumerate(names[:row])
        if scorer[one] != scorer[two] and abs(matrix[row, column]) >= _ALIKE
    ]
    return sorted(found_, key=lambda each: -abs(each.correlation))[:_TOLD]


def draw(facts: FindingsFacts) -> Markup:
    """Draws a sentence on the pool, a line per subset, then where recipes and scores agree or do not."""
    subsets = [_subset(each, facts.rows) for each in facts.subsets]
    others: list[Markup] = [tag("li", _disagreement(each)) for each in facts.disagreements]
    others += [
        tag(
            "li",
            tag("code", each.two),
            " and ",
            tag("code", each.one),
            " rank the pairs much alike: ",
            tag("a", f"correlation {number(each.correlation, 2)}", href=f"#{correlation.ANCHOR}"),
            ".",
        )
        for each in facts.alike
    ]
    return join(
        _pool(facts),
        tag("ul", subsets, class_="findings subsets") if subsets else _no_subset(),
        tag("ul", others, class_="findings") if others else None,
    )


def _pool(facts: FindingsFacts) -> Markup:
    if not facts.rows:
        return tag("p", "The run holds no pairs.", class_="lead")
    if not facts.pool:
        said = "every one can be read"
        said += ", and none is odd by what was scored." if facts.asked else ". Nothing else was scored."
        return tag("p", f"Of {plural(facts.rows, 'pair')} {said}", class_="lead")
    return tag("p", f"Among {plural(facts.rows, 'pair')}: ", _listed(facts.pool), ".", class_="lead")


def _no_subset() -> Markup:
    return tag(
        "p",
        "No subset was given: this page describes the pool. Add some with ",
        tag("code", "tamis report RUN A.parquet B.parquet"),
        ".",
        class_="quiet",
    )


def _subset(each: OfSubset, rows: int) -> Markup:
    kept = each.subset.kept
    return tag(
        "li",
        swatched(each.subset),
        tag("span", tag("strong", share(kept, rows)), f" kept · {count(kept)}", class_="n"),
        bar(kept, rows),
        tag("span", "drops ", _listed(each.drops), class_="drops") if each.drops else tag("span", class_="drops"),
        class_=colour(each.subset),
    )


def _disagreement(each: Disagreement) -> Markup:
    apart = each.only_one.rows + each.only_two.rows
    names = join(swatched(each.one), " and ", swatched(each.two))
    if not each.only_one.rows or not each.only_two.rows:
        inner, outer = (each.two, each.one) if each.only_one.rows else (each.one, each.two)
        more = each.only_one if each.only_one.rows else each.only_two
        return join(swatched(inner), " lies within ", swatched(outer), ", which keeps ", _number(more, "more"), ".")
    return join(
        names,
        f" disagree on {count(apart)}: ",
        _number(each.only_one, each.only_one.what),
        ", ",
        _number(each.only_two, each.only_two.what),
        f"; {count(each.both)} both keep.",
    )


def _listed(numbers: Sequence[Number]) -> list[Child]:
    parts: list[Child] = []
    for each in numbers:
        parts += [", " if parts else None, _number(each, each.what)]
    return parts


def _number(each: Number, what: str) -> Markup:
    said = join(tag("b", count(each.rows)), " ", tag("bdi", what))
    return tag("a", said, href=f"#{each.anchor}") if each.anchor else tag("span", said)
