"""A pool that changed after it was scored: no reader of its samples takes another pair for the one that was scored."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import image_bytes, write_tar

import tamis
from tamis.errors import RunError
from tamis.explore.images import Images, NoImage
from tamis.reporting.pairs import read_pairs
from tamis.store.stream import pool_of
from tamis.store.subset import Subset

#: Image and caption. All images, and all captions, have the same number of bytes.
Pair = tuple[bytes, str]

Rows = Sequence[Pair]


def made(number: int) -> Pair:
    return image_bytes(number).ljust(1500, b"\0"), f"caption {random.Random(number).randrange(10**9):09d}"


SCORED = [made(number) for number in range(6)]


# ---- pools: each written so that other pairs make a file of the same size


def write_tars(folder: Path, rows: Rows, *, mode: str = "w", of_json: bool = False, uids: bool = False) -> None:
    samples = []
    for number, (image, caption) in enumerate(rows):
        meta = {"uid": f"{SCORED.index((image, caption)):032x}"} if uids and (image, caption) in SCORED else {}
        meta |= {"uid": f"{number:032x}"} if uids and not meta else {}
        text = {"json": json.dumps(meta | {"alt": caption}).encode()} if of_json else {"txt": caption.encode()}
        also = {"json": json.dumps(meta).encode()} if uids and not of_json else {}
        samples.append((f"{number:04d}", {"jpg": image} | text | also))
    path = write_tar(folder / "0.tar", samples, mode=mode)
    if mode != "w":  # which takes zeros behind its end
        path.write_bytes(path.read_bytes().ljust(20_000, b"\0"))


def write_paths(folder: Path, rows: Rows, ending: str) -> None:
    """Writes a table of paths: an image keeps its file wherever its row goes; a new image takes a file of its row."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    known = [image for image, _ in SCORED]
    cells = []
    for number, (image, caption) in enumerate(rows):
        path = f"images/{known.index(image) if image in known else number}.jpg"
        (folder / path).write_bytes(image)
        cells.append({"image": path, "caption": caption})
    write_rows(folder / f"0.{ending}", cells)


