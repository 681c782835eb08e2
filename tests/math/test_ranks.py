"""Ranks, their correlations and the AUC: by hand, and against SciPy and counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.math.ranks import auc, average_ranks, rank_correlations


def test_equal_values_share_their_mean_rank() -> None:
    assert average_ranks(np.array([30.0, 10, 20, 20])).tolist() == [4, 1, 2.5, 2.5]
    assert average_ranks(np.array([])).tolist() == []


@given(st.lists(st.integers(-3, 3), max_size=40))
def test_ranks_are_those_of_scipy(values: list[int]) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert average_ranks(np.array(values, float)).tolist() == stats.rankdata(values).tolist()


def test_correlations_by_hand_over_the_rows_that_both_have() -> None:
    nan = np.nan
    table = np.array([[1.0, 2, 4, 7], [2, 1, 3, 7], [3, 4, 2, 7], [4, 3, 1, 7], [nan, 9, nan, 7], [5, nan, 9, 7]])
    matrix = rank_correlations(table)
    assert matrix[0, 1] == pytest.approx(1 - 6 * 4 / (4 * 15))  # 1 - 6 sum d^2 / (n (n^2 - 1)), over four rows
    assert matrix[1, 2] == pytest.approx(-(1 - 6 * 4 / (4 * 15)))
    assert matrix[0, 2] == pytest.approx(0)  # four rows reversed, and both highest in the fifth: d^2 sums to 20
    assert np.isnan(matrix[3]).all()  # a constant has no ranking
    assert np.array_equal(matrix, matrix.T, equal_nan=True)
    assert matrix[0, 0] == pytest.approx(1)
    assert np.isnan(rank_correlations(np.array([[1.0, 2.0]]))).all()
    assert rank_correlations(np.empty((5, 0))).shape == (0, 0)


SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=20)


@given(SCORES, SCORES)
def test_the_auc_is_the_share_of_pairs_in_order(positive: list[int], negative: list[int]) -> None:
    won = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    assert auc(np.array(positive), np.array(negative)) == pytest.approx(sum(won) / len(won))


def test_the_auc_by_hand() -> None:
    # 3 beats 1 and 2, 2 beats 1 and ties with 2: 3.5 of 4
    assert auc(np.array([3.0, 2.0]), np.array([1.0, 2.0])) == 0.875
    with pytest.raises(ValueError, match="1 and 0"):
        auc(np.array([1.0]), np.array([]))
