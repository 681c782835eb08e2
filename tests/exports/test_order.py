"""A subset with an order: every format writes its counts, and those for loaders of samples its order too."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from exported import read_back, scored

import tamis
from tamis.core.errors import RunError
from tamis.core.ids import SUBSET_DTYPE
from tamis.runs import Run
from tamis.runs.subset import Subset

ORDERS = [[17, 3, 9, 0, 20, 4], [17, 3, 17, 0, 3, 20, 17, 4, 9], []]


def ordered(run: Run, order: Sequence[int]) -> Subset:
    times = np.bincount(order, minlength=len(run)).astype(np.uint16)
    return Subset(
        run=run, keep=times > 0, times=times if times.max(initial=0) > 1 else None, order=np.array(order, np.int64),
        recipe={"name": "mine"},
    )  # fmt: skip


@pytest.fixture
def run(pool: Path, tmp_path: Path) -> Run:
    return scored(pool, tmp_path / "run")


def keys_of(run: Run) -> list[str]:
    return [key for shard in run.shards for key in run.index(shard, ["key"])["key"].to_pylist()]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_shards_and_lists_have_the_order(run: Run, tmp_path: Path, order: list[int]) -> None:
    subset, keys = ordered(run, order), keys_of(run)
    high, low = run.table().uids(np.arange(len(run)))
    assert tamis.export(subset, "webdataset", tmp_path / "tars", shard_size=4) == len(order)
    uids = [json.loads(files["json"])["uid"] for _, files in read_back(tmp_path / "tars")]
    assert uids == [f"{high[row]:016x}{low[row]:016x}" for row in order]
    assert tamis.export(subset, "keys", tmp_path / "keys.txt") == len(order)
    assert (tmp_path / "keys.txt").read_text().split() == [keys[row] for row in order]
    assert tamis.export(subset, "keys", tmp_path / "with-shards.txt", shard=True) == len(order)
    shard_of = [shard for shard, size in zip(run.shards, run.sizes, strict=True) for _ in range(size)]
    assert (tmp_path / "with-shards.txt").read_text().split() == [f"{shard_of[row]}/{keys[row]}" for row in order]
    assert tamis.export(subset, "npy", tmp_path / "ordered.npy", ordered=True) == len(order)
    written = np.load(tmp_path / "ordered.npy")
    assert (written.dtype, written.tolist()) == (SUBSET_DTYPE, [(high[row], low[row]) for row in order])
    assert tamis.export(subset, "npy", tmp_path / "sorted.npy") == len(order)
    assert np.load(tmp_path / "sorted.npy").tolist() == sorted(written.tolist())


def test_tables_have_the_counts_in_the_order_of_the_pool(run: Run, tmp_path: Path) -> None:
    subset, keys = ordered(run, ORDERS[1]), keys_of(run)
    tamis.export(subset, "parquet", tmp_path / "pairs.parquet")
    tamis.export(subset, "huggingface", tmp_path / "hub")
    for path in (tmp_path / "pairs.parquet", *(tmp_path / "hub").glob("*.parquet")):
        assert pq.read_table(path)["key"].to_pylist() == [keys[row] for row in sorted(ORDERS[1])]


def test_weights_are_written_where_a_pair_is_first(run: Run, tmp_path: Path) -> None:
    subset, counts = ordered(run, ORDERS[1]), Counter(ORDERS[1])
    tamis.export(subset, "webdataset", tmp_path / "tars", weights=True)
    weights = [json.loads(files["json"])["weight"] for _, files in read_back(tmp_path / "tars")]
    assert weights == [counts[row] for row in dict.fromkeys(ORDERS[1])]


def test_another_order_of_the_same_pairs_is_another_export(run: Run, tmp_path: Path) -> None:
    tamis.export(ordered(run, ORDERS[0]), "webdataset", tmp_path / "tars")
    with pytest.raises(RunError, match="holds another export"):
        tamis.export(ordered(run, ORDERS[0][::-1]), "webdataset", tmp_path / "tars")


def test_an_export_is_the_same_before_and_after_its_subset_is_saved(run: Run, tmp_path: Path) -> None:
    """The file does not store that every row is kept once, which `times` may say."""
    keep = np.isin(np.arange(len(run)), ORDERS[0])
    made = Subset(run=run, keep=keep, times=keep.astype(np.uint16), order=np.array(ORDERS[0]))
    made.save(tmp_path / "mine.parquet")
    for name, subset in (("made", made), ("saved", Subset.load(tmp_path / "mine.parquet", run))):
        tamis.export(subset, "webdataset", tmp_path / name)
    assert (tmp_path / "made" / "00000.tar").read_bytes() == (tmp_path / "saved" / "00000.tar").read_bytes()
