"""Accuracies, recall and F1 by class: by hand, and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.math.classification import f1_macro, group_means, hits, mean_per_class_recall, top_classes


def test_six_rows_by_hand() -> None:
    labels, predicted = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 1])
    assert hits(predicted[:, None], labels).tolist() == [True, True, False, True, False, False]
    assert mean_per_class_recall(predicted, labels) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    # Class 0: precision 2/3, recall 2/3, F1 2/3; class 1: precision 1/3, recall 1/2, F1 2/5; class 2: never.
    assert f1_macro(predicted, labels) == pytest.approx((2 / 3 + 2 / 5 + 0) / 3)
    correct, groups = np.array([True, True, False, True, False]), np.array([4, 4, 4, 7, 9])
    assert group_means(correct, groups) == {4: (pytest.approx(2 / 3), 3), 7: (1.0, 1), 9: (0.0, 1)}


def test_the_best_classes_come_in_order_and_ties_go_to_the_lower_number() -> None:
    scores = np.array([[0.1, 0.9, 0.9, 0.3], [0.5, 0.5, 0.5, 0.5]])
    assert top_classes(scores, 3).tolist() == [[1, 2, 3], [0, 1, 2]]
    assert top_classes(scores, 9).shape == (2, 4)
    assert hits(top_classes(scores, 2), np.array([2, 3])).tolist() == [True, False]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_means_over_classes_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    predicted, labels = np.array(pairs).T
    options = {"labels": np.unique(labels), "average": "macro", "zero_division": 0}
    recall, f1 = (score(labels, predicted, **options) for score in (metrics.recall_score, metrics.f1_score))
    assert mean_per_class_recall(predicted, labels) == pytest.approx(recall)
    assert f1_macro(predicted, labels) == pytest.approx(f1)


def test_impossible_arguments_are_errors() -> None:
    none = np.array([], np.int64)
    for call in (
        lambda: mean_per_class_recall(none, none),
        lambda: f1_macro(np.array([1, 2]), np.array([1])),
        lambda: group_means(np.array([1.0]), np.array([1, 2])),
        lambda: top_classes(np.zeros((1, 2)), 0),
    ):
        with pytest.raises(ValueError, match=r"expected|at least 1"):
            call()
