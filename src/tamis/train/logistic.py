"""Logistic regression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float64s
from tamis.errors import require
from tamis.math.per_length import inverse_logit


@dataclass(frozen=True)
class Logistic:
    """sigma(weights . x + bias), a probability.

    Attributes:
        weights: one for each column.
        bias: what is added.
    """

    weights: tuple[float, ...]
    bias: float

    def __call__(self, columns: Float64s) -> Float64s:
        """Returns (n,) values in [0, 1] of (n, k) columns; NaN where a row holds NaN."""
        return inverse_logit(columns @ np.array(self.weights) + self.bias)


def fit_logistic(columns: Float64s, labels: NDArray[np.bool_], *, ridge: float = 1e-3) -> Logistic:
    """Fits probabilities of True by the penalised likelihood.

    Args:
        columns: (n, k) without NaN.
        labels: (n,).
        ridge: penalty of the squared weights (not of the bias), per row; without any, columns that tell the labels
            apart entirely would want infinite weights.

    Raises:
        ValueError: shapes differ, or all labels are the same.
        DependencyError: scikit-learn is not installed.
    """
    if columns.ndim != 2 or labels.shape != (len(columns),):
        raise ValueError(f"expected columns (n, k) and labels (n,), got shapes {columns.shape} and {labels.shape}")
    if labels.all() or not labels.any():
        raise ValueError(f"all {len(labels)} labels are the same: nothing can be learned from them")
    require("sklearn", extra="train")
    from sklearn.linear_model import LogisticRegression

    weight = 1 / (ridge * len(columns)) if ridge else np.inf
    found = LogisticRegression(C=weight, solver="newton-cholesky", tol=1e-10, max_iter=100).fit(columns, labels)
    return Logistic(tuple(found.coef_[0].tolist()), float(found.intercept_[0]))
