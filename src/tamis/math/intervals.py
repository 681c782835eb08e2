"""How sure a measured number is: 95 % intervals."""

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
        n: how many observations it rests on.
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share(hits: int, n: int) -> Estimate:
    """Returns a share with Wilson's interval, which stays inside [0, 1] and is right for shares near its ends.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    Raises:
        ValueError: there are no observations, or more hits than observations.
    """
    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"expected 0 <= hits <= n and n > 0, got {hits} of {n}")
    p = hits / n
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    # At the ends the formula gives 0 and 1 but for rounding.
    return Estimate(p, centre - half if hits else 0.0, centre + half if hits < n else 1.0, n)


def bootstrap(statistic: Callable[..., float], *samples: NDArray[Any], draws: int = 1000, seed: int = 0) -> Estimate:
    """Returns a statistic of one or several independent samples with its percentile-bootstrap interval.

    Args:
        statistic: takes as many arrays as there are samples.
        samples: one-dimensional, each drawn from with replacement on its own.
        draws: how many times.
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


#: Student's 97.5 % quantiles for 1, 2, ... degrees of freedom. Source: Gosset 1908, as any table has them.
_T = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139)


def student(degrees: int) -> float:
    """Returns the 97.5 % quantile of Student's t: from a table up to 10 degrees of freedom, then to four digits.

    Source: Abramowitz and Stegun 1964, 26.7.5.

    Raises:
        ValueError: there are no degrees of freedom.
    """
    if degrees < 1:
        raise ValueError(f"Student's t needs at least 1 degree of freedom, got {degrees}")
    if degrees <= len(_T):
        return _T[degrees - 1]
    z, n = _Z, float(degrees)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92_160 * n**4)
    )


def mean(values: Sequence[float]) -> Estimate:
    """Returns a mean with Student's interval: mean ± t · s / sqrt(n), s with n - 1.

    It holds for few observations if they are about normal, as scores over seeds are. The mean of paired differences
    tells two ways apart that share their seeds.

    Source: Gosset ("Student") 1908, "The probable error of a mean".

    Raises:
        ValueError: there are fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError(f"an interval of a mean needs at least 2 values, got {n}")
    centre = sum(values) / n
    half = student(n - 1) * sqrt(sum((value - centre) ** 2 for value in values) / (n - 1) / n)
    return Estimate(centre, centre - half, centre + half, n)
