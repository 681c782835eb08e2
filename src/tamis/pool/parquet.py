"""Rows of Parquet files, a few at a time: a shard may be a range of the rows of a large file.

A row can be reached only from the start of its row group. So a file stays open at the end of a range, where the next
range of the same process continues: each process reads a file once, in however many shards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.pool.files import open_file, stamp

BATCH = 256  # rows held at once, with their images
_BATCH_BYTES = 64 << 20  # and their bytes: fewer rows are held if they are larger
_PAGES_AT_ONCE = 8 << 20  # bytes of a large column that are read at once

#: The file that was left open at the end of a range: by file, columns and rows held at once.
_left_open: dict[tuple[Any, ...], _Position] = {}
_guard = threading.Lock()


class _Position:
    """An open Parquet file, and the row it was read to."""

    def __init__(self, raw: BinaryIO, columns: Iterable[str], first: int, batch: int) -> None:
        """Opens it at a row; those before it in its row group are decoded and thrown away."""
        self.raw = raw
        # Page by page, for row groups with a column that is too large to be held whole.
        self._paged = pq.ParquetFile(raw, pre_buffer=False, buffer_size=_PAGES_AT_ONCE)
        facts = self._paged.metadata
        self._file = pq.ParquetFile(raw, pre_buffer=False, metadata=facts)
        self.row = 0
        start = 0
        while start < facts.num_row_groups and self.row + (size := facts.row_group(start).num_rows) <= first:
            start, self.row = start + 1, self.row + size
        self._columns = [name for name in dict.fromkeys(columns) if name in self._file.schema_arrow.names]
        self._batch = batch
        self._parts = self._all(range(start, facts.num_row_groups))
        self._rest: pa.RecordBatch | None = None
        for _ in self.take(first - self.row):
            pass

    def _all(self, groups: Iterable[int]) -> Iterator[pa.RecordBatch]:
        for number in groups:
            file, batch = self._file, self._batch
            group = file.metadata.row_group(number)
            if group.total_byte_size > _BATCH_BYTES:
                # A damaged column's metadata ends the process, and reading a page of it raises (pyarrow 26): so a row
                # is read before they are looked at.
                next(self._paged.iter_batches(1, row_groups=[number], columns=self._columns), None)
                sizes = [
                    group.column(place).total_uncompressed_size
                    for place in range(group.num_columns)
                    if file.schema.column(place).path.split(".")[0] in self._columns
                ]
                per_row = sum(sizes) / max(group.num_rows, 1)
                batch = max(1, min(batch, int(_BATCH_BYTES / max(per_row, 1))))
                file = self._paged if max(sizes, default=0) > _BATCH_BYTES else file
            yield from file.iter_batches(batch, row_groups=[number], columns=self._columns)

    def take(self, count: int | None) -> Iterator[pa.RecordBatch]:
        """Yields the next rows; None: all that follow."""
        while count is None or count > 0:
            part = self._rest if self._rest is not None else next(self._parts, None)
            self._rest = None
            if part is None:
                return
            if count is not None and part.num_rows > count:
                self._rest, part = part.slice(count), part.slice(0, count)
            self.row += part.num_rows
            count = None if count is None else count - part.num_rows
            yield part


def parquet_rows(
    url: str, columns: Sequence[str], first: int = 0, rows: int | None = None, batch: int = BATCH
) -> Iterator[Mapping[str, Any]]:
    """Yields rows of a Parquet file as mappings, of those columns that it has."""
    cut = first > 0 or rows is not None
    key = (url, stamp(url) if cut else "", tuple(columns), batch)
    with _guard:
        place = _left_open.pop(key, None) if cut else None
    if place is not None and place.row != first:
        place.raw.close()
        place = None
    if place is None:
        raw = open_file(url)
        try:
            place = _Position(raw, columns, first, batch)
        except BaseException:
            raw.close()
            raise
    done = False
    try:
        for part in place.take(rows):
            yield from _cells(part)
        done = True
    finally:
        if not done or rows is None:
            place.raw.close()
        else:
            with _guard:
                for other in _left_open.values():
                    other.raw.close()
                _left_open.clear()
                _left_open[key] = place


def _cells(part: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return part.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:  # some words are not UTF-8: their bytes are let through, and reported with their row
        columns = {}
        for name, column in zip(part.schema.names, part.columns, strict=True):
            words = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            values = (column.cast(pa.large_binary()) if words else column).to_pylist()
            columns[name] = [
                value.decode("utf-8", "surrogateescape") if words and value is not None else value for value in values
            ]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
