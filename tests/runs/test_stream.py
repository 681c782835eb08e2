"""Streams of kept samples: which rows in which order, what is read for them, what is said of those that cannot be."""

import io
import json
import os
import pickle
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from factories import caption, image_bytes, members_of, pair, write_pool, write_tar
from PIL import Image

import tamis
from tamis.core.errors import RunError
from tamis.core.files import find as files_module
from tamis.core.files.find import read_ranges
from tamis.pools import Pool, open_pool, tar
from tamis.pools.images import decode
from tamis.runs import stream
from tamis.runs.stream import samples_of
from tamis.runs.subset import Subset


def scored(pool: Path | str | tamis.PoolSpec, folder: Path) -> tamis.Run:
    return tamis.score(pool, run=folder, signals=["caption_length"], quiet=True)


@pytest.fixture
def run(pool: Path, tmp_path: Path) -> tamis.Run:
    """Three shards of seven pairs."""
    return scored(pool, tmp_path / "run")


def subset_of(run: tamis.Run, kept: list[int]) -> Subset:
    return Subset(run=run, keep=np.isin(np.arange(len(run)), kept), recipe={"name": "mine"})


#: The files of every sample of the fixture's pool.
FILES = [pair(1000 * shard + row) for shard in range(3) for row in range(7)]


def test_a_subset_gives_its_kept_rows_in_the_pools_order_and_a_run_any_rows(run: tamis.Run) -> None:
    found = list(samples_of(subset_of(run, [20, 3, 7]), fields={"key", "uid", "status", "caption", "files"}))
    assert [(one.row, one.shard, one.row_in_shard, one.key) for one in found] == [
        (3, "00000", 3, "000000003"),
        (7, "00001", 0, "000010000"),
        (20, "00002", 6, "000020006"),
    ]
    assert [one.files for one in found] == [FILES[row] for row in (3, 7, 20)]
    assert [one.caption for one in found] == [caption(3), caption(1000), caption(2006)]
    assert [one.uid for one in found] == run.to_arrow([])["uid"].take([3, 7, 20]).to_pylist()
    assert {(one.status, one.image, one.pixels, one.problem) for one in found} == {("ok", None, None, None)}
    assert pickle.loads(pickle.dumps(found)) == found  # they can go to another process
    assert [one.row for one in samples_of(run, fields={"key"})] == list(range(21))
    assert [one.row for one in samples_of(run, order=[5, 0], fields=())] == [5, 0]
    for fields in ({"caption"}, {"image"}, {"pixels"}, {"files"}):
        assert list(samples_of(subset_of(run, []), fields=fields)) == []


@pytest.mark.parametrize("options", [{}, {"threads": 32}, {"threads": 1, "ahead": 1}, {"threads": 7, "ahead": 3_000}])
def test_a_random_order_with_repeats_is_followed_whatever_threads_and_memory(
    run: tamis.Run, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_WINDOW": 10, "_OPEN": 1, "_INDEX_BYTES": 1}.items():
        monkeypatch.setattr(stream, name, value)
    order = np.random.default_rng(len(options)).integers(0, 21, 100)
    found = list(samples_of(run, order=order, fields={"image", "caption"}, **options))
    assert [one.row for one in found] == order.tolist()
    assert [one.image for one in found] == [FILES[row]["jpg"] for row in order]
    assert [one.caption for one in found] == [FILES[row]["txt"].decode() for row in order]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"order": [3, 21]}, "row 21"),
        ({"order": [1, 3, 4]}, "'mine'.* 3"),
        ({"order": np.ones(21, bool)}, "flatnonzero"),
        ({"fields": {"images"}}, "'image'"),
        ({"errors": "skip"}, "'skip'"),
        ({"threads": 0}, "threads"),
    ],
)
def test_orders_and_fields_that_make_no_sense_are_refused_at_once(
    run: tamis.Run, options: dict[str, Any], names: str
) -> None:
    with pytest.raises(ValueError, match=names):
        samples_of(subset_of(run, [1, 2]) if "mine" in names else run, **options)


def test_captions_alone_touch_no_shard(pool: Path, run: tamis.Run) -> None:
    for path in pool.glob("*.tar"):
        path.unlink()
    assert [one.caption for one in samples_of(run, order=[20, 0], fields={"caption"})] == [caption(2006), caption(0)]


