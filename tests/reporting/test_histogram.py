from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.reporting.histogram import BARS, QUANTILES, Histogram, histograms
from tamis.store.table import Table


def one(values: list[float], keep: list[bool] | None = None, cuts: tuple[float, ...] = (), block: int = 3) -> Histogram:
    column = np.asarray(values, np.float32)
    keeps = [np.asarray(keep, bool)] if keep is not None else []
    return histograms(Table.of({"x": column}, block=block), ["x"], keeps, {"x": cuts})["x"]


def test_by_hand() -> None:
    found = one([1, 2, 2, 3, np.nan, np.inf], [True, True, False, False, True, True])
    assert (found.judged, found.null, found.infinite) == (4, 1, 1)
    assert (found.low, found.high) == (1, 3)
    assert found.edges.tolist() == [0.5, 1.5, 2.5, 3.5]  # whole numbers stand in the middle of their bars
    assert found.pool.tolist() == [1, 2, 1]
    assert found.kept[0].tolist() == [1, 1, 0]
    assert found.kept_null == (1,)
    assert found.quantiles[0.5] == 2


@given(st.lists(st.floats(width=32) | st.just(float("nan")), max_size=60), st.integers(1, 20))
def test_quantiles_and_counts_equal_those_of_numpy(values: list[float], block: int) -> None:
    found = one(values, [True] * len(values), block=block)
    finite = np.asarray([value for value in values if np.isfinite(value)], np.float32)
    assert found.judged == finite.size == found.pool.sum() == found.kept[0].sum()
    assert found.null == sum(np.isnan(value) for value in values)
    for level in QUANTILES:
        if finite.size:
            assert found.quantiles[level] == np.quantile(finite, level, method="lower")
        else:
            assert np.isnan(found.quantiles[level])


def test_blocks_do_not_matter() -> None:
    values = np.random.default_rng(0).normal(size=500).tolist()
    whole, cut = one(values, block=500), one(values, block=7)
    assert whole.pool.tolist() == cut.pool.tolist()
    assert whole.quantiles == cut.quantiles


def test_a_long_tail_is_one_bar_at_the_edge() -> None:
    found = one([*np.linspace(0, 1, 500), 1000.0], block=100)
    assert found.above
    assert not found.below
    assert found.edges[-1] < 2
    assert found.high == 1000
    assert found.pool.sum() == 501


def test_a_cut_in_the_tail_is_on_the_axis() -> None:
    found = one([*np.linspace(0, 1, 500), 1000.0], cuts=(400.0,), block=100)
    assert found.edges[-1] >= 400
    assert found.place(400) <= 1


def test_few_values_beside_one_common_value_are_drawn() -> None:
    found = one([0.0] * 998 + [0.5, 0.9], block=400)
    assert not found.above
    assert found.edges[-1] == np.float32(0.9)


def test_bars_of_whole_numbers_hold_equally_many_of_them() -> None:
    found = one(list(range(1, 201)) * 2, block=100)
    widths = np.diff(found.edges)
    assert found.pool.size <= BARS
    assert set(widths.tolist()) == {widths[0]}
    assert float(widths[0]).is_integer()
    assert len(set(found.pool.tolist())) == 1


@pytest.mark.parametrize("values", [[], [np.nan, np.nan]])
def test_nothing_judged(values: list[float]) -> None:
    found = one(values, [True] * len(values))
    assert found.judged == 0
    assert np.isnan(found.low)
    assert found.pool.sum() == 0


@pytest.mark.parametrize("value", [0.25, -7.5, 3.0, 3e38, 1e-40])
def test_a_constant_column_is_one_bar(value: float) -> None:
    found = one([value] * 5)
    assert found.pool.tolist() == [5]
    assert found.edges[0] < found.low <= found.edges[-1]
