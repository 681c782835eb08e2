"""How often classes are named right: accuracies, means over classes, worst groups.

Every function takes class numbers, not probabilities, so that it is the same for zero-shot and for trained classifiers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.integer[Any]]


def top_classes(scores: NDArray[np.floating[Any]], k: int) -> NDArray[np.int64]:
    """Returns the k classes of highest score of each row, best first; of equal scores the lower class number first.

    Args:
        scores: (n, K) floats without NaN.
        k: at least 1; where there are fewer classes, all of them are returned.

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
    """Returns for each row whether its label is among its classes: (n,) from (n, k) and (n,).

    Its mean is the accuracy at k.

    Raises:
        ValueError: the rows do not pair up, or there are none.
    """
    if ranked.ndim != 2 or labels.shape != (len(ranked),) or len(ranked) == 0:
        raise ValueError(f"expected classes (n, k) and labels (n,) with n > 0, got {ranked.shape} and {labels.shape}")
    found: NDArray[np.bool_] = (ranked == labels[:, None]).any(1)
    return found


def mean_per_class_recall(predicted: Labels, labels: Labels) -> float:
    """Returns the mean over classes of the share of a class's rows that are named right, also called balanced accuracy.

    Only classes with at least one row count, as in scikit-learn's `balanced_accuracy_score`.

    Args:
        predicted, labels: (n,) class numbers.

    Raises:
        ValueError: the rows do not pair up, or there are none.
    """
    _, rows, right = _by_class(predicted, labels)
    return float((right / rows).mean())


def f1_macro(predicted: Labels, labels: Labels) -> float:
    """Returns the mean over classes of F1 = 2 TP / (2 TP + FP + FN).

    Only classes with at least one row count, as in WILDS (Koh et al. 2021, `wilds.common.metrics.F1`), from which
    DataComp takes the score of iWildCam; a class that is only predicted lowers the scores of those it was taken for.

    Args:
        predicted, labels: (n,) class numbers.

    Raises:
        ValueError: the rows do not pair up, or there are none.
    """
    present, rows, right = _by_class(predicted, labels)
    named = np.array([np.count_nonzero(predicted == label) for label in present])
    return float((2 * right / (rows + named)).mean())  # rows = TP + FN, named = TP + FP


def _by_class(predicted: Labels, labels: Labels) -> tuple[Labels, NDArray[Any], NDArray[Any]]:
    """Returns the classes that have rows, how many each has, and how many of these are named right."""
    right = hits(predicted[:, None], labels)
    present, places = np.unique(labels, return_inverse=True)
    return present, np.bincount(places), np.bincount(places, weights=right)


def group_means(values: NDArray[Any], groups: Labels) -> dict[int, tuple[float, int]]:
    """Returns the mean of the values in each group that has any, and how many they are, by group number.

    Args:
        values: (n,) numbers, or bool for accuracies.
        groups: (n,) group numbers.

    Raises:
        ValueError: the rows do not pair up.
    """
    if values.shape != groups.shape or values.ndim != 1:
        raise ValueError(f"expected as many values as groups, got {values.shape} and {groups.shape}")
    return {
        int(group): (float(values[groups == group].mean()), int(np.count_nonzero(groups == group)))
        for group in np.unique(groups)
    }


def worst_group(values: NDArray[Any], groups: Labels) -> float:
    """Returns the least of the group means: the accuracy of the group that is served worst (Sagawa et al. 2020).

    A group of three rows counts as much as one of thousands; see `group_means` for how many each has.

    Raises:
        ValueError: the rows do not pair up, or there are none.
    """
    means = group_means(values, groups)
    if not means:
        raise ValueError("there are no rows, so no group is the worst")
    return min(mean for mean, _ in means.values())
