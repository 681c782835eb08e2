"""Exporters that copy kept samples from the pool into a folder of shards."""

from __future__ import annotations

import itertools
import json
import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tamis.core.arrays import Rows
from tamis.core.errors import RunError, at_least_one
from tamis.core.files.find import is_remote
from tamis.core.files.storage import read_json, sweep, write_json, writing
from tamis.core.ids import fingerprint
from tamis.exports.exporter import Exporter
from tamis.pools import Pool
from tamis.pools.tar import TarShard
from tamis.runs import Run
from tamis.runs.makers import models_in_words
from tamis.runs.stream import KeptSample, samples_of
from tamis.runs.subset import Subset, other_captions

log = logging.getLogger(__name__)

ShardWriter = Callable[[Path, str, Iterable[KeptSample]], None]


@dataclass(frozen=True, kw_only=True)
class ShardsExport(Exporter):
    """An exporter of shards of samples, in the order of the pool. It reads only the bytes of kept samples.

    A shard appears when it is complete, so the same command again writes the missing ones.
    """

    MANIFEST: ClassVar[str] = "export.json"
    FILE_NAMES: ClassVar[str]  # "{number:0{width}d}.tar"; `count` is the number of shards
    LEAST_FILES: ClassVar[int] = 0  # of an empty subset
    shard_size: int = 10_000

    @abstractmethod
    def shard_writer(self, subset: Subset) -> ShardWriter:
        """Returns a function of a temporary path, the file's name, and samples: key, files, a chosen caption."""

    def order(self, subset: Subset) -> Rows:
        """Returns the rows to write, in this order, each as often as it is written."""
        return subset.rows()

    def files(self, names: Iterable[str]) -> list[str]:
        """Returns the relative paths of all files that the export writes, next to its manifest."""
        return list(names)

    def finish(self, out: Path, sizes: Mapping[str, int], pool: Pool) -> None:
        """Writes what else the format needs, once all shards exist. `sizes`: samples by file name."""

    def identity(self, subset: Subset) -> dict[str, Any]:
        """Returns what the shards depend on besides the pairs. A folder written with something else is refused."""
        return {"shard_size": self.shard_size}

    def __post_init__(self) -> None:
        at_least_one(shard_size=self.shard_size)

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the shards that are missing and returns the number of samples in all of them.

        Raises:
            RunError: the folder holds another export or a foreign shard; a shard of the pool is gone, or a sample
                changed since it was scored.
        """
        if compressed := _check_pool(subset):
            what = f"{len(compressed)} shards are compressed ({compressed[0]}, ...)"
            log.warning("%s: each is read from its start to its last kept sample", what)
        rows = _without_cut_off(self.order(subset), subset)
        firsts = range(0, rows.size or self.LEAST_FILES, self.shard_size)
        count, width = len(firsts), max(5, len(str(len(firsts))))
        names = [self.FILE_NAMES.format(number=number, width=width, count=count) for number in range(count)]
        self._begin(subset, out, names)
        outputs = {name: rows[first:][: self.shard_size] for name, first in zip(names, firsts, strict=True)}
        done = _find_shards(out, outputs, self.FILE_NAMES.rpartition(".")[2])
        missing = {name: own for name, own in outputs.items() if name not in done}
        order = np.concatenate([np.empty(0, np.int64), *missing.values()])
        write_shard = self.shard_writer(subset)
        # One thread reads while this one writes. A remote store still gets many requests at once.
        with closing(samples_of(subset, order=order, fields={"key", "files", "caption"}, threads=1)) as samples:
            for name, own in missing.items():
                with writing(out / name, durable=True) as temporary:
                    write_shard(temporary, name, itertools.islice(samples, own.size))
        self.finish(out, {name: rows.size for name, rows in outputs.items()}, subset.run.pool)
        return rows.size

    def wrote(self, out: Path, run: Run | None) -> bool:
        return (out / self.MANIFEST).is_file()

    def clear(self, out: Path, subset: Subset) -> None:
        manifest = out / self.MANIFEST
        facts = read_json(manifest) if manifest.is_file() else {}
        if facts and facts.get("fingerprint") != self._fingerprint(subset):
            _check_pool(subset)  # what cannot be written deletes nothing
            own = facts.get("files", ())
            _find_shards(out, own, self.FILE_NAMES.rpartition(".")[2])  # before anything is deleted
            for path in (out / name for name in own):
                # A manifest may come from elsewhere, and a folder may be a link.
                if path.parent.resolve() in (out.resolve(), out.resolve() / ".nv-meta"):
                    path.unlink(missing_ok=True)
            manifest.unlink()  # last, so that a command that was killed can be repeated

    def _fingerprint(self, subset: Subset) -> str:
        digest = xxhash.xxh3_128()
        for values in (subset.in_order(), *subset.uids()):
            digest.update(values.tobytes())
        digest.update(other_captions(subset).digest)
        # The stamps too: a shard may be replaced by one with the same row count.
        settings = {**self.identity(subset), "rows": digest.hexdigest()}
        run = {"urls": subset.run.urls, "stamps": list(subset.run.stamps)}
        return fingerprint(settings | {"run": run})

    def _begin(self, subset: Subset, out: Path, names: Iterable[str]) -> None:
        """Writes the manifest that identifies this export, and removes what a killed one left."""
        identity, manifest = self._fingerprint(subset), out / self.MANIFEST
        if manifest.is_file() and read_json(manifest).get("fingerprint") != identity:
            raise RunError(f"{out} holds another export: choose another folder, or --overwrite (overwrite=True)")
        sweep(out)
        about = {"used": list(subset.used), "models": models_in_words(subset.used)}
        facts = {"subset": subset.name, "recipe": dict(subset.recipe), **about, "samples": len(subset)}
        write_json(manifest, {"fingerprint": identity, **facts, "files": self.files(names)})


def _check_pool(subset: Subset) -> list[str]:
    """Checks that the pool has every shard with kept rows; returns the compressed ones of them, which are slow."""
    pool = subset.run.pool
    if not pool.has_images:
        raise RunError(f"{pool.spec.paths[0]} is metadata without images to copy: export npy, parquet or keys")
    shards = {shard.name: shard for shard in pool.shards if is_remote(shard.url) or os.path.exists(shard.url)}
    kept = [name for name, _ in subset.rows_by_shard()]
    if absent := [name for name in kept if name not in shards]:
        raise RunError(f"the pool no longer has the shard {absent[0]!r}, from which samples are kept")
    return [name for name in kept if isinstance(shard := shards[name], TarShard) and shard.is_compressed()]


def _without_cut_off(rows: Rows, subset: Subset) -> Rows:
    """Returns rows of the run without samples that the end of a truncated shard cuts off."""
    run = subset.run
    if not run.statuses["shard_cut"]:
        return rows
    statuses = [run.index(shard, ["status"])["status"].cast(pa.string()).combine_chunks() for shard in run.shards]
    complete = pc.not_equal(pa.chunked_array(statuses, pa.string()), "shard_cut").to_numpy()[rows]
    log.warning("%d kept samples are left out: their shards end in the middle of them", np.count_nonzero(~complete))
    found: Rows = rows[complete]
    return found


def _find_shards(folder: Path, planned: Container[str], ending: str) -> set[str]:
    """Returns the names of the shards that are there; a foreign one is an error, because training would read it too."""
    shards = [path for path in sorted(folder.glob(f"*.{ending}")) if not path.name.startswith(".")]
    if foreign := [path for path in shards if path.name not in planned]:
        raise RunError(f"{foreign[0]} is not a shard of this export: move it elsewhere, or choose another folder")
    return {path.name for path in shards}


def with_fields(files: Mapping[str, bytes], **fields: Any) -> dict[str, bytes]:
    """Returns a sample's files with more fields in its json; a json that is missing or broken has only these."""
    try:
        facts = json.loads(files.get("json", b"{}"))
    except (ValueError, RecursionError):
        facts = {}
    facts = {**(facts if isinstance(facts, dict) else {}), **fields}
    return {**files, "json": json.dumps(facts).encode()}


def image_exts(exts: Iterable[str], pool: Pool) -> list[str]:
    """Returns which of a sample's extensions are images, the one that the pool reads first."""
    if pool.kind == "table":  # their files are the image, txt and json
        return sorted(set(exts) - {"txt", "json"})
    return [ext for ext in dict.fromkeys(map(str.lower, pool.spec.image_extensions)) if ext in set(exts)]
