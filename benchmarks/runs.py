"""Runs that are written without scoring a pool: only what a benchmark reads is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.data import Column
from tamis.storage import write_json
from tamis.store.checked import with_hash
from tamis.store.manifest import FORMAT, described, write_shards
from tamis.store.parts import INDEX_FIELDS, index_facts, write_index


def write_rows(folder: Path, name: str, uids: np.ndarray[Any, Any], **columns: pa.Array) -> str:
    """Writes the index of one shard and returns the hash of its uids.

    Args:
        folder: of the run.
        name: of the shard.
        uids: (rows, 2) uint64.
        columns: of the index; the others are null, or as of rows that are ok.
    """
    rows = len(uids)
    usual = {
        "uid_hi": pa.array(np.ascontiguousarray(uids[:, 0])),
        "uid_lo": pa.array(np.ascontiguousarray(uids[:, 1])),
        "key": pa.array([""] * rows, pa.string()),
        "status": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array(["ok"])),
        "caption_judged": pa.array(np.ones(rows, bool)),
    }
    found = {field.name: pa.nulls(rows, field.type) for field in INDEX_FIELDS} | usual | columns
    path = folder / "index" / f"{name}.parquet"
    write_index(path, pa.table(found, schema=pa.schema(INDEX_FIELDS)), source=f"{name}.tar", stamp="")
    return index_facts(path).uids


def write_description(folder: Path, name: str, columns: Sequence[Column]) -> None:
    """Writes the signal.json of a folder of scores."""
    write_json(
        folder / "signal.json", described(folder, {"name": name, "label": name, "columns": [*map(asdict, columns)]})
    )


def write_manifest(folder: Path, names: Sequence[str]) -> None:
    """Writes the list of shards and run.json; there is no pool."""
    shards = write_shards(folder, {name: f"{name}.tar" for name in names})
    pool = {"path": [str(folder / "pool")], "kind": "webdataset", "fields": []}
    write_json(folder / "run.json", with_hash({"format": FORMAT, "pool": pool, "shards": shards}))
