"""Ranks and their correlation, by hand and beside SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.math.ranks import average_ranks, rank_correlations


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert average_ranks(np.array([30.0, 10, 20, 20])).tolist() == [4, 1, 2.5, 2.5]
    assert average_ranks(np.array([])).tolist() == []
    assert average_ranks(np.array([5.0, 5, 5])).tolist() == [2, 2, 2]


@given(st.lists(st.integers(-3, 3), max_size=40))
def test_ranks_are_scipys(values: list[int]) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert average_ranks(np.array(values, float)).tolist() == stats.rankdata(values).tolist()


def test_correlations_by_hand_over_the_rows_that_both_have() -> None:
    nan = np.nan
    table = np.array([[1.0, 2, 4, 7], [2, 1, 3, 7], [3, 4, 2, 7], [4, 3, 1, 7], [nan, 9, nan, 7], [5, nan, 9, 7]])
    found = rank_correlations(table)
    assert found[0, 1] == pytest.approx(1 - 6 * 4 / (4 * 15))  # 1 - 6 sum d^2 / (n (n^2 - 1)), over four rows
    assert found[1, 2] == pytest.approx(-(1 - 6 * 4 / (4 * 15)))
    assert found[0, 2] == pytest.approx(0)  # four rows turned around, and both highest in the fifth: d^2 sums to 20
    assert np.isnan(found[3]).all()  # a constant ranks nothing
    assert np.array_equal(found, found.T, equal_nan=True)
    assert found[0, 0] == pytest.approx(1)


def test_too_few_rows_give_nothing() -> None:
    assert np.isnan(rank_correlations(np.array([[1.0, 2.0]]))).all()
    assert rank_correlations(np.empty((5, 0))).shape == (0, 0)
