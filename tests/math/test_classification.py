"""Accuracies, recall and F1 by class, worst groups: by hand, against loops, and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.math.classification import f1_macro, group_means, hits, mean_per_class_recall, top_classes, worst_group

rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


def slow_recall(predicted: list[int], labels: list[int]) -> float:
    shares = []
    for label in set(labels):
        of_class = [p for p, t in zip(predicted, labels, strict=True) if t == label]
        shares.append(sum(p == label for p in of_class) / len(of_class))
    return sum(shares) / len(shares)


def slow_f1(predicted: list[int], labels: list[int]) -> float:
    scores = []
    for label in set(labels):
        both = sum(p == t == label for p, t in zip(predicted, labels, strict=True))
        precision = both / max(predicted.count(label), 1)
        recall = both / labels.count(label)
        scores.append(2 * precision * recall / (precision + recall) if both else 0.0)
    return sum(scores) / len(scores)


def test_six_rows_by_hand() -> None:
    labels, predicted = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 1])
    assert hits(predicted[:, None], labels).tolist() == [True, True, False, True, False, False]
    assert mean_per_class_recall(predicted, labels) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    # Class 0: 2 of 3 named and 2 of 3 right, F1 2/3; class 1: 1 of 3 named, 1 of 2, F1 2/5; class 2: never.
    assert f1_macro(predicted, labels) == pytest.approx((2 / 3 + 2 / 5 + 0) / 3)


def test_the_best_classes_come_in_order_and_ties_fall_to_the_lower_number() -> None:
    scores = np.array([[0.1, 0.9, 0.9, 0.3], [0.5, 0.5, 0.5, 0.5]])
    assert top_classes(scores, 3).tolist() == [[1, 2, 3], [0, 1, 2]]
    assert top_classes(scores, 9).shape == (2, 4)
    assert hits(top_classes(scores, 2), np.array([2, 3])).tolist() == [True, False]


@settings(max_examples=200)
@given(rows)
def test_they_are_their_definitions(pairs: list[tuple[int, int]]) -> None:
    predicted, labels = (list(column) for column in zip(*pairs, strict=True))
    assert mean_per_class_recall(np.array(predicted), np.array(labels)) == pytest.approx(slow_recall(predicted, labels))
    assert f1_macro(np.array(predicted), np.array(labels)) == pytest.approx(slow_f1(predicted, labels))


@settings(max_examples=50)
@given(rows)
def test_row_order_does_not_matter(pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs), np.array(pairs)
    np.random.default_rng(0).shuffle(other)
    for score in (mean_per_class_recall, f1_macro):
        assert score(one[:, 0], one[:, 1]) == pytest.approx(score(other[:, 0], other[:, 1]))


def test_scikit_learn_agrees() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(500, 12))
    labels = rng.integers(0, 10, 500)  # two classes have no rows
    scores[np.arange(500), labels] += 1
    ranked = top_classes(scores, 5)
    best = ranked[:, 0]
    for k in (1, 5):
        expected = metrics.top_k_accuracy_score(labels, scores, k=k, labels=np.arange(12))
        assert hits(ranked[:, :k], labels).mean() == pytest.approx(expected)
    present = np.unique(labels)
    recall = metrics.recall_score(labels, best, labels=present, average="macro", zero_division=0)
    assert mean_per_class_recall(best, labels) == pytest.approx(recall)
    f1 = metrics.f1_score(labels, best, labels=present, average="macro", zero_division=0)
    assert f1_macro(best, labels) == pytest.approx(f1)
    known = np.isin(best, present)  # scikit-learn warns of predictions without a row
    balanced = metrics.balanced_accuracy_score(labels[known], best[known])
    assert mean_per_class_recall(best[known], labels[known]) == pytest.approx(balanced)


def test_the_worst_group_is_the_one_served_worst_however_small() -> None:
    right, groups = np.array([True, True, False, True, False]), np.array([4, 4, 4, 7, 9])
    assert group_means(right, groups) == {4: (pytest.approx(2 / 3), 3), 7: (1.0, 1), 9: (0.0, 1)}
    assert worst_group(right, groups) == 0
    assert worst_group(right[:4], groups[:4]) == pytest.approx(2 / 3)


def test_impossible_arguments_are_told() -> None:
    none = np.array([], np.int64)
    with pytest.raises(ValueError, match="n > 0"):
        mean_per_class_recall(none, none)
    with pytest.raises(ValueError, match="labels"):
        f1_macro(np.array([1, 2]), np.array([1]))
    with pytest.raises(ValueError, match="no rows"):
        worst_group(none, none)
    with pytest.raises(ValueError, match="as many values as groups"):
        group_means(np.array([1.0]), np.array([1, 2]))
    with pytest.raises(ValueError, match="at least 1"):
        top_classes(np.zeros((1, 2)), 0)
