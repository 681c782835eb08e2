"""Rows dealt into groups, in memory, in files and in buckets, are those that a plain sort puts there."""

from typing import Any

import numpy as np
import pytest

from tamis.core.files import scratch
from tamis.core.ids import scramble
from tamis.runs import regroup as module
from tamis.runs.regroup import regroup
from tamis.runs.table import MemoryTable

ROWS, GROUPS = 500, 7


def table(rows: int, block: int) -> MemoryTable:
    rng = np.random.default_rng(3)
    halves = rng.integers(0, 40, (2, rows)).astype(np.uint64)  # many rows have one uid
    vectors = rng.normal(size=(rows, 4)).astype(np.float16)
    return MemoryTable({"v": vectors, "a": rng.random(rows, np.float32)}, uids=(halves[0], halves[1]), block=block)


def labels(rows: int) -> Any:
    return np.random.default_rng(4).choice([-1, 0, 1, 2, 4, 5], rows).astype(np.int32)  # 3 and 6 have no row


def plainly(pool: MemoryTable, label: Any, seed: int) -> list[tuple[int, list[int]]]:
    """The rows of each group by scrambled uid, uid and number."""
    high, low = (half.tolist() for half in pool.uids(np.arange(len(pool))))
    tie = scramble(*pool.uids(np.arange(len(pool))), seed).tolist()
    found = []
    for group in range(GROUPS):
        rows = [row for row in range(len(pool)) if label[row] == group]
        if rows:
            found.append((group, sorted(rows, key=lambda row: (tie[row], high[row], low[row], row))))
    return found


@pytest.mark.parametrize("rows", [0, 1, ROWS])
@pytest.mark.parametrize(
    ("block", "bucket", "memory", "threads"), [(500, 1 << 27, 1 << 28, 1), (7, 300, 0, 3), (1, 1, 0, 1)]
)
def test_each_group_comes_whole_and_in_one_order(
    rows: int, block: int, bucket: int, memory: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BUCKET", bucket)
    monkeypatch.setattr(module, "_THREADS", threads)
    monkeypatch.setattr(scratch, "IN_MEMORY", memory)
    pool, label = table(rows, block), labels(rows)
    dealt = regroup(pool, ["v"], label, GROUPS, seed=5, score=(["a"], lambda columns, _: columns["a"] * 2.0))

    def work(group: int, places: slice, some: Any, given: Any) -> Any:
        assert (some["group"] == group).all()
        np.testing.assert_array_equal(some["vectors"]["v"], pool.vectors("v", some["row"]))
        np.testing.assert_array_equal(some["score"], pool.vectors("a", some["row"]) * 2.0)
        return group, some["row"].tolist(), places, given

    found = list(dealt.scan(work))
    assert [each[:2] for each in found] == plainly(pool, label, 5)
    assert [places.stop - places.start for _, _, places, _ in found] == [len(each[1]) for each in found]
    assert len(dealt) == sum(len(each[1]) for each in found) == np.count_nonzero(label >= 0)
    some = {group: f"of {group}" for group in (1, 4, 6)}  # only these are read
    assert [each[0::3] for each in dealt.scan(work, some)] == [
        (group, some[group]) for group, _ in plainly(pool, label, 5) if group in some
    ]
