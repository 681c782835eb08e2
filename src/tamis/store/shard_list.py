"""The list of a run's shards: every name, and the path or URL of its file.

It is a file of its own, since a pool may have a million shards. run.json holds their number and the hash of the list,
so that the two cannot be of different runs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from tamis.errors import DamageError
from tamis.storage import read_again
from tamis.store.checked import CheckedParquet, write_parquet
from tamis.store.records import read_record

SHARDS = "shards.parquet"

_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("url", pa.string(), nullable=False)])
_ROW_GROUP = 1 << 20

# A command that extends a run writes the list and then run.json: a reader that sees only one of them retries.
_NAPS = (0.0, 0.2, 0.8)


def write_shards(run: Path, shards: Mapping[str, str]) -> dict[str, Any]:
    """Writes the list (urls by name, in order) if it differs, and returns what run.json must hold for it."""
    path = run / SHARDS
    try:
        same = path.is_file() and _read(path) == shards
    except DamageError:
        same = False
    if not same:
        table = pa.table([pa.array(shards.keys()), pa.array(shards.values())], schema=_SCHEMA)
        write_parquet(
            path, table, uids=None, durable=True, row_group_size=_ROW_GROUP, compression="ZSTD", use_dictionary=False
        )
    return {"count": len(shards), "digest": _digest(shards)}


def read_shards(run: Path, facts: Mapping[str, Any], *, just_begun: bool = False) -> dict[str, str]:
    """Returns the url of each shard, by name.

    Args:
        run: the run folder.
        facts: of its run.json.
        just_begun: accept a list that differs from run.json: a command that was killed between writing the two left
            one that names more shards, and the next `tamis score` writes both.

    Raises:
        DamageError: the list is missing or damaged, or is another run's.
    """
    path, expected = run / SHARDS, facts["shards"]["digest"]
    if not path.is_file():
        raise DamageError(f"{path}, the list of the run's shards, is missing: restore it, or start another run folder")
    for nap in _NAPS:
        shards = _read(path)
        if just_begun or _digest(shards) == expected:
            return shards
        time.sleep(nap)
        expected = read_record(run / "run.json")["shards"]["digest"]
    raise DamageError(
        f"{path} is not the list of shards that run.json was written with: repeat `tamis score`, which writes both, or "
        "restore it"
    )


def _read(path: Path) -> dict[str, str]:
    read_again(path)
    table = CheckedParquet(path).read(["name", "url"])
    return dict(zip(table.column("name").to_pylist(), table.column("url").to_pylist(), strict=True))


def _digest(shards: Mapping[str, str]) -> str:
    return xxhash.xxh3_64_hexdigest("\n".join(itertools.chain(*shards.items())).encode())
