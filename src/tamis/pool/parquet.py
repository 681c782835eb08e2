"""Rows of Parquet files as mappings, a few at a time, from any row on: a shard may be a range of rows of a large file.

Parquet has no way to a row but from the start of its row group. So whoever has read a range leaves the file open where
it ends, and the next range of the same process goes on there: each process reads a file once, in however many shards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.pool.files import open_file, stamp

BATCH = 256  # rows held at once while reading; their images are held with them
_BATCH_BYTES = 64 << 20  # and what they may take: fewer rows are held where they are larger
_PAGES_AT_ONCE = 8 << 20  # bytes of a column that are read at once where it is large

#: Files that were left open where a range of them ended: by file, columns and rows held at once.
_left_open: dict[tuple[Any, ...], _Position] = {}
_guard = threading.Lock()


class _Position:
    """An open Parquet file, and how far it was read."""

    def __init__(self, raw: BinaryIO, columns: Iterable[str], first: int, batch: int) -> None:
        """Opens it at a row; those before it in its row group are passed over without making anything of them."""
        self.raw = raw
        # Page by page, for row groups of which a column is too large to be held whole.
        self._paged = pq.ParquetFile(raw, pre_buffer=False, buffer_size=_PAGES_AT_ONCE)
        facts = self._paged.metadata
        self._file = pq.ParquetFile(raw, pre_buffer=False, metadata=facts)
        self.row = 0
        start = 0
        while start < facts.num_row_groups and self.row + (size := facts.row_group(start).num_rows) <= first:
            start, self.row = start + 1, self.row + size
        self._groups = range(start, facts.num_row_groups)
        self._columns = [name for name in dict.fromkeys(columns) if name in self._file.schema_arrow.names]
        self._most = batch
        self._parts = self._all()
        self._rest: pa.RecordBatch | None = None
        for _ in self.take(first - self.row):
            pass

    def _all(self) -> Iterator[pa.RecordBatch]:
        for number in self._groups:
            file, batch = self._way(number)
            yield from file.iter_batches(batch, row_groups=[number], columns=self._columns)

    def _way(self, number: int) -> tuple[Any, int]:
        """Returns how a row group is read: from which of the two, and how many rows at a time."""
        group = self._file.metadata.row_group(number)
        if group.total_byte_size <= _BATCH_BYTES:
            return self._file, self._most
        # What a column's metadata holds that it should not ends the process, where reading a page of it ends in an
        # error (pyarrow 26): so one row is read before they are looked at.
        next(self._paged.iter_batches(1, row_groups=[number], columns=self._columns), None)
        sizes = [
            group.column(place).total_uncompressed_size
            for place in range(group.num_columns)
            if self._file.schema.column(place).path.split(".")[0] in self._columns
        ]
        per_row = sum(sizes) / max(group.num_rows, 1)
        file = self._paged if max(sizes, default=0) > _BATCH_BYTES else self._file
        return file, max(1, min(self._most, int(_BATCH_BYTES / max(per_row, 1))))

    def take(self, count: int | None) -> Iterator[pa.RecordBatch]:
        """Yields the next rows, so many or all that are left."""
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


def parquet_batches(
    url: str, columns: Sequence[str], first: int = 0, rows: int | None = None, batch: int = BATCH
) -> Iterator[pa.RecordBatch]:
    """Yields some rows of a Parquet file, of the columns that it has; at most `batch` are held at once.

    Args:
        url: of the file.
        columns: their names; those that it has not are left out.
        first: the first row.
        rows: how many; None: all from the first one on.
        batch: rows.

    Raises:
        OSError, pa.ArrowException: it cannot be read (further). Remote stores have errors of their own.
    """
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
    whole = False
    try:
        yield from place.take(rows)
        whole = True
    finally:
        if not whole or rows is None:
            place.raw.close()
        else:
            with _guard:
                for other in _left_open.values():
                    other.raw.close()
                _left_open.clear()
                _left_open[key] = place


def parquet_rows(
    url: str, columns: Sequence[str], first: int = 0, rows: int | None = None, batch: int = BATCH
) -> Iterator[Mapping[str, Any]]:
    """Yields rows as `parquet_batches` reads them, as mappings."""
    for part in parquet_batches(url, columns, first, rows, batch):
        try:
            cells = part.to_pylist()
        except UnicodeDecodeError:
            cells = _undecoded(part)
        yield from cells


def _undecoded(part: Any) -> list[dict[str, Any]]:
    """Returns rows of which some words are not UTF-8: those bytes are let through, to be reported where they stand."""
    columns = {}
    for name, column in zip(part.schema.names, part.columns, strict=True):
        words = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        values = (column.cast(pa.large_binary()) if words else column).to_pylist()
        columns[name] = [
            value.decode("utf-8", "surrogateescape") if words and value is not None else value for value in values
        ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
