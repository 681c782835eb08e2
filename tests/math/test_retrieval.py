"""Recall at k by hand, against every order of the ties, and in any order; Jaccard against scikit-learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.math.retrieval import jaccard, recall_at
from tamis.math.similarity import cosines, unit_rows


def slow_recall(scores: np.ndarray, match: np.ndarray, k: int) -> float:
    """The share of all orders of the gallery that the scores allow in which a match comes among the first k."""
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


def test_three_pictures_with_two_captions_each_by_hand() -> None:
    pictures = axes([1, 0, 0], [0, 1, 0], [0, 0, 1])
    # Captions 0, 2, 4 lie at their pictures; 1 lies nearer to picture 1, 3 nearer to picture 2, 5 at its own.
    captions = axes([1, 0, 0], [0.5, 1, 0], [0, 1, 0], [0, 0.5, 1], [0, 0.1, 1], [0, 0, 1])
    owners, numbers = np.array([0, 0, 1, 1, 2, 2]), np.arange(3)
    to_picture = recall_at(captions, pictures, owners, numbers, (1, 2, 3))
    assert to_picture == {1: pytest.approx(4 / 6), 2: pytest.approx(1), 3: pytest.approx(1)}
    # Each picture's nearest caption is one of its own: caption 0, caption 2, caption 5.
    assert recall_at(pictures, captions, numbers, owners, (1,)) == {1: pytest.approx(1)}


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


def test_a_model_that_maps_everything_to_one_point_scores_as_chance_does() -> None:
    same = axes(*[[1.0, 2.0, 3.0]] * 20)
    numbers = np.arange(20)
    found = recall_at(same, same, numbers, numbers, (1, 5, 10, 50))
    assert found == {1: pytest.approx(1 / 20), 5: pytest.approx(5 / 20), 10: pytest.approx(1 / 2), 50: pytest.approx(1)}


def test_neither_the_order_of_rows_nor_the_blocks_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pictures = unit_rows(rng.normal(size=(40, 8)))
    captions = unit_rows(np.repeat(pictures, 3, 0) + rng.normal(size=(120, 8)) * 0.5)
    owners, numbers = np.repeat(np.arange(40), 3), np.arange(40)
    expected = recall_at(captions, pictures, owners, numbers, (1, 5))
    assert 0.2 < expected[1] < expected[5] < 1
    some, other = rng.permutation(120), rng.permutation(40)
    monkeypatch.setattr("tamis.math.retrieval._BLOCK", 7)
    found = recall_at(captions[some], pictures[other], owners[some], numbers[other], (1, 5))
    assert found == {k: pytest.approx(share) for k, share in expected.items()}


def test_impossible_arguments_are_told() -> None:
    one = axes([1.0, 0.0])
    with pytest.raises(ValueError, match="queries with number 3"):
        recall_at(one, one, np.array([3]), np.array([0]), (1,))
    with pytest.raises(ValueError, match="k >= 1"):
        recall_at(one, one, np.array([0]), np.array([0]), (0,))
    with pytest.raises(ValueError, match="0 queries"):
        recall_at(one[:0], one, np.array([], int), np.array([0]), (1,))


def test_cosines_that_differ_by_rounding_tie() -> None:
    near = cosines(axes([1.0, 0.0]), np.array([[0.3, 0.9], [0.30000004, 0.9]], np.float32))
    assert near[0, 0] == near[0, 1] == np.float32(0.3)


def test_jaccard_by_hand_and_as_scikit_learn_has_it() -> None:
    one, other = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert jaccard(one, other) == pytest.approx(1 / 3)
    assert jaccard(one, one) == 1
    assert jaccard(one, ~one) == 0
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.random(12) < 0.5, rng.random(12) < 0.5
        assert jaccard(one, other) == pytest.approx(metrics.jaccard_score(one, other))
    with pytest.raises(ValueError, match="both sets are empty"):
        jaccard(np.zeros(3, bool), np.zeros(3, bool))
    with pytest.raises(ValueError, match="the same items"):
        jaccard(np.zeros(3, bool), np.zeros(2, bool))