def write_inside(folder: Path, rows: Rows, kind: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(
        folder / "0.parquet",
        [
            {"image": {"bytes": image, "path": "a.jpg"} if kind == "struct" else image, "caption": caption}
            for image, caption in rows
        ],
    )


def write_rows(path: Path, cells: Sequence[dict[str, Any]]) -> None:
    out = io.BytesIO()
    if path.suffix == ".parquet":
        plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        pq.write_table(pa.Table.from_pylist(list(cells)), out, **plain)
    elif path.suffix == ".jsonl":
        out.write("".join(json.dumps(row) + "\n" for row in cells).encode())
    else:
        between = {".csv": ",", ".tsv": "\t"}[path.suffix]
        out.write("\n".join([f"image{between}caption", *(between.join(row.values()) for row in cells), ""]).encode())
    path.write_bytes(out.getvalue())


POOLS: dict[str, tuple[Callable[[Path, Rows], None], dict[str, Any]]] = {
    "tar": (write_tars, {}),
    "tar.gz": (lambda folder, rows: write_tars(folder, rows, mode="w:gz"), {}),
    "captions in json": (lambda folder, rows: write_tars(folder, rows, of_json=True), {"caption": "json:alt"}),
    "uids given": (lambda folder, rows: write_tars(folder, rows, uids=True), {}),
    "csv of paths": (lambda folder, rows: write_paths(folder, rows, "csv"), {}),
    "tsv of paths": (lambda folder, rows: write_paths(folder, rows, "tsv"), {}),
    "jsonl of paths": (lambda folder, rows: write_paths(folder, rows, "jsonl"), {}),
    "parquet of paths": (lambda folder, rows: write_paths(folder, rows, "parquet"), {}),
    "parquet of bytes": (lambda folder, rows: write_inside(folder, rows, "bytes"), {}),
    "parquet of structs": (lambda folder, rows: write_inside(folder, rows, "struct"), {}),
}

CHANGES: dict[str, list[Pair]] = {
    "rows re-sorted": SCORED[::-1],
    "captions permuted": [(SCORED[row][0], SCORED[row - 1][1]) for row in range(6)],
    "other images": [(made(100 + row)[0], SCORED[row][1]) for row in range(6)],
    "one removed, one added": [*SCORED[:2], *SCORED[3:], made(100)],
    "nothing": SCORED,
}


# ---- readers: each reads one row, and raises what it says of it


def exported(run: tamis.Run, row: int, folder: Path) -> None:
    tamis.export(alone(run, row), "webdataset", folder)


def reported(run: tamis.Run, row: int, folder: Path) -> None:
    pair = read_pairs(run, [row], [], [], pool_of(run))[row]
    if not pair.thumbnail:
        raise RunError(pair.no_image)


def explored(run: tamis.Run, row: int, folder: Path) -> None:
    with closing(Images(run, pool_of(run))) as pictures:
        pictures.small(row)
        pictures.pixels(row)


def trained(run: tamis.Run, row: int, folder: Path) -> None:
    pytest.importorskip("torch")
    from tamis.train.batches import Batches
    from tamis.train.clip import training_rows

    rows, _ = training_rows(alone(run, row))
    list(Batches(run=run, pool=pool_of(run), rows=rows, smallest=0.9, batch=1, side=32)(0, 1, lambda batch: batch))


def streamed(run: tamis.Run, row: int, folder: Path) -> None:
    (sample,) = tamis.samples_of(run, order=[row], fields={"image", "caption"})
    assert sample.caption == SCORED[row][1]


def alone(run: tamis.Run, row: int) -> Subset:
    return Subset(run=run, keep=np.arange(len(run)) == row)


READERS = (exported, reported, explored, trained, streamed)


def refused(read: Callable[[tamis.Run, int, Path], None], run: tamis.Run, folder: Path) -> dict[int, str]:
    """Returns what a reader says of the rows that it does not show."""
    found = {}
    for row in range(len(run)):
        try:
            read(run, row, folder / f"{read.__name__}-{row}")
        except (RunError, NoImage) as error:
            found[row] = str(error)
    return found


def files_under(folder: Path) -> dict[Path, os.stat_result]:
    return {path: path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("time", ["new time", "old time"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", POOLS)
def test_no_reader_takes_another_pair_for_the_one_that_was_scored(
    kind: str, change: str, time: str, tmp_path: Path
) -> None:
    write, settings = POOLS[kind]
    pool = tmp_path / "pool"
    write(pool, SCORED)
    before = files_under(pool)
    spec = tamis.PoolSpec(path=str(pool), **settings)
    run = tamis.score(spec, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    assert run.statuses["ok"] == 6
    shutil.rmtree(pool)
    write(pool, CHANGES[change])
    for path, facts in files_under(pool).items():
        assert facts.st_size == before[path].st_size
        old = (before[path].st_atime_ns, before[path].st_mtime_ns)
        os.utime(path, ns=old if time == "old time" else (1, 1))
    other = {row for row in range(6) if CHANGES[change][row] != SCORED[row]}
    for read in READERS:
        said = refused(read, run, tmp_path)
        assert said.keys() == other
        assert all("changed since it was scored" in one for one in said.values())
        if read in (exported, trained, streamed):
            assert all(f"{row:0{9 if 'of' in kind else 4}d}" in one for row, one in said.items())  # its key


def test_rows_that_are_not_ok_are_the_same_after_a_copy(tmp_path: Path) -> None:
    image = image_bytes(0)
    samples: list[tuple[str, dict[str, bytes]]] = [
        ("no caption", {"jpg": image}),
        ("empty caption", {"jpg": image, "txt": b" \n"}),
        ("not UTF-8", {"jpg": image, "txt": b"caf\xe9"}),
        ("no image", {"txt": b"alone"}),
        ("no bytes", {"jpg": b"", "txt": b"a cat"}),
        ("broken image", {"jpg": b"no image", "txt": b"a cat"}),
        ("large image", {"jpg": bytes(5_000), "txt": b"a cat"}),
        ("large caption", {"jpg": image, "txt": b"a" * 5_000}),
        ("broken json", {"jpg": image, "txt": b"a cat", "json": b"{"}),
        ("large json", {"jpg": image, "txt": b"a cat", "json": b'{"uid": "' + b"0" * 5_000 + b'"}'}),
        ("given", {"jpg": image, "txt": b"a cat", "json": json.dumps({"uid": "A" * 32, "a": 1}).encode()}),
        ("given", {"jpg": image, "txt": b"  a cat\n"}),
    ]
    path = write_tar(tmp_path / "pool" / "0.tar", samples)
    spec = tamis.PoolSpec(path=str(tmp_path / "pool"), max_bytes=4_000)
    run = tamis.score(spec, run=tmp_path / "run", signals=["image_size"], quiet=True)
    assert len(set(index_statuses(run))) == 9
    os.utime(path, (1, 1))
    assert [sample.files for sample in tamis.samples_of(run, fields={"files"})] == [files for _, files in samples]
    shown = tamis.samples_of(run, fields={"pixels"}, errors="mark")
    assert {sample.problem.kind for sample in shown if sample.problem} == {
        "image_missing", "image_broken", "image_too_large"
    }  # fmt: skip


def index_statuses(run: tamis.Run) -> list[str]:
    return [status for shard in run.shards for status in run.index(shard, ["status"]).column("status").to_pylist()]
