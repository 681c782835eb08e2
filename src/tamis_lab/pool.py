"""Writes lab pools in img2dataset's layout: tar shards, each with a Parquet table and statistics."""

import filecmp
import hashlib
import io
import json
import multiprocessing
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.core.errors import at_least_one, unknown_message
from tamis.core.processes import die_with_parent
from tamis_lab.samples import KINDS, Kind, LabSample, Mix, make_sample, own_shares, sample_uid

# img2dataset numbers samples within a shard with four digits, shards with five.
_MOST_PER_SHARD = 10_000
_SMALLEST_IMAGE = 96  # below it painted text is not readable

_COLUMNS = "uid key url caption status error_message width height original_width original_height sha256 truth"
_TABLE = pa.schema([
    (name, pa.int32() if name.endswith(("width", "height")) else pa.string()) for name in _COLUMNS.split()
])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PoolSummary:
    """What `make_pool` wrote."""

    out: Path
    pairs: int
    shards: tuple[str, ...]  # names of the tar files
    kinds: dict[Kind, int]  # {kind: number of pairs}


def make_pool(
    out: str | Path,
    *,
    pairs: int,
    seed: int = 0,
    mix: Mix = "laion",
    shard_size: int = 1000,
    defects: bool = True,
    image_size: int = 128,
    workers: int = 1,
    shares: Mapping[Kind, float] | None = None,
    again: bool = True,
) -> PoolSummary:
    """Draws a pool of image-text pairs whose true kinds are known, in img2dataset's layout.

    The same arguments give the same bytes, whatever the number of workers, and a larger pool begins with the pairs of a
    smaller one. Shards appear only when complete. Existing shards of the same pool are kept.

    Each sample's json has img2dataset's fields, `uid`, and the truth about the pair: `truth` (its kind), `scene` (an id
    that duplicates share), `duplicate_of` (key of the original, or null), `caption_objects` (classes that the caption
    names), `text` (the painted words) and `text_quads` (four corners per painted line, in pixels). `objects`, `colour`,
    `count`, `place`, `relation` and `other_colour` describe the image. Hard kinds have more: `wrong` (colour, count,
    relation or object), `shown` and `said` for a wrong attribute; `said` (group, or null) for a vague caption;
    `left_out` for half a description; `look` and `glyph_height` (a share of the longer side) for large text; `look`
    and `opacity` for a watermark.

    Args:
        out: the folder to write into.
        pairs: number of pairs.
        seed: another seed gives another pool.
        mix: `laion`: shares of kinds as in the T-MARS paper, Zipf-distributed classes. `uniform`: equal shares of the
            five main kinds and of all classes. `hard`: as `laion`, but with as many pairs of hard as of main kinds.
        shard_size: pairs per tar, at most 10,000.
        defects: whether 12 % of the pairs have a defect: abstract, foreign or empty captions, duplicates, tiny or very
            long images, truncated files.
        image_size: side of the images in pixels, at least 96.
        workers: processes. More than one needs a script whose work is under `if __name__ == "__main__"`.
        shares: {kind: share}, such as `{"visual": 0.5, "wrong_colour": 0.1}`, with any sum; replaces `mix` and
            `defects`. A duplicate with nothing to repeat becomes a `visual` pair.
        again: False keeps existing shards unchecked; the summary does not count their pairs.

    Raises:
        ValueError: an argument is out of range.
        FileExistsError: the folder holds shards of another pool, or other files of their names.

    Cost: 5 ms per pair on one CPU core.
    """
    at_least_one(pairs=pairs, workers=workers)
    if mix not in get_args(Mix):
        raise ValueError(unknown_message("mix", mix, get_args(Mix)))
    if seed < 0 or not 1 <= shard_size <= _MOST_PER_SHARD or image_size < _SMALLEST_IMAGE:
        sizes = f"shard_size 1 to {_MOST_PER_SHARD:,}, image_size >= {_SMALLEST_IMAGE}"
        raise ValueError(f"expected seed >= 0, {sizes}; got {seed}, {shard_size}, {image_size}")
    if shares is not None:
        own_shares(shares)  # raises here, not in another process
    out = Path(out)
    names = tuple(f"{number:05d}.tar" for number in range(-(-pairs // shard_size)))
    # Compare existing shards first, so that nothing is written next to another pool's shards.
    numbers = sorted(range(len(names)), key=lambda number: not (out / names[number]).exists())
    numbers = [number for number in numbers if again or not (out / names[number]).exists()]
    strangers = sorted(path.name for path in out.glob("*.tar") if path.name not in names) if out.exists() else []
    if strangers:
        raise FileExistsError(f"{out} holds shards of another pool ({strangers[0]} ...): use another folder")
    out.mkdir(parents=True, exist_ok=True)
    make = partial(make_sample, seed=seed, mix=mix, defects=defects, image_size=image_size, shares=shares)
    write = partial(_write_shard, make=make, out=out, pairs=pairs, seed=seed, shard_size=shard_size)
    kinds: Counter[Kind] = Counter(dict.fromkeys(KINDS, 0))
    if min(workers, len(names)) > 1:
        # Not fork, which can hang with threads (a test runner, torch).
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            min(workers, len(names)), mp_context=context, initializer=die_with_parent
        ) as processes:
            for counts in processes.map(write, numbers):
                kinds.update(counts)
    else:
        for number in numbers:
            kinds.update(write(number))
    return PoolSummary(out=out, pairs=pairs, shards=names, kinds=dict(kinds))


def _key(index: int, shard_size: int) -> str:
    return f"{index // shard_size:05d}{index % shard_size:04d}"


def _write_shard(
    number: int, *, make: Callable[[int], LabSample], out: Path, pairs: int, seed: int, shard_size: int
) -> Counter[Kind]:
    """Writes a shard with its table and statistics; the tar appears last."""
    kinds: Counter[Kind] = Counter()
    rows: list[dict[str, Any]] = []
    paths = [out / f"{number:05d}{end}" for end in (".parquet", "_stats.json", ".tar")]
    with finish_together(*paths) as (table, stats, tar):
        with tarfile.open(tar, "w", format=tarfile.USTAR_FORMAT) as file:
            for index in range(number * shard_size, min((number + 1) * shard_size, pairs)):
                sample = make(index)
                kinds[sample.kind] += 1
                meta = _metadata(sample, seed=seed, shard_size=shard_size)
                rows.append({name: meta[name] for name in _TABLE.names})
                # As in img2dataset, sorted by extension.
                add_member(file, f"{meta['key']}.jpg", sample.image)
                add_member(file, f"{meta['key']}.json", json.dumps(meta, ensure_ascii=False).encode())
                add_member(file, f"{meta['key']}.txt", sample.caption.encode())
        pq.write_table(pa.Table.from_pylist(rows, schema=_TABLE), table)
        stats.write_text(json.dumps(_stats(len(rows)), indent=4), encoding="utf-8")
    return kinds


@contextmanager
def finish_together(*paths: Path) -> Iterator[list[Path]]:
    """Yields temporary paths to write, and afterwards renames them in order. FileExistsError if other files are there.

    Their names contain the process number, as several commands may draw into one folder.
    """
    fresh = [path.with_name(f".{path.name}.{os.getpid()}.partial") for path in paths]
    try:
        yield fresh
        for made, path in zip(fresh, paths, strict=True):
            if os.path.lexists(path) and (path.is_symlink() or not filecmp.cmp(made, path, shallow=False)):
                raise FileExistsError(f"{path} exists with another content: remove it or choose another folder")
        for made, path in zip(fresh, paths, strict=True):
            made.replace(path)
    finally:
        for made in fresh:
            made.unlink(missing_ok=True)


def _stats(count: int) -> dict[str, Any]:
    """Returns img2dataset's statistics of a shard. Times are 0, so that the same seed gives the same bytes."""
    return {
        "count": count,
        "successes": count,
        "failed_to_download": 0,
        "failed_to_resize": 0,
        "duration": 0.0,
        "start_time": 0.0,
        "end_time": 0.0,
        "status_dict": {"success": count},
    }


def _metadata(sample: LabSample, *, seed: int, shard_size: int) -> dict[str, Any]:
    first = sample.index if sample.source is None else sample.source
    scene, described = sample.scene, sample.described
    uid = sample_uid(seed, sample.index)
    return {
        "uid": uid,
        "key": _key(sample.index, shard_size),
        "caption": sample.caption,
        "url": f"https://lab.example/{seed}/{uid[:8]}.jpg",
        "status": "success",
        "error_message": None,
        "width": sample.size[0],
        "height": sample.size[1],
        "original_width": sample.original_size[0],
        "original_height": sample.original_size[1],
        "exif": "{}",
        "sha256": hashlib.sha256(sample.image).hexdigest(),
        "truth": sample.kind,
        "scene": sample_uid(seed, first)[:12],
        "duplicate_of": None if sample.source is None else _key(sample.source, shard_size),
        "objects": list(scene.objects),
        "colour": scene.colour,
        "count": scene.count,
        "place": scene.place,
        "relation": scene.relation,
        "other_colour": scene.other_colour,
        "caption_objects": [] if described is None else list(described.objects),
        "text": sample.text,
        "text_quads": [[list(corner) for corner in quad] for quad in sample.quads],
        **sample.details,
    }


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Adds a file without time or owner, so that the bytes are always the same."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
