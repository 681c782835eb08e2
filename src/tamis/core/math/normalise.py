"""Scale scores so that they can be added, or so that texts of any length compare.

NaN (no score) stays NaN. Infinite values stay infinite and do not count in the statistics, or one of them would turn
all others into NaN. Statistics are separate from their application, so a pool of any size is read block by block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Float64s, Floats

Integers = NDArray[np.integer]

#: Scores that are held at once before they are counted.
_HELD = 1 << 22

#: Lengths with fewer texts are pooled with their neighbours.
LEAST = 100

#: Scores per length are clipped to this distance from 0 and 1, or the logit of one perfect reconstruction would
#: dominate the mean of its length. One character in a hundred is about the finest step of captions.
MARGIN = 0.01

#: `logit` is infinite at 0 and 1, so values are clipped to this distance from both.
LOGIT_MARGIN = 1e-6


@dataclass(frozen=True)
class Moments:
    """Count, extremes, mean and sum of squared deviations of some values.

    Two are merged as in Chan, Golub and LeVeque 1979: the blocks change only the last digit, wherever the mean is.
    """

    count: int = 0
    low: float = np.inf
    high: float = -np.inf
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Float64s) -> Moments:
        """Returns the moments of the finite values."""
        finite = values[np.isfinite(values)]
        if finite.size == 0:
            return cls()
        mean = float(finite.mean())
        squares = float(np.square(finite - mean).sum())
        return cls(finite.size, float(finite.min()), float(finite.max()), mean, squares)

    def merge(self, other: Moments) -> Moments:
        """Returns the moments of both sets together."""
        count = self.count + other.count
        if count == 0:
            return self
        shift = other.mean - self.mean
        return Moments(
            count=count,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            mean=self.mean + shift * other.count / count,
            squares=self.squares + other.squares + shift * shift * self.count * other.count / count,
        )

    @property
    def deviation(self) -> float:
        """The standard deviation, divided by n, since the pool is the whole population."""
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0


def extremes(values: Float64s) -> tuple[float, float]:
    """Returns the lowest and the highest finite value; infinity and -infinity if there is none."""
    finite = values if (some := np.isfinite(values)).all() else values[some]
    return float(finite.min(initial=np.inf)), float(finite.max(initial=-np.inf))


def minmax(values: Float64s, low: float, high: float) -> Float64s:
    """Returns values scaled to [0, 1] by the pool's lowest and highest, so one outlier rescales all; 0 where all are
    equal.

    Source: Mahmoud et al. 2024 (SIEVE), section 4.2: fusion of scores.
    """
    if not high > low:
        return np.where(np.isfinite(values), 0.0, values)
    scaled = values - low
    scaled /= high - low
    return scaled


def zscore(values: Float64s, moments: Moments) -> Float64s:
    """Returns deviations from the pool's mean in standard deviations; 0 where all values are equal."""
    if not moments.high > moments.low:  # rounding can give equal values a deviation above 0
        return np.where(np.isfinite(values), 0.0, values)
    return (values - moments.mean) / moments.deviation


