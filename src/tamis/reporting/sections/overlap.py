"""How much of their pairs the subsets share, and what each keeps that another drops, with pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.reporting.cards import card, cards
from tamis.reporting.context import GALLERIES, Context
from tamis.reporting.formats import NONE, count, plural, share
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.overlap import jaccard
from tamis.reporting.pairs import Pair
from tamis.reporting.picking import first_by
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.reporting.tables import scrolling
from tamis.selectors.expression import parse

#: Pairs of all cells together; so many of a cell at least, and at most.
_PAIRS, _LEAST, _MOST = 160, 3, 8


@dataclass(frozen=True, kw_only=True)
class Only:
    """What one subset keeps and another drops.

    Attributes:
        keeps, drops: the subsets.
        rows: how many pairs.
        pairs: some of them, drawn by uid.
        why: of each of these why the other drops it; None where that is not known.
        columns: what the lines of both recipes are drawn on.
    """

    keeps: SubsetName
    drops: SubsetName
    rows: int
    pairs: Sequence[Pair]
    why: Sequence[str | None]
    columns: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class OverlapFacts:
    """Of each two subsets.

    Attributes:
        shared: (k, k) pairs that both keep, the subsets' own sizes on the diagonal.
        jaccard: (k, k) intersection over union in [0, 1]; NaN of two empty subsets.
        only: of each two of the first subsets, both ways, what one keeps and the other drops, where there is such.
    """

    subsets: Sequence[SubsetName]
    shared: NDArray[np.int64]
    jaccard: NDArray[np.float64]
    only: Sequence[Only]


def gather(context: Context) -> OverlapFacts | None:
    """Counts the pairs that each two subsets share; None where there are not two."""
    if len(context.subsets) < 2:
        return None
    shared = context.shared
    return OverlapFacts(subsets=context.names, shared=shared, jaccard=jaccard(shared), only=_only_of(context))


def _only_of(context: Context) -> list[Only]:
    names = context.names[:GALLERIES]
    cells = [(one, two) for one in names for two in names if one != two]
    shown = min(_MOST, max(_LEAST, _PAIRS // len(cells)))
    picked = {}
    for one, two in cells:
        among = context.keeps[one.place] & ~context.keeps[two.place]
        picked[one.place, two.place] = int(np.count_nonzero(among)), first_by(context.order, shown, among).tolist()
    context.read([row for _, rows in picked.values() for row in rows])
    found = []
    for one, two in cells:
        count_, rows = picked[one.place, two.place]
        if not count_:
            continue
        columns = dict.fromkeys([*_ranked_by(context, one.place), *_ranked_by(context, two.place)])
        explained = context.explanations[two.place]
        codes = explained.dropped_by
        found.append(
            Only(
                keeps=one,
                drops=two,
                rows=count_,
                pairs=[context.pair(row) for row in rows],
                why=[explained.reasons[codes[row]] if codes is not None else None for row in rows],
                columns=list(columns),
            )
        )
    return found


def _ranked_by(context: Context, place: int) -> list[str]:
    """Returns the columns that the last line of a recipe is drawn on, as the page names them."""
    explained = context.explanations[place]
    if explained.ranking is None:
        return []
    columns = sorted(parse(explained.ranking.score).columns)
    return [short for name in columns if (short := context.short(explained.names.get(name, name))) in context.numbers]


def anchor(one: SubsetName, two: SubsetName) -> str:
    """Returns where the pairs stand on the page that the first of two subsets keeps and the second drops."""
    return f"only-{one.place}-{two.place}"


def draw(facts: OverlapFacts) -> Markup:
    """Draws two matrices, then of each two subsets the pairs that only one of them keeps."""
    alike = _matrix(facts, "Jaccard index: shared pairs by pairs in either", _alike)
    only = _matrix(facts, "The row keeps, the column drops", _only)
    layout = "grid" if len(facts.subsets) <= 3 else "stack"
    tables = tag("div", tag("div", alike, class_="card"), tag("div", only, class_="card"), class_=layout)
    by_pair: dict[tuple[int, int], list[Only]] = {}
    for each in facts.only:
        first, second = sorted((each.keeps.place, each.drops.place))
        by_pair.setdefault((first, second), []).append(each)
    ordered = sorted(by_pair.values(), key=_disagreement)
    galleries = [_apart(facts, both, open_=place == 0) for place, both in enumerate(ordered)]
    return join(tables, tag("div", galleries, class_="apart") if galleries else None)


def _disagreement(both: Sequence[Only]) -> tuple[int, int]:
    """Orders two subsets that keep many pairs each that the other drops before one that lies within another."""
    rows = [each.rows for each in both]
    return (-min(rows) if len(rows) == 2 else 0, -sum(rows))


def _apart(facts: OverlapFacts, both: Sequence[Only], *, open_: bool) -> Markup:
    one, two = sorted((both[0].keeps, both[0].drops), key=lambda each: each.place)
    apart = sum(each.rows for each in both)
    total = tag("span", f"disagree on {plural(apart, 'pair')}", class_="total")
    return tag(
        "details",
        tag("summary", tag("h3", swatched(one), " and ", swatched(two), total)),
        tag("div", [_side(each) for each in both], class_="sides"),
        class_="card gallery",
        open=open_,
    )


def _side(only: Only) -> Markup:
    drawn = [card(pair, first=only.columns, why=why) for pair, why in zip(only.pairs, only.why, strict=True)]
    title = tag(
        "h4", tag("bdi", only.keeps.label), " keeps, ", tag("bdi", only.drops.label), f" drops: {count(only.rows)}"
    )
    return tag("div", title, cards(drawn), id=anchor(only.keeps, only.drops), class_=f"strip-only {colour(only.keeps)}")


def _matrix(facts: OverlapFacts, title: str, cell: Callable[[OverlapFacts, SubsetName, SubsetName], Markup]) -> Markup:
    header = tag("tr", tag("td"), [tag("th", swatched(each), scope="col") for each in facts.subsets])
    rows = [
        tag("tr", tag("th", swatched(one), scope="row"), [cell(facts, one, two) for two in facts.subsets])
        for one in facts.subsets
    ]
    table = tag("table", tag("caption", title), tag("thead", header), tag("tbody", rows), class_="matrix")
    return scrolling(table, title)


def _alike(facts: OverlapFacts, one: SubsetName, two: SubsetName) -> Markup:
    both, value = int(facts.shared[one.place, two.place]), float(facts.jaccard[one.place, two.place])
    if one == two:
        return tag("td", NONE, tag("small", f"{count(both)} kept"), class_="self")
    return tag(
        "td",
        NONE if value != value else f"{value:.2f}",
        tag("small", f"{count(both)} shared"),
        class_="hot",
        style=f"--v:{0 if value != value else 100 * value:.1f}%",
        title=f"{one.label} and {two.label} share {plural(both, 'pair')}",
    )


def _only(facts: OverlapFacts, one: SubsetName, two: SubsetName) -> Markup:
    if one == two:
        return tag("td", NONE, class_="self")
    lost = one.kept - int(facts.shared[one.place, two.place])
    linked = any((each.keeps, each.drops) == (one, two) for each in facts.only)
    return tag(
        "td",
        tag("a", count(lost), href=f"#{anchor(one, two)}") if linked else count(lost),
        tag("small", f"{share(lost, one.kept)} of its own"),
        class_="hot",
        style=f"--v:{100 * lost / one.kept if one.kept else 0:.1f}%",
        title=f"{one.label} keeps {plural(lost, 'pair')} that {two.label} drops",
    )
