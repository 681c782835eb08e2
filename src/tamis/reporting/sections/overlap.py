"""How much of their pairs the subsets share, and what each keeps that another drops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.reporting.context import Context
from tamis.reporting.formats import NONE, count, plural, share
from tamis.reporting.html import Markup, tag
from tamis.reporting.overlap import intersections, jaccard
from tamis.reporting.subset_names import SubsetName, swatched
from tamis.reporting.tables import scrolling


@dataclass(frozen=True, kw_only=True)
class OverlapFacts:
    """Of each two subsets.

    Attributes:
        shared: (k, k) pairs that both keep, the subsets' own sizes on the diagonal.
        jaccard: (k, k) intersection over union in [0, 1]; NaN of two empty subsets.
    """

    subsets: Sequence[SubsetName]
    shared: NDArray[np.int64]
    jaccard: NDArray[np.float64]


def gather(context: Context) -> OverlapFacts | None:
    """Counts the pairs that each two subsets share; None where there are not two."""
    if len(context.subsets) < 2:
        return None
    shared = intersections(context.keeps)
    return OverlapFacts(subsets=context.names, shared=shared, jaccard=jaccard(shared))


def draw(facts: OverlapFacts) -> Markup:
    """Draws two matrices."""
    alike = _matrix(facts, "Jaccard index: shared pairs by pairs in either", _alike)
    only = _matrix(facts, "The row keeps, the column drops", _only)
    layout = "grid" if len(facts.subsets) <= 3 else "stack"
    return tag("div", tag("div", alike, class_="card"), tag("div", only, class_="card"), class_=layout)


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
    return tag(
        "td",
        count(lost),
        tag("small", f"{share(lost, one.kept)} of its own"),
        class_="hot",
        style=f"--v:{100 * lost / one.kept if one.kept else 0:.1f}%",
        title=f"{one.label} keeps {plural(lost, 'pair')} that {two.label} drops",
    )
