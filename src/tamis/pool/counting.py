"""How many pairs shards hold, where something beside their content tells it: read up front, for progress."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tamis.pool.files import is_remote, open_file
from tamis.pool.source import Shard
from tamis.pool.tar import TarShard

#: What img2dataset writes beside `00000.tar`: how many downloads became a pair, among other counts.
STATS = "_stats.json"

#: What webdataset's tools, open_clip's among them, keep in a folder of tars: pairs by file name.
SIZES = "sizes.json"

#: So many files of statistics are read, evenly spread; the other shards are taken for their mean.
_MOST, _MOST_REMOTE = 2_000, 32

_MOST_BYTES = 1 << 20  # of statistics; a list of sizes takes up to a hundred times as much
_THREADS = 16


def pairs_told(shards: Sequence[Shard]) -> dict[str, int]:
    """Returns how many pairs shards hold, by name: of those of which that is told.

    Tables tell it when the pool is opened (Parquet's footers, the count of a large text file's rows), tars by
    `sizes.json` of their folder, or by img2dataset's `_stats.json` beside each. No shard is opened; what cannot be
    read tells nothing.
    """
    told: dict[str, int] = {}
    tars: dict[str, list[TarShard]] = {}
    for shard in shards:
        if isinstance(shard, TarShard):
            tars.setdefault(shard.url.rpartition("/")[0], []).append(shard)
        elif (pairs := getattr(shard, "pairs", None)) is not None:
            told[shard.name] = pairs
    for folder, some in tars.items():
        sizes = _json(f"{folder}/{SIZES}", 100 * _MOST_BYTES)
        found = {shard.name: _count(sizes.get(shard.url.rpartition("/")[2])) for shard in some} if sizes else {}
        if not any(count is not None for count in found.values()):
            found = _of_stats(some)
        told |= {name: count for name, count in found.items() if count is not None}
    return told


def _of_stats(shards: Sequence[TarShard]) -> dict[str, int | None]:
    if _stats(shards[0]) is None:  # nobody wrote any: the others need not be looked for
        return {}
    most = _MOST_REMOTE if is_remote(shards[0].url) else _MOST
    some = shards[:: -(-len(shards) // most)]
    with ThreadPoolExecutor(_THREADS) as threads:
        return {shard.name: count for shard, count in zip(some, threads.map(_stats, some), strict=True)}


def _stats(shard: TarShard) -> int | None:
    return _count(_json(f"{shard.url.removesuffix('.tar')}{STATS}", _MOST_BYTES).get("successes"))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _json(url: str, most: int) -> Mapping[str, Any]:
    try:
        with open_file(url) as file:
            found = json.loads(file.read(most))
    except Exception:  # remote stores have errors of their own; what is not there, or is no JSON, tells nothing
        return {}
    return found if isinstance(found, dict) else {}
