"""Distributions of number columns, exactly, of tables that do not fit into memory.

Two passes over the blocks. The first counts the upper 16 bits of every value's order-preserving code, which gives the
ends, the nulls and the neighbourhood of each quantile; the second counts the lower 16 bits in those neighbourhoods
(a radix select: the quantiles are exact) and fills the bars. Memory: a few MB per column, whatever the rows. A block
hands over the 16 bits themselves: 65,536 counts for each column and neighbourhood of a small shard are mostly zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
        low, high: the smallest and the largest finite value; NaN where there is none.
        quantiles: level to value, the values being ones that occur (the lower of two where they differ).
        edges: (bars + 1,) where the bars begin and end.
        below, above: True where the first (last) bar also holds everything beyond its edge.
        pool: (bars,) how many rows.
        kept: per subset (bars,), how many of them it keeps.
        kept_null: per subset, how many kept rows have no value.
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
    kept: tuple[Counts, ...]
    kept_null: tuple[int, ...]

    def place(self, value: float) -> float:
        """Returns where a value lies between the first and the last edge: 0 to 1, clamped."""
        start, stop = float(self.edges[0]), float(self.edges[-1])
        return min(1.0, max(0.0, (value - start) / (stop - start))) if stop > start else 0.5


@dataclass
class _Looked:
    """What the first pass says of a block: the upper bits of its values, and its ends where it has any values."""

    upper: NDArray[np.uint16]
    null: int
    infinite: int
    low: float = np.inf
    high: float = -np.inf
    whole: bool = True


@dataclass
class _First:
    """What the first pass says of a column."""

    upper: Counts = field(default_factory=lambda: np.zeros(1 << 16, np.int64))
    null: int = 0
    infinite: int = 0
    low: float = np.inf
    high: float = -np.inf
    whole: bool = True

    def add(self, block: _Looked) -> None:
        np.add.at(self.upper, block.upper, 1)
        self.null += block.null
        self.infinite += block.infinite
        self.low, self.high = min(self.low, block.low), max(self.high, block.high)
        self.whole &= block.whole


def histograms(
    table: Table, names: Sequence[str], keeps: Sequence[Mask], cuts: Mapping[str, Sequence[float]] | None = None
) -> dict[str, Histogram]:
    """Returns the distribution of number columns.

    Args:
        table: the pool's rows.
        names: the columns; float32 with NaN for null.
        keeps: (rows,) bool for each subset.
        cuts: values by column that must be on the axis even where they lie in a long tail.

    Returns:
        A histogram for every name.
    """
    if not names:
        return {}
    firsts = {name: _First() for name in names}
    for found in table.map(names, lambda _, columns: {name: _look(columns[name]) for name in names}):
        for name, part in found.items():
            firsts[name].add(part)
    plans = {name: _Plan(first, [*(cuts or {}).get(name, ())]) for name, first in firsts.items()}

    def fill(place: slice, columns: dict[str, Any]) -> dict[str, _Filled]:
        return {name: plan.fill(columns[name], [keep[place] for keep in keeps]) for name, plan in plans.items()}

    seconds = {name: plan.empty(len(keeps)) for name, plan in plans.items()}
    for filled in table.map(names, fill):
        for name, second in filled.items():
            seconds[name].add(second)
    return {name: plans[name].finish(seconds[name]) for name in names}


def _code(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Returns whole numbers that lie in the same order as the floats (the sign bit turned, negatives inverted)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    negative = (bits >> np.uint32(31)).astype(bool)
    return np.where(negative, ~bits, bits | np.uint32(1 << 31))


def _value(code: int) -> float:
    bits = np.uint32(code ^ (1 << 31) if code >> 31 else code ^ 0xFFFFFFFF)
    return float(bits.view(np.float32))


def _look(column: NDArray[np.float32]) -> _Looked:
    values = column[np.isfinite(column)]
    null = int(np.count_nonzero(np.isnan(column)))
    looked = _Looked((_code(values) >> np.uint32(16)).astype(np.uint16), null, column.size - values.size - null)
    if values.size:
        looked.low, looked.high = float(values.min()), float(values.max())
        looked.whole = bool((values == np.rint(values)).all())
    return looked


@dataclass
class _Filled:
    """What the second pass says of a block: the lower bits of its values in each neighbourhood, and its bars."""

    lower: dict[int, NDArray[np.uint16]]
    pool: Counts
    kept: list[Counts]
    kept_null: list[int]


@dataclass
class _Second:
    """What the second pass says of a column."""

    lower: dict[int, Counts]
    pool: Counts
    kept: list[Counts]
    kept_null: list[int]

    def add(self, block: _Filled) -> None:
        for bucket, codes in block.lower.items():
            np.add.at(self.lower[bucket], codes, 1)
        self.pool += block.pool
        for mine, theirs in zip(self.kept, block.kept, strict=True):
            mine += theirs
        self.kept_null = [mine + theirs for mine, theirs in zip(self.kept_null, block.kept_null, strict=True)]


class _Plan:
    """What the second pass does with a column."""

    def __init__(self, first: _First, cuts: Sequence[float]) -> None:
        self.first = first
        self.judged = int(first.upper.sum())
        self.ends = np.cumsum(first.upper)
        self.ranks = {level: int(level * (self.judged - 1)) for level in QUANTILES} if self.judged else {}
        self.buckets = {level: self._bucket(rank) for level, rank in self.ranks.items()}
        self.edges, self.below, self.above = self._axis([cut for cut in cuts if first.low <= cut <= first.high])

    def _bucket(self, rank: int) -> int:
        return int(np.searchsorted(self.ends, rank, side="right"))

    def _axis(self, cuts: Sequence[float]) -> tuple[NDArray[np.float64], bool, bool]:
        first = self.first
        if not self.judged:
            return np.array([0.0, 1.0]), False, False
        # Buckets are a hundredth of their value wide: near enough for where an axis ends.
        low = max(first.low, _value(self.buckets[QUANTILES[0]] << 16))
        high = min(first.high, _value((self.buckets[QUANTILES[-1]] << 16) | 0xFFFF))
        reach = max(high - low, 0.0)
        start, stop = min([low, *cuts]), max([high, *cuts])
        alike = self.buckets[QUANTILES[0]] == self.buckets[QUANTILES[-1]]  # nearly all one value: show the others
        if alike or first.low >= start - _LONG_TAIL * reach:
            start = first.low
        if alike or first.high <= stop + _LONG_TAIL * reach:
            stop = first.high
        if first.whole and max(abs(start), abs(stop)) < 1 << 24:
            # Bars of a whole number of whole numbers each: others would hold now more, now fewer of them.
            start, stop = np.floor(start), np.ceil(stop)
            width = max(1, int(np.ceil((stop - start + 1) / BARS)))
            bars = int((stop - start) // width) + 1
            edges = start - 0.5 + width * np.arange(bars + 1, dtype=np.float64)
        elif start == stop:
            pad = abs(start) * 0.05 or 0.5
            edges = np.array([start - pad, start + pad])
        else:
            edges = np.linspace(start, stop, BARS + 1)
        return edges, bool(first.low < edges[0]), bool(first.high > edges[-1])

    def empty(self, subsets: int) -> _Second:
        bars = self.edges.size - 1
        return _Second(
            {bucket: np.zeros(1 << 16, np.int64) for bucket in set(self.buckets.values())},
            np.zeros(bars, np.int64),
            [np.zeros(bars, np.int64) for _ in range(subsets)],
            [0] * subsets,
        )

    def fill(self, column: NDArray[np.float32], keeps: Sequence[Mask]) -> _Filled:
        finite = np.isfinite(column)
        values, bars = column[finite], self.edges.size - 1
        codes = _code(values)
        upper = codes >> np.uint32(16)
        lower = {bucket: codes[upper == bucket].astype(np.uint16) for bucket in set(self.buckets.values())}
        start, stop = float(self.edges[0]), float(self.edges[-1])
        # In float64 and with the width divided last, so that a whole number falls into the bar around it.
        places = np.clip((values.astype(np.float64) - start) * bars / (stop - start), 0, bars - 1).astype(np.int64)
        null = np.isnan(column)
        return _Filled(
            lower,
            np.bincount(places, minlength=bars),
            [np.bincount(places[keep[finite]], minlength=bars) for keep in keeps],
            [int(np.count_nonzero(keep & null)) for keep in keeps],
        )

    def finish(self, second: _Second) -> Histogram:
        quantiles = {}
        for level, rank in self.ranks.items():
            bucket = self.buckets[level]
            inside = rank - (int(self.ends[bucket - 1]) if bucket else 0)
            low = int(np.searchsorted(np.cumsum(second.lower[bucket]), inside, side="right"))
            quantiles[level] = _value((bucket << 16) | low)
        return Histogram(
            judged=self.judged,
            null=self.first.null,
            infinite=self.first.infinite,
            low=self.first.low if self.judged else float("nan"),
            high=self.first.high if self.judged else float("nan"),
            quantiles=quantiles or dict.fromkeys(QUANTILES, float("nan")),
            edges=self.edges,
            below=self.below,
            above=self.above,
            pool=second.pool,
            kept=tuple(second.kept),
            kept_null=tuple(second.kept_null),
        )
