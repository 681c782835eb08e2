"""Exact top-k against sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.math import order
from tamis.math.order import keep_top, round_half_up


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


def test_more_rows_than_candidates_are_an_error() -> None:
    with pytest.raises(ValueError, match="2, got 3"):
        keep_top(np.array([1.0, 2.0, 3.0]), 3, np.array([True, False, True]), lambda rows: rows.astype(np.uint64))


def column(shape: str, rng: np.random.Generator, rows: int) -> NDArray[np.float64]:
    if shape == "sorted with rare extremes":
        values = np.sort(rng.normal(size=rows))
        values[::1777] = 1e6
        return values
    if shape == "a sample missing half":  # it takes every second row, and never a high one
        return rng.random(rows) + 5 * (np.arange(rows) % 2)
    return {
        "smooth": rng.normal(size=rows),
        # DataComp's published scores are float16, with many ties.
        "half precision": rng.normal(0.25, 0.05, rows).astype(np.float16).astype(np.float64),
        "two values in turn": np.arange(rows) % 2.0,
    }[shape]


def cut_of(values: NDArray[np.float64], n: int, candidates: NDArray[np.bool_]) -> float | None:
    return keep_top(values, n, candidates, lambda rows: rows.astype(np.uint64))[1]


@pytest.mark.parametrize(
    "shape",
    ["smooth", "half precision", "two values in turn", "sorted with rare extremes", "a sample missing half"],
)
@pytest.mark.parametrize("share", [0.6, 1])
def test_long_columns_are_bracketed_and_exact(shape: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_BLOCK", 1 << 14)  # more than four blocks take the bracket's path
    rng = np.random.default_rng(5)
    values = column(shape, rng, 600_000)
    candidates = rng.random(values.size) < share
    values[~candidates] = np.nan
    descending = np.sort(values[candidates])[::-1]
    size = descending.size
    for n in (1, 17, size // 3, size // 2 - 1, size // 2, size // 2 + 1, size - 1, size):
        assert cut_of(values, n, candidates) == descending[n - 1], n


def test_keep_top_asks_for_tie_numbers_at_the_cut_only() -> None:
    asked: list[list[int]] = []

    def tie_order(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        asked.append(rows.tolist())
        return np.array([9, 8, 7, 6, 5], np.uint64)[rows]

    kept, cut = keep_top(np.array([0.5, 0.9, 0.5, 0.1, 0.5]), 3, np.ones(5, bool), tie_order)
    assert (kept.tolist(), cut, asked) == ([False, True, True, False, True], 0.5, [[0, 2, 4]])


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
