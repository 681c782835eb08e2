"""How often to keep each row, so that better rows repeat and the copies add up to a given number.

FLYT's code (2025, arXiv 2503.08805) draws row after row. We compute the copies that its draws give on average and round
them, so that the sum is exact and the order of rows does not matter. Scores are read in passes, block by block, and
sums are exact, so the cut into blocks does not matter either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import U64, Float64s, Rows, Times
from tamis.core.files.scratch import stored
from tamis.core.ids import uniforms

Cap = Literal["soft", "level", "hard"]
T = TypeVar("T")

#: `scan(work)` calls `work(span, rows, scores)` for each block, and yields the results in the order of blocks: the
#: slice of the block, the rows of it that have a score, (n,), and their finite scores, (n,) float64.
Scan = Callable[[Callable[[slice, Rows, Float64s], T]], Iterable[T]]

#: Rows that are sorted at once; rows that are dealt into groups at once.
HELD, _DEALT = 1 << 22, 1 << 20

#: Bins of the histogram that shows about where the level is.
_BINS = 1 << 12

#: Copies of a row at most.
MOST = int(np.iinfo(np.uint16).max)

#: Counter of the random numbers that shuffle an epoch; `train.batches` has others for crops and held-out pairs.
_ORDER = 1

#: Exact sums count in units of 2^-64.
_UNIT = 1 << 64


def exact_sum(values: Float64s) -> int:
    """Returns the sum of (n,) numbers in [0, 2^31] in units of 2^-64, rounded down each: the same in any order."""
    total = 0
    for _ in range(3):
        whole = np.floor(values)
        total = (total << 32) + int(whole.astype(np.int64).sum())
        values = (values - whole) * 2.0**32
    return total


@dataclass(frozen=True, kw_only=True)
class Copies:
    """How often a row is kept on average, by its logit: (score - origin) * scale / 2.

    Attributes:
        cap: "soft": log(1 + exp(logit - level)) / alpha, the average of FLYT's loop, which draws rows from the softmax
            without replacement and lowers the drawn ones by alpha. Proof: a row drawn at the rate exp(logit - alpha r)
            after r draws has 1 + (exp(alpha) - 1) exp(logit) t as the mean of exp(alpha r) at time t.
            "level": max(0, logit - level) / alpha, the same without draws of rows below the level.
            "hard": min(limit, exp(logit - level)), draws from the softmax with replacement up to a limit.
        alpha, limit: of the rules.
        scale: of the halves of scores, whose differences are never too large for a float.
        origin: a score near those that decide, because exp(score - level) is wrong where both are large.
        level: set so that the copies add up to the number wanted.
    """

    cap: Cap = "soft"
    alpha: float = 0.15
    limit: int = 15
    scale: float = 2.0
    origin: float = 0.0
    level: float = 0.0

    def of(self, scores: Float64s) -> Float64s:
        """Returns how often to keep rows: (n,) from their scores (n,)."""
        return self._with_slope(scores)[0]

    @np.errstate(over="ignore", under="ignore")
    def _with_slope(self, scores: Float64s) -> tuple[Float64s, Float64s]:
        """Returns how often to keep rows, and by how much less for a level that is higher by one, to first order."""
        above = (0.5 * scores - 0.5 * self.origin) * self.scale - self.level
        if self.cap == "soft":
            return np.logaddexp(0.0, above) / self.alpha, (0.5 + 0.5 * np.tanh(0.5 * above)) / self.alpha
        if self.cap == "level":
            return np.maximum(0.0, above) / self.alpha, (above > 0) / self.alpha
        draws = np.exp(above)
        return np.minimum(draws, float(self.limit)), np.where(draws < self.limit, draws, 0.0)

    def sums(self, scores: Float64s) -> tuple[int, int, float]:
        """Returns the exact sums of copies and of slopes, and the highest score below the limit."""
        counts, slopes = (np.minimum(values, 2.0**31) for values in self._with_slope(scores))
        return exact_sum(counts), exact_sum(slopes), self._highest(scores, counts)

    def _highest(self, scores: Float64s, counts: Float64s) -> float:
        """Returns the highest score of rows that can have more copies."""
        return float(scores.max(initial=-np.inf, where=counts < self.limit))

    def _nearer(self, excess: float, slope: float, top: float, safe: Copies) -> Copies:
        """Returns a level nearer to where the excess is 0, by Newton's method from one with an excess of copies."""
        if self.cap != "hard":  # convex and falling: from the left of the root a step never passes it
            return replace(self, level=max(self.level + excess / slope, safe.level))
        # Rows below the limit share what those at the limit leave. More rows reach it as the level falls.
        if (rest := slope - excess) <= 0:
            return safe
        return replace(self, level=self.level + np.log(slope / rest)) if slope else replace(self, origin=top, level=0.0)

    def solve(self, safe: Copies, measure: Callable[[Copies], tuple[float, float, float]]) -> Copies:
        """Returns the level without an excess. `measure` returns excess, slope and the highest score below the limit.

        `safe`: a level from which each step is nearer than the one before.
        """
        rule = self
        for _ in range(100):
            excess, slope, top = measure(rule)
            if abs(excess) <= slope * (1e-12 + 1e-15 * abs(rule.level)):
                break
            rule = rule._nearer(excess, slope, top, safe)
        return rule


