"""What a shard's parts are made of while it is scored: one writer per kind of part, fed batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tamis.arrays import Floats
from tamis.data import Sample, Scorer
from tamis.store import parts
from tamis.uid import image_hash


class PartWriter(Protocol):
    """Gathers one part of a shard and writes it whole."""

    def add(self, value: Any, samples: Sequence[Sample]) -> None:
        """Takes the value of the part's node for one batch, and the batch."""
        ...

    def write(self, path: Path, uids: str) -> None:
        """Writes the part under a temporary name and renames it.

        Args:
            path: where.
            uids: hash of the uids of the shard's index; the index itself knows its own.
        """
        ...

    def since(self, row: int) -> dict[str, pa.Array]:
        """Returns what it holds of the rows from one on, by names of its own."""
        ...

    def restore(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        """Takes what another writer of the same kind returned from `since`."""
        ...


class IndexWriter:
    """The index, gathered column by column: a list of samples would hold their images.

    Attributes:
        fields: what else of the samples' json is carried.
        source, stamp: the shard's file, and what tells whether it has changed.
    """

    def __init__(self, fields: Sequence[str], *, source: str, stamp: str) -> None:
        self.fields, self.source, self.stamp = tuple(fields), source, stamp
        self._schema = pa.schema([*parts.INDEX_FIELDS, *(pa.field(name, pa.string()) for name in self.fields)])
        self._columns: dict[str, list[Any]] = {name: [] for name in self._schema.names}

    def add(self, value: Any, samples: Sequence[Sample]) -> None:
        for sample in samples:
            for name, one in self._row(sample).items():
                self._columns[name].append(one)

    def _row(self, sample: Sample) -> dict[str, Any]:
        row = {
            "uid_hi": sample.uid[0],
            "uid_lo": sample.uid[1],
            "key": sample.key,
            "caption": sample.shown_caption,
            "caption_judged": sample.caption is not None,
            "width": sample.width or None,
            "height": sample.height or None,
            "original_width": sample.original_width or None,
            "original_height": sample.original_height or None,
            "image_bytes": sample.image_bytes,
            "image_xxh3": None if sample.image is None else image_hash(sample.image),
            "members": [{"ext": part.ext, "offset": part.offset, "size": part.size} for part in sample.members],
            "status": sample.status,
            "reason": sample.reason,
        }
        return row | {name: sample.given.get(name) for name in self.fields}

    def table(self) -> pa.Table:
        """Returns the rows so far."""
        return pa.table(self._columns, schema=self._schema)

    def since(self, row: int) -> dict[str, pa.Array]:
        return {field.name: pa.array(self._columns[field.name][row:], field.type) for field in self._schema}

    def restore(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        for name, values in columns.items():
            self._columns[name] += values.to_pylist()

    def write(self, path: Path, uids: str = "") -> None:
        parts.write_index(path, self.table(), source=self.source, stamp=self.stamp)

    def stands(self, path: Path) -> bool:
        """Tells whether the part is there, made of the same rows of the same file: another process was faster."""
        if not path.is_file() or parts.index_facts(path).stamp != self.stamp:
            return False
        names = ["uid_hi", "uid_lo", "key"]
        return bool(parts.read_columns(path, names).equals(self.table().select(names)))


class ScoreWriter:
    """One scorer's columns, and the reason where it judged a row not."""

    def __init__(self, scorer: Scorer) -> None:
        self.columns = scorer.columns
        self._values: dict[str, list[Any]] = {column.name: [] for column in scorer.columns}
        self._reasons: list[str | None] = []

    def add(self, value: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        reasons = value.get("reason")
        reasons = [None] * len(samples) if reasons is None else reasons
        judged = np.ones(len(samples), bool)
        for column in self.columns:
            found = value[column.name] if column.kind == "word" else np.asarray(value[column.name], np.float32)
            self._values[column.name].append(found)
            lacking = [one is None for one in found] if column.kind == "word" else np.isnan(found)
            judged &= ~np.asarray(lacking, bool)
        for sample, reason, complete in zip(samples, reasons, judged, strict=True):
            self._reasons.append(None if complete else reason or sample.reason or "the scorer gave no value")

    def _gathered(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for column in self.columns:
            pieces = self._values[column.name]
            if column.kind == "word":
                values[column.name] = [word for piece in pieces for word in piece]
            else:
                values[column.name] = np.concatenate(pieces) if pieces else np.empty(0, np.float32)
        return values

    def since(self, row: int) -> dict[str, pa.Array]:
        found = {"reason": pa.array(self._reasons[row:], pa.string())}
        values = self._gathered()
        for column in self.columns:
            some = values[column.name][row:]
            kept = pa.array(some, pa.string()) if column.kind == "word" else pa.array(np.asarray(some, np.float32))
            found[f"={column.name}"] = kept  # no column of a scorer is called so
        return found

    def restore(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        self._reasons += columns["reason"].to_pylist()
        for column in self.columns:
            values = columns[f"={column.name}"]
            self._values[column.name].append(values.to_pylist() if column.kind == "word" else values.to_numpy())

    def write(self, path: Path, uids: str) -> None:
        parts.write_scores(path, self.columns, self._gathered(), self._reasons, uids=uids)


class RowsWriter:
    """Stored embeddings: (n, d) float16. It must be fed once at least, an empty batch if there is no other."""

    def __init__(self) -> None:
        self._batches: list[Floats] = []

    def add(self, value: Floats, samples: Sequence[Sample]) -> None:
        self._batches.append(value)

    def since(self, row: int) -> dict[str, pa.Array]:
        rows = np.ascontiguousarray(np.concatenate(self._batches)[row:])
        kept = pa.array([one.tobytes() for one in rows], pa.binary())
        return {f"{rows.dtype.name}:{rows.shape[1]}": kept}

    def restore(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        for name, values in columns.items():
            dtype, width = name.split(":")
            self._batches.append(np.frombuffer(b"".join(values.to_pylist()), dtype).reshape(-1, int(width)))

    def write(self, path: Path, uids: str) -> None:
        parts.write_rows(path, self._batches, uids=uids)


class TextsWriter:
    """Stored texts: for each row a list, None where it has none."""

    def __init__(self) -> None:
        self._rows: list[Sequence[str] | None] = []

    def add(self, value: Sequence[Sequence[str] | None], samples: Sequence[Sample]) -> None:
        self._rows.extend(value)

    def since(self, row: int) -> dict[str, pa.Array]:
        return {"texts": pa.array(self._rows[row:], pa.list_(pa.string()))}

    def restore(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        self._rows += columns["texts"].to_pylist()

    def write(self, path: Path, uids: str) -> None:
        parts.write_text_lists(path, self._rows, uids=uids)
