"""Writers collect a shard's parts batch by batch while the shard is scored.

`Unfinished` saves finished rows of a long shard, so that a kill costs seconds of work, not the shard. Every 20 s it
writes the new rows to `unfinished/<shard>/<what>-<number>.parquet`. Another process continues from these files if it
makes the same parts in the same batches from the same version of the shard's file. The files are deleted when their
parts exist or the shard's file has changed; commands that make other parts leave them.
"""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.core.arrays import Mask
from tamis.core.errors import DamageError
from tamis.core.files.checked import CheckedParquet, damage_error, write_parquet
from tamis.core.files.storage import files
from tamis.core.ids import LENGTH, fingerprint
from tamis.core.types import INDEX, Sample, Signal
from tamis.runs import parts

log = logging.getLogger(__name__)

UNFINISHED = "unfinished"

#: A kill loses at most this many seconds of work and the last batch.
EVERY_SECONDS = 20.0

_ROW_GROUP = 1 << 16
_OWN = pa.schema([("uid_hi", pa.uint64()), ("uid_lo", pa.uint64()), ("status", pa.string())])
_STAMP, _PARTS, _ROW = "tamis.stamp", "tamis.parts", "tamis.first_row"


class PartWriter(ABC):
    """Collects one part of a shard as Arrow tables. Call `add` at least once, even with an empty batch."""

    def __init__(self) -> None:
        self._batches: list[pa.Table] = []

    def add(self, value: Any, samples: Sequence[Sample]) -> None:
        """Adds a batch: the value of the part's node, and the samples."""
        self._batches.append(self._rows(value, samples))

    def restore(self, table: pa.Table) -> None:
        """Adds rows from another writer's `table`."""
        self._batches.append(table)

    def table(self) -> pa.Table:
        """Returns the rows so far."""
        return pa.concat_tables(self._batches).unify_dictionaries()

    @abstractmethod
    def write(self, path: Path, uids: str) -> None:
        """Writes the part; `uids` is the uid hash of the shard's index; the index itself ignores it."""

    @abstractmethod
    def _rows(self, value: Any, samples: Sequence[Sample]) -> pa.Table:
        """Returns the rows of a batch."""


class IndexWriter(PartWriter):
    """The index, with json fields of the samples. `source` is the shard's file, `stamp` its version."""

    def __init__(self, fields: Sequence[str], *, source: str, stamp: str) -> None:
        super().__init__()
        self.fields, self.source, self.stamp = tuple(fields), source, stamp
        self._schema = pa.schema([*parts.INDEX_FIELDS, *(pa.field(name, pa.string()) for name in self.fields)])
        self._batches.append(self._schema.empty_table())

    def _rows(self, value: Any, samples: Sequence[Sample]) -> pa.Table:
        return pa.Table.from_pylist([self._row(sample) for sample in samples], self._schema)

    def _row(self, sample: Sample) -> dict[str, Any]:
        row = {name: column.value(sample) for name, column in INDEX.items()}
        return row | {name: sample.given.get(name) for name in self.fields}

    def write(self, path: Path, uids: str = "") -> None:
        parts.write_index(path, self.table().combine_chunks(), source=self.source, stamp=self.stamp)

    def has_rows_of(self, path: Path) -> bool:
        """Whether the part exists and has the same samples; where they are in the file does not matter."""
        names = [name for name in self._schema.names if name not in ("members", "status")]  # a reason has each status
        return path.is_file() and bool(parts.read_columns(path, names).equals(self.table().select(names)))


class ScoreWriter(PartWriter):
    """A signal's columns, and the reason for each row that it did not judge.

    `rows`: the shard's rows that it gets, if not all; `outside`: what the others are outside of.
    """

    def __init__(self, signal: Signal, rows: Mask | None = None, outside: str = "") -> None:
        super().__init__()
        self.columns, self.rows, self.outside = signal.columns, rows, outside
        if rows is not None:  # maybe none of them
            kinds = {column.name: pa.float32() if column.kind == "number" else pa.string() for column in self.columns}
            self._batches.append(pa.schema({**kinds, "reason": pa.string()}.items()).empty_table())

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
        table, requested = self.table(), None
        if self.rows is not None:
            table, requested = parts.merge_rows(path, table, self.rows, self.outside, uids=uids)
        values = {
            column.name: table[column.name].to_pylist() if column.kind == "word" else table[column.name].to_numpy()
            for column in self.columns
        }
        parts.write_scores(path, self.columns, values, table["reason"].to_pylist(), uids=uids, requested=requested)


class RowsWriter(PartWriter):
    """Stored embeddings: (n, d), kept as float16."""

    def _rows(self, value: Any, samples: Sequence[Sample]) -> pa.Table:
        rows = np.ascontiguousarray(value, np.float16)
        kind = pa.binary(rows.shape[1] * rows.itemsize)
        return pa.table({"rows": pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)])})

    def write(self, path: Path, uids: str) -> None:
        rows = self.table()["rows"]
        width = rows.type.byte_width // 2
        batches = []
        for chunk in rows.chunks:
            numbers = np.frombuffer(chunk.buffers()[1] or b"", np.float16).reshape(-1, width)
            batches.append(numbers[chunk.offset : chunk.offset + len(chunk)])
        parts.write_rows(path, batches, uids=uids)


