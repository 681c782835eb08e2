"""Streams of kept samples: which rows in which order, what is read for them, what is said of those that cannot be."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import caption, image_bytes, pair, write_pool, write_tar
from PIL import Image

import tamis
from tamis.errors import RunError
from tamis.pool import Pool, open_pool, tar
from tamis.pool import files as files_module
from tamis.pool.files import RangeFile
from tamis.pool.images import decode
from tamis.store import stream, windows
from tamis.store.stream import KeptSample, samples_of
from tamis.store.subset import Subset


def scored(pool: Path | str, folder: Path) -> tamis.Run:
    return tamis.score(pool, run=folder, signals=["caption_length"], quiet=True)


def subset_of(run: tamis.Run, kept: list[int]) -> Subset:
    keep = np.zeros(len(run), bool)
    keep[kept] = True
    return Subset(run=run, keep=keep, recipe={"name": "mine"})


def plain(pool: Path) -> list[dict[str, bytes]]:
    """The files of every sample of a pool of plain tars in order: the slow obvious reference, tarfile itself."""
    found: list[dict[str, bytes]] = []
    for path in sorted(pool.glob("*.tar")):
        by_key: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path) as file:
            for member in file:
                key, _, ext = member.name.partition(".")
                data = file.extractfile(member)
                assert data is not None
                by_key.setdefault(key, {})[ext] = data.read()
        found += by_key.values()
    return found


def rows_of(samples: Iterator[KeptSample]) -> list[int]:
    return [sample.row for sample in samples]


def threads_of_streams() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tamis-")]


# ---- which rows, in which order


def test_a_subset_gives_its_kept_rows_in_the_pools_order(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    found = list(samples_of(subset_of(run, [20, 3, 7]), fields={"key", "uid", "status", "caption", "files"}))
    assert [(one.row, one.shard, one.row_in_shard, one.key) for one in found] == [
        (3, "00000", 3, "000000003"),
        (7, "00001", 0, "000010000"),
        (20, "00002", 6, "000020006"),
    ]
    assert [one.files for one in found] == [plain(pool)[row] for row in (3, 7, 20)]
    assert [one.caption for one in found] == [caption(3), caption(1000), caption(2006)]
    assert [one.uid for one in found] == run.to_arrow([])["uid"].take([3, 7, 20]).to_pylist()
    assert {one.status for one in found} == {"ok"}
    assert {(one.image is None, one.pixels is None, one.problem) for one in found} == {(True, True, None)}


def test_a_run_gives_any_rows_and_all_where_none_are_named(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    assert rows_of(samples_of(run, fields={"key"})) == list(range(21))
    assert rows_of(samples_of(run, order=[5, 0], fields=())) == [5, 0]


@pytest.mark.parametrize("seed", range(3))
def test_a_random_order_with_repeats_is_followed_exactly(
    pool: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_WINDOW", 10)
    monkeypatch.setattr(windows, "_OPEN", 1)
    monkeypatch.setattr(windows, "_INDEX_BYTES", 1)
    run, reference = scored(pool, tmp_path / "run"), plain(pool)
    order = np.random.default_rng(seed).integers(0, 21, 100)
    found = list(samples_of(run, order=order, fields={"image", "caption"}, ahead=20_000))
    assert [one.row for one in found] == order.tolist()
    assert [one.image for one in found] == [reference[row]["jpg"] for row in order]
    assert [one.caption for one in found] == [reference[row]["txt"].decode() for row in order]


def test_neither_threads_nor_memory_nor_slices_change_what_is_read(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    order = np.random.default_rng(0).permutation(21)
    wanted = [(one.row, one.image) for one in samples_of(run, order=order)]
    for options in ({"threads": 1}, {"threads": 32}, {"ahead": 1}, {"threads": 7, "ahead": 3_000}):
        assert [(one.row, one.image) for one in samples_of(run, order=order, **options)] == wanted  # type: ignore[arg-type]
    slices = [[(one.row, one.image) for one in samples_of(run, order=order[rank::3])] for rank in range(3)]
    assert [slices[number % 3][number // 3] for number in range(21)] == wanted


@pytest.mark.parametrize("fields", [{"caption"}, {"image"}, {"pixels"}, {"files"}])
def test_no_rows_are_no_samples(pool: Path, tmp_path: Path, fields: set[str]) -> None:
    run = scored(pool, tmp_path / "run")
    assert list(samples_of(subset_of(run, []), fields=fields)) == []
    assert list(samples_of(run, order=[], fields=fields)) == []


def test_orders_and_fields_that_make_no_sense_are_told_at_once(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    subset = subset_of(run, [1, 2])
    with pytest.raises(ValueError, match=r"order names row 21, the run has the rows 0 to 20"):
        samples_of(run, order=[3, 21])
    with pytest.raises(ValueError, match=r"order names 2 rows that the subset 'mine' drops, the first 3"):
        samples_of(subset, order=[1, 3, 4])
    with pytest.raises(ValueError, match=r"got bool of shape \(21,\); np.flatnonzero makes row numbers of a mask"):
        samples_of(run, order=subset.keep)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"unknown field 'images' \(did you mean 'image'\?\)"):
        samples_of(run, fields={"images"})
    with pytest.raises(ValueError, match="errors must be 'raise' or 'mark', got 'skip'"):
        samples_of(run, errors="skip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        samples_of(run, threads=0)


# ---- what is read


def test_captions_alone_touch_no_shard(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    for path in pool.glob("*.tar"):
        path.unlink()
    found = list(samples_of(run, order=[20, 0], fields={"caption", "key", "uid", "status"}))
    assert [one.caption for one in found] == [caption(2006), caption(0)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the kernel is asked for: offset and size of every range."""
    found: list[tuple[int, int]] = []
    plain_read = files_module._pread

    def spying(file: int, offset: int, size: int) -> bytes:
        found.append((offset, size))
        return plain_read(file, offset, size)

    monkeypatch.setattr(files_module, "_pread", spying)
    return found


