"""Accuracies and means of groups by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tamis.math.classification import group_means, hits, top_classes


def test_six_rows_by_hand() -> None:
    labels, predicted = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 1])
    assert hits(predicted[:, None], labels).tolist() == [True, True, False, True, False, False]
    correct, groups = np.array([True, True, False, True, False]), np.array([4, 4, 4, 7, 9])
    assert group_means(correct, groups) == {4: (pytest.approx(2 / 3), 3), 7: (1.0, 1), 9: (0.0, 1)}


def test_the_best_classes_come_in_order_and_ties_go_to_the_lower_number() -> None:
    scores = np.array([[0.1, 0.9, 0.9, 0.3], [0.5, 0.5, 0.5, 0.5]])
    assert top_classes(scores, 3).tolist() == [[1, 2, 3], [0, 1, 2]]
    assert top_classes(scores, 9).shape == (2, 4)
    assert hits(top_classes(scores, 2), np.array([2, 3])).tolist() == [True, False]


def test_impossible_arguments_are_errors() -> None:
    none = np.array([], np.int64)
    for call in (
        lambda: hits(none[:, None], none),
        lambda: group_means(np.array([1.0]), np.array([1, 2])),
        lambda: top_classes(np.zeros((1, 2)), 0),
    ):
        with pytest.raises(ValueError, match=r"expected|at least 1"):
            call()
