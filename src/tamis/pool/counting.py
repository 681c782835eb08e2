"""How many pairs shards hold, without opening them: for progress."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tamis.pool.files import is_remote, read_head
from tamis.pool.source import Shard
from tamis.pool.tar import TarShard

# So many of img2dataset's files of statistics are read, evenly spread; the other shards are taken for their mean.
_MOST, _MOST_REMOTE = 2_000, 32
_MOST_BYTES = 1 << 20  # of statistics; a list of sizes may have a hundred times as much


def known_pairs(shards: Sequence[Shard]) -> dict[str, int]:
    """Returns the pairs of those shards, by name, whose number is known.

    Parquet is counted when the pool is opened. Tars have `sizes.json` in their folder (webdataset: pairs by file name),
    or `00000_stats.json` next to each (img2dataset).
    """
    counts: dict[str, Any] = {shard.name: getattr(shard, "pairs", None) for shard in shards}
    folders: dict[str, list[TarShard]] = {}
    for shard in shards:
        if isinstance(shard, TarShard):
            folders.setdefault(shard.url.rpartition("/")[0], []).append(shard)
    for folder, tars in folders.items():
        sizes = _json(f"{folder}/sizes.json", 100 * _MOST_BYTES)
        known = {tar.name: sizes[name] for tar in tars if (name := tar.url.rpartition("/")[2]) in sizes}
        if not known and _successes(tars[0]) is not None:  # otherwise do not look for those of the others
            some = tars[:: -(-len(tars) // (_MOST_REMOTE if is_remote(folder) else _MOST))]
            with ThreadPoolExecutor(16) as threads:
                known = {tar.name: count for tar, count in zip(some, threads.map(_successes, some), strict=True)}
        counts |= known
    return {name: count for name, count in counts.items() if type(count) is int and count >= 0}


def _successes(tar: TarShard) -> Any:
    return _json(f"{tar.url.removesuffix('.tar')}_stats.json", _MOST_BYTES).get("successes")


def _json(url: str, most: int) -> Mapping[str, Any]:
    try:
        found = json.loads(read_head(url, most))
    except Exception:  # remote stores have errors of their own
        return {}
    return found if isinstance(found, dict) else {}
