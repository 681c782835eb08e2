"""Tallies, overlaps, duplicates and picks: the page's numbers, by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tamis.reporting import tally
from tamis.reporting.duplicates import duplicates
from tamis.reporting.overlap import intersections, jaccard
from tamis.reporting.picking import around, first_by, scrambled
from tamis.reporting.tally import tallies
from tamis.store.reasons import Cut
from tamis.store.table import Table


def mask(*rows: int, of: int = 6) -> np.ndarray:  # type: ignore[type-arg]
    out = np.zeros(of, bool)
    out[list(rows)] = True
    return out


def test_tallies_count_words_and_nulls_per_subset() -> None:
    table = Table.of({"w": ["b", "a", None, "a", "b", "a"]}, block=2)
    found = tallies(table, ["w"], [mask(0, 1, 2), mask()])["w"]
    assert found.values == (("a", 3, (1, 0)), ("b", 2, (1, 0)), (None, 1, (1, 0)))


def test_tallies_read_dictionaries_too() -> None:
    column = pa.array(["x", None, "x"]).dictionary_encode()
    table = Table([3], lambda _, names: {"w": column}, lambda _: (np.zeros(3, np.uint64),) * 2, lambda _: "word")
    assert tallies(table, ["w"], [])["w"].values == (("x", 2, ()), (None, 1, ()))


def test_a_column_of_many_values_is_named_but_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST", 3)
    found = tallies(Table.of({"w": list("abcdefgh")}, block=2), ["w"], [])["w"]
    assert found.many
    assert found.values == ()


def test_overlap_by_hand() -> None:
    shared = intersections([mask(0, 1, 2), mask(2, 3), mask()])
    assert shared.tolist() == [[3, 1, 0], [1, 2, 0], [0, 0, 0]]
    index = jaccard(shared)
    assert index[0, 1] == 0.25
    assert index[0, 0] == 1
    assert np.isnan(index[2, 2])  # of two empty sets there is nothing to say


def test_duplicates_are_rows_that_share_both_halves() -> None:
    high = np.array([1, 1, 1, 2, 3, 1], np.uint64)
    low = np.array([5, 6, 5, 5, 5, 5], np.uint64)
    table = Table.of({"x": np.zeros(6, np.float32)}, uids=(high, low), block=4)
    found = duplicates(table, scrambled(table))
    assert (found.uids, found.rows) == (1, 3)
    assert found.examples == (("00000000000000010000000000000005", (0, 2, 5)),)


def test_uids_that_only_scramble_to_one_number_are_no_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.reporting.duplicates.scramble", lambda high, low: np.zeros(high.size, np.uint64))
    found = duplicates(Table.of({"x": np.zeros(4, np.float32)}), np.zeros(4, np.uint64))
    assert (found.uids, found.rows) == (0, 0)


def test_no_duplicates_in_tables_of_none_or_one_row() -> None:
    for rows in (0, 1):
        table = Table.of({"x": np.zeros(rows, np.float32)})
        assert duplicates(table, scrambled(table)).uids == 0


def test_first_by_takes_the_lowest_among_some() -> None:
    order = np.array([5, 1, 4, 2, 3, 0], np.uint64)
    assert first_by(order, 2, mask(0, 2, 3, 4)).tolist() == [3, 4]
    assert first_by(order, 9, mask(0, 1)).tolist() == [1, 0]
    assert first_by(order, 2, mask()).tolist() == []


def cut(low: float | None = None, high: float | None = None) -> Cut:
    return Cut(step="", score="x", low=low, high=high, code=1, dropped=0)


def test_the_pairs_around_a_cut_are_the_nearest_first() -> None:
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5, np.nan])
    table = Table.of({"x": values.astype(np.float32)})
    kept, dropped = around(table, values, cut(low=0.3), values >= 0.3, ~(values >= 0.3), 2)
    assert kept == [(2, 0.3), (3, 0.4)]
    assert dropped == [(1, 0.2), (0, 0.1)]


def test_a_range_has_two_ends() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.5, 9.0])
    keep = (values >= 1) & (values <= 4)
    kept, dropped = around(Table.of({"x": values.astype(np.float32)}), values, cut(1.0, 4.0), keep, ~keep, 2)
    assert [row for row, _ in kept] == [1, 2] or [row for row, _ in kept] == [1, 3]
    assert dropped == [(4, 4.5), (0, 0.0)]


def test_ties_at_the_cut_fall_by_uid_whatever_the_order_of_rows() -> None:
    uids = np.arange(40, dtype=np.uint64)
    values = np.ones(40)
    found = []
    for order in (np.arange(40), np.random.default_rng(0).permutation(40)):
        table = Table.of({"x": values.astype(np.float32)}, uids=(np.zeros(40, np.uint64), uids[order]), block=7)
        kept, _ = around(table, values, cut(low=0.5), np.ones(40, bool), np.zeros(40, bool), 5)
        found.append([int(order[row]) for row, _ in kept])
    assert found[0] == found[1]