def test_images_are_read_by_their_ranges_with_caption_and_json_and_neighbours_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(
        tmp_path / "pool" / "00000.tar", [(f"{row}", {**pair(row), "depth.npy": bytes(5_000)}) for row in range(6)]
    )
    run = scored(tmp_path / "pool", tmp_path / "run")
    members, asked, read = members_of(run, "00000"), [], files_module._pread

    def noted(file: int, offset: int, size: int) -> bytes:
        asked.append((offset, size))
        return read(file, offset, size)

    monkeypatch.setattr(files_module, "_pread", noted)
    monkeypatch.setattr(files_module, "_GAP", 0)
    list(samples_of(run, order=[4, 1, 4]))
    assert asked == [(part.offset, part.size) for row in (1, 4) for part in members[row] if part.ext != "depth.npy"]
    asked.clear()
    monkeypatch.setattr(files_module, "_GAP", 1 << 20)
    list(samples_of(run, order=[5, 2, 3]))
    assert asked == [(members[2][0].offset, members[5][2].offset + members[5][2].size - members[2][0].offset)]


def test_pixels_are_what_the_signals_see(run: tamis.Run) -> None:
    for one, row in zip(samples_of(run, order=[9, 2], fields={"pixels"}), (9, 2), strict=True):
        assert one.image is None
        np.testing.assert_array_equal(one.pixels, decode(FILES[row]["jpg"], max_pixels=10**6))
    (both,) = samples_of(run, order=[9], fields={"pixels", "image", "files"})
    assert both.image == both.files["jpg"] == FILES[9]["jpg"]  # type: ignore[index]


def write_any(folder: Path, kind: str, rows: int) -> str:
    """Writes a pool of one kind; returns its path or URL."""
    images, texts = [image_bytes(row) for row in range(rows)], [caption(row) for row in range(rows)]
    if "tar" in kind:
        samples = [(f"{row:09d}", {"jpg": images[row], "txt": texts[row].encode()}) for row in range(rows)]
        ending = kind.removeprefix("memory:")
        path = write_tar(folder / f"0.{ending}", samples, mode="w:" + ending.removeprefix("tar").removeprefix("."))
        if not kind.startswith("memory:"):
            return str(path)
        fsspec.filesystem("memory").pipe_file(f"/streamed/{path.name}", path.read_bytes())
        return "memory://streamed"
    paths = [f"images/{row}.jpg" for row in range(rows)]
    (folder / "images").mkdir(parents=True)
    for path, data in zip(paths, images, strict=True):
        (folder / path).write_bytes(data)
    structs = [{"bytes": data, "path": f"{row}.jpg"} for row, data in enumerate(images)]
    column: Any = {"struct": structs, "bytes": images, "paths": paths}[kind.partition(".")[0]]
    table = pa.table({"image": pa.array(column), "caption": texts})
    if kind.endswith("csv"):
        pyarrow.csv.write_csv(table, folder / kind)
    elif kind.endswith("jsonl"):
        (folder / kind).write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        pq.write_table(table, folder / kind, row_group_size=4)
    return str(folder / kind)


@pytest.mark.parametrize(
    "kind",
    ["tar.gz", "tar.bz2", "memory:tar", "memory:tar.gz", "paths.csv", "paths.jsonl", "struct.parquet", "bytes.parquet"],
)
def test_every_kind_of_pool_is_read_in_any_order(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.pools.table_shards.SHARD_ROWS", 8)  # a Parquet file is two shards then
    monkeypatch.setattr(stream, "_WINDOW", 8)
    try:
        run = scored(write_any(tmp_path / "pool", kind, 13), tmp_path / "run")
        for order in (np.arange(13), np.random.default_rng(1).integers(0, 13, 40)):
            for fields in ({"image", "caption", "key"}, {"image", "files"}):
                for one, row in zip(samples_of(run, order=order, fields=fields), order, strict=True):
                    assert one.image == image_bytes(row)
                    if one.files is None:
                        assert (one.key, one.caption) == (f"{row:09d}", caption(row))
                    else:
                        assert (one.files["jpg"], one.files["txt"].decode()) == (one.image, caption(row))
    finally:
        fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "memory:tar", "paths.csv", "struct.parquet", "bytes.parquet"])
