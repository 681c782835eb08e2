"""Rows whose scores lie evenly over a square."""

from __future__ import annotations

import numpy as np
import pytest

from tamis.math.spread import spread_over


def test_each_cell_gives_one_row_before_any_gives_two_by_hand() -> None:
    # Four rows are wanted: two by two cells. Three cells have rows, the crowded one (low, low) four of them.
    scores = np.array([[0.1, 0.1], [0.2, 0.1], [0.1, 0.3], [0.4, 0.4], [0.9, 0.1], [0.8, 0.9]])
    for seed in range(20):
        chosen = spread_over(scores, 4, seed=seed)
        assert {4, 5} <= set(chosen.tolist())
        assert len(set(chosen.tolist())) == 4


def test_a_crowded_corner_does_not_crowd_the_sample() -> None:
    rng = np.random.default_rng(0)
    scores = np.vstack([0.1 * rng.random((5000, 2)), rng.random((2000, 2))])
    chosen = scores[spread_over(scores, 244)]
    assert (scores < 0.1).all(axis=1).mean() > 0.7
    assert (chosen < 0.1).all(axis=1).mean() < 0.03  # 0.01 of the square
    for column in chosen.T:
        counts, _ = np.histogram(column, bins=4, range=(0, 1))
        assert counts.min() > 45  # 61 each


def test_missing_scores_are_ignored_and_those_outside_count_at_the_edge() -> None:
    scores = np.array([[np.nan, 0.5], [-3.0, 7.0], [0.5, np.nan], [0.5, 0.5]])
    assert sorted(spread_over(scores, 10).tolist()) == [1, 3]
    assert spread_over(np.empty((0, 2)), 5).size == 0
    for shape, count in (((3,), 2), ((3, 2), 0)):
        with pytest.raises(ValueError, match=r"shape \(n, 2\)|at least 1"):
            spread_over(np.ones(shape), count)
