"""Min-max, z-score, rank, logit, and the moments they rest on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.math.normalise import LOGIT_MARGIN, Moments, logit, minmax, rank, zscore

NAN = np.nan

numbers = st.lists(st.one_of(st.floats(-1e3, 1e3, width=32), st.just(NAN), st.just(0.5)), max_size=40)


def merged(values: NDArray[np.float64], cuts: list[int]) -> Moments:
    total = Moments()
    for block in np.split(values, sorted(cuts)):
        total = total.merged(Moments.of(block))
    return total


def test_moments_by_hand() -> None:
    moments = Moments.of(np.array([2.0, NAN, 4.0, 9.0]))
    assert (moments.count, moments.low, moments.high, moments.mean, moments.squares) == (3, 2.0, 9.0, 5.0, 26.0)
    assert moments.deviation == pytest.approx(math.sqrt(26 / 3))


@given(numbers, st.lists(st.integers(0, 40), max_size=6))
def test_moments_do_not_depend_on_how_the_values_are_cut(values: list[float], cuts: list[int]) -> None:
    column = np.array(values, np.float64)
    whole, parts = Moments.of(column), merged(column, [min(cut, column.size) for cut in cuts])
    assert (parts.count, parts.low, parts.high) == (whole.count, whole.low, whole.high)
    assert parts.mean == pytest.approx(whole.mean, rel=1e-12, abs=1e-9)
    assert parts.squares == pytest.approx(whole.squares, rel=1e-9, abs=1e-6)


def test_moments_stay_exact_far_from_zero() -> None:
    column = np.tile([1e9 - 1.0, 1e9 + 1.0], 5_000)
    assert merged(column, list(range(7, 10_000, 7))).deviation == pytest.approx(1.0, abs=1e-7)


def test_no_values_have_no_moments() -> None:
    assert Moments.of(np.array([NAN])) == Moments() == Moments().merged(Moments())
    assert Moments().deviation == 0.0


def test_infinite_values_do_not_spoil_the_scale_of_the_others() -> None:
    column = np.array([-np.inf, 1.0, 3.0, np.inf])
    moments = Moments.of(column)
    assert (moments.count, moments.low, moments.high) == (2, 1.0, 3.0)
    assert minmax(column, moments).tolist() == [-np.inf, 0.0, 1.0, np.inf]
    assert zscore(column, moments).tolist() == [-np.inf, -1.0, 1.0, np.inf]
    alone = np.array([np.inf, 2.0])
    assert minmax(alone, Moments.of(alone)).tolist() == [np.inf, 0.0]


def test_minmax_by_hand() -> None:
    column = np.array([0.2, NAN, 0.4, 0.6])
    np.testing.assert_allclose(minmax(column, Moments.of(column)), [0.0, NAN, 0.5, 1.0])


def test_zscore_by_hand() -> None:
    column = np.array([1.0, 3.0, NAN])
    np.testing.assert_allclose(zscore(column, Moments.of(column)), [-1.0, 1.0, NAN])


@pytest.mark.parametrize("scale", [minmax, zscore])
def test_equal_values_come_out_as_zero(scale: object) -> None:
    column = np.array([0.3, 0.3, NAN, 0.3])
    np.testing.assert_array_equal(scale(column, Moments.of(column)), [0.0, 0.0, NAN, 0.0])  # type: ignore[operator]


@given(st.floats(-1e3, 1e3), st.integers(1, 200), st.lists(st.integers(0, 200), max_size=4))
def test_the_zscore_of_a_constant_column_is_zero_at_every_size(value: float, size: int, cuts: list[int]) -> None:
    column = np.full(size, value)
    assert not zscore(column, merged(column, [min(cut, size) for cut in cuts])).any()


@given(numbers, st.floats(0.01, 100), st.floats(-100, 100))
def test_minmax_and_zscore_do_not_see_a_change_of_unit(values: list[float], factor: float, shift: float) -> None:
    column = np.round(np.array(values, np.float64), 2)
    other = column * factor + shift
    if np.unique(column[~np.isnan(column)]).size < 2:
        return
    np.testing.assert_allclose(minmax(other, Moments.of(other)), minmax(column, Moments.of(column)), atol=1e-6)
    np.testing.assert_allclose(zscore(other, Moments.of(other)), zscore(column, Moments.of(column)), atol=1e-6)


@given(numbers)
def test_minmax_keeps_the_order_and_stays_between_zero_and_one(values: list[float]) -> None:
    column = np.array(values, np.float64)
    scaled = minmax(column, Moments.of(column))
    np.testing.assert_array_equal(np.isnan(scaled), np.isnan(column))
    judged = ~np.isnan(column)
    assert ((scaled[judged] >= 0) & (scaled[judged] <= 1)).all()
    assert (np.diff(scaled[judged][np.argsort(column[judged], kind="stable")]) >= 0).all()


def test_rank_by_hand_with_a_tie() -> None:
    column = np.array([10.0, 20.0, 20.0, 30.0, 5.0])
    # Below 20 lie 2 of the 4 others, and 1 is equal: (2 + 0.5) / 4.
    np.testing.assert_allclose(rank(column, np.sort(column)), [0.25, 0.625, 0.625, 1.0, 0.0])


@given(numbers)
def test_rank_equals_counting(values: list[float]) -> None:
    column = np.array(values, np.float64)
    judged = [value for value in values if not math.isnan(value)]
    ranks = rank(column, np.sort(np.array(judged)))
    for value, found in zip(values, ranks, strict=True):
        if math.isnan(value):
            assert math.isnan(found)
            continue
        below = sum(other < value for other in judged)
        equal = sum(other == value for other in judged) - 1
        wanted = (below + 0.5 * equal) / (len(judged) - 1) if len(judged) > 1 else 0.0
        assert found == pytest.approx(wanted)


@given(st.lists(st.floats(-50, 50, width=16), min_size=2, max_size=30))
def test_rank_sees_the_order_only(values: list[float]) -> None:
    column = np.array(values, np.float64)
    grown = np.exp(column)
    np.testing.assert_array_equal(rank(grown, np.sort(grown)), rank(column, np.sort(column)))


@given(numbers)
def test_ranks_have_a_mean_of_one_half(values: list[float]) -> None:
    judged = np.array([value for value in values if not math.isnan(value)])
    if judged.size > 1:
        assert rank(judged, np.sort(judged)).mean() == pytest.approx(0.5)


def test_logit_by_hand() -> None:
    found = logit(np.array([0.5, 0.75, NAN, 1.5, -0.1]))
    np.testing.assert_allclose(found, [0.0, math.log(3), NAN, NAN, NAN], atol=1e-12)


def test_logit_of_zero_and_one_is_finite_and_symmetric() -> None:
    low, high = logit(np.array([0.0, 1.0]))
    assert high == pytest.approx(-low)
    assert high == pytest.approx(math.log((1 - LOGIT_MARGIN) / LOGIT_MARGIN))


@given(st.floats(1e-5, 1 - 1e-5))
def test_the_logistic_function_undoes_the_logit(share: float) -> None:
    assert 1 / (1 + math.exp(-logit(np.array([share]))[0])) == pytest.approx(share, rel=1e-9)
