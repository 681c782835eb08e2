"""Near duplicates beside the whole matrix of cosines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.math.dedup import equal_before, nearest_before, survivors
from tamis.math.similarity import unit_rows


def test_four_vectors_worked_by_hand() -> None:
    vectors = np.array([[1, 0], [0, 1], [0.8, 0.6], [0.6, 0.8]], np.float32)
    found = nearest_before(vectors)
    assert found.cosine == pytest.approx([-np.inf, 0, 0.8, 0.96])
    assert found.row.tolist() == [-1, 0, 0, 2]
    assert survivors(found.row, found.cosine <= 0.9).tolist() == [0, 1, 2, 2]
    # The last repeats the third, which repeats the first.
    assert survivors(found.row, found.cosine <= 0.7).tolist() == [0, 1, 0, 0]
    assert survivors(found.row, found.cosine <= 1.0).tolist() == [0, 1, 2, 3]


@given(st.integers(0, 10**6), st.integers(0, 40), st.sampled_from([1, 3, 7, 64]))
@settings(max_examples=40, deadline=None)
def test_blocks_give_what_the_whole_matrix_gives(seed: int, n: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = unit_rows(rng.normal(size=(max(n, 1), 5)))[:n]
    if n > 3:
        vectors[n // 2] = vectors[0]
    found = nearest_before(vectors, block=block)
    cosines = vectors @ vectors.T
    for row in range(n):
        before = cosines[row, :row]
        assert found.cosine[row] == pytest.approx(before.max() if row else -np.inf, abs=1e-6)
        if row:
            assert before[found.row[row]] == pytest.approx(before.max(), abs=1e-6)
            assert 0 <= found.row[row] < row


def test_one_pass_serves_every_threshold() -> None:
    rng = np.random.default_rng(0)
    vectors = unit_rows(rng.normal(size=(300, 4)))
    found = nearest_before(vectors)
    cosines = np.triu(vectors @ vectors.T, 1)
    for epsilon in (0.0001, 0.01, 0.05, 0.2, 0.9):
        dropped = (np.where(cosines != 0, cosines, -1).max(0) > 1 - epsilon)[1:]
        head = survivors(found.row, found.cosine <= np.float32(1 - epsilon))
        assert (head != np.arange(300))[1:].tolist() == dropped.tolist()
        assert (head[head] == head).all()


def test_chains_end_at_their_first_kept_row() -> None:
    assert survivors(np.arange(-1, 999), np.arange(1000) == 0).tolist() == [0] * 1000
    # 0 is dropped by a budget; 1 repeats it and is dropped too; 3 repeats 2, which is kept.
    before, stays = np.array([-1, 0, 1, 2]), np.array([False, False, True, False])
    assert survivors(before, stays).tolist() == [0, 1, 2, 2]


def test_a_row_of_nan_is_an_error() -> None:
    with pytest.raises(ValueError, match="a row holds NaN"):
        nearest_before(np.array([[1, 0], [np.nan, 0], [1, 0]], np.float32))


def test_equal_rows_are_those_of_equal_bits() -> None:
    rows = np.array([[1, 0], [0, 1], [1, 0], [1, -0.0], [1, 1e-7], [0, 1]], np.float16)
    assert equal_before(rows).tolist() == [-1, -1, 0, 0, -1, 1]
    assert equal_before(np.empty((0, 3), np.float16)).tolist() == []
