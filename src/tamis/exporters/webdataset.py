"""A subset as WebDataset shards: every file of every kept sample, byte for byte."""

from __future__ import annotations

import io
import logging
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.errors import RunError
from tamis.fingerprint import fingerprint
from tamis.pool import Pool, Shard
from tamis.pool.tar import TarShard
from tamis.store.atomic import read_json, write_json, writing
from tamis.store.subset import Subset

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WebDatasetExport:
    """Writes shards of whole samples, in the order of the pool, reading only the bytes of kept samples.

    Shards are written one by one and renamed when whole: the same command again goes on where it stopped. A
    `sizes.json` beside them tells open_clip how many samples there are. Dots in keys become "_", since webdataset
    takes the first dot for the end of the key; a key that stands twice in an output shard gets "_2".

    Attributes:
        shard_size: samples per shard.
    """

    name: ClassVar[str] = "webdataset"
    shard_size: int = 10_000

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ValueError(f"shard_size must be at least 1, got {self.shard_size}")

    def write(self, subset: Subset, out: Path, pool: Pool) -> int:
        """Writes the shards and returns how many samples they hold.

        Raises:
            RunError: the folder holds something else, or a shard of the pool is gone.
        """
        shards = {shard.name: shard for shard in pool.shards}
        plan = [(name, rows) for name, rows in subset.rows_by_shard()]
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
        outputs = -(-len(subset) // self.shard_size)
        width = max(5, len(str(outputs)))
        sizes: dict[str, int] = {}
        done = set(_tars(out))
        for number in range(outputs):
            name = f"{number:0{width}d}.tar"
            first = number * self.shard_size
            sizes[name] = min(self.shard_size, len(subset) - first)
            if name not in done:
                with writing(out / name) as temporary:
                    _write_tar(temporary, _slice(plan, first, sizes[name]), shards, subset)
        write_json(out / "sizes.json", sizes)
        return len(subset)

    def _begin(self, subset: Subset, out: Path) -> None:
        mine = fingerprint(
            {
                "shard_size": self.shard_size,
                "rows": {name: fingerprint({"rows": rows.tolist()}) for name, rows in subset.rows_by_shard()},
                "urls": subset.run.urls,
            }
        )
        manifest = out / "export.json"
        if manifest.is_file():
            if read_json(manifest).get("fingerprint") != mine:
                raise RunError(f"{out} holds another export; delete it, or choose another folder")
        elif out.exists() and any(out.iterdir()):
            raise RunError(f"{out} is not empty and holds no export of tamis; choose another folder")
        write_json(
            manifest,
            {"fingerprint": mine, "subset": subset.name, "recipe": dict(subset.recipe), "samples": len(subset)},
        )


def _tars(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.tar") if not path.name.startswith(".")]


def _slice(
    plan: list[tuple[str, NDArray[np.int64]]], first: int, count: int
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yields the part of the plan that holds kept samples number first to first + count."""
    start = 0
    for name, rows in plan:
        here = rows[max(0, first - start) : max(0, first + count - start)]
        start += rows.size
        if here.size:
            yield name, here


def _write_tar(
    path: Path, plan: Iterator[tuple[str, NDArray[np.int64]]], shards: dict[str, Shard], subset: Subset
) -> None:
    taken: set[str] = set()
    renamed = 0
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, rows in plan:
            keys = subset.run.index(name, ["key"]).column("key").take(rows).to_pylist()
            members = subset.run.members(name, rows.tolist())
            for key, files in zip(keys, shards[name].files(rows.tolist(), members), strict=True):
                fresh = _free(key, taken)
                renamed += fresh != key
                for ext, data in files.items():
                    info = tarfile.TarInfo(f"{fresh}.{ext}")
                    info.size = len(data)  # owner, time and mode stay fixed: the same subset makes the same bytes
                    tar.addfile(info, io.BytesIO(data))
    if renamed:
        log.warning("%s: %d keys were changed: dots in them, or keys that stand twice", path.parent, renamed)


def _free(key: str, taken: set[str]) -> str:
    folder, slash, base = key.rpartition("/")
    plain = folder + slash + base.replace(".", "_")
    candidate, number = plain, 1
    while candidate in taken:
        number += 1
        candidate = f"{plain}_{number}"
    taken.add(candidate)
    return candidate
