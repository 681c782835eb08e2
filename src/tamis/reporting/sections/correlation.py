"""How far the scores agree in their ranking of the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.reporting.context import Context
from tamis.reporting.formats import NONE, count
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.tables import scrolling

#: The section's name, where others refer to it.
ANCHOR = "correlation"


@dataclass(frozen=True, kw_only=True)
class CorrelationFacts:
    """Spearman's rank correlation of each two scores.

    Attributes:
        names: of the columns.
        matrix: (k, k) in [-1, 1], over the pairs that have both; NaN where a score is the same for all of them.
        looked_at: how many pairs were looked at, drawn by uid.
        rows: how many there are.
    """

    names: Sequence[str]
    matrix: NDArray[np.float64]
    looked_at: int
    rows: int


def gather(context: Context) -> CorrelationFacts | None:
    """Reads the correlations; None where there are not two scores."""
    names, matrix = context.correlations
    if len(names) < 2:
        return None
    return CorrelationFacts(names=names, matrix=matrix, looked_at=context.sample.size, rows=context.rows)


def draw(facts: CorrelationFacts) -> Markup:
    """Draws half of the matrix."""
    about = (
        "Spearman's correlation of each two scores: 1 where both rank the pairs alike, −1 where one turns the other's "
        "order around, 0 where they have nothing in common."
    )
    if facts.looked_at < facts.rows:
        about += f" Over {count(facts.looked_at)} pairs drawn by uid."
    last = len(facts.names) - 1
    header = tag("tr", tag("td"), [tag("th", tag("code", name), scope="col") for name in facts.names[:last]])
    rows = [
        tag(
            "tr",
            tag("th", tag("code", one), scope="row"),
            [_cell(facts, row, column) if column < row else tag("td") for column in range(last)],
        )
        for row, one in enumerate(facts.names)
        if row
    ]
    table = tag(
        "table",
        tag("caption", "Rank correlation of the scores", class_="hidden"),
        tag("thead", header),
        tag("tbody", rows),
        class_="matrix ranks",
    )
    return join(
        tag("p", about, class_="quiet"), tag("div", scrolling(table, "Rank correlation of the scores"), class_="card")
    )


def _cell(facts: CorrelationFacts, row: int, column: int) -> Markup:
    value = float(facts.matrix[row, column])
    if value != value:
        return tag("td", NONE, class_="self")
    return tag(
        "td",
        f"{value:.2f}".replace("-", "−"),
        class_="hot" if value >= 0 else "hot turned",
        style=f"--v:{100 * abs(value):.1f}%",
        title=f"{facts.names[row]} and {facts.names[column]}",
    )
