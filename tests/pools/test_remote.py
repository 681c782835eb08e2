"""Pools on remote stores: fsspec's memory file system, and S3 against a real server on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import members_of, pair, score, write_metadata, write_pool, write_tar
from s3_fixtures import LIBRARIES_WARN

import tamis
from tamis.core.errors import PoolError
from tamis.core.files import find as files
from tamis.core.files.find import read_ranges
from tamis.pools import PoolSpec, open_pool

pytestmark = LIBRARIES_WARN


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def put(fs: Any, folder: Path, to: str) -> None:
    for path in sorted(folder.iterdir()):
        fs.pipe_file(f"{to}/{path.name}", path.read_bytes())


def test_a_range_of_files_is_listed_by_folder_not_asked_for_file_by_file(
    pool: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(memory, pool, "/some/pool")
    for path in ("memory://some/pool", "memory://some/pool/*.tar"):
        assert [shard.url for shard in open_pool(path).shards] == [f"memory:///some/pool/0000{n}.tar" for n in range(3)]
    asked: list[str] = []
    monkeypatch.setattr(memory, "exists", lambda path, **_: asked.append(path) or False)
    monkeypatch.setattr(memory, "isdir", lambda path: asked.append(path) or False)
    assert len(open_pool("memory://some/pool/{00000..00002}.tar").shards) == 3
    assert asked == []


def test_a_stream_from_s3_reads_any_order_and_nothing_but_ranges(
    pool: Path, tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(s3, pool, "pool/a")
    run, local = score("s3://pool/a", tmp_path / "run"), score(str(pool), tmp_path / "local")
    order = np.random.default_rng(0).integers(0, 21, 60)
    wanted = [(one.files, one.caption) for one in tamis.samples_of(local, order=order, fields={"files", "caption"})]
    asked: list[int] = []
    fetch = files.fetch

    def spying(url: str, start: int, end: int, **options: Any) -> bytes:
        asked.append(end - start)
        return fetch(url, start, end, **options)

    monkeypatch.setattr(files, "fetch", spying)
    found = tamis.samples_of(run, order=order, fields={"files", "caption"})
    assert [(one.files, one.caption) for one in found] == wanted
    assert 0 < sum(asked) <= sum(path.stat().st_size for path in pool.iterdir())
    asked.clear()
    assert next(tamis.samples_of(run, order=[9])).image == pair(1002)["jpg"]
    first, *_, last = members_of(run, "00001")[2]
    # The head shows whether the tar is compressed; then the image with caption and json, by one request.
    assert asked == [8, last.offset + last.size - first.offset]
    size = s3.size("pool/a/00000.tar")
    (error, start) = read_ranges("s3://pool/a/00000.tar", [(size - 10, 20), (0, 4)])
    assert "the file gave 10; has it changed" in str(error)
    assert start == b"0000"
    s3.rm("pool/a/00001.tar")
    run.pool = open_pool("s3://pool/a")
    marked = list(tamis.samples_of(run, order=range(21), errors="mark"))
    assert [one.row for one in marked if one.problem is not None] == list(range(7, 14))


def test_a_shard_added_on_s3_is_seen_by_the_same_process(pool: Path, tmp_path: Path, s3: Any) -> None:
    put(s3, pool, "pool/a")
    assert len(score("s3://pool/a", tmp_path / "run")) == 21
    client = s3.__class__(skip_instance_cache=True)  # somebody else writes, past the cache of ours
    client.pipe_file("pool/a/00003.tar", (write_pool(tmp_path / "more", 1, 2) / "00000.tar").read_bytes())
    assert len(score("s3://pool/a", tmp_path / "run")) == 23


def test_a_missing_bucket_key_or_range_says_so_at_once(pool: Path, s3: Any) -> None:
    put(s3, pool, "pool/a")
    for path in ("memory://nowhere", "s3://nobucket/a", "s3://pool/b/*.tar", "s3://pool/a/00009.tar"):
        with pytest.raises(PoolError, match=f"(no pool at|cannot list) '{path}'".replace("*", r"\*")):
            open_pool(path)
    with pytest.raises(PoolError, match=r"1 of the files .* the first: 's3://pool/a/00003.tar'"):
        open_pool(PoolSpec(path="s3://pool/a/{00000..00003}.tar"))


def kinds_of_pools(folder: Path) -> list[Path]:
    """Writes a small pool of each kind; returns their folders, in which relative paths lead to the images."""
    pairs = [pair(n) for n in range(6)]
    captions, images = [files["txt"].decode() for files in pairs], [files["jpg"] for files in pairs]
    samples = [(f"{n:09d}", files) for n, files in enumerate(pairs)]
    write_tar(folder / "webdataset.gz" / "00000.tar.gz", samples, "w:gz")
    img2dataset = write_tar(folder / "img2dataset" / "00000.tar", samples).parent
    pq.write_table(pa.table({"key": ["0"], "caption": ["a"]}), img2dataset / "00000.parquet")
    (img2dataset / "00000_stats.json").write_text("{}")
    (folder / "tables" / "images [0]").mkdir(parents=True)
    paths = [f"images [0]/{n}.jpg" for n in range(6)]
    for path, image in zip(paths, images, strict=True):
        (folder / "tables" / path).write_bytes(image)
    lines = [f"{path}\t{text}\n" for path, text in zip(paths, captions, strict=True)]
    (folder / "tables" / "a.tsv").write_text("".join(["file_name\ttext\n", *lines[:2]]))
    rows = [json.dumps({"image": path, "caption": text}) for path, text in zip(paths[2:4], captions[2:4], strict=True)]
    (folder / "tables" / "b.jsonl").write_text("\n".join(rows) + "\n")
    pq.write_table(pa.table({"image": paths[4:], "caption": captions[4:]}), folder / "tables" / "c.parquet")
    for name in ("bytes", "datacomp"):
        (folder / name).mkdir()
    table = pa.table({"image": pa.array(images, pa.binary()), "caption": captions})
    pq.write_table(table, folder / "bytes" / "pairs.parquet", row_group_size=2)
    write_metadata(folder / "datacomp" / "0.parquet", rows=6)
    return sorted(folder.iterdir())


def test_every_kind_of_pool_is_read_from_s3_as_from_a_disk_in_a_folder_of_any_name(tmp_path: Path, s3: Any) -> None:
    for folder in kinds_of_pools(tmp_path / "odd [1] {x} {0..2}"):
        kind = folder.name
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            s3.pipe_file(f"pool/{kind}/{path.relative_to(folder)}", path.read_bytes())
        scores = ["caption_length", *([] if kind == "datacomp" else ["image_size"])]
        runs = []
        for at in (str(folder), f"s3://pool/{kind}"):
            runs.append(tamis.score(at, run=tmp_path / f"run{len(runs)}" / kind, signals=scores, quiet=True))
        local, remote = runs
        assert (remote.failures, len(remote), dict(remote.statuses)) == ({}, 6, {"ok": 6}), kind
        assert remote.to_arrow().equals(local.to_arrow()), kind
        if kind != "datacomp":
            order = [4, 0, 3, 4]
            wanted = [one.image for one in tamis.samples_of(local, order=order)]
            assert wanted == [pair(n)["jpg"] for n in order], kind
            assert [one.image for one in tamis.samples_of(remote, order=order)] == wanted, kind
