"""Ranks, correlations, the AUC, intervals, samples, accuracies and recall: by hand, against SciPy and counting."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tamis.core.math.similarity import cosines, unit_rows
from tamis.core.math.statistics import (
    agreement,
    auc,
    average_ranks,
    bootstrap,
    detectable_difference,
    kendall,
    mean_interval,
    pearson,
    rank_correlations,
    recall_at,
    sample_evenly,
    share_interval,
    spearman,
    top_classes,
)


@given(st.lists(st.integers(-3, 3), max_size=40))
def test_ranks_are_those_of_scipy(values: list[int]) -> None:
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


SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=20)


@given(SCORES, SCORES)
def test_the_auc_is_the_share_of_pairs_in_order(positive: list[int], negative: list[int]) -> None:
    won = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    assert auc(np.array(positive), np.array(negative)) == pytest.approx(sum(won) / len(won))
    with pytest.raises(ValueError, match="0 and"):
        auc(np.array([]), np.array(negative))


def test_a_share_of_half_of_ten_by_hand() -> None:
    half = share_interval(5, 10)
    # z = 1.96: centre (0.5 + 3.8415 / 20) / 1.38415 = 0.5, half 1.96 / 1.38415 * sqrt(0.025 + 3.8415 / 400) = 0.2634
    assert (half.value, half.n) == (0.5, 10)
    assert (half.low, half.high) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert (share_interval(3, 3).low, share_interval(3, 3).high) == pytest.approx((0.4385, 1.0), abs=1e-4)
    assert share_interval(0, 3).low == 0.0


def test_the_bootstrap_of_a_mean_is_near_the_normal_interval_and_repeats() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    estimate = bootstrap(lambda x: float(x.mean()), values)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.15)
    assert estimate == bootstrap(lambda x: float(x.mean()), values)


def test_a_mean_by_hand() -> None:
    """1, 2, 3, 4, 5: s = sqrt(2.5), t of 4 degrees of freedom 2.776445, half 2.776445 * 1.581139 / sqrt(5)."""
    estimate = mean_interval([1, 2, 3, 4, 5])
    assert (estimate.value, estimate.n) == (3.0, 5)
    assert (estimate.low, estimate.high) == pytest.approx((3 - 1.963243, 3 + 1.963243), abs=1e-5)


def test_the_smallest_difference_that_five_seeds_show_by_hand() -> None:
    """s / sqrt(5) = 0.707107 for 1 to 5; t of 4 degrees of freedom 2.776445 and 0.940965, together 3.717410."""
    one = mean_interval([1, 2, 3, 4, 5])
    assert detectable_difference([one]) == pytest.approx(3.717410 * 0.707107, abs=1e-5)
    # Variances are averaged: of 1 and 49 times the variance 25 times, so five times the difference.
    seven = mean_interval([7, 14, 21, 28, 35])
    assert detectable_difference([one, seven]) == pytest.approx(5 * detectable_difference([one]))


def test_a_detectable_difference_is_found_four_times_in_five() -> None:
    rng = np.random.default_rng(5)
    least = detectable_difference([mean_interval(row) for row in rng.normal(0, 1, (2000, 5)).tolist()])
    found = [mean_interval(row).low > 0 for row in rng.normal(least, 1, (2000, 5)).tolist()]
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)


def test_each_cell_gives_one_row_before_any_gives_two_by_hand() -> None:
    # Four rows are wanted: two by two cells. Three cells have rows, the crowded one (low, low) four of them.
    scores = np.array([[0.1, 0.1], [0.2, 0.1], [0.1, 0.3], [0.4, 0.4], [0.9, 0.1], [0.8, 0.9]])
    for seed in range(20):
        chosen = sample_evenly(scores, 4, seed=seed)
        assert {4, 5} <= set(chosen.tolist())
        assert len(set(chosen.tolist())) == 4


def test_missing_scores_are_ignored_and_those_outside_count_at_the_edge() -> None:
    scores = np.array([[np.nan, 0.5], [-3.0, 7.0], [0.5, np.nan], [0.5, 0.5]])
    assert sorted(sample_evenly(scores, 10).tolist()) == [1, 3]
    assert sample_evenly(np.empty((0, 2)), 5).size == 0


def test_the_best_classes_come_in_order_and_ties_go_to_the_lower_number() -> None:
    scores = np.array([[0.1, 0.9, 0.9, 0.3], [0.5, 0.5, 0.5, 0.5]])
    assert top_classes(scores, 3).tolist() == [[1, 2, 3], [0, 1, 2]]
    assert top_classes(scores, 9).shape == (2, 4)


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


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=12))
def test_correlations_are_their_definitions(rows: list[tuple[int, int]]) -> None:
    one, other = [list(column) for column in zip(*rows, strict=True)]
    constant = len(set(one)) == 1 or len(set(other)) == 1
    expected = math.nan if constant else float(np.corrcoef(stats.rankdata(one), stats.rankdata(other))[0, 1])
    a, b = np.array(one), np.array(other)
    assert spearman(a, b) == pytest.approx(expected, nan_ok=True)
    assert math.isnan(kendall(a, b)) == constant
    assert math.isnan(pearson(a, b)) == constant


def test_intervals_hold_the_value_and_a_constant_column_has_none() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=40)
    found = agreement(scores, scores + rng.normal(size=40), left_out=3)
    assert (found.texts, found.left_out) == (40, 3)
    for one in (found.pearson, found.spearman, found.kendall):
        assert one.low < one.value < one.high
    constant = agreement(np.ones(5), np.arange(5.0)).facts()
    assert constant["spearman"]["value"] is None
    assert constant["texts"] == 5