def test_every_kind_of_pool_is_scored_within_a_subset(tmp_path: Path, kind: str) -> None:
    try:
        pool = write_any(tmp_path / "pool", kind, 13)
        whole = tamis.score(pool, run=tmp_path / "whole", signals=["image_hash", "image_size"], quiet=True)
        run = tamis.score(pool, run=tmp_path / "run", signals=["image_size"], quiet=True)
        rows = [0, 1, 5, 12]
        done = tamis.score(pool, run=run.path, signals=["image_hash"], within=subset_of(run, rows), quiet=True)
        assert done["image_hash"].tolist() == [
            cell if row in rows else None for row, cell in enumerate(whole["image_hash"])
        ]
    finally:
        fsspec.filesystem("memory").store.clear()


def test_a_compressed_tar_is_read_once_in_the_pools_order_whatever_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scored(write_any(tmp_path / "pool", "tar.gz", 12), tmp_path / "run")
    opened, open_file, begun, reader = [], tar.open_file, threading.Event(), stream._Stream._reader
    monkeypatch.setattr(tar, "open_file", lambda path: (opened.append(path), open_file(path))[1])

    def late(self: stream._Stream, *job: Any) -> Any:
        if not begun.is_set():  # the first job comes to the tar after those that follow it
            begun.set()
            time.sleep(0.1)
        return reader(self, *job)

    monkeypatch.setattr(stream._Stream, "_reader", late)
    monkeypatch.setattr(stream, "_WINDOW", 5)
    order = np.repeat(np.arange(12), 3)
    assert [one.row for one in samples_of(run, order=order, threads=8)] == order.tolist()
    assert len(opened) == 1


