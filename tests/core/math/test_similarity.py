"""Cosines of embeddings against plain loops; near duplicates against the whole matrix."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.core.math.similarity import (
    TIE,
    cosines,
    equal_before,
    nearest_before,
    nearest_of,
    representatives,
    rowwise_dot,
    unit_rows,
)

NAN = np.nan


def test_unit_rows_by_hand() -> None:
    rows = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0], [NAN, 1.0], [np.inf, 1.0]], np.float16))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [NAN, NAN], [NAN, NAN], [NAN, NAN]], rtol=1e-6)
    assert rows.dtype == np.float32
    extreme = unit_rows(np.array([[3e30, 4e30], [3e-30, 4e-30]], np.float32))
    np.testing.assert_allclose(extreme, [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6)


def test_unit_rows_are_those_of_float64_whatever_their_length_and_neighbours() -> None:
    rows = np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32)
    rows[::7] *= np.float32(1e30)
    rows[1::7] *= np.float32(1e-30)
    rows[2], rows[3, 1] = 0, np.nan
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 64)  # infinity, NaN, subnormal numbers
    for stored in (rows, every):
        found = unit_rows(stored)
        with np.errstate(invalid="ignore"):
            exact = stored.astype(float)
            exact /= np.linalg.norm(exact, axis=1, keepdims=True)
        infinite = ~np.isfinite(stored).all(1, keepdims=True)
        np.testing.assert_allclose(found, np.where(infinite, np.nan, exact), rtol=1e-6)
        np.testing.assert_array_equal(np.concatenate([unit_rows(row[None]) for row in stored]), found)
        np.testing.assert_array_equal(unit_rows(stored[::-1])[::-1], found)


def test_rowwise_cosines_by_hand() -> None:
    left = np.array([[1.0, 0.0], [math.sqrt(0.5), math.sqrt(0.5)], [NAN, 1.0]], np.float16)
    right = np.array([[-1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], np.float16)
    np.testing.assert_allclose(rowwise_dot(left, right), [-1, math.sqrt(0.5), NAN], atol=1e-3)
    for shapes in (((2, 3), (2, 4)), ((3,), (3,)), ((1, 3), (2, 3))):
        with pytest.raises(ValueError, match="same shape"):
            rowwise_dot(*map(np.zeros, shapes))
    # To six digits, so that cosines that differ by rounding tie.
    near = cosines(np.array([[1.0, 0.0]]), np.array([[0.3, 0.9], [0.30000004, 0.9]], np.float32))
    assert near.tolist() == [[np.float32(0.3)] * 2]


@given(st.integers(1, 9), st.integers(2, 7), st.integers(1, 12), st.integers(0, 2**31), st.floats(0.01, 100))
def test_cosines_and_the_nearest_are_those_of_loops(rows: int, count: int, size: int, seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    values, others = rng.normal(size=(rows, size)) * factor, rng.normal(size=(count, size))
    units = unit_rows(others)
    which, cosine, margin = nearest_of(values, units)
    for n, row in enumerate(values):
        expected = [float(row @ other) / math.hypot(*row) / math.hypot(*other) for other in others]
        repeated = np.repeat(row[None], count, axis=0)
        np.testing.assert_allclose(rowwise_dot(unit_rows(repeated), units), expected, atol=1e-5)
        highest, second = sorted(expected, reverse=True)[:2]
        assert expected[which[n]] == pytest.approx(highest, abs=1e-5)
        assert (cosine[n], margin[n]) == pytest.approx((highest, highest - second), abs=1e-5)


def test_the_nearest_and_its_margin_by_hand() -> None:
    others = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    rows = np.array([[0, 5], [3, 0], [0.6, 0.8], [0, -1], [0, 0], [NAN, 1], [np.inf, 0]], np.float16)
    which, cosine, margin = nearest_of(rows, others)
    assert which.tolist() == [1, 0, 2, 0, -1, -1, -1]
    np.testing.assert_allclose(cosine, [1, 1, 1, 0, NAN, NAN, NAN], atol=1e-3)
    np.testing.assert_allclose(margin, [0.2, 0.4, 0.2, 0.8, NAN, NAN, NAN], atol=1e-3)


def test_of_equal_others_the_first_is_the_nearest_in_every_batch() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 24)).astype(np.float16)
    others = np.repeat(unit_rows(rng.normal(size=(1, 24))), 1000, axis=0)
    others[500:] = np.nextafter(others[500:], np.float32(2))  # by a last bit
    which, _, margin = nearest_of(rows, others)
    assert which.tolist() == [int(nearest_of(row[None], others)[0][0]) for row in rows] == [0] * 40
    assert (margin <= TIE).all()


def test_four_vectors_worked_by_hand() -> None:
    vectors = np.array([[1, 0], [0, 1], [0.8, 0.6], [0.6, 0.8]], np.float32)
    nearest, row = nearest_before(vectors)
    assert nearest == pytest.approx([-np.inf, 0, 0.8, 0.96])
    assert row.tolist() == [-1, 0, 0, 2]
    assert representatives(row, nearest <= 0.9).tolist() == [0, 1, 2, 2]
    # The last repeats the third, which repeats the first.
    assert representatives(row, nearest <= 0.7).tolist() == [0, 1, 0, 0]
    with pytest.raises(ValueError, match="a row holds NaN"):
        nearest_before(np.array([[1, 0], [np.nan, 0], [1, 0]], np.float32))


@given(st.integers(0, 10**6), st.integers(0, 40), st.sampled_from([1, 3, 7, 64]))
@settings(max_examples=40, deadline=None)
def test_blocks_give_what_the_whole_matrix_gives(seed: int, n: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = unit_rows(rng.normal(size=(max(n, 1), 5)))[:n]
    if n > 3:
        vectors[n // 2] = vectors[0]
    nearest, found = nearest_before(vectors, block=block)
    cosines = vectors @ vectors.T
    for row in range(n):
        before = cosines[row, :row]
        assert nearest[row] == pytest.approx(before.max() if row else -np.inf, abs=1e-6)
        if row:
            assert before[found[row]] == pytest.approx(before.max(), abs=1e-6)
            assert 0 <= found[row] < row


def test_chains_end_at_their_first_kept_row() -> None:
    assert representatives(np.arange(-1, 999), np.arange(1000) == 0).tolist() == [0] * 1000
    # 0 is dropped by a budget; 1 repeats it and is dropped too; 3 repeats 2, which is kept.
    before, stays = np.array([-1, 0, 1, 2]), np.array([False, False, True, False])
    assert representatives(before, stays).tolist() == [0, 1, 2, 2]


def test_equal_rows_are_those_of_equal_bits() -> None:
    rows = np.array([[1, 0], [0, 1], [1, 0], [1, -0.0], [1, 1e-7], [0, 1]], np.float16)
    assert equal_before(rows).tolist() == [-1, -1, 0, 0, -1, 1]