@dataclass(frozen=True)
class Spread:
    """Scores of a pool: how many, the lowest, the highest, counts in bins of equal width, the deviation of halves."""

    count: int
    low: float
    high: float
    bins: NDArray[np.int64]
    deviation: float

    @classmethod
    def of(cls, scan: Scan[Any]) -> Spread:
        """Reads the scores three times."""
        ends = [*scan(lambda _, rows, scores: (rows.size, scores.min(initial=np.inf), scores.max(initial=-np.inf)))]
        count = sum(size for size, _, _ in ends)
        low, high = min((low for _, low, _ in ends), default=np.inf), max((high for *_, high in ends), default=-np.inf)
        bins, width = np.zeros(_BINS, np.int64), 0.5 * high - 0.5 * low
        if not low < high:
            bins[0] = count
            return cls(count, low, high, bins, 0.0)

        def shares(scores: Float64s) -> Float64s:
            return np.asarray((0.5 * scores - 0.5 * low) / width)

        def look(_: slice, rows: Rows, scores: Float64s) -> tuple[int, NDArray[np.int64]]:
            some = shares(scores)
            return exact_sum(some), np.bincount(np.minimum(some * _BINS, _BINS - 1).astype(np.int64), minlength=_BINS)

        total = 0
        for some, counts in scan(look):
            total += some
            bins += counts
        mean = total / (count * _UNIT)
        squares = sum(scan(lambda _, rows, scores: exact_sum((shares(scores) - mean) ** 2)))
        return cls(count, low, high, bins, width * np.sqrt(squares / (count * _UNIT)))


def average_copies(scan: Scan[Any], spread: Spread, copies: int, rule: Copies, std: float | None = None) -> Copies:
    """Returns a rule whose counts of all rows add up to `copies`: the level is solved for, in some two or three passes.

    Args:
        scan: reads scores.
        spread: of the same scores, at least one.
        copies: at least 1; for "hard" at most limit times the number of rows.
        rule: cap, alpha and limit.
        std: scores are scaled to this standard deviation; None: not scaled.
    """
    count, low, high = spread.count, spread.low, spread.high
    rule = replace(rule, origin=high, scale=std / (spread.deviation or 1.0) if std is not None else 2.0)
    # A level with too many copies: of one row, or of all. With "hard", one with too few.
    least, each = (0.5 * low - 0.5 * high) * rule.scale, rule.alpha * copies
    level = np.log(count / copies) if rule.cap == "hard" else max(-each, least - 2 * each / count) - 1
    safe = replace(rule, level=float(level))
    some = np.flatnonzero(spread.bins)
    weights = spread.bins[some]
    centres = 2 * (0.5 * low + (some + 0.5) / _BINS * (0.5 * high - 0.5 * low))
    centres[-1] = high  # or no row would lie above some levels

    def in_bins(rule: Copies) -> tuple[float, float, float]:
        counts, slopes = rule._with_slope(centres)
        return float(counts @ weights) - copies, float(slopes @ weights), rule._highest(centres, counts)

    def exactly(rule: Copies) -> tuple[float, float, float]:
        total, slopes, top = 0, 0, -np.inf
        for some, more, highest in scan(lambda _, rows, scores: rule.sums(scores)):
            total, slopes, top = total + some, slopes + more, max(top, highest)
        return (total - copies * _UNIT) / _UNIT, slopes / _UNIT, top

    return safe.solve(safe, in_bins).solve(safe, exactly)


