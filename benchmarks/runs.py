"""Runs that are written without scoring a pool. They hold only what a benchmark reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.core.files.checked import with_hash, write_array
from tamis.core.files.storage import write_json
from tamis.core.types import Column
from tamis.runs.manifest import FORMAT, sign_description, write_shards
from tamis.runs.parts import INDEX_FIELDS, index_facts, write_index, write_scores

Array = np.ndarray[Any, Any]


class RunWriter:
    """Writes a run folder shard by shard. Present after `close`, as `tamis score` would leave it.

    Args:
        folder: of the run.
        signal: the name of the one signal with scores, with its columns.
    """

    def __init__(self, folder: Path, signal: str = "given", columns: Sequence[Column] = ()) -> None:
        self.folder, self.columns, self.signal = folder, columns, signal
        self.scores = folder / "scores" / f"{signal}-0000000000000000"
        self.names: list[str] = []

    def add(
        self, uids: Array, scores: Mapping[str, Any] | None = None, embeddings: Mapping[str, Array] | None = None,
        **index: pa.Array,
    ) -> None:  # fmt: skip
        """Writes one shard: (rows, 2) uint64 uids, scores and vectors by name, and columns of the index."""
        rows, name = len(uids), f"{len(self.names):05d}"
        usual = {
            "uid_hi": pa.array(np.ascontiguousarray(uids[:, 0])),
            "uid_lo": pa.array(np.ascontiguousarray(uids[:, 1])),
            "key": pa.array([""] * rows, pa.string()),
            "status": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array(["ok"])),
            "caption_judged": pa.array(np.ones(rows, bool)),
        }
        columns = {each.name: pa.nulls(rows, each.type) for each in INDEX_FIELDS} | usual | index
        path = self.folder / "index" / f"{name}.parquet"
        write_index(path, pa.table(columns, schema=pa.schema(INDEX_FIELDS)), source=f"{name}.tar", stamp="")
        digest = index_facts(path).uids
        if scores is not None:
            write_scores(self.scores / f"{name}.parquet", self.columns, scores, [None] * rows, uids=digest)
        for embedding, vectors in (embeddings or {}).items():
            store = self.folder / "embeddings" / f"{embedding}-0000000000000000"
            write_array(store / f"{name}.npy", vectors.astype(np.float16), uids=digest)
        self.names.append(name)

    def close(self) -> None:
        """Writes the description of the scores, the list of shards and run.json; there is no pool."""
        if self.columns:
            facts = {"name": self.signal, "label": self.signal, "columns": [asdict(column) for column in self.columns]}
            write_json(self.scores / "signal.json", sign_description(self.scores, facts))
        shards = write_shards(self.folder, {name: f"{name}.tar" for name in self.names})
        pool = {"path": [str(self.folder / "pool")], "kind": "webdataset", "fields": []}
        write_json(self.folder / "run.json", with_hash({"format": FORMAT, "pool": pool, "shards": shards}))


def written(folder: Path) -> bool:
    """Whether a run is in the folder already."""
    return (folder / "run.json").exists()
