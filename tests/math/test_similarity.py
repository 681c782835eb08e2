"""Cosines of embeddings against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.math.similarity import TIE, nearest_of, rowwise_dot, unit_rows


def test_a_unit_row_by_hand() -> None:
    np.testing.assert_allclose(unit_rows(np.array([[3.0, 4.0]])), [[0.6, 0.8]], rtol=1e-7)


def test_rows_without_direction_become_nan() -> None:
    found = unit_rows(np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [0.0, 2.0]]))
    assert np.isnan(found[:3]).all()
    assert found[3].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_any_float_type_goes_in_and_float32_comes_out(kind: type) -> None:
    found = unit_rows(np.array([[1.0, 1.0]], kind))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[math.sqrt(0.5)] * 2], rtol=1e-6)


def test_very_long_and_very_short_rows_keep_their_direction() -> None:
    found = unit_rows(np.array([[3e30, 4e30], [3e-30, 4e-30]], np.float32))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6)


def test_no_rows_give_no_rows() -> None:
    assert unit_rows(np.empty((0, 4))).shape == (0, 4)
    assert rowwise_dot(np.empty((0, 4)), np.empty((0, 4))).shape == (0,)


def test_a_cosine_by_hand() -> None:
    left = unit_rows(np.array([[1.0, 0.0], [1.0, 1.0], [2.0, 0.0]]))
    right = unit_rows(np.array([[0.0, 3.0], [1.0, 0.0], [-5.0, 0.0]]))
    np.testing.assert_allclose(rowwise_dot(left, right), [0.0, math.sqrt(0.5), -1.0], atol=1e-6)


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 2**31), st.floats(0.01, 100))
def test_cosines_equal_a_plain_loop_and_ignore_length(rows: int, size: int, seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(rows, size)), rng.normal(size=(rows, size))
    found = rowwise_dot(unit_rows(left * factor), unit_rows(right))
    for number in range(rows):
        length = math.hypot(*left[number]) * math.hypot(*right[number])
        wanted = sum(a * b for a, b in zip(left[number], right[number], strict=True)) / length
        assert found[number] == pytest.approx(wanted, abs=1e-5)
    np.testing.assert_array_equal(found, rowwise_dot(unit_rows(right), unit_rows(left * factor)))


def test_a_row_of_nan_has_no_cosine() -> None:
    found = rowwise_dot(np.array([[np.nan, 1.0], [1.0, 0.0]], np.float16), np.ones((2, 2), np.float16))
    assert np.isnan(found[0])
    assert found[1] == 1.0
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3), (3, 3)), ((2, 3), (2, 4)), ((3,), (3,)), ((1, 3), (2, 3))], ids=str
)
def test_rows_that_do_not_pair_up_are_an_error(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="same shape"):
        rowwise_dot(np.zeros(left), np.zeros(right))


def test_the_nearest_and_its_margin_by_hand() -> None:
    others = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    rows = np.array([[0, 5], [3, 0], [0.6, 0.8], [0, -1]], np.float16)
    which, cosine, margin = nearest_of(rows, others)
    assert which.tolist() == [1, 0, 2, 0]
    np.testing.assert_allclose(cosine, [1, 1, 1, 0], atol=1e-3)
    np.testing.assert_allclose(margin, [0.2, 0.4, 0.2, 0.8], atol=1e-3)
    assert (cosine.dtype, margin.dtype) == (np.float32, np.float32)


@given(st.integers(1, 9), st.integers(2, 7), st.integers(1, 12), st.integers(0, 2**31))
def test_the_nearest_is_that_of_a_plain_loop(rows: int, count: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, others = rng.normal(size=(rows, size)), unit_rows(rng.normal(size=(count, size)))
    for row, which, cosine, margin in zip(values, *nearest_of(values, others), strict=True):
        cosines = [float(row @ other) / math.hypot(*row) for other in others]
        highest, second = sorted(cosines, reverse=True)[:2]
        assert cosines[which] == pytest.approx(highest, abs=1e-5)
        assert cosine == pytest.approx(highest, abs=1e-5)
        assert margin == pytest.approx(highest - second, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_of_equal_others_the_first_is_the_nearest_however_rows_are_cut(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(40, 24)).astype(np.float16)
    others = np.repeat(unit_rows(rng.normal(size=(1, 24))), 1000, axis=0)
    others[500:] = np.nextafter(others[500:], np.float32(2))  # by a last bit
    assert nearest_of(rows, others)[0].tolist() == [0] * 40
    assert [int(nearest_of(rows[row : row + 1], others)[0][0]) for row in range(40)] == [0] * 40
    assert (nearest_of(rows, others)[2] <= TIE).all()


def test_rows_without_direction_lie_near_nothing() -> None:
    rows = np.array([[0, 0], [np.nan, 1], [np.inf, 0], [1, 0]], np.float16)
    which, cosine, margin = nearest_of(rows, np.eye(2, dtype=np.float32))
    assert which.tolist() == [-1, -1, -1, 0]
    assert np.isnan(cosine[:3]).all()
    assert np.isnan(margin[:3]).all()
    assert [len(each) for each in nearest_of(np.empty((0, 2), np.float16), np.eye(2, dtype=np.float32))] == [0, 0, 0]
