"""Exact top-k against sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.core.math import order
from tamis.core.math.order import keep_top, nth_largest, number_of, ordered_bits, round_half_up


@pytest.mark.parametrize(
    ("fraction", "of", "expected"),
    [
        (0.29, 100, 29),  # int(0.29 * 100) is 28
        (0.5, 5, 3),  # Python's round(2.5) is 2
        (0.29, 50, 15),  # 0.29 * 50 is 14.499999999999998
        (0.0, 1000, 0),
        (0.3, 12_800_000_000, 3_840_000_000),
    ],
)
def test_fractions_are_rounded_half_up(fraction: float, of: int, expected: int) -> None:
    assert round_half_up(fraction, of) == expected


def test_keep_top_asks_for_tie_numbers_at_the_cut_only() -> None:
    asked: list[list[int]] = []

    def tie_order(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        asked.append(rows.tolist())
        return np.array([9, 8, 7, 6, 5], np.uint64)[rows]

    kept, cut = keep_top(np.array([0.5, 0.9, 0.5, 0.1, 0.5]), 3, np.ones(5, bool), tie_order)
    assert (kept.tolist(), cut, asked) == ([False, True, True, False, True], 0.5, [[0, 2, 4]])
    with pytest.raises(ValueError, match="there are 2 rows to keep, fewer than n = 3"):
        keep_top(np.array([1.0, 2.0, 3.0]), 3, np.array([True, False, True]), tie_order)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.2]), st.booleans(), st.integers(0, 3)), min_size=1, max_size=30),
    st.data(),
)
def test_keep_top_equals_a_sort_by_value_and_tie(rows: list[tuple[float, bool, int]], data: st.DataObject) -> None:
    values = np.array([value if live else np.nan for value, live, _ in rows])
    candidates = np.array([live for _, live, _ in rows])
    ties = np.array([tie for _, _, tie in rows], np.uint64)
    n = data.draw(st.integers(0, int(candidates.sum())))
    kept, cut = keep_top(values, n, candidates, lambda numbers: ties[numbers])
    allowed = [number for number, (_, live, _) in enumerate(rows) if live]
    best = sorted(allowed, key=lambda number: (-values[number], int(ties[number]), number))[:n]
    assert sorted(np.flatnonzero(kept).tolist()) == sorted(best)
    assert cut == (min(values[best]) if best else None)


def test_bits_of_numbers_have_their_order() -> None:
    numbers = np.array([-np.inf, -2.5, -1e-310, 0.0, 1e-310, 0.1, 3.0, np.inf])
    bits = ordered_bits(numbers)
    assert (bits[1:] > bits[:-1]).all()
    assert number_of(bits).tolist() == numbers.tolist()
    assert ordered_bits(np.array([-0.0])) == ordered_bits(np.array([0.0]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1)), st.integers(0, 2)), max_size=9),
        max_size=4,
    ),
    st.integers(0, 12),
    st.booleans(),
    st.sampled_from([1, 4, 100]),
)
def test_nth_largest_equals_a_sort_however_little_is_held(
    blocks: list[list[tuple[int, int]]], n: int, grouped: bool, held: int
) -> None:
    keys = [np.array([key for key, _ in block], np.uint64) for block in blocks]
    groups = [np.array([group if grouped else 0 for _, group in block], np.int64) for block in blocks]
    count, rows = 3 if grouped else 1, sum(map(len, blocks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "HELD", held)
        patch.setattr(order, "_COUNTERS", 24)
        found = nth_largest(
            lambda work: map(work, keys, groups),
            lambda counts: np.minimum(counts, n),
            rows,
            count,
        )
    for group, (cut, wanted, above, equal) in enumerate(zip(*(each.tolist() for each in found), strict=True)):
        own = sorted((int(k) for ks, gs in zip(keys, groups, strict=True) for k in ks[gs == group]), reverse=True)
        assert wanted == min(n, len(own))
        assert cut == (own[wanted - 1] if wanted else 2**64 - 1)
        assert (above, equal) == (sum(key > cut for key in own), own.count(cut))
