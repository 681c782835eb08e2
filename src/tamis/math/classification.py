"""Metrics of classifiers: ranked classes, accuracies, means over groups.

Every function takes class numbers, not probabilities, so zero-shot and trained classifiers are measured alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.integer[Any]]


def top_classes(scores: NDArray[np.floating[Any]], k: int) -> NDArray[np.int64]:
    """Returns the k classes with the highest scores of each row, best first; ties go to the lower class number.

    Args:
        scores: (n, K) floats without NaN.
        k: at least 1; with fewer classes, all of them are returned.

    Returns:
        (n, min(k, K)) class numbers.

    Raises:
        ValueError: k is below 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    ranked: NDArray[np.int64] = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return ranked


def hits(ranked: Labels, labels: Labels) -> NDArray[np.bool_]:
    """Returns whether the label of each row is among its classes. The mean is the accuracy at k.

    Args:
        ranked: (n, k) class numbers.
        labels: (n,) class numbers.

    Returns:
        (n,) bool.

    Raises:
        ValueError: the shapes do not match, or there are no rows.
    """
    if ranked.ndim != 2 or labels.shape != (len(ranked),) or len(ranked) == 0:
        raise ValueError(f"expected classes (n, k) and labels (n,) with n > 0, got {ranked.shape} and {labels.shape}")
    correct: NDArray[np.bool_] = (ranked == labels[:, None]).any(1)
    return correct


def group_means(values: NDArray[Any], groups: Labels) -> dict[int, tuple[float, int]]:
    """Returns the mean and the number of values of each group, by group number.

    The lowest mean is the accuracy of the worst group (Sagawa et al. 2020).

    Args:
        values: (n,) numbers, or bool for accuracies.
        groups: (n,) group numbers.

    Raises:
        ValueError: the shapes do not match.
    """
    if values.shape != groups.shape or values.ndim != 1:
        raise ValueError(f"expected as many values as groups, got {values.shape} and {groups.shape}")
    return {
        int(group): (float(values[groups == group].mean()), int(np.count_nonzero(groups == group)))
        for group in np.unique(groups)
    }
