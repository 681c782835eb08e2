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
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from tamis.data import Member
from tamis.errors import RunError, ShardError, at_least_one
from tamis.exporters.exporter import Exporter
from tamis.fingerprint import fingerprint
from tamis.pool import Pool, Shard
from tamis.pool.files import read_ranges
from tamis.pool.tar import TarShard
from tamis.store import parts
from tamis.store.atomic import read_json, sweep, write_json, writing
from tamis.store.subset import Subset

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WebDatasetExport(Exporter):
    """Writes shards of whole samples, in the order of the pool, reading only the bytes of kept samples.

    Shards are written one by one and renamed when whole: the same command again goes on where it stopped. A
    `sizes.json` beside them tells open_clip how many samples there are. Dots in keys become "_", since webdataset
    takes the first dot for the end of the key; a key that stands twice in an output shard gets "_2".

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
            RunError: the folder holds something else; or a shard of the pool is gone, or has changed since it was
                scored.
        """
        if not pool.has_images:
            raise RunError(
                f"{pool.spec.paths[0]} is metadata without image files to copy: export npy, parquet or keys instead"
            )
        shards = {shard.name: shard for shard in pool.shards}
        plan = _whole(subset)
        if absent := [name for name, _ in plan if name not in shards]:
            raise RunError(f"the pool no longer has the shard {absent[0]!r}, from which samples are kept")
        compressed = [name for name, _ in plan if isinstance(s := shards[name], TarShard) and s.compression()]
        if compressed:
            log.warning(
                "%d shards are compressed (%s, ...): each is read from its start to its last kept sample",
                len(compressed),
                compressed[0],
            )
        for name, rows in plan:
            _check_unchanged(shards[name], name, rows, subset)
        self._begin(subset, out)
        total = sum(rows.size for _, rows in plan)
        outputs = -(-total // self.shard_size)
        width = max(5, len(str(outputs)))
        sizes: dict[str, int] = {}
        done = set(_tars(out))
        for number in range(outputs):
            name = f"{number:0{width}d}.tar"
            first = number * self.shard_size
            sizes[name] = min(self.shard_size, total - first)
            if name not in done:
                with writing(out / name) as temporary:
                    _write_tar(temporary, _slice(plan, first, sizes[name]), shards, subset)
        write_json(out / "sizes.json", sizes)
        return total

    def _begin(self, subset: Subset, out: Path) -> None:
        # Rows alone would not do: a shard that was replaced and indexed anew may have as many.
        stamps = dict(zip(subset.run.shards, subset.run.stamps, strict=True))
        rows = {name: fingerprint({"rows": rows.tolist()}) for name, rows in subset.rows_by_shard()}
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
        if out.exists() and not out.is_dir():
            raise RunError(f"{out} is a file; webdataset shards go into a folder")
        if manifest.is_file():
            if read_json(manifest).get("fingerprint") != mine:
                raise RunError(f"{out} holds another export; delete it, or choose another folder")
        elif out.exists() and any(out.iterdir()):
            raise RunError(f"{out} is not empty and holds no export of tamis; choose another folder")
        sweep(out)
        write_json(
            manifest,
            {"fingerprint": mine, "subset": subset.name, "recipe": dict(subset.recipe), "samples": len(subset)},
        )


def _whole(subset: Subset) -> list[tuple[str, NDArray[np.int64]]]:
    """Returns shards and rows to copy: those kept, but for samples in whose middle their shard ends."""
    plan = list(subset.rows_by_shard())
    if not subset.run.statuses["shard_cut"]:
        return plan
    whole = []
    for name, rows in plan:
        status = subset.run.index(name, ["status"]).column("status").take(pa.array(rows))
        whole.append((name, rows[pc.not_equal(status.cast(pa.string()), "shard_cut").to_numpy()]))
    log.warning(
        "%d kept samples are left out: their shards end in the middle of them",
        sum(rows.size for _, rows in plan) - sum(rows.size for _, rows in whole),
    )
    return [(name, rows) for name, rows in whole if rows.size]


def _check_unchanged(shard: Shard, name: str, rows: NDArray[np.int64], subset: Subset) -> None:
    """Makes sure that the byte ranges of the index still hold the samples they held when the shard was read.

    A file of another size has changed. One of the same size and another time may only have been copied: then the
    headers before the kept members tell.

    Raises:
        RunError: the shard is gone, or holds something else.
    """
    _, _, then = parts.index_facts(subset.run.index_path(name))
    try:
        now = shard.stamp()
        if not then or now == then:
            return
        moved = now.partition(":")[0] != then.partition(":")[0]
        if not moved and isinstance(shard, TarShard) and shard.compression() is None:
            keys = subset.run.index(name, ["key"]).column("key").take(pa.array(rows)).to_pylist()
            members = subset.run.members(name, rows.tolist())
            where = [(key, part) for key, some in zip(keys, members, strict=True) for part in some]
            block = tarfile.BLOCKSIZE
            headers = read_ranges(shard.url, [(part.offset - block, block) for _, part in where])
            moved = not all(_is_header(data, *one) for data, one in zip(headers, where, strict=True))
    except OSError as error:
        raise RunError(f"{shard.url} cannot be read: {error}") from error
    if moved:
        raise RunError(
            f"{shard.url} has changed since it was scored (size:time was {then}, is {now}), and its samples no longer "
            "lie where the index says: put the old file back, or score the pool into another run folder"
        )


def _is_header(data: bytes, key: str, member: Member) -> bool:
    try:
        info = tarfile.TarInfo.frombuf(data, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    name = info.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").lower()
    wanted = f"{key}.{member.ext}".lower()
    # Long names stand in a record of their own and are cut off here; pax does so with names that are not ASCII too.
    same = len(info.name) >= 99 or name in (wanted, wanted.encode("ascii", "replace").decode())
    return same and info.size == member.size


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
            for key, files in zip(keys, _files(shards[name], rows.tolist(), members), strict=True):
                fresh = _free(key, taken)
                renamed += fresh != key
                for ext, data in files.items():
                    info = tarfile.TarInfo(f"{fresh}.{ext}")
                    info.size = len(data)  # owner, time and mode stay fixed: the same subset makes the same bytes
                    tar.addfile(info, io.BytesIO(data))
    if renamed:
        log.warning("%s: %d keys were changed: dots in them, or keys that stand twice", path.parent, renamed)


def _files(shard: Shard, rows: list[int], members: list[list[Member]]) -> Iterator[dict[str, bytes]]:
    try:
        yield from shard.files(rows, members)
    except (OSError, ShardError) as error:
        raise RunError(f"{shard.url} cannot be read: {error}; what is complete stays, repeat the command") from error


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
