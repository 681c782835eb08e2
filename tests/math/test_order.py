"""Exact top-k against sorting."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.math import order
from tamis.math.order import keep_top, kth_largest, round_half_up


def by_index(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    return rows.astype(np.uint64)


@pytest.mark.parametrize(
    ("fraction", "of", "wanted"),
    [
        (0.29, 100, 29),  # int(0.29 * 100) is 28
        (0.5, 5, 3),  # Python's round(2.5) is 2
        (0.5, 7, 4),
        (0.29, 50, 15),  # 0.29 * 50 is 14.499999999999998
        (0.145, 100, 15),
        (0.1, 4, 0),
        (0.0, 1000, 0),
        (1.0, 1000, 1000),
        (0.3, 12_800_000_000, 3_840_000_000),
        (0.7, 0, 0),
    ],
)
def test_fractions_are_rounded_half_up(fraction: float, of: int, wanted: int) -> None:
    assert round_half_up(fraction, of) == wanted


@given(st.integers(0, 1000), st.integers(0, 10**6))
def test_a_fraction_written_in_thousandths_is_rounded_as_on_paper(thousandths: int, of: int) -> None:
    exact = Fraction(thousandths, 1000) * of
    assert round_half_up(thousandths / 1000, of) == (exact + Fraction(1, 2)).__floor__()


def test_the_third_largest_of_five_by_hand() -> None:
    assert kth_largest(np.array([4.0, 1.0, 4.0, 2.0, 3.0]), 3) == 3.0
    assert kth_largest(np.array([4.0, 1.0, 4.0, 2.0, 3.0]), 2) == 4.0


@given(
    st.lists(st.sampled_from([-1.5, 0.0, 0.25, 0.5, np.inf, -np.inf]), min_size=1, max_size=40),
    st.data(),
)
def test_kth_largest_equals_sorting(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    assert kth_largest(np.array(values), k) == sorted(values, reverse=True)[k - 1]


@pytest.mark.parametrize("k", [0, 3, -1])
def test_k_out_of_range_is_an_error_that_names_the_range(k: int) -> None:
    with pytest.raises(ValueError, match=f"between 1 and the number of rows 2, got {k}"):
        kth_largest(np.array([1.0, 2.0, 3.0]), k, np.array([True, False, True]))


def smooth(rng: np.random.Generator, rows: int) -> NDArray[np.float64]:
    return rng.normal(size=rows)


def half_precision(rng: np.random.Generator, rows: int) -> NDArray[np.float64]:
    """DataComp's published scores: float16, hence heavy ties."""
    return rng.normal(0.25, 0.05, rows).astype(np.float16).astype(np.float64)


def two_values(rng: np.random.Generator, rows: int) -> NDArray[np.float64]:
    return rng.integers(0, 2, rows).astype(np.float64)


def one_value(rng: np.random.Generator, rows: int) -> NDArray[np.float64]:
    return np.full(rows, 0.25)


def ascending_with_rare_extremes(rng: np.random.Generator, rows: int) -> NDArray[np.float64]:
    values = np.sort(rng.normal(size=rows))
    values[::1777] = 1e6
    return values


SHAPES = [smooth, half_precision, two_values, one_value, ascending_with_rare_extremes]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("some_dead", [False, True])
def test_long_columns_are_bracketed_and_still_exact(
    shape: Callable[[np.random.Generator, int], NDArray[np.float64]], some_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "_BLOCK", 1 << 12)  # four blocks' worth is what takes the bracket's path
    rng = np.random.default_rng(5)
    rows = 70_001
    values = shape(rng, rows)
    alive = None
    if some_dead:
        alive = rng.random(rows) < 0.6
        values[~alive] = np.nan  # what is not in question may be anything
    live = values if alive is None else values[alive]
    descending = np.sort(live)[::-1]
    for k in (1, 2, 17, live.size // 3, live.size // 2, live.size - 1, live.size):
        assert kth_largest(values, k, alive) == descending[k - 1], k


@pytest.mark.parametrize("k", [1, 299_999, 300_000, 300_001, 450_000, 600_000])
def test_a_sample_that_misses_half_of_the_values_costs_time_only(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_BLOCK", 1 << 14)
    values = np.random.default_rng(1).random(600_000)
    values[1::2] += 5  # the sample takes every second row, and never one of these
    assert kth_largest(values, k) == np.sort(values)[::-1][k - 1]
    # All that the sample sees is one value, above which lie exactly as many as are asked for.
    values = np.tile([0.0, 1.0], 300_000)
    assert kth_largest(values, 300_000) == 1.0
    assert kth_largest(values, 300_001) == 0.0


def test_a_column_past_the_real_block_size_is_exact() -> None:
    rng = np.random.default_rng(7)
    rows = 4 * (1 << 20) + 4321
    values = rng.normal(0.25, 0.05, rows).astype(np.float16).astype(np.float32)
    k = 1_258_291
    cut = kth_largest(values, k)
    assert np.count_nonzero(values > cut) < k <= np.count_nonzero(values >= cut)
    assert cut in values


def test_keep_top_by_hand() -> None:
    values = np.array([0.5, 0.9, 0.5, 0.1, 0.5])
    alive = np.array([True, True, True, True, True])
    reverse = np.array([9, 8, 7, 6, 5], np.uint64)
    kept, cut = keep_top(values, 3, alive, lambda rows: reverse[rows])
    assert kept.tolist() == [False, True, True, False, True]
    assert cut == 0.5


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.2]), st.booleans(), st.integers(0, 3)), min_size=1, max_size=30),
    st.data(),
)
def test_keep_top_equals_a_sort_by_value_and_tie(rows: list[tuple[float, bool, int]], data: st.DataObject) -> None:
    values = np.array([value if live else np.nan for value, live, _ in rows])
    alive = np.array([live for _, live, _ in rows])
    ties = np.array([tie for _, _, tie in rows], np.uint64)
    n = data.draw(st.integers(0, int(alive.sum())))
    kept, cut = keep_top(values, n, alive, lambda numbers: ties[numbers])
    living = [number for number, (_, live, _) in enumerate(rows) if live]
    best = sorted(living, key=lambda number: (-values[number], int(ties[number]), number))[:n]
    assert sorted(np.flatnonzero(kept).tolist()) == sorted(best)
    assert cut == (min(values[best]) if best else None)


def test_the_tie_order_is_asked_for_rows_at_the_cut_only() -> None:
    asked: list[list[int]] = []

    def tie_order(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        asked.append(rows.tolist())
        return by_index(rows)

    keep_top(np.array([3.0, 1.0, 2.0, 2.0, 2.0]), 2, np.ones(5, bool), tie_order)
    assert asked == [[2, 3, 4]]


def test_keep_top_changes_neither_values_nor_mask() -> None:
    values, alive = np.array([1.0, 2.0]), np.array([True, True])
    kept, _ = keep_top(values, 2, alive, by_index)
    kept[:] = False
    assert alive.tolist() == [True, True]
    assert values.tolist() == [1.0, 2.0]