@dataclass(frozen=True)
class Drawn:
    """How often each row is kept: (rows,), read by slices; the largest number, and the lowest score that is kept."""

    times: Any
    most: int = 0
    lowest: float = np.inf


def whole_copies(
    scan: Scan[Any], order: Callable[[slice, Rows], U64], rows: int, count: int, copies: int, rule: Copies
) -> Drawn:
    """Rounds counts up or down so that they add up to `copies`; the fraction is the chance to be rounded up.

    Systematic sampling in the order of random numbers, usually scrambled uids; its start depends on them too. Rows are
    dealt into groups by the highest bits of these numbers, and one group after the other is sorted.

    Args:
        scan: reads scores.
        order: returns the random numbers of some rows, from the slice of their block and their numbers in it. Rows with
            equal numbers go by score.
        rows: of all blocks.
        count: rows with a score.
        copies: their sum.
        rule: how often to keep each of them on average; at most 65,535.

    Cost: a pass, of more than `HELD` rows two. Memory: 30 bytes for each of `HELD` rows; 21 bytes per row are stored.
    """
    bits = (max(count - 1, 0) // HELD).bit_length()

    groups, shift = 1 << bits, np.uint64(63 - bits)

    def group_of(numbers: U64) -> Rows:
        return (numbers >> np.uint64(1) >> shift).view(np.int64)

    def count_groups(span: slice, inside: Rows, _: Float64s) -> Rows:
        return np.bincount(group_of(order(span, inside)), minlength=groups)

    def draw(span: slice, inside: Rows, scores: Float64s) -> tuple[slice, Rows, U64, Float64s, Times, int]:
        counts = np.minimum(rule.of(scores), MOST)  # rounding
        some = counts > 0
        inside, scores, counts = inside[some], scores[some], counts[some]
        whole = np.floor(counts)
        return span, inside, order(span, inside), scores, whole.astype(np.uint16), exact_sum(counts - whole)

    # Each row that may be drawn goes to the next place of its group: its number and score, then if it is rounded up.
    # Of a row only the group is stored: the same order of rows finds its place again.
    sizes = sum(scan(count_groups), np.zeros(groups, np.int64)) if bits else np.array([count])
    first = np.cumsum(sizes) - sizes
    dealt, up = stored(count, np.dtype([("order", np.uint64), ("score", np.float64)])), stored(count, np.uint8)
    times, group = stored(rows, np.uint16), stored(rows, np.uint16)  # the number of the group counts from 1
    mixed, total, sure, lowest, free = 0, 0, 0, np.inf, first.copy()
    for span, inside, numbers, scores, whole, fractions in _joined(scan(draw)):
        mixed ^= int(np.bitwise_xor.reduce(numbers, initial=np.uint64(0)))
        total, sure = total + fractions, sure + int(whole.sum(dtype=np.int64))
        lowest = min(lowest, float(scores[whole > 0].min(initial=np.inf)))
        own = np.zeros((2, span.stop - span.start), np.uint16)
        own[:, inside] = whole, group_of(numbers) + 1
        times[span], group[span] = own
        some = np.empty(numbers.size, dealt.dtype)
        some["order"], some["score"] = numbers, scores
        for place, part in _places(own[1, inside], free):
            dealt[place] = some[part]

    extra, start, passed, ups = copies - sure, (mixed >> 11) * 2.0**-53, 0, 0
    last = max(np.flatnonzero(free > first), default=-1)
    for number, (low, high) in enumerate(zip(first.tolist(), free.tolist(), strict=True)):
        some = dealt[low:high]
        ranked = np.argsort(some["order"], kind="stable")
        if (np.diff(some["order"][ranked]) == 0).any():
            ranked = np.lexsort((some["score"], some["order"]))
        counts = np.minimum(rule.of(some["score"][ranked]), MOST)
        counts -= np.floor(counts)
        until = (passed / _UNIT + np.cumsum(counts)) * (extra * _UNIT / max(total, 1))
        passed += exact_sum(counts)
        until = np.clip(np.floor(np.round(until, 6) + start), ups, max(extra, 0))  # without errors of rounding
        until[-1:] = max(extra, 0) if number == last else until[-1:]
        more = np.zeros(ranked.size, np.uint8)
        more[ranked] = np.diff(until, prepend=ups)
        ups = until.max(initial=ups)
        up[low:high] = more
        lowest = min(lowest, float(some["score"][more > 0].min(initial=np.inf)))

    most, free = 0, first.copy()
    for low in range(0, rows, _DEALT):
        span = slice(low, min(low + _DEALT, rows))
        own, often = group[span], times[span]
        inside = np.flatnonzero(own)
        for place, part in _places(own[inside], free):
            often[inside[part]] += up[place]
        times[span], most = often, max(most, int(often.max()))
    return Drawn(times, most, lowest)


def shuffled_copies(
    high: U64, low: U64, times: NDArray[np.integer[Any]], *, seed: int, epoch: int
) -> tuple[Rows, Rows]:
    """Shuffles an epoch: the numbers of rows, each repeated `times`, and the number of each copy, from 0.

    Args:
        high, low: (n,) halves of the uids.
        times: (n,) how often each row is in the epoch.
        seed, epoch: decide the order, together with uid and copy.

    Cost: 0.3 s and 50 MB for a million rows.
    """
    rows = np.repeat(np.arange(times.size, dtype=np.int64), times)
    copies = np.arange(rows.size, dtype=np.int64) - np.repeat(np.cumsum(times, dtype=np.int64) - times, times)
    counters = [np.full(rows.size, _ORDER), np.full(rows.size, epoch), copies]
    order = np.argsort(uniforms(high[rows], low[rows], seed=seed, counters=counters), kind="stable")
    return rows[order], copies[order]


def _places(groups: NDArray[np.uint16], free: Rows) -> Iterator[tuple[slice, Rows]]:
    """Yields for each group the next places for its rows, which are then taken, and the rows, ascending."""
    rows, start = np.argsort(groups, kind="stable"), 0
    for group, size in enumerate(np.bincount(groups, minlength=free.size + 1)[1:].tolist()):
        if size:
            yield slice(int(free[group]), int(free[group]) + size), rows[start : start + size]
            start, free[group] = start + size, free[group] + size


def _joined(blocks: Iterable[Any]) -> Iterator[Any]:
    """Yields what is drawn of blocks, of several small ones together."""
    held: list[Any] = []
    for block in blocks:
        held.append(block)
        if block[0].stop - held[0][0].start >= _DEALT:
            yield _join(held)
            held = []
    if held:
        yield _join(held)


def _join(blocks: list[Any]) -> Any:
    spans, inside, *columns, fractions = zip(*blocks, strict=True)
    start = spans[0].start
    rows = np.concatenate([some + (span.start - start) for span, some in zip(spans, inside, strict=True)])
    return slice(start, spans[-1].stop), rows, *map(np.concatenate, columns), sum(fractions)
