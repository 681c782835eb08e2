"""How well scores agree with ratings: three correlations with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import require
from tamis.math.statistics import Estimate, average_ranks, bootstrap

Numbers = NDArray[Any]

_MANY = 5000  # rows from which fewer draws suffice: the interval is narrow


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Correlations of scores with ratings, with 95 % bootstrap intervals; NaN if one side is constant."""

    texts: int
    left_out: int  # rows without a rating or a score
    pearson: Estimate
    spearman: Estimate
    kendall: Estimate

    def facts(self) -> dict[str, Any]:
        """The numbers for JSON: null for NaN."""
        return {
            name: {key: None if number != number else number for key, number in value.items()}
            if isinstance(value, dict)
            else value
            for name, value in asdict(self).items()
        }


def agreement(scores: Numbers, ratings: Numbers, *, left_out: int = 0, seed: int = 0) -> Agreement:
    """The correlations of (n,) scores with (n,) ratings, neither with NaN."""
    draws = 1000 if len(scores) < _MANY else 200

    def measured(correlate: Callable[[Numbers, Numbers], float]) -> Estimate:
        value = correlate(scores, ratings)
        if math.isnan(value):
            return Estimate(value, value, value, len(scores))
        between = bootstrap(
            # A draw of equal rows has no correlation.
            lambda rows: np.nan_to_num(correlate(scores[rows], ratings[rows])),
            np.arange(len(scores)),
            draws=draws,
            seed=seed,
        )
        return Estimate(value, between.low, between.high, len(scores))

    return Agreement(
        texts=len(scores), left_out=left_out, pearson=measured(pearson), spearman=measured(spearman),
        kendall=measured(kendall),
    )  # fmt: skip


def pearson(one: Numbers, other: Numbers) -> float:
    """The correlation of values, in [-1, 1]; NaN if one side is constant."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def spearman(one: Numbers, other: Numbers) -> float:
    """The correlation of ranks, with average ranks for ties; NaN if one side is constant."""
    return pearson(average_ranks(np.asarray(one)), average_ranks(np.asarray(other)))


def kendall(one: Numbers, other: Numbers) -> float:
    """Kendall's tau-b, which allows for ties; NaN if one side is constant."""
    require("scipy", extra="evaluate")
    from scipy.stats import kendalltau

    return float(kendalltau(one, other).statistic)
