"""`open_pool`: finds the shards that a path means, what kind of pool they are, and how many pairs they hold."""

from __future__ import annotations

import filecmp
import itertools
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, cast

import xxhash

from tamis.core.errors import PoolError, plural, unknown_message
from tamis.core.files.find import absolute, expand_braces, find, hub_hint, is_lance, is_pool_file, is_remote, read_head
from tamis.core.types import RESERVED
from tamis.pools.rows import TABLES, column_kinds
from tamis.pools.source import EXIF, ROWS_SUFFIX, Pool, PoolSpec, Shard
from tamis.pools.tar import TarShard

log = logging.getLogger(__name__)

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

_TABLES = tuple(TABLES)

_FORMS = (
    "A pool is one of three: tars as img2dataset writes them; a table with image and caption columns "
    f"({', '.join(_TABLES)}); a folder of images with a .txt or .json next to each"
)

_SPLITS = {"train": "train training", "validation": "validation valid val dev", "test": "test testing eval evaluation"}
_SPLIT_OF = {word: split for split, words in _SPLITS.items() for word in words.split()}

#: A split in the name of a file or folder, as `datasets` looks for it.
_SPLIT = re.compile(rf"(?:^|[-._ 0-9/])({'|'.join(_SPLIT_OF)})(?=[-._ 0-9/]|$)", re.IGNORECASE)

_HEAD = 64 << 10  # bytes at the start of two files that are compared

_LONGEST_FIRST = sorted(TARS + _TABLES, key=len, reverse=True)


def open_pool(pool: PoolSpec | str | os.PathLike[str], names: Mapping[str, str] | None = None) -> Pool:
    """Finds the shards of a pool; they are sorted by name.

    Args:
        pool: a path (folder, file, glob, brace range, fsspec URL), or a `PoolSpec` for further settings.
        names: {shard name: URL} of an existing run, so that names stay the same when the pool grows.

    Raises:
        PoolError: nothing is there, or it is not a pool.
        UnreachedError: a store or disk cannot be read now; the file itself may be fine.
    """
    spec = pool if isinstance(pool, PoolSpec) else PoolSpec(path=os.fspath(pool))
    if not spec.paths or not all(spec.paths):  # "" would be the current folder
        raise PoolError("the pool has no path")
    for path in filter(is_remote, spec.paths):
        if hint := hub_hint(path):
            raise PoolError(f"{path} is a web page: {hint}")
    far = {path for path in spec.paths if is_remote(path)}
    if len({absolute(path) for path in far}) < len(far):
        raise PoolError("two of the pool's URLs are the same apart from user, password or query")
    typed, known = tuple(absolute(path) for path in spec.paths), dict.fromkeys((names or {}).values())
    spec = replace(spec, path=tuple(dict.fromkeys(spelled := _spell(typed, known))))
    again = [pair for pair in zip(typed, spelled, strict=True) if pair[0] != pair[1]]
    for path in spec.paths:
        if os.path.isfile(f"{path}/run.json") and os.path.isfile(f"{path}/shards.parquet"):
            raise PoolError(f"{path!r} is a run folder: name the pool that it scored")
    for field in spec.fields:
        if field in RESERVED:
            raise PoolError(f"the field {field!r} would hide a column of the index: leave it out of 'fields'")
    endings = {"auto": TARS + _TABLES, "webdataset": TARS, "table": _TABLES, "datacomp": (".parquet",), "folder": ()}
    try:
        found = [url for path in spec.paths for url in _find_files(path, endings[spec.format])]
        copies = _copies(found, known)
        again += list(copies.items())[:1]
        opened = _pool_of(list(dict.fromkeys(copies.get(url, url) for url in found)), spec, names or {})
    except PoolError as error:
        opened = _pool_below(spec, endings[spec.format], names or {}, error)
    for pair in again:
        log.warning("%s: the same files by another path, %s, which is read", *pair)
    return replace(opened, shards=tuple(sorted(opened.shards, key=lambda shard: shard.name)))


def _spell(paths: Sequence[str], known: Iterable[str]) -> list[str]:
    """Returns local paths as the run has them, or as the first: a folder may also be there by a link or a mount."""
    folders: dict[tuple[int, int], str] = {}

    @cache
    def folder(path: str) -> str:
        with suppress(OSError):  # gone, or a pattern
            facts = os.stat(path)
            return folders.setdefault((facts.st_dev, facts.st_ino), path)
        return path

    def spelled(path: str) -> str:
        # Of a run's million shards, do not ask what they are.
        if is_remote(path) or ((is_lance(path) or not path.endswith(TARS + _TABLES)) and os.path.isdir(path)):
            return path if is_remote(path) else folder(path)
        return os.path.join(folder(os.path.dirname(path)), os.path.basename(path))

    return [spelled(path) for path in (*known, *paths)][-len(paths) :]