class Ranks:
    """Which share of a pool's other scores is lower than each score; equal ones count one half.

    Attributes:
        values: (m,) the pool's distinct scores, ascending.
        below: (m + 1,) int64, how many of the pool's scores are lower than each; the last is the number of all.

    Memory: for each distinct score its size and 8 bytes, at most three times as much while it is made. A column of any
        length has some 10 million different float32 numbers in each range from a number to its double.
    """

    def __init__(self, parts: Iterable[Floats]) -> None:
        """Counts the scores of all parts, (n,) each, of one dtype; NaN does not count."""
        self.values, counts = np.empty(0, np.float32), np.empty(0, np.int64)
        held: list[Floats] = []
        waiting = 0

        def count() -> None:
            nonlocal counts, waiting
            some, times = np.unique(np.concatenate(held), return_counts=True)
            held.clear()
            waiting = 0
            self.values = self.values.astype(some.dtype, copy=False)
            places = np.asarray(np.searchsorted(self.values, some))
            new = np.append(self.values, self.values.dtype.type(np.nan))[places] != some
            counts[places[~new]] += times[~new]
            self.values = np.insert(self.values, places[new], some[new])
            counts = np.insert(counts, places[new], times[new])

        for part in parts:
            held.append(part[~np.isnan(part)])
            waiting += held[-1].size
            if waiting >= max(_HELD, self.values.size // 2):
                count()
        if held:
            count()
        self.below = np.concatenate([[0], np.cumsum(counts)])

    def of(self, values: Floats) -> Float64s:
        """Returns the ranks of some of the pool's scores, (n,): (n,) in [0, 1], NaN for NaN.

        A single lowest score has 0, a single highest 1; the score of a pool of one has 0.
        """
        order = np.argsort(values)  # ascending lookups stay in the processor's cache: ten times as fast
        ascending = values[order]
        place = np.minimum(np.searchsorted(self.values, ascending), max(self.values.size - 1, 0))  # NaN is the last
        below = self.below[place]
        equal = self.below[np.minimum(place + 1, self.values.size)] - below
        places = np.empty(values.size)
        places[order] = np.where(np.isnan(ascending), np.nan, (below + 0.5 * (equal - 1)) / max(self.below[-1] - 1, 1))
        return places


def logit(values: Float64s, margin: float = LOGIT_MARGIN) -> Float64s:
    """Returns log(p / (1 - p)) of shares p, clipped to `margin` from 0 and 1; NaN outside [0, 1]."""
    inside = np.where((values >= 0) & (values <= 1), values, np.nan)
    shares = np.clip(inside, margin, 1 - margin)
    odds: Float64s = shares / (1 - shares)
    return np.log(odds)


@dataclass(frozen=True)
class PerLength:
    """Mean and standard deviation of the logits of the scores of texts, in groups of about equal length.

    Attributes:
        starts: (m,) ascending: the shortest length of each group, which extends to the next start.
        means, deviations: (m,) of the logits in each group.
    """

    starts: tuple[int, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    @classmethod
    def of(cls, scores: Float64s, lengths: Integers, *, least: int = LEAST) -> PerLength:
        """Measures (n,) scores in [0, 1] by lengths in any unit: words, tokens, characters; NaN is ignored.

        Lengths with less than `least` texts are pooled with the next longer, the last with shorter ones. Raises
        ValueError if shapes differ, a score is outside [0, 1], or all are NaN.
        """
        _check(scores, lengths)
        present = np.isfinite(scores)
        if not present.any():
            raise ValueError("no score to standardise by: all of them are missing")
        logits, known = logit(np.asarray(scores[present], np.float64), MARGIN), np.asarray(lengths)[present]
        distinct, counts = np.unique(known, return_counts=True)
        starts: list[int] = []
        gathered = least  # the first length opens a group
        for length, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            if gathered >= least:
                starts.append(length)
                gathered = 0
            gathered += count
        if gathered < least and len(starts) > 1:
            starts.pop()
        groups = _group(np.array(starts), known)
        members = np.bincount(groups, minlength=len(starts))
        means = np.bincount(groups, logits, len(starts)) / members
        squares = np.bincount(groups, (logits - means[groups]) ** 2, len(starts))
        deviations = np.sqrt(squares / members)
        return cls(tuple(starts), tuple(means.tolist()), tuple(deviations.tolist()))

    def standardise(self, scores: Float64s, lengths: Integers) -> Float64s:
        """Returns scores whose distribution is the same at every length: (n,) float64 in (0, 1), NaN where the score
        is.

        Logits are standardised by the mean and deviation of their group (0.5 where all are equal), and mapped back by
        the inverse logit: normal logits become logit-normal scores with parameters 0 and 1. The order within a group
        stays. A length that was not measured counts as the next shorter one that was, else as the shortest. Raises
        ValueError if shapes differ, or a score is outside [0, 1].

        Source: Yanuka et al. 2024 (ICC), appendix A.1.
        """
        _check(scores, lengths)
        groups = _group(np.array(self.starts), np.asarray(lengths))
        deviations = np.array(self.deviations)[groups]
        distances = logit(np.asarray(scores, np.float64), MARGIN) - np.array(self.means)[groups]
        equal = np.where(np.isnan(distances), np.nan, 0.0)
        # Rounding gives equal scores a deviation just above 0.
        standard = np.divide(distances, deviations, out=equal, where=deviations > 1e-9)
        return inverse_logit(standard)


def inverse_logit(values: Float64s) -> Float64s:
    """Returns 1 / (1 + exp(-x)), without overflow: in [0, 1], NaN where x is."""
    return np.asarray(0.5 * (1 + np.tanh(np.asarray(values, np.float64) / 2)))


def _group(starts: Integers, lengths: Integers) -> NDArray[np.intp]:
    return np.maximum(np.searchsorted(starts, lengths, side="right") - 1, 0)


def _check(scores: Float64s, lengths: Integers) -> None:
    if scores.shape != lengths.shape or scores.ndim != 1:
        raise ValueError(f"every score needs a length: got shapes {scores.shape} and {lengths.shape}")
    with np.errstate(invalid="ignore"):
        outside = (scores < 0) | (scores > 1)
    if outside.any():
        raise ValueError(f"scores to standardise must be in [0, 1], got {scores[outside][0]:g}: clip them first")
