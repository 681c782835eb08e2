"""Histograms that follow a slider: which bar each row falls into is worked out once, then only counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Mask
from tamis.reporting.histogram import histograms
from tamis.store.reasons import blocks
from tamis.store.table import Table

#: The number of a row that is in no bar: its value is missing or infinite.
NONE = 255


@dataclass(frozen=True, kw_only=True)
class Binned:
    """One column of numbers, cut into bars.

    Attributes:
        edges: (bars + 1,).
        bars: (rows,) uint8, the number of each row's bar; `NONE` where it is in none.
        pool: (bars,) how many rows of the pool.
        low, high: the smallest and the largest finite value; NaN where there is none.
        null: rows without a value.
        whole: whether all finite values are whole numbers.
    """

    edges: NDArray[np.float64]
    bars: NDArray[np.uint8]
    pool: NDArray[np.int64]
    low: float
    high: float
    null: int
    whole: bool

    def count(self, among: Mask) -> NDArray[np.int64]:
        """Returns how many of some rows are in each bar: (bars,)."""
        total = np.zeros(256, np.int64)
        for place in blocks(self.bars.size):
            total += np.bincount(self.bars[place][among[place]], minlength=256)
        return total[: self.pool.size]


def binned(table: Table, column: str) -> Binned:
    """Cuts a column of numbers into the bars that the report draws: a long tail is in the bar at the edge.

    Memory: a byte per row.
    """
    facts = histograms(table, [column], [])[column]
    edges = facts.edges
    count = edges.size - 1
    bars = np.full(len(table), NONE, np.uint8)

    def work(place: slice, columns: dict[str, Any]) -> bool:
        values = columns[column]
        there = np.isfinite(values)
        # One multiplication instead of a search; a value at an edge may fall on its other side, in both counts alike.
        width = float(edges[-1] - edges[0]) or 1.0
        number = np.floor((values[there].astype(np.float64) - edges[0]) * (count / width))
        bars[place][there] = np.clip(number, 0, count - 1).astype(np.uint8)
        return bool(np.all(values[there] == np.round(values[there])))

    whole = all(list(table.map([column], work)))
    pool = np.bincount(bars, minlength=256)[:count] if bars.size else np.zeros(count, np.int64)
    return Binned(edges=edges, bars=bars, pool=pool, low=facts.low, high=facts.high, null=facts.null, whole=whole)


def heat(x: Binned, y: Binned, among: Mask) -> NDArray[np.int64]:
    """Returns how many of some rows are in each cell of two columns: (bars of y, bars of x)."""
    across, down = x.pool.size, y.pool.size
    there = among & (x.bars != NONE) & (y.bars != NONE)
    cells = y.bars[there].astype(np.int64) * across + x.bars[there]
    return np.bincount(cells, minlength=across * down).reshape(down, across)
