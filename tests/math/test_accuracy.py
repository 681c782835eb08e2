"""Accuracies by hand, and recall at k against every order of the ties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.math.accuracy import group_means, hits, recall_at, top_classes
from tamis.math.similarity import cosines, unit_rows


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


def slow_recall(scores: np.ndarray, match: np.ndarray, k: int) -> float:
    """The share of all orders of the gallery that the scores allow in which a match is among the first k."""
    total = 0.0
    for line, right in zip(scores, match, strict=True):
        orders = [
            order
            for order in itertools.permutations(range(len(line)))
            if all(line[a] >= line[b] for a, b in itertools.pairwise(order))
        ]
        total += sum(any(right[place] for place in order[:k]) for order in orders) / len(orders)
    return total / len(scores)


def axes(*rows: list[float]) -> np.ndarray:
    return unit_rows(np.array(rows, np.float32))


def test_three_images_with_two_captions_each_by_hand() -> None:
    images = axes([1, 0, 0], [0, 1, 0], [0, 0, 1])
    # Captions 0, 2, 4 and 5 are nearest to their own images; 1 is nearer to image 1, 3 nearer to image 2.
    captions = axes([1, 0, 0], [0.5, 1, 0], [0, 1, 0], [0, 0.5, 1], [0, 0.1, 1], [0, 0, 1])
    owners, numbers = np.array([0, 0, 1, 1, 2, 2]), np.arange(3)
    assert recall_at(captions, images, owners, numbers, (1, 2, 3)) == pytest.approx({1: 4 / 6, 2: 1, 3: 1})
    # The nearest caption of each image is one of its own: caption 0, caption 2, caption 5.
    assert recall_at(images, captions, numbers, owners, (1,)) == pytest.approx({1: 1})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=3, max_size=5),
    st.integers(1, 6),
)
def test_it_is_the_mean_over_all_orders_of_ties(
    queries: list[tuple[int, int, int]], gallery: list[tuple[int, int]], k: int
) -> None:
    asked = axes(*([x + 1.0, y, 1.0] for x, y, _ in queries))
    there = axes(*([x + 1.0, y, 1.0] for x, y in gallery))
    query_ids, gallery_ids = np.array([number for *_, number in queries]), np.arange(len(gallery)) % 3
    expected = slow_recall(cosines(asked, there), query_ids[:, None] == gallery_ids[None, :], k)
    assert recall_at(asked, there, query_ids, gallery_ids, (k,))[k] == pytest.approx(expected)
