"""The list of a run's shards: every name, and the path or URL of its file.

It is a file of its own, since a pool may have a million shards. run.json holds their number and the file's hash, so
that the two cannot be of different runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from tamis.errors import DamageError
from tamis.storage import read_again
from tamis.store.checked import CheckedParquet, damaged, write_parquet
from tamis.store.records import read_record

SHARDS = "shards.parquet"

_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("url", pa.string(), nullable=False)])
_ROW_GROUP = 1 << 20

# A command that extends a run writes the list and then run.json: a reader that comes between waits.
_NAPS = (0.0, 0.2, 0.8)


def write_shards(run: Path, shards: Mapping[str, str]) -> dict[str, Any]:
    """Writes the list if it differs, and returns what run.json must hold for it.

    Args:
        run: the run folder.
        shards: urls by name, in order.
    """
    path = run / SHARDS
    table = pa.table([pa.array(shards.keys()), pa.array(shards.values())], schema=_SCHEMA)
    read_again(path)
    if not (path.is_file() and _holds(path, table)):
        write_parquet(
            path, table, uids=None, durable=True, row_group_size=_ROW_GROUP, compression="ZSTD", use_dictionary=False
        )
    return {"count": len(shards), "digest": _digest(path)}


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
    expected = facts["shards"]["digest"]
    path = run / SHARDS
    read_again(path)
    if not path.is_file():
        raise DamageError(f"{path}, the list of the run's shards, is missing: restore it, or start another run folder")
    for nap in _NAPS:
        digest, part = _digest(path), CheckedParquet(path)
        if just_begun or digest == expected:
            break
        time.sleep(nap)
        read_again(path)
        expected = read_record(run / "run.json")["shards"]["digest"]
    else:
        raise DamageError(
            f"{path} is not the list of shards that run.json was written with: repeat `tamis score`, which writes "
            "both, or restore it"
        )
    if part.schema != _SCHEMA:
        raise damaged(path, f"it has the columns {', '.join(part.schema.names)}")
    table = part.read(None)
    names, urls = table.column("name").to_pylist(), table.column("url").to_pylist()
    return dict(zip(names, urls, strict=True))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return xxhash.xxh3_64_hexdigest(file.read())


def _holds(path: Path, table: pa.Table) -> bool:
    try:
        return bool(CheckedParquet(path).read(None).equals(table))
    except DamageError:
        return False
