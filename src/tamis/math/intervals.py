"""95 % intervals of measured numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Z = 1.959963984540054  # the normal distribution's 97.5 % quantile


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval.

    Attributes:
        value: the measured number.
        low, high: ends of the interval.
        n: number of observations.
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share(hits: int, n: int) -> Estimate:
    """Returns a share with Wilson's interval, which stays inside [0, 1] and is right for shares near 0 and 1.

    Args:
        hits: observations that count.
        n: all observations.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    Raises:
        ValueError: there are no observations, or more hits than observations.
    """
    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"expected 0 <= hits <= n and n > 0, got {hits} of {n}")
    p = hits / n
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    # Exactly 0 and 1 at the ends, where the formula rounds.
    return Estimate(p, centre - half if hits else 0.0, centre + half if hits < n else 1.0, n)


def bootstrap(statistic: Callable[..., float], *samples: NDArray[Any], draws: int = 1000, seed: int = 0) -> Estimate:
    """Returns a statistic of one or several independent samples with its percentile-bootstrap interval.

    Args:
        statistic: function of as many arrays as there are samples.
        samples: one-dimensional arrays, each resampled with replacement on its own.
        draws: number of resamples.
        seed: of the draws.

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13.

    Raises:
        ValueError: a sample is empty.
    """
    if not samples or any(len(sample) == 0 for sample in samples):
        raise ValueError("a bootstrap needs at least one observation of each sample")
    rng = np.random.default_rng(seed)
    values = [
        statistic(*(sample[rng.integers(0, len(sample), len(sample))] for sample in samples)) for _ in range(draws)
    ]
    low, high = np.quantile(values, (0.025, 0.975))
    return Estimate(float(statistic(*samples)), float(low), float(high), sum(len(sample) for sample in samples))


def mean(values: Sequence[float]) -> Estimate:
    """Returns a mean with Student's interval: mean ± t · s / sqrt(n), s with n - 1.

    It is right for few observations that are about normal, as scores over seeds are. To compare two methods with the
    same seeds, take the mean of their differences.

    Args:
        values: n observations, at least two.

    Source: Gosset ("Student") 1908, "The probable error of a mean".

    Raises:
        ValueError: there are fewer than two values.
        ImportError: SciPy is not installed.
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        raise ValueError(f"an interval of a mean needs at least 2 values, got {n}")
    centre = sum(values) / n
    half = float(stdtrit(n - 1, 0.975)) * sqrt(sum((value - centre) ** 2 for value in values) / (n - 1) / n)
    return Estimate(centre, centre - half, centre + half, n)
