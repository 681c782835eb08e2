"""Writers gather a shard's parts batch by batch while it is scored: one writer per kind of part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.data import Sample, Signal
from tamis.ids import image_xxh3
from tamis.store import parts


class PartWriter(ABC):
    """Gathers one part of a shard as Arrow tables. Call `add` at least once, even with an empty batch."""

    def __init__(self) -> None:
        self._batches: list[pa.Table] = []

    def add(self, value: Any, samples: Sequence[Sample]) -> None:
        """Takes the value of the part's node for a batch, and the batch."""
        self._batches.append(self._rows(value, samples))

    def restore(self, table: pa.Table) -> None:
        """Takes rows of another writer's `table`."""
        self._batches.append(table)

    def table(self) -> pa.Table:
        """Returns the rows so far."""
        return pa.concat_tables(self._batches).unify_dictionaries()

    @abstractmethod
    def write(self, path: Path, uids: str) -> None:
        """Writes the part; `uids` is the hash of the uids of the shard's index, which the index computes itself."""

    @abstractmethod
    def _rows(self, value: Any, samples: Sequence[Sample]) -> pa.Table:
        """Returns the rows of a batch."""


class IndexWriter(PartWriter):
    """The index.

    Attributes:
        fields: json fields of the samples that it carries.
        source, stamp: the shard's file, and its version.
    """

    def __init__(self, fields: Sequence[str], *, source: str, stamp: str) -> None:
        super().__init__()
        self.fields, self.source, self.stamp = tuple(fields), source, stamp
        self._schema = pa.schema([*parts.INDEX_FIELDS, *(pa.field(name, pa.string()) for name in self.fields)])
        self._batches.append(self._schema.empty_table())

    def _rows(self, value: Any, samples: Sequence[Sample]) -> pa.Table:
        return pa.Table.from_pylist([self._row(sample) for sample in samples], self._schema)

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
            "image_xxh3": None if sample.image is None else image_xxh3(sample.image),
            "members": [{"ext": part.ext, "offset": part.offset, "size": part.size} for part in sample.members],
            "status": sample.status,
            "reason": sample.reason,
        }
        return row | {name: sample.given.get(name) for name in self.fields}

    def write(self, path: Path, uids: str = "") -> None:
        parts.write_index(path, self.table().combine_chunks(), source=self.source, stamp=self.stamp)

    def is_written(self, path: Path) -> bool:
        """Whether the part exists, made of the same rows of the same file: another process was faster."""
        if not path.is_file() or parts.index_facts(path).stamp != self.stamp:
            return False
        names = ["uid_hi", "uid_lo", "key"]
        return bool(parts.read_columns(path, names).equals(self.table().select(names)))


class ScoreWriter(PartWriter):
    """One signal's columns, and the reason for each row that it did not judge."""

    def __init__(self, signal: Signal) -> None:
        super().__init__()
        self.columns = signal.columns

    def _rows(self, value: Any, samples: Sequence[Sample]) -> pa.Table:
        arrays, judged = {}, np.ones(len(samples), bool)
        for column in self.columns:
            if column.kind == "word":
                arrays[column.name] = pa.array(value[column.name], pa.string())
                judged &= np.array([cell is not None for cell in value[column.name]], bool)
            else:
                numbers = np.asarray(value[column.name], np.float32)
                arrays[column.name] = pa.array(numbers)
                judged &= ~np.isnan(numbers)
        given = value.get("reason")
        given = [None] * len(samples) if given is None else given
        reasons = [
            None if complete else reason or sample.reason or "the signal gave no value"
            for sample, reason, complete in zip(samples, given, judged, strict=True)
        ]
        return pa.table({**arrays, "reason": pa.array(reasons, pa.string())})

    def write(self, path: Path, uids: str) -> None:
        table = self.table()
        values = {
            column.name: table[column.name].to_pylist() if column.kind == "word" else table[column.name].to_numpy()
            for column in self.columns
        }
        parts.write_scores(path, self.columns, values, table["reason"].to_pylist(), uids=uids)


class RowsWriter(PartWriter):
    """Stored embeddings: (n, d), kept as float16."""

    def _rows(self, value: Any, samples: Sequence[Sample]) -> pa.Table:
        rows = np.ascontiguousarray(value, np.float16)
        kind = pa.binary(rows.shape[1] * rows.itemsize)
        return pa.table({"rows": pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)])})

    def write(self, path: Path, uids: str) -> None:
        column = self.table()["rows"]
        width = column.type.byte_width // 2
        flat = [
            np.frombuffer(chunk.buffers()[1], np.float16, len(chunk) * width, chunk.offset * column.type.byte_width)
            for chunk in column.chunks
            if len(chunk)
        ]
        found = [numbers.reshape(-1, width) for numbers in flat]
        parts.write_rows(path, found or [np.empty((0, width))], uids=uids)


class TextsWriter(PartWriter):
    """Stored texts: for each row a list, or None."""

    def _rows(self, value: Any, samples: Sequence[Sample]) -> pa.Table:
        return pa.table({"texts": pa.array(value, pa.list_(pa.string()))})

    def write(self, path: Path, uids: str) -> None:
        parts.write_text_lists(path, self.table()["texts"].to_pylist(), uids=uids)
