"""Recall at k by hand and against every order of the ties; Jaccard against scikit-learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.math.retrieval import recall_at
from tamis.math.similarity import cosines, unit_rows


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


def test_neither_the_order_of_rows_nor_the_blocks_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    images = unit_rows(rng.normal(size=(40, 8)))
    captions = unit_rows(np.repeat(images, 3, 0) + rng.normal(size=(120, 8)) * 0.5)
    owners, numbers = np.repeat(np.arange(40), 3), np.arange(40)
    expected = recall_at(captions, images, owners, numbers, (1, 5))
    assert 0.2 < expected[1] < expected[5] < 1
    some, other = rng.permutation(120), rng.permutation(40)
    monkeypatch.setattr("tamis.math.retrieval._BLOCK", 7)
    assert recall_at(captions[some], images[other], owners[some], numbers[other], (1, 5)) == pytest.approx(expected)


def test_impossible_arguments_are_errors() -> None:
    one, ids = axes([1.0, 0.0]), np.array([0])
    for call in (
        lambda: recall_at(one, one, np.array([3]), ids, (1,)),
        lambda: recall_at(one, one, ids, ids, (0,)),
        lambda: recall_at(one[:0], one, ids[:0], ids, (1,)),
    ):
        with pytest.raises(ValueError, match=r"number 3|expected|empty"):
            call()
