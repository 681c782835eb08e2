"""A subset as WebDataset shards: every file of every kept sample, byte for byte."""

from __future__ import annotations

import io
import itertools
import logging
import tarfile
from collections.abc import Container, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tamis.arrays import Rows
from tamis.errors import RunError, at_least_one
from tamis.exporters.exporter import Exporter
from tamis.ids import fingerprint
from tamis.pool import Pool
from tamis.pool.tar import TarShard
from tamis.storage import read_json, sweep, write_json, writing
from tamis.store import Run
from tamis.store.stream import KeptSample, samples_of
from tamis.store.subset import Subset

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WebDatasetExport(Exporter):
    """Writes shards of complete samples in the order of the pool, and reads only the bytes of kept samples.

    A shard appears when it is complete, so the same command again writes the missing ones. `sizes.json` gives
    open_clip the number of samples per shard. Dots in keys become "_", because webdataset ends the key at the first
    dot; a key that occurs twice in an output shard gets "_2".

    Attributes:
        shard_size: samples per shard.
    """

    name: ClassVar[str] = "webdataset"
    needs_pool: ClassVar[bool] = True
    shard_size: int = 10_000

    def __post_init__(self) -> None:
        at_least_one(shard_size=self.shard_size)

    def write(self, subset: Subset, out: Path, pool: Pool) -> int:
        """Writes the shards that are missing and returns the number of samples in all of them.

        Raises:
            RunError: the folder holds another export or a foreign shard; a shard of the pool is gone, or a sample
                changed since it was scored.
        """
        if not pool.has_images:
            raise RunError(
                f"{pool.spec.paths[0]} is metadata without image files to copy: export npy, parquet or keys instead"
            )
        _check_pool(subset, pool)
        self._begin(subset, out)
        rows = _complete(subset)
        width = max(5, len(str(-(-rows.size // self.shard_size))))
        firsts = range(0, rows.size, self.shard_size)
        outputs = {f"{number:0{width}d}.tar": rows[first:][: self.shard_size] for number, first in enumerate(firsts)}
        done = _finished(out, outputs)
        missing = {name: own for name, own in outputs.items() if name not in done}
        order = np.concatenate([np.empty(0, np.int64), *missing.values()])
        # One thread reads while this one writes. A remote store still gets many requests at once.
        with closing(samples_of(subset, pool, order=order, fields={"key", "files"}, threads=1)) as samples:
            for name, own in missing.items():
                with writing(out / name, durable=True) as temporary:
                    _write_tar(temporary, itertools.islice(samples, own.size))
        write_json(out / "sizes.json", {name: rows.size for name, rows in outputs.items()})
        return rows.size

    def wrote(self, out: Path, run: Run | None) -> bool:
        return (out / "export.json").is_file()

    def _begin(self, subset: Subset, out: Path) -> None:
        """Writes the manifest that identifies this export, and removes what a killed one left."""
        digest = xxhash.xxh3_128()
        for values in (subset.rows(), *subset.uids()):
            digest.update(values.tobytes())
        # The stamps too: a shard may be replaced by one with the same row count.
        settings = {"shard_size": self.shard_size, "rows": digest.hexdigest()}
        run = {"urls": subset.run.urls, "stamps": list(subset.run.stamps)}
        identity = fingerprint(settings | {"run": run})
        manifest = out / "export.json"
        if manifest.is_file() and read_json(manifest).get("fingerprint") != identity:
            raise RunError(f"{out} holds another export; delete it, or choose another folder")
        sweep(out)
        facts = {"subset": subset.name, "recipe": dict(subset.recipe), "samples": len(subset)}
        write_json(manifest, {"fingerprint": identity, **facts})


def _check_pool(subset: Subset, pool: Pool) -> None:
    """Checks that the pool has every shard with kept rows, and warns of slow ones."""
    shards = {shard.name: shard for shard in pool.shards}
    kept = [name for name, _ in subset.rows_by_shard()]
    if absent := [name for name in kept if name not in shards]:
        raise RunError(f"the pool no longer has the shard {absent[0]!r}, from which samples are kept")
    compressed = [name for name in kept if isinstance(shard := shards[name], TarShard) and shard.is_compressed()]
    if compressed:
        what = f"{len(compressed)} shards are compressed ({compressed[0]}, ...)"
        log.warning("%s: each is read from its start to its last kept sample", what)


def _complete(subset: Subset) -> Rows:
    """Returns the kept rows of the run, without samples that the end of a truncated shard cuts off."""
    rows, run = subset.rows(), subset.run
    if not run.statuses["shard_cut"]:
        return rows
    statuses = [
        run.index(shard, ["status"])["status"].take(pa.array(inside)).cast(pa.string()).combine_chunks()
        for shard, inside in subset.rows_by_shard()
    ]
    complete = pc.not_equal(pa.chunked_array(statuses, pa.string()), "shard_cut").to_numpy()
    log.warning("%d kept samples are left out: their shards end in the middle of them", np.count_nonzero(~complete))
    found: Rows = rows[complete]
    return found


def _finished(folder: Path, planned: Container[str]) -> set[str]:
    """Returns the names of the shards that are there; a foreign one is an error, because training would read it too."""
    tars = [path for path in sorted(folder.glob("*.tar")) if not path.name.startswith(".")]
    if foreign := [path for path in tars if path.name not in planned]:
        raise RunError(f"{foreign[0]} is not a shard of this export: move it elsewhere, or choose another folder")
    return {path.name for path in tars}


def _write_tar(path: Path, samples: Iterable[KeptSample]) -> None:
    taken: set[str] = set()
    renamed = 0
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for sample in samples:
            assert sample.key is not None, "the key was asked for"
            assert sample.files is not None, "the files were asked for, and errors raise"
            key = _free_key(sample.key, taken)
            renamed += key != sample.key
            for ext, data in sample.files.items():
                info = tarfile.TarInfo(f"{key}.{ext}")
                info.size = len(data)  # owner, time and mode stay fixed: the same subset makes the same bytes
                tar.addfile(info, io.BytesIO(data))
    if renamed:
        log.warning("%s: %d keys were changed, because they have dots or occur twice", path.parent, renamed)


def _free_key(key: str, taken: set[str]) -> str:
    *folders, base = key.replace("\\", "/").split("/")
    # A key can be any text of a tar. A path that we write must not leave the folder it is unpacked in.
    safe = [folder for folder in folders if folder not in ("", ".", "..")]
    plain = "/".join([*safe, base.replace(".", "_") or "_"])
    names = itertools.chain([plain], (f"{plain}_{number}" for number in itertools.count(2)))
    key = next(name for name in names if name not in taken)
    taken.add(key)
    return key
