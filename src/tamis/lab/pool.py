"""Lab pools on disk, as img2dataset writes pools: tar shards each with a parquet table and a count."""

import filecmp
import hashlib
import io
import json
import multiprocessing
import os
import tarfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.errors import at_least_one
from tamis.lab.samples import KINDS, Kind, LabSample, Mix, make_sample, own_shares, sample_uid
from tamis.processes import die_with

# img2dataset numbers samples within a shard with four digits, shards with five.
_MOST_PER_SHARD = 10_000
_SMALLEST_IMAGE = 96  # below it painted text is not readable

_TABLE = pa.schema(
    [
        ("uid", pa.string()),
        ("key", pa.string()),
        ("url", pa.string()),
        ("caption", pa.string()),
        ("status", pa.string()),
        ("error_message", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("original_width", pa.int32()),
        ("original_height", pa.int32()),
        ("sha256", pa.string()),
        ("truth", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class PoolSummary:
    """What `make_pool` wrote."""

    out: Path  # the folder
    pairs: int  # how many pairs in all
    shards: tuple[str, ...]  # names of the tar files, in order
    kinds: dict[Kind, int]  # how many pairs of each true kind; every kind is a key, also those with none


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
) -> PoolSummary:
    """Draw a pool of image-text pairs whose true kinds are known, and write it as img2dataset would.

    The same arguments give the same bytes, whatever the number of workers; a larger pool begins with the
    pairs of a smaller one. Shards appear under their names only when they are complete. Files that
    are there stay: of this very pool they count as written.

    Each sample's json has img2dataset's fields and `uid`, and what is true about the pair: `truth` (its
    kind), `scene` (an id that duplicates share), `duplicate_of` (key of the original or null), `objects`,
    `colour`, `count`, `place`, `relation` and `other_colour` of what is drawn, `caption_objects` (classes
    that the caption names), `text` (the words painted on the image) and `text_quads` (for each painted line
    its four corners, in pixels). Pairs of the hard kinds have more of it: `wrong` (colour, count, relation or
    object), `shown` and `said` where one attribute of the caption is wrong; `said` (the group that a vague
    caption names, or null); `left_out` (what half a description does not name); `look` and `glyph_height` (a
    share of the longer side) of large text; `look` and `opacity` of a watermark.

    Args:
        out: folder to write into; made if need be.
        pairs: how many pairs.
        seed: another seed gives another pool.
        mix: `laion` for the T-MARS paper's shares of kinds and Zipf-distributed classes, `uniform` for equal
            shares of the five main kinds and of all classes, `hard` for as many pairs of the eight hard kinds as
            of the main ones, with classes as in `laion`.
        shard_size: pairs per tar, at most 10,000.
        defects: whether 12 % of the pairs are of the other kinds: abstract captions, duplicates, captions
            that are not English, tiny and very long images, cut-off files, empty captions.
        image_size: side of the images in pixels, at least 96.
        workers: processes. More than one needs a script whose work is under `if __name__ == "__main__"`.
        shares: how often each kind occurs: `{"visual": 0.5, "wrong_colour": 0.1}`. They need not add up to 1, and
            take the place of what `mix` and `defects` say about kinds; how often a class occurs is the mix's. A
            duplicate that has nothing before it to repeat is a `visual` pair.

    Raises:
        ValueError: for an argument out of range.
        FileExistsError: if the folder holds shards that are not of this pool, or other files of their names.

    Cost: 5 ms per pair on one CPU core.
    """
    _check(pairs=pairs, seed=seed, mix=mix, shard_size=shard_size, image_size=image_size, workers=workers)
    if shares is not None:
        own_shares(shares)  # or the first sample would refuse them, in another process
    out = Path(out)
    names = tuple(f"{number:05d}.tar" for number in range(-(-pairs // shard_size)))
    # Shards that are there first: nothing is written next to those of another pool.
    numbers = sorted(range(len(names)), key=lambda number: not (out / names[number]).exists())
    if out.exists():
        strangers = sorted(path.name for path in out.glob("*.tar") if path.name not in names)
        if strangers:
            raise FileExistsError(
                f"{out} already holds {len(strangers)} shards that are not part of this pool of {len(names)} "
                f"({strangers[0]} ...): they would be read with it. Remove them or choose another folder."
            )
    out.mkdir(parents=True, exist_ok=True)
    write = partial(
        _write_shard,
        out=out,
        pairs=pairs,
        seed=seed,
        mix=mix,
        shard_size=shard_size,
        defects=defects,
        image_size=image_size,
        shares=shares,
    )
    kinds: Counter[Kind] = Counter(dict.fromkeys(KINDS, 0))
    if min(workers, len(names)) > 1:
        # Fresh processes: forking one that runs threads (a test runner, torch) can hang.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            min(workers, len(names)), mp_context=context, initializer=die_with, initargs=(os.getpid(),)
        ) as processes:
            for counts in processes.map(write, numbers):
                kinds.update(counts)
    else:
        for number in numbers:
            kinds.update(write(number))
    return PoolSummary(out=out, pairs=pairs, shards=names, kinds=dict(kinds))


def _check(*, pairs: int, seed: int, mix: str, shard_size: int, image_size: int, workers: int) -> None:
    at_least_one(pairs=pairs)
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    if mix not in get_args(Mix):
        raise ValueError(f"mix must be one of {', '.join(get_args(Mix))}, got {mix!r}")
    if not 1 <= shard_size <= _MOST_PER_SHARD:
        raise ValueError(f"shard_size must be 1 to {_MOST_PER_SHARD} (keys have four digits for it), got {shard_size}")
    if image_size < _SMALLEST_IMAGE:
        raise ValueError(
            f"image_size must be at least {_SMALLEST_IMAGE}, or painted text is unreadable, got {image_size}"
        )
    at_least_one(workers=workers)


def _key(index: int, shard_size: int) -> str:
    return f"{index // shard_size:05d}{index % shard_size:04d}"


def _write_shard(
    number: int,
    *,
    out: Path,
    pairs: int,
    seed: int,
    mix: Mix,
    shard_size: int,
    defects: bool,
    image_size: int,
    shares: Mapping[Kind, float] | None,
) -> Counter[Kind]:
    """Write one shard with its table and counts; the tar gets its name last."""
    kinds: Counter[Kind] = Counter()
    rows: list[dict[str, Any]] = []
    tar_path, table_path, stats_path = (out / f"{number:05d}{end}" for end in (".tar", ".parquet", "_stats.json"))
    partial_tar, partial_table, partial_stats = (
        path.with_name(f".{path.name}.{os.getpid()}.partial") for path in (tar_path, table_path, stats_path)
    )
    try:
        with tarfile.open(partial_tar, "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(number * shard_size, min((number + 1) * shard_size, pairs)):
                sample = make_sample(index, seed=seed, mix=mix, defects=defects, image_size=image_size, shares=shares)
                kinds[sample.kind] += 1
                meta = _metadata(sample, seed=seed, shard_size=shard_size)
                rows.append({name: meta[name] for name in _TABLE.names})
                # The order of img2dataset's writer: members of a sample by name of their ending.
                _add(tar, f"{meta['key']}.jpg", sample.image)
                _add(tar, f"{meta['key']}.json", json.dumps(meta, ensure_ascii=False).encode())
                _add(tar, f"{meta['key']}.txt", sample.caption.encode())
        pq.write_table(pa.Table.from_pylist(rows, schema=_TABLE), partial_table)
        partial_stats.write_text(json.dumps(_stats(len(rows)), indent=4), encoding="utf-8")
        for fresh, path in ((partial_tar, tar_path), (partial_table, table_path), (partial_stats, stats_path)):
            check_same(fresh, path)
        partial_table.replace(table_path)
        partial_stats.replace(stats_path)
        partial_tar.replace(tar_path)
    finally:
        for path in (partial_tar, partial_table, partial_stats):
            path.unlink(missing_ok=True)
    return kinds


def check_same(fresh: Path, path: Path) -> None:
    """Checks that a file that is there is the one that would be written."""
    if os.path.lexists(path) and (path.is_symlink() or not filecmp.cmp(fresh, path, shallow=False)):
        raise FileExistsError(f"{path} is there, and not what would be drawn now: remove it or choose another folder")


def _stats(count: int) -> dict[str, Any]:
    """img2dataset's statistics of a shard. No clock: the same seed has to give the same bytes."""
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


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a member without time or owner: `TarInfo` has 0 and "" for them."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
