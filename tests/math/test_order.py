"""Exact top-k against sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.math import order
from tamis.math.order import keep_top, kth_largest, round_half_up


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


@pytest.mark.parametrize("k", [0, 3, -1])
def test_k_out_of_range_is_an_error(k: int) -> None:
    with pytest.raises(ValueError, match=f"2, got {k}"):
        kth_largest(np.array([1.0, 2.0, 3.0]), k, np.array([True, False, True]))


def column(shape: str, rng: np.random.Generator, rows: int) -> NDArray[np.float64]:
    if shape == "sorted with rare extremes":
        values = np.sort(rng.normal(size=rows))
        values[::1777] = 1e6
        return values
    return {
        "smooth": rng.normal(size=rows),
        # DataComp's published scores are float16, with many ties.
        "half precision": rng.normal(0.25, 0.05, rows).astype(np.float16).astype(np.float64),
        "two values": rng.integers(0, 2, rows).astype(np.float64),
        "one value": np.full(rows, 0.25),
    }[shape]


@pytest.mark.parametrize("shape", ["smooth", "half precision", "two values", "one value", "sorted with rare extremes"])
@pytest.mark.parametrize("some_dead", [False, True])
def test_long_columns_are_bracketed_and_exact(shape: str, some_dead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_BLOCK", 1 << 12)  # more than four blocks take the bracket's path
    rng = np.random.default_rng(5)
    values = column(shape, rng, 70_001)
    candidates = rng.random(values.size) < 0.6 if some_dead else None
    if candidates is not None:
        values[~candidates] = np.nan
    descending = np.sort(values if candidates is None else values[candidates])[::-1]
    for k in (1, 2, 17, descending.size // 3, descending.size // 2, descending.size - 1, descending.size):
        assert kth_largest(values, k, candidates) == descending[k - 1], k


@pytest.mark.parametrize("k", [1, 299_999, 300_000, 300_001, 450_000, 600_000])
def test_a_sample_that_misses_half_of_the_values_only_costs_time(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_BLOCK", 1 << 14)
    values = np.random.default_rng(1).random(600_000)
    values[1::2] += 5  # the sample takes every second row, and never one of these
    assert kth_largest(values, k) == np.sort(values)[::-1][k - 1]
    # The sample sees one value only; exactly as many as requested are above it.
    values = np.tile([0.0, 1.0], 300_000)
    assert (kth_largest(values, 300_000), kth_largest(values, 300_001)) == (1.0, 0.0)


def test_keep_top_by_hand_asks_for_tie_numbers_at_the_cut_only() -> None:
    values, candidates = np.array([0.5, 0.9, 0.5, 0.1, 0.5]), np.ones(5, bool)
    asked: list[list[int]] = []

    def tie_order(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        asked.append(rows.tolist())
        return np.array([9, 8, 7, 6, 5], np.uint64)[rows]

    kept, cut = keep_top(values, 3, candidates, tie_order)
    assert (kept.tolist(), cut) == ([False, True, True, False, True], 0.5)
    assert asked == [[0, 2, 4]]
    kept[:] = False
    assert candidates.all()


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
