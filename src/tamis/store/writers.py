"""Writers gather a shard's parts batch by batch while it is scored: one writer per kind of part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tamis.arrays import Floats
from tamis.data import Sample, Signal
from tamis.store import parts
from tamis.uid import image_hash


class PartWriter(Protocol):
    """Gathers one part of a shard."""

    def add(self, value: Any, samples: Sequence[Sample]) -> None:
        """Takes the value of the part's node for a batch, and the batch."""
        ...

    def write(self, path: Path, uids: str) -> None:
        """Writes the part; `uids` is the hash of the uids of the shard's index, which the index computes itself."""
        ...

    def since(self, row: int) -> dict[str, pa.Array]:
        """Returns the rows from one on, by names of its own."""
        ...

    def restore(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        """Takes what another writer of the same kind returned from `since`."""
        ...


class IndexWriter:
    """The index, gathered column by column: a list of samples would hold their images.

    Attributes:
        fields: json fields of the samples that it carries.
        source, stamp: the shard's file, and its version.
    """

    def __init__(self, fields: Sequence[str], *, source: str, stamp: str) -> None:
        self.fields, self.source, self.stamp = tuple(fields), source, stamp
        self._schema = pa.schema([*parts.INDEX_FIELDS, *(pa.field(name, pa.string()) for name in self.fields)])
        self._columns: dict[str, list[Any]] = {name: [] for name in self._schema.names}

    def add(self, value: Any, samples: Sequence[Sample]) -> None:
        for sample in samples:
            for name, cell in self._row(sample).items():
                self._columns[name].append(cell)

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

    def is_written(self, path: Path) -> bool:
        """Whether the part exists, made of the same rows of the same file: another process was faster."""
        if not path.is_file() or parts.index_facts(path).stamp != self.stamp:
            return False
        names = ["uid_hi", "uid_lo", "key"]
        return bool(parts.read_columns(path, names).equals(self.table().select(names)))


class ScoreWriter:
    """One signal's columns, and the reason where it did not judge a row."""

    def __init__(self, signal: Signal) -> None:
        self.columns = signal.columns
        self._batches: dict[str, list[Any]] = {column.name: [] for column in signal.columns}
        self._reasons: list[str | None] = []

    def add(self, value: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        reasons = value.get("reason")
        reasons = [None] * len(samples) if reasons is None else reasons
        judged = np.ones(len(samples), bool)
        for column in self.columns:
            words = column.kind == "word"
            cells = value[column.name] if words else np.asarray(value[column.name], np.float32)
            self._batches[column.name].append(cells)
            judged &= np.array([cell is not None for cell in cells], bool) if words else ~np.isnan(cells)
        for sample, reason, complete in zip(samples, reasons, judged, strict=True):
            self._reasons.append(None if complete else reason or sample.reason or "the signal gave no value")

    def _values(self, name: str, kind: str) -> Any:
        batches = self._batches[name]
        if kind == "word":
            return [word for batch in batches for word in batch]
        return np.concatenate(batches) if batches else np.empty(0, np.float32)

    def since(self, row: int) -> dict[str, pa.Array]:
        rows = {"reason": pa.array(self._reasons[row:], pa.string())}
        for column in self.columns:
            kind = pa.string() if column.kind == "word" else pa.float32()
            # No column of a signal begins with "=".
            rows[f"={column.name}"] = pa.array(self._values(column.name, column.kind)[row:], kind)
        return rows

    def restore(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        self._reasons += columns["reason"].to_pylist()
        for column in self.columns:
            values = columns[f"={column.name}"]
            self._batches[column.name].append(values.to_pylist() if column.kind == "word" else values.to_numpy())

    def write(self, path: Path, uids: str) -> None:
        values = {column.name: self._values(column.name, column.kind) for column in self.columns}
        parts.write_scores(path, self.columns, values, self._reasons, uids=uids)


class RowsWriter:
    """Stored embeddings: (n, d) float16. It must be fed at least once, if need be an empty batch."""

    def __init__(self) -> None:
        self._batches: list[Floats] = []

    def add(self, value: Floats, samples: Sequence[Sample]) -> None:
        self._batches.append(value)

    def since(self, row: int) -> dict[str, pa.Array]:
        rows = np.ascontiguousarray(np.concatenate(self._batches)[row:])
        return {f"{rows.dtype.name}:{rows.shape[1]}": pa.array([one.tobytes() for one in rows], pa.binary())}

    def restore(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        for name, values in columns.items():
            dtype, width = name.split(":")
            self._batches.append(np.frombuffer(b"".join(values.to_pylist()), dtype).reshape(-1, int(width)))

    def write(self, path: Path, uids: str) -> None:
        parts.write_rows(path, self._batches, uids=uids)


class TextsWriter:
    """Stored texts: for each row a list, or None."""

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
