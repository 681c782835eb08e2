"""A subset as WebDataset shards: every file of every kept sample, byte for byte."""

from __future__ import annotations

import io
import itertools
import json
import logging
import tarfile
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tamis.arrays import Rows
from tamis.errors import RunError, at_least_one
from tamis.exporters.exporter import Exporter
from tamis.fingerprint import file_digest, fingerprint
from tamis.pool import Pool
from tamis.pool.tar import TarShard
from tamis.storage import explained, read_json, sweep, write_json, writing
from tamis.store import Run
from tamis.store.stream import KeptSample, samples_of
from tamis.store.subset import Subset

log = logging.getLogger(__name__)

#: Size and xxh3 of every shard that was written, a line of JSON each; the last line of a name counts.
_WRITTEN = "written.jsonl"


@dataclass(frozen=True, kw_only=True)
class WebDatasetExport(Exporter):
    """Writes shards of whole samples, in the order of the pool, reading only the bytes of kept samples.

    Shards are written one by one and renamed when whole: the same command again goes on where it stopped. It reads the
    shards that are there, and writes those again that differ, byte for byte, from what `written.jsonl` notes of them.
    A `sizes.json` tells open_clip how many samples there are. Dots in keys become "_", since webdataset takes the first
    dot for the end of the key; a key that stands twice in an output shard gets "_2".

    Attributes:
        shard_size: samples per shard.
    """

    name: ClassVar[str] = "webdataset"
    needs_pool: ClassVar[bool] = True
    shard_size: int = 10_000

    def __post_init__(self) -> None:
        at_least_one(shard_size=self.shard_size)

    def write(self, subset: Subset, out: Path, pool: Pool) -> int:
        """Writes the shards and returns how many samples they hold.

        Raises:
            RunError: the folder holds something else, or a shard that is not of this export; or a shard of the pool is
                gone, or a sample is not what it was when it was scored.
        """
        if not pool.has_images:
            raise RunError(
                f"{pool.spec.paths[0]} is metadata without image files to copy: export npy, parquet or keys instead"
            )
        shards = {shard.name: shard for shard in pool.shards}
        rows = _whole(subset)
        plan = list(_by_shard(rows, subset.run))
        if absent := [name for name, _ in plan if name not in shards]:
            raise RunError(f"the pool no longer has the shard {absent[0]!r}, from which samples are kept")
        compressed = [name for name, _ in plan if isinstance(s := shards[name], TarShard) and s.compression()]
        if compressed:
            log.warning(
                "%d shards are compressed (%s, ...): each is read from its start to its last kept sample",
                len(compressed),
                compressed[0],
            )
        self._begin(subset, out)
        width = max(5, len(str(-(-rows.size // self.shard_size))))
        firsts = range(0, rows.size, self.shard_size)
        outputs = {f"{number:0{width}d}.tar": rows[first:][: self.shard_size] for number, first in enumerate(firsts)}
        done = _whole_tars(out, outputs)
        self._write(subset, pool, {out / name: rows for name, rows in outputs.items() if name not in done})
        write_json(out / "sizes.json", {name: rows.size for name, rows in outputs.items()})
        return rows.size

    def wrote(self, out: Path, run: Run | None) -> bool:
        return (out / "export.json").is_file()

    def _write(self, subset: Subset, pool: Pool, outputs: Mapping[Path, Rows]) -> None:
        """Writes the shards that are not there yet, each of some rows of the run."""
        order = np.concatenate([np.empty(0, np.int64), *outputs.values()])
        # One thread reads while this one writes: a store answers many ranges at once all the same.
        samples = samples_of(subset, pool, order=order, fields={"key", "files"}, threads=1)
        with closing(samples):
            for path, rows in outputs.items():
                with writing(path, durable=True) as temporary:
                    try:
                        _write_tar(temporary, itertools.islice(samples, rows.size))
                    except RunError as error:
                        raise RunError(f"{error}; what is complete stays, repeat the command") from error
                    _note(path, temporary)

    def _begin(self, subset: Subset, out: Path) -> None:
        # Rows alone would not do: a shard that was replaced and indexed anew may have as many.
        stamps = dict(zip(subset.run.shards, subset.run.stamps, strict=True))
        kept = _by_shard(subset.rows(), subset.run)
        rows = {name: fingerprint({"rows": rows.tolist()}) for name, rows in kept}
        uids = xxhash.xxh3_128()
        for half in subset.uids():
            uids.update(half.tobytes())
        mine = fingerprint(
            {
                "shard_size": self.shard_size,
                "rows": rows,
                "stamps": {name: stamps[name] for name in rows},
                "uids": uids.hexdigest(),
                "urls": subset.run.urls,
            }
        )
        manifest = out / "export.json"
        if manifest.is_file() and read_json(manifest).get("fingerprint") != mine:
            raise RunError(f"{out} holds another export; delete it, or choose another folder")
        sweep(out)
        write_json(
            manifest,
            {"fingerprint": mine, "subset": subset.name, "recipe": dict(subset.recipe), "samples": len(subset)},
        )


def _whole(subset: Subset) -> Rows:
    """Returns the rows of the run to copy: those kept, but for samples in whose middle their shard ends."""
    rows = subset.rows()
    if not subset.run.statuses["shard_cut"]:
        return rows
    whole = []
    for name, here in _by_shard(rows, subset.run):
        status = subset.run.index(name, ["status"]).column("status").take(pa.array(here))
        whole.append(pc.not_equal(status.cast(pa.string()), "shard_cut").to_numpy())
    found: Rows = rows[np.concatenate([np.empty(0, bool), *whole])]
    log.warning("%d kept samples are left out: their shards end in the middle of them", rows.size - found.size)
    return found


def _by_shard(rows: Rows, run: Run) -> Iterator[tuple[str, Rows]]:
    """Yields each shard that holds some of the run's rows (ascending), with their numbers in the shard."""
    starts = np.concatenate([[0], np.cumsum(run.sizes, dtype=np.int64)])
    edges = np.searchsorted(rows, starts)
    for block, name in enumerate(run.shards):
        if edges[block] < edges[block + 1]:
            yield name, rows[edges[block] : edges[block + 1]] - starts[block]


def _whole_tars(folder: Path, planned: Container[str]) -> set[str]:
    """Returns the names of the shards that are there as they were written.

    Raises:
        RunError: one is not among those planned; a training on the folder would read it too.
    """
    written = _noted(folder / _WRITTEN)
    there = [path for path in sorted(folder.glob("*.tar")) if not path.name.startswith(".")]
    if foreign := [path for path in there if path.name not in planned]:
        raise RunError(f"{foreign[0]} is no shard of this export: move it elsewhere, or choose another folder")
    whole = {path.name for path in there if written.get(path.name) == _facts(path, path.name)}
    if other := [path.name for path in there if path.name not in whole]:
        log.warning(
            "%d shards in %s are not those that this export wrote (%s, ...): they are written again",
            len(other), folder, other[0],
        )  # fmt: skip
    return whole


def _facts(path: Path, name: str) -> dict[str, Any]:
    return {"name": name, "size": path.stat().st_size, "xxh3": file_digest(path)}


def _note(path: Path, temporary: Path) -> None:
    """Notes what a shard holds that is about to be renamed."""
    noted = path.with_name(_WRITTEN)
    with explained(noted), open(noted, "ab") as file:
        # A line that a power cut has left unfinished must not swallow this one.
        file.write(b"\n" + json.dumps(_facts(temporary, path.name)).encode() + b"\n")


def _noted(path: Path) -> dict[str, Any]:
    """Returns what was noted of shards, by name; what cannot be read counts as not noted."""
    found: dict[str, Any] = {}
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            facts = json.loads(line)
            found[facts["name"]] = facts
        except (ValueError, RecursionError, TypeError, KeyError):
            continue
    return found


def _write_tar(path: Path, samples: Iterable[KeptSample]) -> None:
    taken: set[str] = set()
    renamed = 0
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for sample in samples:
            assert sample.key is not None  # both were asked for, and what cannot be read has raised
            assert sample.files is not None
            fresh = _free(sample.key, taken)
            renamed += fresh != sample.key
            for ext, data in sample.files.items():
                info = tarfile.TarInfo(f"{fresh}.{ext}")
                info.size = len(data)  # owner, time and mode stay fixed: the same subset makes the same bytes
                tar.addfile(info, io.BytesIO(data))
    if renamed:
        log.warning("%s: %d keys were changed: dots in them, or keys that stand twice", path.parent, renamed)


def _free(key: str, taken: set[str]) -> str:
    *folders, base = key.replace("\\", "/").split("/")
    # A key may be any text that stood in a tar: no path of ours may leave the folder it is unpacked in.
    safe = [folder for folder in folders if folder not in ("", ".", "..")]
    plain = "/".join([*safe, base.replace(".", "_") or "_"])
    candidate, number = plain, 1
    while candidate in taken:
        number += 1
        candidate = f"{plain}_{number}"
    taken.add(candidate)
    return candidate
