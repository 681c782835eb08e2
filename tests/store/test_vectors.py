"""Vectors of a table: any rows in any order, each block read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tamis.store.table import Table


def test_rows_come_in_the_order_asked_for_and_blocks_are_read_once() -> None:
    rows = np.arange(40, dtype=np.float16).reshape(20, 2)
    inner, seen = Table.of({"v": rows}, block=6), []

    def read(block: int, names: Sequence[str]) -> dict[str, Any]:
        seen.append(block)
        return inner.read(block, names)

    table = Table(inner.sizes, read, inner.read_uids, inner.kind)
    asked = np.array([19, 0, 7, 7, 1, 18])
    assert table.vectors("v", asked).tolist() == rows[asked].tolist()
    assert seen == [0, 1, 3]
    assert table.vectors("v", asked).dtype == np.float16


def test_uids_come_in_the_order_asked_for() -> None:
    high, low = np.random.default_rng(1).integers(0, 2**64, (2, 20), dtype=np.uint64)
    table = Table.of({"n": np.ones(20, np.float32)}, uids=(high, low), block=6)
    for asked in ([19, 0, 7, 7, 1, 18], [3], [], list(range(20))):
        rows = np.array(asked, np.int64)
        assert [half.tolist() for half in table.uids(rows)] == [high[rows].tolist(), low[rows].tolist()]


@pytest.mark.parametrize("count", [0, 5])
def test_no_rows_are_an_empty_array_of_the_right_width(count: int) -> None:
    table = Table.of({"v": np.ones((count, 3), np.float16), "n": np.ones(count, np.float32), "w": ["x"] * count})
    found = table.vectors("v", np.empty(0, np.int64))
    assert found.shape == ((0, 3) if count else (0, 0))
    assert [table.kind(name) for name in ("v", "n", "w")] == ["vector", "number", "word"]
    assert table.among(None).about("v") == {}