def _copies(found: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Returns {file: file that the run, or the pool, has} of the files that are the same by another path.

    They are links, or copies if all others are: same name, size and start; the first is compared whole.
    """
    by_stem: dict[str, list[str]] = {}
    links, copies, copied = cast(dict[str, str], {}), cast(dict[str, str], {}), True
    for url in dict.fromkeys([*known, *found]):
        near = by_stem.setdefault(_stem(url), [])
        if near and url not in known and os.path.exists(url):  # a new pool's files are not looked at
            if same := next((one for one in near if os.path.exists(one) and os.path.samefile(one, url)), None):
                links[url] = same
                continue
            if copied and (same := next((one for one in near if _is_copy(one, url, whole=not copies)), None)):
                copies[url] = same
        copied = copied and (url in known or url in copies)
        near.append(url)
    return links | copies if copied else links


def _is_copy(one: str, other: str, *, whole: bool) -> bool:
    if not (os.path.isfile(one) and os.path.isfile(other) and os.path.getsize(one) == os.path.getsize(other)):
        return False
    return filecmp.cmp(one, other) if whole else read_head(one, _HEAD) == read_head(other, _HEAD)


def _find_files(path: str, endings: Sequence[str]) -> list[str]:
    """Returns the files of a path; of a folder that has metadata of images, also those in folders below."""
    found = find(path, endings)
    if os.path.isdir(path) and any(map(_is_metadata, found)):
        from tamis.pools.folder import files_in

        found += sorted(f"{path}/{name}" for name in files_in(path)[0] if "/" in name and _is_metadata(name))
    return found


def _is_metadata(path: str) -> bool:
    """Whether a table describes the images in its folder and below, by its name."""
    return os.path.basename(path).startswith("metadata.") and path.endswith(_TABLES)


def splits_of(files: Sequence[str], *, by_folder: bool = False) -> list[str]:
    """Returns "train", "validation", "test" or "no split" of each file, by its name below the common folder of all."""
    root = len(os.path.commonprefix(files).rpartition("/")[0])  # noqa: RUF071 - commonpath refuses URLs
    found = (_SPLIT.search(file.rpartition("/")[0][root:] if by_folder else file[root:]) for file in files)
    return [_SPLIT_OF[match[1].lower()] if match else "no split" for match in found]


def _of_split(files: list[str], split: str | None, *, by_folder: bool = False) -> tuple[list[str], str]:
    """Returns the files of a split, or all; and a sentence if there are several splits, by the names below the root."""
    splits: dict[str, list[str]] = {}
    for file, own in zip(files, splits_of(files, by_folder=by_folder), strict=True):
        splits.setdefault(own, []).append(file)
    if split is not None:
        if (wanted := _SPLIT_OF.get(split, split)) not in splits:
            raise PoolError(unknown_message("split", split, {*splits} - {"no split"}))
        return splits[wanted], ""
    counts = ", ".join(f"{plural(len(some), 'file')} of {name}" for name, some in sorted(splits.items()))
    mixed = len(splits) > 1 and {*splits} - {"train", "no split"}  # folders of classes may have trains
    return files, f"the pool mixes splits: {counts}; to take one: --split NAME" if mixed else ""


def _pool_below(spec: PoolSpec, endings: Sequence[str], names: Mapping[str, str], error: PoolError) -> Pool:
    """Returns the pool of images, or of files below, in a folder whose own files are none; `error` says why."""
    root = spec.paths[0]
    if not all(os.path.isdir(path) and not is_lance(path) for path in spec.paths):
        raise error
    if len(spec.paths) > 1:
        pools: list[Pool] = []
        for path in spec.paths:  # each knows the names of those before
            taken = {shard.name: shard.url for pool in pools for shard in pool.shards}
            pools.append(open_pool(replace(spec, path=path), {**names, **taken}))
        if {(pool.kind, pool.spec.caption) for pool in pools} != {("folder", pools[0].spec.caption)}:
            raise error
        shards, about = tuple(shard for pool in pools for shard in pool.shards), "; ".join(pool.about for pool in pools)
        return replace(pools[0], spec=replace(pools[0].spec, path=spec.path), shards=shards, about=about)
    from tamis.pools.folder import files_in, folder_pool

    inside, left_out = files_in(root)
    below = sorted(name for name in inside if is_pool_file(name, endings))
    refused = any("/" not in name for name in below)
    described = [name for name in below if _is_metadata(name)]
    if spec.format in ("auto", "folder") and spec.image is None and not (spec.caption if refused else described):
        try:
            inside, mixed = _of_split(sorted(inside), spec.split, by_folder=True)
            opened = folder_pool(spec, inside, shard_names([root], names)[root], names, left_out)
            return replace(opened, mixed=mixed)
        except PoolError as no_folder:
            error = error if refused else PoolError(f"{no_folder}. {_FORMS}")
    if refused or not below:
        raise error
    return _pool_of([f"{root}/{name}" for name in described or below], spec, names)


def _pool_of(found: list[str], spec: PoolSpec, names: Mapping[str, str]) -> Pool:
    """Returns the pool of some files."""
    urls, kind = _kind_of(found, spec)
    named = {name for path in spec.paths for name in expand_braces(path)}
    for url in found:
        if url in named and url not in urls:  # other files in a folder or glob are ignored
            raise PoolError(f"{url!r} cannot be read together with the {kind} pool at {urls[0]!r}: score it by itself")
    urls, mixed = _of_split(urls, spec.split)
    stems = shard_names(urls, names)
    what = {"webdataset": "tars", "table": "tables"}.get(kind, "files of DataComp's metadata")
    about = f"{len(urls):,} {what}, the first {urls[0]}" if len(urls) > 1 else urls[0]
    if kind != "table" and (pattern := next((name for name in spec.fields if "*" in name), None)):
        raise PoolError(f"the field {pattern!r} is a pattern, which needs a table with columns: name the fields")
    if kind == "webdataset":
        about += f"; captions: {spec.caption or 'txt'}"
        shards = tuple(TarShard(name=stems[url], url=url, spec=spec) for url in urls)
        return Pool(spec=spec, kind=kind, shards=shards, about=about, mixed=mixed)
    if kind == "datacomp":
        if spec.captions is not None:
            raise PoolError(f"{urls[0]} is DataComp's metadata, with one caption for each image: leave out 'captions'")
        from tamis.pools.datacomp import metadata_pool

        return replace(metadata_pool(spec, {url: stems[url] for url in urls}), about=about, mixed=mixed)
    from tamis.pools.table_shards import table_shards

    rows = tuple(shard for url in urls for shard in table_shards(url, stems[url], spec))
    about += f"; images: {rows[0].image or 'none'}; captions: {rows[0].caption}"
    has_images = rows[0].image is not None
    return Pool(spec=rows[0].spec, kind=kind, shards=rows, has_images=has_images, about=about, mixed=mixed)


def _kind_of(urls: list[str], spec: PoolSpec) -> tuple[list[str], str]:
    """Returns the files to read, and the kind of pool. Of tars next to Parquet (img2dataset's), the tars are read."""
    tars = [url for url in urls if url.endswith(TARS)]
    if spec.format in ("auto", "webdataset") and tars:
        if spec.image is not None:
            raise PoolError(f"{spec.image!r} names a table's column, {tars[0]!r} is a tar: use --image-extensions")
        return tars, "webdataset"
    tables = [url for url in urls if url.endswith(_TABLES)]
    if not tables or spec.format == "folder":
        raise PoolError(f"{urls[0]!r} is not a pool file. {_FORMS}")
    if spec.format == "datacomp":
        return tables, "datacomp"
    if spec.format == "auto" and tables[0].endswith(".parquet"):
        from tamis.pools.datacomp import SCORES
        from tamis.pools.table_shards import IMAGE_COLUMNS

        present, images = set(column_kinds(tables[0])), {*IMAGE_COLUMNS, spec.image}
        if {"uid", "text"} <= present and present & {"url", *SCORES} and not present & images:
            return tables, "datacomp"
    return tables, "table"


def shard_names(urls: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """Names files: as `known` ({name: url}) has it, else its stem, with a hash of its folder if stems collide."""
    stems = {url: _stem(url) for url in urls}
    # If a known file is gone, assume that the pool was moved, and reuse its name for the file with the same stem.
    given = {
        # The name of a row range ends with its first row; here we need the name of the table.
        url: name if name == _stem(url) else ROWS_SUFFIX.sub("", name)
        for name, url in known.items()
        if url in stems or is_remote(url) or os.path.exists(url)
    }
    counts = Counter(stems.values())
    names = {url: given[url] for url in urls if url in given}
    taken = {name: url for url, name in given.items()}
    for url in urls:
        if url in names:
            continue
        name = stems[url]
        if counts[name] > 1 or taken.get(name, url) != url:
            name = f"{name}-{xxhash.xxh3_64_hexdigest(url.rpartition('/')[0].encode())[:8]}"
        if taken.get(name, url) != url:
            both = f"two shards would be called {name!r}: {taken[name]} and {url}"
            raise PoolError(f"{both}. If they hold the same pairs, name one as the pool, else rename one")
        names[url] = name
        taken[name] = url
    return names


def _stem(url: str) -> str:
    base = url.rpartition("/")[2]
    base = next((base.removesuffix(ending) for ending in _LONGEST_FIRST if base.endswith(ending)), base)
    return base.lstrip(".") or "shard"


# Where img2dataset's field of EXIF is looked for: in this many samples of this many shards.
_TRIED, _TRIED_SHARDS = 20, 3


def with_orientation(pool: Pool) -> Pool:
    """Returns the pool with its setting `orientation` decided: "json" if its first samples have the field."""
    if pool.spec.orientation is None and pool.has_images and _has_exif(pool):
        shards = tuple(replace(shard, spec=replace(shard.spec, orientation="json")) for shard in pool.shards)
        about = f"{pool.about}; turned by the EXIF in the json (--orientation none: not)"
        return replace(pool, spec=replace(pool.spec, orientation="json"), shards=shards, about=about)
    return pool


def _has_exif(pool: Pool) -> bool:
    if pool.kind == "table":
        return EXIF in column_kinds(pool.shards[0].url)
    for shard in pool.shards[:_TRIED_SHARDS]:
        probe = replace(shard, spec=replace(shard.spec, fields=(EXIF,), captions=None))
        with suppress(Exception):  # the shard's worker will report it
            if any(EXIF in sample.given for sample in itertools.islice(probe.samples(), _TRIED)):
                return True
    return False


# Read at most this many of img2dataset's statistics files, evenly spread; assume their mean for the other shards.
_MOST, _MOST_REMOTE = 2_000, 32
_MOST_BYTES = 1 << 20  # limit for a statistics file; sizes.json may be a hundred times as large


def known_pairs(shards: Sequence[Shard]) -> dict[str, int]:
    """Returns the number of pairs by shard name, for shards where it is known.

    Parquet is counted when the pool is opened. Tars have `sizes.json` in their folder (webdataset: pairs by file name),
    or `00000_stats.json` next to each (img2dataset).
    """
    if shards and shards[0].spec.captions == "each":  # what is counted are images
        return {}
    counts: dict[str, Any] = {shard.name: getattr(shard, "pairs", None) for shard in shards}
    folders: dict[str, list[TarShard]] = {}
    for shard in shards:
        if isinstance(shard, TarShard) and shard.most is None:
            folders.setdefault(shard.url.rpartition("/")[0], []).append(shard)
    for folder, tars in folders.items():
        sizes = _json(f"{folder}/sizes.json", 100 * _MOST_BYTES)
        sized = {tar.name: sizes[name] for tar in tars if (name := tar.url.rpartition("/")[2]) in sizes}
        if not sized and _successes(tars[0]) is not None:  # if the first tar has none, do not look further
            some = tars[:: -(-len(tars) // (_MOST_REMOTE if is_remote(folder) else _MOST))]
            with ThreadPoolExecutor(16) as threads:
                sized = {tar.name: count for tar, count in zip(some, threads.map(_successes, some), strict=True)}
        counts |= sized
    known = ((shard, counts[shard.name]) for shard in shards)
    return {shard.name: min(count, shard.most or count) for shard, count in known if type(count) is int and count >= 0}


def _successes(tar: TarShard) -> Any:
    return _json(f"{tar.url.removesuffix('.tar')}_stats.json", _MOST_BYTES).get("successes")


def _json(url: str, most: int) -> Mapping[str, Any]:
    try:
        found = json.loads(read_head(url, most))
    except Exception:  # stores raise errors of any class
        return {}
    return found if isinstance(found, dict) else {}