@pytest.mark.parametrize("order", ["random", "the pool's"])
def test_no_more_bytes_are_held_than_was_said(order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = scored(write_pool(tmp_path / "pool", shards=4, rows=50), tmp_path / "run")
    largest = max(sum(part.size for part in some) for name in run.shards for some in members_of(run, name))
    lock, held, most = threading.RLock(), 0, 0

    def count(size: int) -> None:
        nonlocal held, most
        with lock:
            held += size
            most = max(most, held)

    class Counted(bytes):
        """Bytes that count as held until nothing refers to them."""

        def __del__(self) -> None:
            count(-len(self))

    def counting(*arguments: Any) -> list[Any]:
        data = [Counted(part) for part in read_ranges(*arguments)]  # type: ignore[arg-type]
        count(sum(map(len, data)))
        return data

    monkeypatch.setattr(tar, "read_ranges", counting)
    rows = np.random.default_rng(0).permutation(200) if order == "random" else np.arange(200)
    for ahead in (10 * largest, 40 * largest, 1):
        most = 0
        for sample in samples_of(run, order=rows, ahead=ahead, threads=8):
            assert sample.image is not None
        del sample
        assert held == 0
        assert largest <= most <= max(ahead, 2 * largest) + largest  # the one that is in our hands


def test_no_more_pixels_are_held_than_was_said(run: tamis.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    def counting(data: bytes, **how: Any) -> Any:
        pixels = decode(data, **how)
        held.append(pixels.nbytes)
        return pixels

    monkeypatch.setattr(stream, "decode", counting)
    one = 48 * 32 * 3
    for count, _ in enumerate(samples_of(run, fields={"pixels"}, ahead=3 * one, threads=8)):
        assert sum(held) - count * one <= 3 * one + one  # the one that is in our hands
    assert len(held) == 21


def test_closing_early_ends_all_threads(run: tamis.Run) -> None:
    before = set(threading.enumerate())  # a failed test's traceback may hold some of its own

    def threads() -> list[str]:
        return [one.name for one in set(threading.enumerate()) - before if one.name.startswith("tamis-")]

    order = np.random.default_rng(0).integers(0, 21, 500)
    for fields in ({"image"}, {"pixels"}):
        with closing(samples_of(run, order=order, fields=fields, threads=16, ahead=5_000)) as samples:
            assert next(samples).row == order[0]
            assert threads() != []
        assert threads() == []


@pytest.mark.parametrize(
    ("how", "kind", "lost"),
    [
        ("copied", None, range(0)),
        ("cut", "changed", range(2, 7)),
        ("cut when scored", "cut", range(2, 7)),
        ("gone", "unread", range(7)),
        ("replaced", "changed", range(7)),
        ("absent", "absent", range(7)),
    ],
)
def test_a_shard_that_is_not_what_it_was_marks_its_samples(
    pool: Path, run: tamis.Run, how: str, kind: str | None, lost: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, path = open_pool(pool), pool / "00001.tar"
    if how.startswith("cut"):
        path.write_bytes(path.read_bytes()[: members_of(run, "00001")[2][0].offset + 5])
    elif how == "gone":
        path.unlink()
    elif how == "replaced":  # as many bytes, other samples
        path.write_bytes(path.read_bytes()[::-1])
    elif how == "copied":
        os.utime(path, (1, 1))
    else:
        opened = Pool(spec=opened.spec, kind=opened.kind, shards=tuple(opened.shards[::2]))
    if how == "cut when scored":
        stamps = dict(zip(run.shards, run.stamps, strict=True))
        monkeypatch.setattr("tamis.pools.tar.TarShard.stamp", lambda self: stamps[self.name])
    order = np.random.default_rng(0).permutation(21)
    run.pool = opened
    found = list(samples_of(run, order=order, errors="mark"))
    assert [one.row for one in found] == order.tolist()
    assert {one.row: one.problem.kind for one in found if one.problem} == {7 + row: kind for row in lost}
    assert all(one.image == FILES[one.row]["jpg"] for one in found if not one.problem)
    samples = samples_of(run)
    first = 7 + lost.start if lost else 21
    assert [next(samples).row for _ in range(first)] == list(range(first))  # samples before the damage come first
    with pytest.raises(RunError, match="00001") if lost else pytest.raises(StopIteration):
        next(samples)
    samples.close()


def test_an_image_file_that_is_not_what_the_table_was_scored_with_says_so(tmp_path: Path) -> None:
    run = scored(write_any(tmp_path / "pool", "paths.csv", 4), tmp_path / "run")
    (tmp_path / "pool" / "images" / "1.jpg").write_bytes(image_bytes(99, size=(20, 20)))
    (tmp_path / "pool" / "images" / "2.jpg").unlink()
    for fields in ({"image"}, {"files"}):
        found = samples_of(run, errors="mark", fields=fields)
        assert [one.problem and one.problem.kind for one in found] == [None, "changed", "image_missing", None]


def test_a_shard_that_fails_as_a_whole_is_soon_given_up(run: tamis.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def failing(path: str, ranges: Any, file: Any) -> list[bytes]:
        tried.append(len(list(ranges)))
        raise TimeoutError("no answer")

    monkeypatch.setattr(tar, "read_ranges", failing)
    monkeypatch.setattr(stream, "_WINDOW", 1)
    found = list(samples_of(run, order=range(7), errors="mark", threads=1))
    assert len(tried) == 3
    assert [one.problem and one.problem.kind for one in found] == ["unread"] * 7


def test_metadata_without_images_gives_captions_and_refuses_images(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("caption\na cat\na dog\n")
    run = scored(tamis.PoolSpec(path=str(tmp_path / "a.csv"), image="none"), tmp_path / "run")
    assert [one.caption for one in samples_of(run, fields={"caption"}, order=[1, 0])] == ["a dog", "a cat"]
    with pytest.raises(RunError, match=r"a\.csv"):
        samples_of(run)


@pytest.mark.parametrize(("transparency", "light"), [("drop", 0), ("white", 255)])
def test_transparency_is_a_setting_of_the_run(transparency: Any, light: int, tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.new("RGBA", (40, 30), (0, 0, 0, 0)).save(out, "PNG")
    write_tar(tmp_path / "pool" / "0.tar", [("a", {"png": out.getvalue(), "txt": b"a drawing"})])
    spec = tamis.PoolSpec(path=str(tmp_path / "pool"), transparency=transparency)
    run = tamis.score(spec, run=tmp_path / "run", signals=["image_hash"], quiet=True)
    assert run.table().read(0, ["image_lightness"])["image_lightness"].to_pylist() == [f"{light:02x}" * 1024]
    assert [np.unique(one.pixels).tolist() for one in samples_of(run, fields={"pixels"})] == [[light]]  # type: ignore[arg-type]
    other = replace(spec, transparency="white" if transparency == "drop" else "drop")
    with pytest.raises(RunError, match="transparency"):
        tamis.score(other, run=tmp_path / "run", signals=["caption_length"], quiet=True)
