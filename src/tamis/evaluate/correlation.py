"""How two columns of numbers go together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import require
from tamis.math.ranks import average_ranks

Numbers = NDArray[Any]


def pearson(one: Numbers, other: Numbers) -> float:
    """Returns the correlation of values: in [-1, 1]; NaN where a column is constant.

    Args:
        one, other: (n,) without NaN.

    Raises:
        ValueError: shapes differ, or there are fewer than two rows.
    """
    _check(one, other)
    if np.ptp(one) == 0 or np.ptp(other) == 0:  # their distances from their mean are rounding errors
        return float("nan")
    left = np.asarray(one, np.float64) - np.mean(one, dtype=np.float64)
    right = np.asarray(other, np.float64) - np.mean(other, dtype=np.float64)
    spread = float(np.sqrt((left @ left) * (right @ right)))
    return float(np.clip(left @ right / spread, -1, 1)) if spread > 0 else float("nan")


def spearman(one: Numbers, other: Numbers) -> float:
    """Returns the correlation of ranks, equal values sharing the mean of theirs; arguments as in `pearson`.

    Source: Spearman 1904, "The proof and measurement of association between two things".
    """
    _check(one, other)
    return pearson(average_ranks(np.asarray(one)), average_ranks(np.asarray(other)))


def kendall(one: Numbers, other: Numbers) -> float:
    """Returns Kendall's tau-b, which allows for ties; arguments as in `pearson`. NaN where a column is constant.

    Pairs in the same order less pairs in the opposite one, over the geometric mean of the pairs that each column tells
    apart.

    Raises:
        DependencyError: SciPy is not installed.

    Cost: O(n log n).

    Source: Kendall 1945, "The treatment of ties in ranking problems".
    """
    _check(one, other)
    require("scipy", extra="evaluate")
    from scipy.stats import kendalltau

    return float(kendalltau(one, other).statistic)


def _check(one: Numbers, other: Numbers) -> None:
    if one.shape != other.shape or one.ndim != 1 or len(one) < 2:
        raise ValueError(f"a correlation needs two columns of at least two rows, got shapes {one.shape}, {other.shape}")
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise ValueError("a correlation takes no missing or infinite values: leave those rows out")
