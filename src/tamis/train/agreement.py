"""How well scores agree with ratings: three correlations, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import require
from tamis.math.intervals import Estimate, bootstrap
from tamis.math.ranks import average_ranks

Numbers = NDArray[Any]

_MANY = 5000  # rows from which the interval rests on fewer draws: it is narrow then


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Correlations of scores with ratings, with 95 % bootstrap intervals over the texts.

    Attributes:
        texts: how many were compared.
        left_out: rows without a rating, or that the scorer does not judge.
        pearson, spearman, kendall: of values, of ranks, and tau-b; NaN, with its interval, where all scores or all
            ratings are the same.
    """

    texts: int
    left_out: int
    pearson: Estimate
    spearman: Estimate
    kendall: Estimate

    def facts(self) -> dict[str, Any]:
        """Returns the numbers as JSON takes them: null for a correlation that there is none of."""
        return {
            name: {key: None if number != number else number for key, number in asdict(one).items()}
            if isinstance(one, Estimate)
            else one
            for name, one in vars(self).items()
        }


def agreement(scores: Numbers, ratings: Numbers, *, left_out: int = 0, seed: int = 0) -> Agreement:
    """Returns the correlations of (n,) scores with (n,) ratings, neither with NaN."""
    draws = 1000 if len(scores) < _MANY else 200

    def measured(correlate: Callable[[Numbers, Numbers], float]) -> Estimate:
        value = correlate(scores, ratings)
        if math.isnan(value):
            return Estimate(value, value, value, len(scores))
        between = bootstrap(
            # A draw of which all rows are alike has no correlation; a few texts with few ratings can give one.
            lambda rows: np.nan_to_num(correlate(scores[rows], ratings[rows])),
            np.arange(len(scores)),
            draws=draws,
            seed=seed,
        )
        return Estimate(value, between.low, between.high, len(scores))

    return Agreement(
        texts=len(scores),
        left_out=left_out,
        pearson=measured(pearson),
        spearman=measured(spearman),
        kendall=measured(kendall),
    )


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
