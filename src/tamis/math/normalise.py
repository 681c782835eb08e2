"""Ways to put scores of different scales side by side before they are added.

Each takes the pool's judged values (NaN marks a row that was not judged) and leaves NaN where it was. An infinite
value stays infinite and is left out of the statistics, so that one of them does not make NaN of all others. The
statistics are split from their application, so that a pool of any size is read block by block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tamis.arrays import Float64s

#: `logit` is infinite at 0 and 1; values closer to either than this are moved to it.
LOGIT_MARGIN = 1e-6


@dataclass(frozen=True)
class Moments:
    """Count, extremes, mean and sum of squared deviations of a set of values; two of them can be merged.

    Merging follows Chan, Golub and LeVeque (1979), so the result does not depend on how the values were cut
    into blocks beyond rounding in the last digit, and stays exact where the mean is far from zero.
    """

    count: int = 0
    low: float = np.inf
    high: float = -np.inf
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Float64s) -> Moments:
        """Returns the moments of the values that are finite."""
        judged = values[np.isfinite(values)]
        if judged.size == 0:
            return cls()
        mean = float(judged.mean())
        return cls(
            count=judged.size,
            low=float(judged.min()),
            high=float(judged.max()),
            mean=mean,
            squares=float(np.square(judged - mean).sum()),
        )

    def merged(self, other: Moments) -> Moments:
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
        """The standard deviation of the whole set (division by n, since the pool is all there is)."""
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0


def minmax(values: Float64s, moments: Moments) -> Float64s:
    """Returns values moved to [0, 1] by the pool's lowest and highest (SIEVE, section 4.2: fusion of scores).

    One outlier rescales everybody: `rank` does not have that weakness. All values equal: 0.
    """
    spread = moments.high - moments.low
    if not spread > 0:
        return np.where(np.isfinite(values), 0.0, values)
    return (values - moments.low) / spread


def zscore(values: Float64s, moments: Moments) -> Float64s:
    """Returns values as deviations from the pool's mean, in standard deviations. All values equal: 0."""
    if not moments.high > moments.low:  # the deviation of equal values is often a rounding error above 0
        return np.where(np.isfinite(values), 0.0, values)
    return (values - moments.mean) / moments.deviation


def rank(values: Float64s, ordered: Float64s) -> Float64s:
    """Returns the share of the pool's other judged values that lie below, equal ones counted half.

    Args:
        values: (n,) values to place.
        ordered: the pool's judged values, ascending.

    Returns:
        (n,) in [0, 1]: 0 for a single lowest, 1 for a single highest. NaN stays NaN. A pool of one value: 0.
    """
    if ordered.size <= 1:
        return np.where(np.isnan(values), np.nan, 0.0)
    below = np.searchsorted(ordered, values, side="left")
    equal = np.searchsorted(ordered, values, side="right") - below
    places = (below + 0.5 * (equal - 1)) / (ordered.size - 1)
    return np.where(np.isnan(values), np.nan, places)


def logit(values: Float64s) -> Float64s:
    """Returns log(p / (1 - p)) of shares p, moved off 0 and 1 by `LOGIT_MARGIN`. NaN outside [0, 1]."""
    inside = np.where((values >= 0) & (values <= 1), values, np.nan)
    shares = np.clip(inside, LOGIT_MARGIN, 1 - LOGIT_MARGIN)
    odds: Float64s = shares / (1 - shares)
    return np.log(odds)
