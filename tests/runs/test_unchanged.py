"""A pool that changed after it was scored: no reader of its samples takes another pair for the one that was scored."""

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
from factories import image_bytes, score, write_tar

import tamis
from tamis.core.errors import RunError
from tamis.reports.explore.image_cache import Images, NoImage
from tamis.reports.page_pairs import add_images, read_pairs
from tamis.runs.subset import Subset

#: Image and caption. All images, and all captions, have the same number of bytes.
Pair = tuple[bytes, str]

Rows = Sequence[Pair]


def made(number: int) -> Pair:
    return image_bytes(number).ljust(1500, b"\0"), f"caption {random.Random(number).randrange(10**9):09d}"


SCORED = [made(number) for number in range(6)]


def write_tars(folder: Path, rows: Rows, *, mode: str = "w", of_json: bool = False, uids: bool = False) -> None:
    samples = []
    for number, (image, caption) in enumerate(rows):
        meta = (
            {"uid": f"{SCORED.index((image, caption)) if (image, caption) in SCORED else number:032x}"} if uids else {}
        )
        files = {"jpg": image} if of_json else {"jpg": image, "txt": caption.encode()}
        meta |= {"alt": caption} if of_json else {}
        samples.append((f"{number:04d}", files | ({"json": json.dumps(meta).encode()} if meta else {})))
    path = write_tar(folder / "0.tar", samples, mode=mode)
    if mode != "w":  # readers skip zeros behind its end
        path.write_bytes(path.read_bytes().ljust(20_000, b"\0"))


def write_paths(folder: Path, rows: Rows, ending: str) -> None:
    """Writes a table of paths: a known image keeps its file wherever its row goes; a new one takes its row's file."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    known = [image for image, _ in SCORED]
    cells = []
    for number, (image, caption) in enumerate(rows):
        path = f"images/{known.index(image) if image in known else number}.jpg"
        (folder / path).write_bytes(image)
        cells.append({"image": path, "caption": caption})
    if ending == "parquet":
        write_parquet(folder, cells)
    elif ending == "jsonl":
        (folder / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cells))
    else:
        (folder / "0.csv").write_text("\n".join(["image,caption", *(",".join(row.values()) for row in cells), ""]))


def write_parquet(folder: Path, cells: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.Table.from_pylist(list(cells)), folder / "0.parquet", **plain)


def write_inside(folder: Path, rows: Rows, struct: bool) -> None:
    write_parquet(
        folder,
        [{"image": {"bytes": image, "path": "a.jpg"} if struct else image, "caption": text} for image, text in rows],
    )


POOLS: dict[str, tuple[Callable[..., None], dict[str, Any], dict[str, Any]]] = {
    "tar": (write_tars, {}, {}),
    "tar.gz": (write_tars, {"mode": "w:gz"}, {}),
    "captions in json": (write_tars, {"of_json": True}, {"caption": "json:alt"}),
    "uids given": (write_tars, {"uids": True}, {}),
    "csv of paths": (write_paths, {"ending": "csv"}, {}),
    "jsonl of paths": (write_paths, {"ending": "jsonl"}, {}),
    "parquet of paths": (write_paths, {"ending": "parquet"}, {}),
    "parquet of bytes": (write_inside, {"struct": False}, {}),
    "parquet of structs": (write_inside, {"struct": True}, {}),
}

CHANGES: dict[str, list[Pair]] = {
    "rows re-sorted": SCORED[::-1],
    "captions permuted": [(SCORED[row][0], SCORED[row - 1][1]) for row in range(6)],
    "other images": [(made(100 + row)[0], SCORED[row][1]) for row in range(6)],
    "one removed, one added": [*SCORED[:2], *SCORED[3:], made(100)],
    "nothing": SCORED,
}


def exported(run: tamis.Run, row: int, folder: Path) -> None:
    tamis.export(alone(run, row), "webdataset", folder)


def reported(run: tamis.Run, row: int, folder: Path) -> None:
    pairs = read_pairs(run, [row], [], [])
    add_images(run, pairs)
    pair = pairs[row]
    if not pair.thumbnail:
        raise RunError(pair.no_image)


def explored(run: tamis.Run, row: int, folder: Path) -> None:
    with closing(Images(run)) as images:
        images.small(row)
        images.pixels(row)


def trained(run: tamis.Run, row: int, folder: Path) -> None:
    pytest.importorskip("torch")
    from tamis.train.batches import Batches
    from tamis.train.clip import training_rows

    rows, _ = training_rows(alone(run, row))
    list(Batches(run=run, rows=rows, smallest=0.9, batch=1, side=32)(0, 1, lambda batch: batch))


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


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", POOLS)
def test_no_reader_takes_another_pair_for_the_one_that_was_scored(kind: str, change: str, tmp_path: Path) -> None:
    write, how, settings = POOLS[kind]
    pool = tmp_path / "pool"
    write(pool, SCORED, **how)
    before = files_under(pool)
    run = score(tamis.PoolSpec(path=str(pool), **settings), tmp_path / "run", "caption_length")
    assert run.statuses["ok"] == 6
    shutil.rmtree(pool)
    write(pool, CHANGES[change], **how)
    for path, facts in files_under(pool).items():  # size and time do not betray a change; a copy has a new time
        assert facts.st_size == before[path].st_size
        os.utime(path, ns=(1, 1) if change == "nothing" else (before[path].st_atime_ns, before[path].st_mtime_ns))
    other = {row for row in range(6) if CHANGES[change][row] != SCORED[row]}
    for read in READERS:
        reasons = refused(read, run, tmp_path)
        assert reasons.keys() == other
        assert all("changed" in one for one in reasons.values())
        if read in (exported, trained, streamed):
            assert all(f"{row:0{9 if 'of' in kind else 4}d}" in one for row, one in reasons.items())  # its key


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
    assert len(run.statuses) == 9
    os.utime(path, (1, 1))
    assert [sample.files for sample in tamis.samples_of(run, fields={"files"})] == [files for _, files in samples]
    shown = tamis.samples_of(run, fields={"pixels"}, errors="mark")
    assert {sample.problem.kind for sample in shown if sample.problem} == {
        "image_missing", "image_broken", "image_too_large"
    }  # fmt: skip
