"""The list of a run's shards, written when a run begins: every name, and where its file lies.

It stands in a file of its own, since a pool may have a million shards. run.json holds their number and the file's hash,
so that the two cannot be of different runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tamis.errors import DamageError
from tamis.store.checked import CheckedParquet, damaged, write_parquet
from tamis.store.mirror import look_again
from tamis.store.records import RunFacts, read_checked

SHARDS = "shards.parquet"

_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("url", pa.string(), nullable=False)])
_ROW_GROUP = 1 << 20

# Who makes a run longer writes the list, and right after run.json: so long who reads one of them too early waits.
_NAPS = (0.0, 0.2, 0.8)


def write_shards(run: Path, shards: Mapping[str, str]) -> dict[str, Any]:
    """Writes the list, where it is not as it should be, and returns what run.json must hold for it.

    Args:
        run: the run folder.
        shards: urls by name, in order.
    """
    path = run / SHARDS
    table = pa.table([pa.array(shards.keys()), pa.array(shards.values())], schema=_SCHEMA)
    if not (path.is_file() and _holds(path, table)):
        write_parquet(
            path, table, uids=None, durable=True, row_group_size=_ROW_GROUP, compression="ZSTD", use_dictionary=False
        )
    return {"count": len(shards), "digest": CheckedParquet(path).digest}


def read_shards(run: Path, facts: Mapping[str, Any], *, just_begun: bool = False) -> dict[str, str]:
    """Returns where each shard lies, by name.

    Args:
        run: the run folder.
        facts: of its run.json.
        just_begun: take the file as it is: a command that was killed between writing it and run.json left one that
            names more shards, and the next `tamis score` writes both.

    Raises:
        DamageError: the list is missing or damaged, or is another run's, and stays so for a moment.
    """
    said = facts["shards"]
    path = run / SHARDS
    if not path.is_file():
        raise DamageError(f"{path}, the list of the run's shards, is missing: restore it, or start another run folder")
    part = CheckedParquet(path)
    for nap in _NAPS:
        if just_begun or part.digest == said["digest"]:
            break
        time.sleep(nap)
        look_again(run, anew=True)
        said, part = read_checked(run / "run.json", RunFacts)["shards"], CheckedParquet(path)
    if part.digest != said["digest"] and not just_begun:
        raise DamageError(
            f"{path} is not the list of shards that run.json was written with: repeat `tamis score`, which writes "
            "both, or restore it"
        )
    if part.schema != _SCHEMA:
        raise damaged(path, f"it has the columns {', '.join(part.schema.names)}")
    table = part.read(None)
    names, urls = table.column("name").to_pylist(), table.column("url").to_pylist()
    return dict(zip(names, urls, strict=True))


def _holds(path: Path, table: pa.Table) -> bool:
    try:
        return bool(CheckedParquet(path).read(None).equals(table))
    except DamageError:
        return False
