"""Damaging a run in every way we know, and everything that its readers get to see."""

import hashlib
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from factories import uids_in, write_run

import tamis
from tamis.core.files import checked
from tamis.core.files.storage import write_json
from tamis.runs import Run, manifest, parts
from tamis.runs.check import Checked, lines
from tamis.runs.manifest import sign_description
from tamis.runs.subset import Subset

RECIPE = {
    "name": "mine",
    "select": [
        {"at_least": {"score": "x", "value": 0.2, "missing": "drop"}},
        {"equals": {"score": "word", "value": "a", "missing": "drop"}},
        {"top_fraction": {"score": "x + 0.1*y", "fraction": 0.4, "of": "pool"}},
    ],
}


def small_run(folder: Path, rows: int = 24, shards: int = 3) -> Run:
    """Writes a run with every kind of part."""
    rng = np.random.default_rng(7)
    columns = {
        "x": [*rng.random(rows - 1).tolist(), float("nan")],
        "y": rng.random(rows).tolist(),
        "word": ["a" if draw < 0.7 else "b" for draw in rng.random(rows)],
    }
    run = write_run(folder, columns, shards=shards)
    names, vectors = ["a", "b"], rng.normal(size=(2, 6)).astype(np.float32)
    given = run.scores["given"]
    side = {"class_names.json": names, "class_vectors.npy": vectors}
    notes = {name: parts.note(Path(name), value) for name, value in side.items()}
    write_json(given.folder / "class_names.json", names)
    checked.write_array(given.folder / "class_vectors.npy", vectors)
    write_json(given.folder / "signal.json", sign_description(given.folder, {**given.facts, "side_files": notes}))
    embeddings, texts = "embeddings/image_embedding-1111111111111111", "captions/says-2222222222222222"
    manifest.describe(folder, {embeddings: {"name": "image_embedding"}, texts: {"name": "says"}})
    for shard, size in zip(run.shards, run.sizes, strict=True):
        uids = uids_in(run.index_path(shard))
        parts.write_rows(folder / embeddings / f"{shard}.npy", [rng.normal(size=(size, 6))], uids=uids)
        said = [[f"text {row}", "more"] for row in range(size)]
        parts.write_text_lists(folder / texts / f"{shard}.parquet", said, uids=uids)
    (folder / "subsets").mkdir()
    tamis.select(folder, RECIPE).save(folder / "subsets" / "mine.parquet")
    return Run(folder)


def part_files(folder: Path) -> list[Path]:
    """Every part of a run, and the list of its shards."""
    kinds = ("index", "scores", "embeddings", "captions")
    found = [path for kind in kinds for path in (folder / kind).rglob("*") if path.suffix in (".parquet", ".npy")]
    return sorted([*found, folder / "shards.parquet"])


def files_of(folder: Path) -> list[Path]:
    """Every part of a run, the files that describe them, and its subsets."""
    return sorted([*part_files(folder), *folder.glob("*/*/*.json"), *folder.glob("subsets/*.parquet")])


def contents(folder: Path) -> dict[str, bytes]:
    """The content of every part of a run, by its path in it."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in part_files(folder) if path.is_file()}


def answer(folder: Path) -> str:
    """A hash of everything that a run's readers get to see: subsets, all columns, uids, captions, stored features."""
    total = hashlib.sha256()
    run = tamis.open_run(folder)
    subset = tamis.select(run, RECIPE)
    total.update(subset.keep.tobytes())
    total.update(subset.to_numpy().tobytes())
    total.update(repr(run.to_arrow().to_pydict()).encode())
    for shard in run.shards:
        total.update(repr(run.index(shard).to_pydict()).encode())
        total.update(run.embedding("image_embedding", shard).tobytes())
        total.update(repr(run.texts_of("says", shard)).encode())
    total.update(repr((run.urls, run.statuses)).encode())
    for saved in sorted(folder.glob("subsets/*.parquet")):
        read = Subset.load(saved, run)
        total.update(read.keep.tobytes() + repr((read.recipe, read.funnel)).encode())
    for group in run.scores.values():
        beside = [group.side_file(name) for name in ("class_names.json", "class_vectors.npy")]
        total.update(repr((group.label, group.columns, beside)).encode())
    total.update(repr([run.table().about(name).get("name") for name in ("x", "image_embedding")]).encode())
    return total.hexdigest()


def delete(found: Checked) -> None:
    """Does what the check says, with a shell."""
    for line in lines(found):
        if line.startswith("rm "):
            subprocess.run(line, shell=True, check=True)


def flips(files: list[Path], count: int, seed: int) -> Iterator[tuple[Path, int, int]]:
    """Draws places of single bits: a file, each as likely as any other, a byte in it and a bit."""
    rng = random.Random(seed)
    for _ in range(count):
        path = rng.choice(files)
        yield path, rng.randrange(path.stat().st_size), rng.randrange(8)


def flipped(path: Path, byte: int, bit: int) -> bytes:
    """Changes one bit of a file, and returns the file as it was."""
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[byte] ^= 1 << bit
    path.write_bytes(bytes(changed))
    return whole


@contextmanager
def unreadable(path: Path, root: Path) -> Iterator[None]:
    """A block in which a file or folder of the run at `root` may not be read: root becomes a user who may write."""
    mode, superuser = path.stat().st_mode, os.geteuid() == 0
    path.chmod(0)
    opened = {folder: folder.stat().st_mode for folder in root.parents if superuser and not folder.stat().st_mode & 1}
    for folder, before in opened.items():
        folder.chmod(before | 0o011)
    if superuser:
        for entry in (root, *root.rglob("*")):
            if entry != path and path not in entry.parents:
                entry.chmod(entry.stat().st_mode | (0o077 if entry.is_dir() else 0o066))
        os.setegid(65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        if superuser:
            os.seteuid(0)
            os.setegid(0)
        for folder, before in {**opened, path: mode}.items():
            folder.chmod(before)
