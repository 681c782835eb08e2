"""Rows that are kept several times, in every format."""

from __future__ import annotations

import gzip
import logging
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import image_bytes, write_pool, write_run

import tamis
from tamis.store import Run
from tamis.store.subset import Subset

UIDS = [(5, 9), (5, 1), (0, 3), (5, 9), (2**64 - 1, 0)]
TIMES = [2, 0, 3, 1, 1]


def often(run: Run) -> Subset:
    times = np.array(TIMES, np.uint16)
    return Subset(run=run, keep=times > 0, times=times, recipe={"name": "often"})


@pytest.fixture
def subset(tmp_path: Path) -> Subset:
    run = write_run(tmp_path / "run", {"a": range(5)}, uids=UIDS, shards=2)
    often(run).save(tmp_path / "often.parquet")
    return Subset.load(tmp_path / "often.parquet", run)


def test_npy_names_a_uid_as_often_as_its_row_is_kept(
    subset: Subset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert tamis.export(subset, "npy", tmp_path / "out.npy") == 6
    # (5, 9) is the uid of two rows, kept twice and once: the resharder emits both as often as it stands here.
    wanted = [(0, 3)] * 3 + [(5, 9)] * 2 + [(2**64 - 1, 0)]
    assert np.load(tmp_path / "out.npy").tolist() == wanted
    assert "1 uids stand more than once in the pool" in caplog.text


def test_npy_of_rows_kept_once_each_is_that_of_a_subset_without_times(subset: Subset, tmp_path: Path) -> None:
    once = Subset(run=subset.run, keep=subset.keep, times=subset.keep.astype(np.uint16))
    plain = Subset(run=subset.run, keep=subset.keep)
    nothing = np.zeros(5, np.uint16)
    tamis.export(once, "npy", tmp_path / "once.npy")
    tamis.export(plain, "npy", tmp_path / "plain.npy")
    assert (tmp_path / "once.npy").read_bytes() == (tmp_path / "plain.npy").read_bytes()
    assert tamis.export(Subset(run=subset.run, keep=nothing > 0, times=nothing), "npy", tmp_path / "none.npy") == 0


def test_parquet_has_a_row_for_each_time(subset: Subset, tmp_path: Path) -> None:
    assert tamis.export(subset, "parquet", tmp_path / "out") == 7
    assert pq.read_table(tmp_path / "out")["a"].to_pylist() == [0, 0, 2, 2, 2, 3, 4]


def test_keys_have_a_line_for_each_time_and_repeat_no_other_pairs_key(
    subset: Subset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert tamis.export(subset, "keys", tmp_path / "out") == 7
    lines = (tmp_path / "out").read_text().split()
    assert lines == [f"{row:09d}" for row in (0, 0, 2, 2, 2, 3, 4)]
    assert caplog.text == ""


@pytest.mark.parametrize("kind", ["tar", "compressed tar", "table"])
def test_webdataset_has_a_sample_for_each_time(tmp_path: Path, kind: str) -> None:
    pool = write_pool(tmp_path / "pool", shards=1, rows=5)
    (tar,) = pool.glob("*.tar")
    if kind == "compressed tar":
        (pool / f"{tar.name}.gz").write_bytes(gzip.compress(tar.read_bytes()))
        tar.unlink()
    if kind == "table":
        tar.unlink()
        for n in range(5):
            (pool / f"{n}.jpg").write_bytes(image_bytes(n))
        (pool / "table.csv").write_text("image,caption\n" + "".join(f"{pool}/{n}.jpg,boat {n}\n" for n in range(5)))
    run = tamis.score(pool, run=tmp_path / "run", scores=["caption_length"], quiet=True)
    assert tamis.export(often(run), "webdataset", tmp_path / "out", shard_size=4) == 7
    captions = run.index(run.shards[0], ["caption"])["caption"].to_pylist()
    written = []
    for path in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(path) as file:
            texts = {info.name: file.extractfile(info).read().decode() for info in file if info.name.endswith(".txt")}  # type: ignore[union-attr]
        assert len(texts) == (4 if path.name == "00000.tar" else 3)  # no sample takes another one's name
        written += texts.values()
    assert written == [captions[row] for row in (0, 0, 2, 2, 2, 3, 4)]