class TextsWriter(PartWriter):
    """Stored texts: a list per row, or None."""

    def _rows(self, value: Any, samples: Sequence[Sample]) -> pa.Table:
        return pa.table({"texts": pa.array(value, pa.list_(pa.string()))})

    def write(self, path: Path, uids: str) -> None:
        parts.write_text_lists(path, self.table()["texts"].to_pylist(), uids=uids)


class Unfinished:
    """The finished rows of one shard. `uids` and `statuses` belong to rows that an earlier process finished."""

    def __init__(
        self, run: Path, shard: str, stamp: str, what: Mapping[str, Any], writers: Mapping[Path, PartWriter]
    ) -> None:
        """Restores finished rows into `writers`, {path of the part: its writer}.

        `stamp` is the version of the shard's file; `what` (JSON) is all else that decides the result.
        """
        self.folder, self.writers = run / UNFINISHED / shard, tuple(writers.values())
        self.what = fingerprint({**what, "stamp": stamp})
        parts = {path.relative_to(run).as_posix(): _state(path) for path in writers}
        self._facts = {_STAMP: stamp, _PARTS: json.dumps(parts)}
        self.uids: list[tuple[int, int]] = []
        self.statuses: Counter[str] = Counter()
        self._files = 0
        self._samples: list[dict[str, Any]] = []  # rows since the last file
        self._last = time.monotonic()
        drop_unneeded(run, shard, stamp)
        self._restore()

    def _restore(self) -> None:
        for name in sorted(name for name in files(self.folder) if name.startswith(self.what)):
            try:
                part = CheckedParquet(self.folder / name)
                if part.facts.get(_ROW) != str(len(self.uids)):
                    raise damage_error(part.path, f"it does not continue at row {len(self.uids)}")
                table = part.read(None)
            except DamageError as error:
                log.warning("%s; its rows are computed again", error)
                break
            for number, writer in enumerate(self.writers):
                own = [column for column in table.column_names if column.startswith(f"{number}.")]
                writer.restore(table.select(own).rename_columns([column.partition(".")[2] for column in own]))
            self.uids += zip(table["uid_hi"].to_pylist(), table["uid_lo"].to_pylist(), strict=True)
            self.statuses += Counter(table["status"].to_pylist())
            self._files += 1

    def add(self, samples: Sequence[Sample]) -> None:
        """Records a batch that the writers have; writes a file if it is time."""
        self._samples += [
            {"uid_hi": sample.uid[0], "uid_lo": sample.uid[1], "status": sample.status} for sample in samples
        ]
        if time.monotonic() - self._last < EVERY_SECONDS:
            return
        start = len(self.uids)
        table = pa.Table.from_pylist(self._samples, _OWN)
        for number, writer in enumerate(self.writers):
            rows = writer.table().slice(start)
            for field in rows.schema:
                table = table.append_column(field.with_name(f"{number}.{field.name}"), rows[field.name])
        facts = {**self._facts, _ROW: str(start)}
        path = self.folder / f"{self.what}-{self._files:05}.parquet"
        write_parquet(path, table, uids=None, facts=facts, row_group_size=_ROW_GROUP, compression="ZSTD")
        self._files += 1
        self.uids += [(sample["uid_hi"], sample["uid_lo"]) for sample in self._samples]
        self._samples = []
        self._last = time.monotonic()

    def check(self, number: int, sample: Sample) -> None:
        """Raises DamageError if a row finished by an earlier process is another sample in the shard now."""
        if sample.uid != self.uids[number]:
            raise damage_error(self.folder, f"the saved row {number} is another sample in the shard now")

    def drop(self) -> None:
        """Deletes the files, when the parts are written or the rows are unusable."""
        _remove(self.folder, self.what)


def drop_unneeded(run: Path, shard: str, stamp: str | None = None) -> None:
    """Deletes saved rows whose parts have been written since, or of another version of the file than `stamp`."""
    folder = run / UNFINISHED / shard
    for what in {name[:LENGTH] for name in files(folder)}:
        try:
            facts = CheckedParquet(folder / f"{what}-00000.parquet").facts
            before = json.loads(facts[_PARTS]).items()
            needed = stamp in (None, facts[_STAMP]) and any(_state(run / part) == was for part, was in before)
        except (DamageError, KeyError):
            needed = False
        if not needed:
            _remove(folder, what)


def _state(path: Path) -> int:
    """Returns how many rows a part covers: -1 for all, -2 if there is no part."""
    if not path.is_file():
        return -2
    requested = parts.requested_in(path) if path.parent.parent.name == "scores" else None
    return -1 if requested is None else requested


def _remove(folder: Path, what: str) -> None:
    for name in sorted(files(folder), reverse=True):
        if name.startswith(what):
            (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # it does not exist, or is not empty
        folder.rmdir()
