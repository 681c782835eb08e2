"""Exact distributions of number columns of tables that do not fit into memory.

Two passes over the blocks. The first counts the upper 16 bits of every value's order-preserving code, which gives the
ends, the nulls and the neighbourhood of each quantile. The second counts the lower 16 bits in those neighbourhoods
(a radix select: the quantiles are exact) and fills the bars. Memory: a few MB per column, whatever the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Mask
from tamis.store.table import Table

Counts = NDArray[np.int64]

#: Which quantiles the report shows.
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)

BARS = 50

#: A tail longer than this many times the range of the middle 98 % is drawn as one bar at the edge.
_LONG_TAIL = 0.75


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """One column of the pool, and of the part of it that each subset keeps.

    Attributes:
        judged: rows with a finite value.
        null: rows without a value.
        infinite: rows whose value is infinite; they are in no bar.
        low, high: smallest and largest finite value; NaN where there is none.
        quantiles: level to value. The values occur in the column (the lower of two where they differ).
        edges: (bars + 1,) where the bars begin and end.
        below, above: True where the first (last) bar also holds everything beyond its edge.
        pool: (bars,) rows.
        kept: per subset (bars,) rows that it keeps.
        kept_null: per subset, kept rows without a value.
    """

    judged: int
    null: int
    infinite: int
    low: float
    high: float
    quantiles: Mapping[float, float]
    edges: NDArray[np.float64]
    below: bool
    above: bool
    pool: Counts
    kept: Sequence[Counts]
    kept_null: Sequence[int]

    def place(self, value: float) -> float:
        """Returns where a value is between the first and the last edge: 0 to 1, clamped."""
        start, stop = float(self.edges[0]), float(self.edges[-1])
        return min(1.0, max(0.0, (value - start) / (stop - start))) if stop > start else 0.5


def histograms(
    table: Table, names: Sequence[str], keeps: Sequence[Mask], cuts: Mapping[str, Sequence[float]] | None = None
) -> dict[str, Histogram]:
    """Returns the distribution of each number column.

    Args:
        table: the pool's rows.
        names: the columns; float32 with NaN for null.
        keeps: (rows,) bool for each subset.
        cuts: values by column that must be on the axis even where they are in a long tail.
    """
    if not names:
        return {}
    columns = {name: _Column(keeps) for name in names}
    for blocks in table.map(names, lambda _, values: {name: _first_look(values[name]) for name in names}):
        for name, block in blocks.items():
            columns[name].add_first(*block)
    for name, column in columns.items():
        column.plan([*(cuts or {}).get(name, ())])

    def second_look(place: slice, values: dict[str, Any]) -> dict[str, Any]:
        return {name: column.second_look(place, values[name]) for name, column in columns.items()}

    for filled in table.map(names, second_look):
        for name, part in filled.items():
            columns[name].add_second(*part)
    return {name: column.finish() for name, column in columns.items()}


def _code(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Returns whole numbers in the same order as the floats (the sign bit turned, negatives inverted)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    negative = (bits >> np.uint32(31)).astype(bool)
    return np.where(negative, ~bits, bits | np.uint32(1 << 31))


def _value(code: int) -> float:
    bits = np.uint32(code ^ (1 << 31) if code >> 31 else code ^ 0xFFFFFFFF)
    return float(bits.view(np.float32))


def _first_look(column: NDArray[np.float32]) -> tuple[NDArray[np.uint16], int, int, NDArray[np.float32], bool]:
    """Returns the upper bits of a block's values, its nulls and infinities, the values' ends, whether all are whole."""
    values, null = column[np.isfinite(column)], int(np.count_nonzero(np.isnan(column)))
    ends = np.array([values.min(), values.max()]) if values.size else np.empty(0, np.float32)
    whole = bool((values == np.rint(values)).all())
    return (_code(values) >> np.uint32(16)).astype(np.uint16), null, column.size - values.size - null, ends, whole


class _Column:
    """What the two passes learn of a column. Blocks are looked at in threads and added in their order."""

    def __init__(self, keeps: Sequence[Mask]) -> None:
        self.keeps = keeps
        self.upper = np.zeros(1 << 16, np.int64)
        self.null = self.infinite = 0
        self.low, self.high, self.whole = np.inf, -np.inf, True

    def add_first(
        self, upper: NDArray[np.uint16], null: int, infinite: int, ends: NDArray[np.float32], whole: bool
    ) -> None:
        np.add.at(self.upper, upper, 1)
        self.null += null
        self.infinite += infinite
        self.low, self.high = float(ends.min(initial=self.low)), float(ends.max(initial=self.high))
        self.whole &= whole

    def plan(self, cuts: Sequence[float]) -> None:
        """Decides between the passes where the bars are, and which neighbourhoods hold the quantiles."""
        self.judged = int(self.upper.sum())
        self.ends = np.cumsum(self.upper)
        self.ranks = {level: int(level * (self.judged - 1)) for level in QUANTILES} if self.judged else {}
        self.buckets = {
            level: int(np.searchsorted(self.ends, rank, side="right")) for level, rank in self.ranks.items()
        }
        self.edges = self._edges([cut for cut in cuts if self.low <= cut <= self.high])
        bars = self.edges.size - 1
        self.lower = {bucket: np.zeros(1 << 16, np.int64) for bucket in self.buckets.values()}
        self.pool = np.zeros(bars, np.int64)
        self.kept = [np.zeros(bars, np.int64) for _ in self.keeps]
        self.kept_null = [0] * len(self.keeps)

    def _edges(self, cuts: Sequence[float]) -> NDArray[np.float64]:
        if not self.judged:
            return np.array([0.0, 1.0])
        # Buckets are a hundredth of their value wide: near enough to decide where an axis ends.
        first, last = self.buckets[QUANTILES[0]], self.buckets[QUANTILES[-1]]
        low, high = max(self.low, _value(first << 16)), min(self.high, _value((last << 16) | 0xFFFF))
        reach = max(high - low, 0.0)
        start, stop = min([low, *cuts]), max([high, *cuts])
        alike = first == last  # nearly all one value: show the others
        if alike or self.low >= start - _LONG_TAIL * reach:
            start = self.low
        if alike or self.high <= stop + _LONG_TAIL * reach:
            stop = self.high
        if self.whole and max(abs(start), abs(stop)) < 1 << 24:
            # Each bar spans the same count of whole numbers; otherwise some would hold more of them than others.
            start, stop = np.floor(start), np.ceil(stop)
            width = max(1, int(np.ceil((stop - start + 1) / BARS)))
            bars = int((stop - start) // width) + 1
            return np.asarray(start - 0.5 + width * np.arange(bars + 1), np.float64)
        if start == stop:
            pad = abs(start) * 0.05 or 0.5
            return np.array([start - pad, start + pad])
        return np.linspace(start, stop, BARS + 1)

    def second_look(
        self, place: slice, column: NDArray[np.float32]
    ) -> tuple[dict[int, NDArray[np.uint16]], list[Counts], list[int]]:
        """Returns the lower bits in each neighbourhood, the bars of the pool and of each subset, and its nulls."""
        finite, null = np.isfinite(column), np.isnan(column)
        values, bars = column[finite], self.edges.size - 1
        codes = _code(values)
        upper = codes >> np.uint32(16)
        lower = {bucket: codes[upper == bucket].astype(np.uint16) for bucket in self.lower}
        start, stop = float(self.edges[0]), float(self.edges[-1])
        # In float64 and with the width divided last, so that a whole number falls into the bar around it.
        places = np.clip((values.astype(np.float64) - start) * bars / (stop - start), 0, bars - 1).astype(np.int64)
        keeps = [keep[place] for keep in self.keeps]
        counts = [np.bincount(among, minlength=bars) for among in (places, *(places[keep[finite]] for keep in keeps))]
        return lower, counts, [int(np.count_nonzero(keep & null)) for keep in keeps]

    def add_second(self, lower: Mapping[int, NDArray[np.uint16]], counts: Sequence[Counts], nulls: list[int]) -> None:
        for bucket, codes in lower.items():
            np.add.at(self.lower[bucket], codes, 1)
        for total, block in zip((self.pool, *self.kept), counts, strict=True):
            total += block
        self.kept_null = [total + block for total, block in zip(self.kept_null, nulls, strict=True)]

    def finish(self) -> Histogram:
        quantiles = dict.fromkeys(QUANTILES, float("nan"))
        for level, rank in self.ranks.items():
            bucket = self.buckets[level]
            inside = rank - (int(self.ends[bucket - 1]) if bucket else 0)
            low = int(np.searchsorted(np.cumsum(self.lower[bucket]), inside, side="right"))
            quantiles[level] = _value((bucket << 16) | low)
        return Histogram(
            judged=self.judged,
            null=self.null,
            infinite=self.infinite,
            low=self.low if self.judged else float("nan"),
            high=self.high if self.judged else float("nan"),
            quantiles=quantiles,
            edges=self.edges,
            below=bool(self.judged and self.low < self.edges[0]),
            above=bool(self.judged and self.high > self.edges[-1]),
            pool=self.pool,
            kept=self.kept,
            kept_null=self.kept_null,
        )
