"""Ways to bring scores to a common scale before they are added.

NaN (no score) stays NaN. Infinite values stay infinite and do not count in the statistics, or one of them would turn
all others into NaN. Statistics are separate from their application, so a pool of any size is read block by block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tamis.arrays import Float64s

#: `logit` is infinite at 0 and 1, so values are clipped to this distance from both.
LOGIT_MARGIN = 1e-6


@dataclass(frozen=True)
class Moments:
    """Count, extremes, mean and sum of squared deviations of some values; two of them can be merged.

    Merging follows Chan, Golub and LeVeque (1979): the blocks change the result by rounding in the last digit only,
    also where the mean is far from zero.
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
        """The standard deviation, divided by n, since the pool is the whole population."""
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0


def minmax(values: Float64s, moments: Moments) -> Float64s:
    """Returns values scaled to [0, 1] by the pool's lowest and highest; 0 where all are equal.

    One outlier rescales all others, which `rank` avoids.

    Args:
        values: (n,) scores.
        moments: of the pool's scores.

    Source: Mahmoud et al. 2024 (SIEVE), section 4.2: fusion of scores.
    """
    spread = moments.high - moments.low
    if not spread > 0:
        return np.where(np.isfinite(values), 0.0, values)
    return (values - moments.low) / spread


def zscore(values: Float64s, moments: Moments) -> Float64s:
    """Returns deviations from the pool's mean in standard deviations; 0 where all values are equal.

    Args:
        values: (n,) scores.
        moments: of the pool's scores.
    """
    if not moments.high > moments.low:  # rounding can give equal values a deviation above 0
        return np.where(np.isfinite(values), 0.0, values)
    return (values - moments.mean) / moments.deviation


def rank(values: Float64s, ordered: Float64s) -> Float64s:
    """Returns the share of the pool's other scores that are lower; equal ones count one half.

    Args:
        values: (n,) scores.
        ordered: the pool's scores without NaN, ascending.

    Returns:
        (n,) in [0, 1]: 0 for a single lowest, 1 for a single highest; 0 in a pool of one score.
    """
    if ordered.size <= 1:
        return np.where(np.isnan(values), np.nan, 0.0)
    below = np.searchsorted(ordered, values, side="left")
    equal = np.searchsorted(ordered, values, side="right") - below
    places = (below + 0.5 * (equal - 1)) / (ordered.size - 1)
    return np.where(np.isnan(values), np.nan, places)


def logit(values: Float64s) -> Float64s:
    """Returns log(p / (1 - p)) of shares p, clipped to `LOGIT_MARGIN` from 0 and 1; NaN outside [0, 1]."""
    inside = np.where((values >= 0) & (values <= 1), values, np.nan)
    shares = np.clip(inside, LOGIT_MARGIN, 1 - LOGIT_MARGIN)
    odds: Float64s = shares / (1 - shares)
    return np.log(odds)
