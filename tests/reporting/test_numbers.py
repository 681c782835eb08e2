"""The page's numbers by hand: formats, histograms, counts of words, overlaps, duplicates and picks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.reporting import distributions, formats
from tamis.reporting.charts import interval_shapes
from tamis.reporting.distributions import BARS, QUANTILES, Histogram, histograms, tallies
from tamis.reporting.pairs import around, scrambled
from tamis.reporting.sections.pool import duplicates
from tamis.store.reasons import Cut
from tamis.store.table import Table


def mask(*rows: int, of: int = 6) -> Any:
    out = np.zeros(of, bool)
    out[list(rows)] = True
    return out


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (formats.share(1, 3), "33.3 %"),
        (formats.share(1, 1_000_000), "<0.1 %"),
        (formats.share(999_999, 1_000_000), ">99.9 %"),
        (formats.number(0.281234), "0.2812"),
        (formats.number(1234567.0), "1,234,567"),
        (formats.number(float("nan")), "–"),
        (formats.fixed(-0.5, "+.3f"), "−0.500"),
        (formats.size(7250), "7.25 kB"),
        (formats.clip("abcd", 3), "ab…"),
    ],
)
def test_numbers_are_short_and_never_say_none_of_some_nor_all_of_most(written: str, text: str) -> None:
    assert written == text


def one(values: Any, keep: list[bool] | None = None, cuts: tuple[float, ...] = (), block: int = 3) -> Histogram:
    column = np.asarray(values, np.float32)
    keeps = [np.asarray(keep, bool)] if keep is not None else []
    return histograms(Table.of({"x": column}, block=block), ["x"], keeps, {"x": cuts})["x"]


def test_a_histogram_by_hand() -> None:
    found = one([1, 2, 2, 3, np.nan, np.inf], [True, True, False, False, True, True])
    assert (found.judged, found.null, found.infinite) == (4, 1, 1)
    assert (found.low, found.high, found.quantiles[0.5]) == (1, 3, 2)
    assert found.edges.tolist() == [0.5, 1.5, 2.5, 3.5]  # whole numbers are in the middle of their bars
    assert found.pool.tolist() == [1, 2, 1]
    assert found.kept[0].tolist() == [1, 1, 0]
    assert found.kept_null == [1]


@given(st.lists(st.floats(width=32) | st.just(float("nan")), max_size=60), st.integers(1, 20))
def test_quantiles_and_counts_equal_those_of_numpy_whatever_the_blocks(values: list[float], block: int) -> None:
    found = one(values, [True] * len(values), block=block)
    finite = np.asarray([value for value in values if np.isfinite(value)], np.float32)
    assert found.judged == finite.size == found.pool.sum() == found.kept[0].sum()
    assert found.null == sum(np.isnan(value) for value in values)
    for level in QUANTILES:
        expected = np.quantile(finite, level, method="lower") if finite.size else np.nan
        assert np.array_equal(found.quantiles[level], expected, equal_nan=True)
    whole = one(values, block=1000)
    assert (found.pool.tolist(), found.edges.tolist()) == (whole.pool.tolist(), whole.edges.tolist())


def test_a_long_tail_is_one_bar_at_the_edge_unless_a_cut_is_in_it() -> None:
    values = [*np.linspace(0, 1, 500), 1000.0]
    found = one(values, block=100)
    assert (found.above, found.below, found.high, found.pool.sum()) == (True, False, 1000, 501)
    assert found.edges[-1] < 2
    assert one(values, cuts=(400.0,), block=100).edges[-1] >= 400
    constant = one([-7.5] * 5)
    assert constant.edges[0] < constant.low < constant.edges[-1]
    few = one([0.0] * 998 + [0.5, 0.9], block=400)  # nearly all one value: the others are shown
    assert (few.above, few.edges[-1]) == (False, np.float32(0.9))


def test_bars_of_whole_numbers_hold_equally_many_of_them() -> None:
    found = one(list(range(1, 201)) * 2, block=100)
    assert found.pool.size <= BARS
    assert len(set(np.diff(found.edges).tolist())) == len(set(found.pool.tolist())) == 1
    assert float(found.edges[1] - found.edges[0]).is_integer()


def test_an_interval_is_where_its_numbers_are() -> None:
    estimate = {"low": -1.0, "value": 0.0, "high": 1.0}
    drawn = interval_shapes(estimate, [estimate, None, {"low": 2.0, "value": 2.5, "high": 3.0}], None)
    # The scale's ends are at 2 and 98: -1 is 2, 0 a quarter of the way, 1 half of it.
    assert [shape["x1"] for shape in drawn] == ["2.00", "2.00", "50.00", "26.00"]
    flat = dict.fromkeys(estimate, 1.0)
    assert [shape["x1"] for shape in interval_shapes(flat, [flat], 1.0)] == ["2.00"] * 5


def test_a_column_of_many_values_is_named_but_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "MOST", 3)
    found = tallies(Table.of({"w": list("abcdefgh")}, block=2), ["w"], [])["w"]
    assert (found.many, found.values) == (True, ())


def test_duplicates_are_rows_that_share_both_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    high = np.array([1, 1, 1, 2, 3, 1], np.uint64)
    low = np.array([5, 6, 5, 5, 5, 5], np.uint64)
    table = Table.of({"x": np.zeros(6, np.float32)}, uids=(high, low), block=4)
    found = duplicates(table, scrambled(table))
    assert found == {"uids": 1, "rows": 3, "examples": [("00000000000000010000000000000005", [0, 2, 5])]}
    # Different uids that scramble to one number are none.
    monkeypatch.setattr("tamis.reporting.sections.pool.scramble", lambda high, low: np.zeros(high.size, np.uint64))
    assert duplicates(Table.of({"x": np.zeros(4, np.float32)}), np.zeros(4, np.uint64))["uids"] == 0


def cut(low: float | None = None, high: float | None = None) -> Cut:
    return Cut(step="", score="x", low=low, high=high, code=1, dropped=0)


def test_the_pairs_around_a_cut_are_the_nearest_first() -> None:
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5, np.nan])
    table = Table.of({"x": values.astype(np.float32)})
    kept, dropped = around(table, values, cut(low=0.3), values >= 0.3, ~(values >= 0.3), 2)
    assert (kept, dropped) == ([(2, 0.3), (3, 0.4)], [(1, 0.2), (0, 0.1)])
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.5, 9.0])
    keep = (values >= 1) & (values <= 4)
    kept, dropped = around(Table.of({"x": values.astype(np.float32)}), values, cut(1.0, 4.0), keep, ~keep, 2)
    assert kept[0] == (1, 1.0)
    assert dropped == [(4, 4.5), (0, 0.0)]