def test_images_are_read_by_their_ranges_with_caption_and_json_and_neighbours_together(
    tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [(f"{row}", {**pair(row), "depth.npy": bytes(5_000)}) for row in range(6)]
    write_tar(tmp_path / "pool" / "00000.tar", samples)
    run = scored(tmp_path / "pool", tmp_path / "run")
    members = run.members("00000", range(6))
    monkeypatch.setattr(files_module, "_GAP", 0)
    list(samples_of(run, order=[4, 1, 4]))
    assert asked == [(part.offset, part.size) for row in (1, 4) for part in members[row] if part.ext != "depth.npy"]
    asked.clear()
    monkeypatch.setattr(files_module, "_GAP", 1 << 20)
    list(samples_of(run, order=[5, 2, 3]))
    assert asked == [(members[2][0].offset, members[5][2].offset + members[5][2].size - members[2][0].offset)]


def test_pixels_are_what_the_signals_see(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    found = list(samples_of(run, order=[9, 2], fields={"pixels"}))
    for one, row in zip(found, (9, 2), strict=True):
        assert one.pixels is not None
        assert (one.pixels == decode(plain(pool)[row]["jpg"], max_pixels=10**6)).all()
        assert one.image is None
    (both,) = samples_of(run, order=[9], fields={"pixels", "image", "files"})
    assert both.image == both.files["jpg"] == plain(pool)[9]["jpg"]  # type: ignore[index]


def test_files_that_are_come_back_to_stay_open_up_to_a_number(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scored(pool, tmp_path / "run")
    opened: list[str] = []
    begin = RangeFile.__init__
    monkeypatch.setattr(RangeFile, "__init__", lambda self, path: (opened.append(path), begin(self, path))[1])
    monkeypatch.setattr(windows, "_WINDOW", 3)
    order = [0, 7, 14] * 5
    assert rows_of(samples_of(run, order=order, threads=1)) == order
    assert len(opened) == 3
    monkeypatch.setattr(windows, "_OPEN", 1)
    opened.clear()
    assert rows_of(samples_of(run, order=order, threads=1)) == order
    assert len(opened) > 3


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.bz2", ".tar.xz"])
def test_compressed_tars_are_read_in_any_order(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_WINDOW", 8)
    samples = [(f"{row:04d}", pair(row)) for row in range(12)]
    write_tar(tmp_path / "pool" / f"0{ending}", samples, mode=f"w:{ending.rpartition('.')[2]}")
    run = scored(tmp_path / "pool", tmp_path / "run")
    for order in (np.arange(12), np.random.default_rng(1).integers(0, 12, 40)):
        found = list(samples_of(run, order=order, fields={"files"}))
        assert [one.files for one in found] == [samples[row][1] for row in order]


def test_a_compressed_tar_is_read_once_in_the_pools_order_whatever_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [(f"{row:04d}", pair(row)) for row in range(12)]
    write_tar(tmp_path / "pool" / "0.tar.gz", samples, mode="w:gz")
    run = scored(tmp_path / "pool", tmp_path / "run")
    opened: list[str] = []
    plain_open = tar.open_file
    monkeypatch.setattr(tar, "open_file", lambda path: (opened.append(path), plain_open(path))[1])
    begun = threading.Event()
    refused = windows.Windows._refused

    def late(self: windows.Windows, source: windows.Source, shard: Any) -> Any:
        if not begun.is_set():  # the first job comes to the tar after those that follow it
            begun.set()
            time.sleep(0.1)
        return refused(self, source, shard)

    monkeypatch.setattr(windows.Windows, "_refused", late)
    monkeypatch.setattr(windows, "_WINDOW", 5)
    order = np.repeat(np.arange(12), 3)
    assert rows_of(samples_of(run, order=order, threads=8)) == order.tolist()
    assert len(opened) == 1


def write_table(folder: Path, kind: str, rows: int) -> Path:
    (folder / "images").mkdir(parents=True)
    images, texts = [image_bytes(row) for row in range(rows)], [caption(row) for row in range(rows)]
    for row, data in enumerate(images):
        (folder / "images" / f"{row}.jpg").write_bytes(data)
    paths = [f"images/{row}.jpg" for row in range(rows)]
    if kind == "paths.csv":
        lines = ["image,caption", *(f"{path},{text}" for path, text in zip(paths, texts, strict=True))]
        (folder / kind).write_text("\n".join(lines) + "\n")
    elif kind == "paths.jsonl":
        cells = [{"image": path, "caption": text} for path, text in zip(paths, texts, strict=True)]
        (folder / kind).write_text("".join(json.dumps(row) + "\n" for row in cells))
    else:
        structs = [{"bytes": data, "path": f"{row}.jpg"} for row, data in enumerate(images)]
        column = {"struct": structs, "bytes": images, "paths": paths}[kind.partition(".")[0]]
        pq.write_table(pa.table({"image": pa.array(column), "caption": texts}), folder / kind, row_group_size=4)
    return folder / kind


@pytest.mark.parametrize("kind", ["paths.csv", "paths.jsonl", "paths.parquet", "struct.parquet", "bytes.parquet"])
def test_tables_are_read_in_any_order(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.pool.table.SHARD_ROWS", 8)  # a Parquet file is two shards then
    run = scored(write_table(tmp_path / "pool", kind, 13), tmp_path / "run")
    for order in (np.arange(13), np.random.default_rng(1).integers(0, 13, 40)):
        found = list(samples_of(run, order=order, fields={"image", "caption", "key"}))
        assert [one.image for one in found] == [image_bytes(row) for row in order]
        assert [one.key for one in found] == [f"{row:09d}" for row in order]
        found = list(samples_of(run, order=order, fields={"files", "image"}))
        assert [one.files["txt"].decode() for one in found] == [caption(row) for row in order]  # type: ignore[index]
        assert [one.files["jpg"] for one in found] == [one.image for one in found]  # type: ignore[index]
        assert [one.image for one in found] == [image_bytes(row) for row in order]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_pool_on_a_store_is_read_by_ranges(tmp_path: Path, pool: Path, compressed: bool) -> None:
    fs = fsspec.filesystem("memory")
    try:
        for path in pool.glob("*.tar"):
            data = path.read_bytes()
            fs.pipe_file(f"/streamed/{path.name}", gzip.compress(data) if compressed else data)
        run, reference = scored("memory://streamed", tmp_path / "run"), plain(pool)
        order = np.random.default_rng(0).integers(0, 21, 50)
        found = list(samples_of(run, order=order, fields={"files"}))
        assert [one.files for one in found] == [reference[row] for row in order]
    finally:
        fs.store.clear()
        fs.pseudo_dirs[:] = [""]


# ---- memory and threads


def test_no_more_bytes_are_held_than_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts what has been read and not yielded yet."""
    run = scored(write_pool(tmp_path / "pool", shards=4, rows=50), tmp_path / "run")
    sizes = [sum(part.size for part in some) for name in run.shards for some in run.members(name, range(50))]
    largest = max(sizes)
    lock, held, most = threading.Lock(), 0, 0
    plain_read = RangeFile.read

    def counting(self: RangeFile, ranges: Any) -> list[bytes]:
        nonlocal held, most
        data = plain_read(self, ranges)
        with lock:
            held += sum(map(len, data))
            most = max(most, held)
        return data

    monkeypatch.setattr(RangeFile, "read", counting)
    order = np.random.default_rng(0).permutation(200)
    for ahead in (10 * largest, 40 * largest, 1):
        held = most = 0
        for sample in samples_of(run, order=order, ahead=ahead, threads=8):
            with lock:
                held -= sizes[sample.row]
        assert held == 0
        assert largest <= most <= max(ahead, 2 * largest)
    assert most <= 2 * largest


def test_no_more_pixels_are_held_than_was_said(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = scored(pool, tmp_path / "run")
    held: list[int] = []
    lock = threading.Lock()

    def counting(data: bytes, max_pixels: int, transparency: Any) -> Any:
        pixels = decode(data, max_pixels=max_pixels, transparency=transparency)
        with lock:
            held.append(pixels.nbytes)
        return pixels

    monkeypatch.setattr(stream, "_decode", counting)
    one = 48 * 32 * 3
    for count, _ in enumerate(samples_of(run, fields={"pixels"}, ahead=3 * one, threads=8)):
        with lock:
            assert sum(held) - count * one <= 3 * one + one  # the one that is in our hands
    assert len(held) == 21


def test_closing_early_ends_all_threads_and_files(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    order = np.random.default_rng(0).integers(0, 21, 500)
    for fields in ({"image"}, {"pixels"}):
        with closing(samples_of(run, order=order, fields=fields, threads=16, ahead=5_000)) as samples:
            assert next(samples).row == order[0]
            assert threads_of_streams() != []
        assert threads_of_streams() == []
    unread = samples_of(run, order=order)
    assert threads_of_streams() == []
    unread.close()


def test_what_was_read_can_go_to_another_process(pool: Path, tmp_path: Path) -> None:
    run = scored(pool, tmp_path / "run")
    (sample,) = samples_of(run, order=[4], fields=("key", "image", "caption"))
    assert pickle.loads(pickle.dumps(sample)) == sample


# ---- what cannot be read


def test_samples_that_cannot_be_read_are_marked_and_the_others_are_there(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plain(pool)
    run = scored(pool, tmp_path / "run")
    stamps = dict(zip(run.shards, run.stamps, strict=True))
    path = pool / "00001.tar"
    path.write_bytes(path.read_bytes()[: run.members("00001", [4])[0][0].offset + 5])
    monkeypatch.setattr("tamis.pool.tar.TarShard.stamp", lambda self: stamps[self.name])
    found = list(samples_of(run, fields={"image"}, errors="mark"))
    assert [one.row for one in found] == list(range(21))
    assert [one.row for one in found if one.problem is not None] == [11, 12, 13]
    assert [one.image for one in found if one.problem is None] == [
        files["jpg"] for row, files in enumerate(before) if row not in (11, 12, 13)
    ]
    assert {one.problem.kind for one in found if one.problem is not None} == {"cut"}
    assert "the file gave 5; has it changed?" in str(found[11].problem)
    with pytest.raises(
        RunError, match=r"the sample '000010004' of the shard '00001' cannot be read: .*the file gave 5"
    ):
        list(samples_of(run))
    read = samples_of(run)
    assert [next(read).row for _ in range(11)] == list(range(11))  # what stands before it comes first
    read.close()


@pytest.mark.parametrize("how", ["cut", "gone", "replaced", "absent"])
def test_a_shard_that_is_not_what_it_was_marks_its_samples(pool: Path, tmp_path: Path, how: str) -> None:
    run, opened = scored(pool, tmp_path / "run"), open_pool(pool)
    path = pool / "00001.tar"
    lost = list(range(7))  # of its samples
    if how == "cut":
        path.write_bytes(path.read_bytes()[: run.members("00001", [2])[0][0].offset])
        lost = lost[2:]
    elif how == "gone":
        path.unlink()
    elif how == "replaced":  # as many bytes, other samples
        path.write_bytes(path.read_bytes()[::-1])
    else:
        opened = Pool(spec=opened.spec, kind=opened.kind, shards=tuple(opened.shards[::2]))
    kind = {"cut": "changed", "replaced": "changed", "gone": "unread", "absent": "absent"}[how]
    order = np.random.default_rng(0).permutation(21)
    found = list(samples_of(run, opened, order=order, errors="mark"))
    assert [one.row for one in found] == order.tolist()
    assert sorted(one.row_in_shard for one in found if one.problem is not None) == lost
    assert {one.problem.kind for one in found if one.problem is not None} == {kind}
    assert {one.shard for one in found if one.problem is not None} == {"00001"}
    said = {
        "changed": "has changed since it was scored",
        "unread": "cannot be read",
        "absent": "no longer has the shard",
    }
    with pytest.raises(RunError, match=f"{said[kind]}.*00001"):
        list(samples_of(run, opened))


def test_a_copied_pool_is_read(pool: Path, tmp_path: Path) -> None:
    run, before = scored(pool, tmp_path / "run"), plain(pool)
    for path in pool.glob("*.tar"):
        os.utime(path, (1, 1))
    assert [one.files for one in samples_of(run, fields={"files"})] == before


def test_a_cut_compressed_tar_gives_what_lies_before_the_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [(f"{row:04d}", {**pair(row), "jpg": np.random.default_rng(row).bytes(4000)}) for row in range(10)]
    path = write_tar(tmp_path / "pool" / "0.tar.gz", samples, mode="w:gz")
    run = scored(tmp_path / "pool", tmp_path / "run")
    stamp = open_pool(tmp_path / "pool").shards[0].stamp()
    path.write_bytes(path.read_bytes()[:20_000])
    monkeypatch.setattr("tamis.pool.tar.TarShard.stamp", lambda self: stamp)
    found = list(samples_of(run, errors="mark"))
    good = [one.row for one in found if one.problem is None]
    assert good == list(range(len(good)))
    assert 3 <= len(good) <= 6
    assert [found[row].image for row in good] == [samples[row][1]["jpg"] for row in good]
    assert {one.problem.kind for one in found[len(good) :] if one.problem is not None} == {"cut"}


def test_images_that_are_none_too_large_or_undecodable_say_so(tmp_path: Path) -> None:
    samples: list[tuple[str, Mapping[str, bytes]]] = [
        ("good", pair(0)),
        ("none", {"txt": b"alone"}),
        ("broken", pair(2) | {"jpg": b"no image"}),
        ("large", pair(3) | {"jpg": image_bytes(3, size=(400, 300))}),
        ("heavy", pair(4) | {"jpg": image_bytes(4) + bytes(30_000)}),
    ]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    spec = tamis.PoolSpec(path=str(tmp_path / "pool"), max_pixels=100_000, max_bytes=25_000)
    run = tamis.score(spec, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    found = list(samples_of(run, fields={"pixels"}, errors="mark"))
    kinds = [one.problem and one.problem.kind for one in found]
    assert kinds == [None, "image_missing", "image_broken", "image_too_large", "image_too_large"]
    assert [one.pixels is None for one in found] == [False, True, True, True, True]
    assert [one.files for one in samples_of(run, fields={"files"})] == [files for _, files in samples]
    with pytest.raises(
        RunError, match="the sample 'none' of the shard '0' cannot be read: the sample has no image file"
    ):
        list(samples_of(run))


def test_an_image_file_that_is_not_what_the_table_was_scored_with_says_so(tmp_path: Path) -> None:
    table = write_table(tmp_path / "pool", "paths.csv", 4)
    run = scored(table, tmp_path / "run")
    (tmp_path / "pool" / "images" / "1.jpg").write_bytes(image_bytes(99, size=(20, 20)))
    (tmp_path / "pool" / "images" / "2.jpg").unlink()
    found = list(samples_of(run, errors="mark"))
    assert [one.problem and one.problem.kind for one in found] == [None, "changed", "image_missing", None]
    found = list(samples_of(run, errors="mark", fields={"files"}))
    assert [one.problem and one.problem.kind for one in found] == [None, "changed", "image_missing", None]


def test_a_shard_that_fails_as_a_whole_is_soon_given_up(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scored(pool, tmp_path / "run")
    tried: list[int] = []

    def failing(path: str, ranges: Any) -> list[bytes]:
        tried.append(len(list(ranges)))
        raise TimeoutError("no answer")

    monkeypatch.setattr(tar, "read_ranges", failing)
    monkeypatch.setattr(windows, "_WINDOW", 1)
    found = list(samples_of(run, order=range(7), errors="mark", threads=1))
    assert len(tried) == 3
    assert [one.problem.kind for one in found if one.problem is not None] == ["unread"] * 7
    assert "could not be read 3 times in a row: given up" in str(found[6].problem)


def test_metadata_without_images_gives_captions_and_refuses_images(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("caption\na cat\na dog\n")
    run = tamis.score(
        tamis.PoolSpec(path=str(tmp_path / "a.csv"), image="none"),
        run=tmp_path / "run",
        signals=["caption_length"],
        quiet=True,
    )
    assert [one.caption for one in samples_of(run, fields={"caption"}, order=[1, 0])] == ["a dog", "a cat"]
    with pytest.raises(RunError, match=r"a\.csv holds no image files: ask for caption, key, uid or status alone"):
        samples_of(run)


def test_transparency_is_a_setting_of_the_run(tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.new("RGBA", (40, 30), (0, 0, 0, 0)).save(out, "PNG")
    write_tar(tmp_path / "pool" / "0.tar", [("a", {"png": out.getvalue(), "txt": b"a drawing"})])
    pool = str(tmp_path / "pool")
    for transparency, light in (("drop", "00"), ("white", "ff")):
        spec = tamis.PoolSpec(path=pool, transparency=transparency)
        run = tamis.score(spec, run=tmp_path / transparency, signals=["image_hash"], quiet=True)
        assert run.table().read(0, ["image_lightness"])["image_lightness"].to_pylist() == [light * 1024]
        (sample,) = samples_of(run, fields={"pixels"})
        assert sample.pixels is not None
        assert set(sample.pixels.reshape(-1).tolist()) == {int(light, 16)}
    with pytest.raises(RunError, match="made with the pool setting transparency = 'white', now it is 'drop'"):
        tamis.score(pool, run=tmp_path / "white", signals=["caption_length"], quiet=True)
