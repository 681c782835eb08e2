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
        self._file = pq.ParquetFile(raw, pre_buffer=False)
        facts = self._file.metadata
        self.row = 0
        start = 0
        while start < facts.num_row_groups and self.row + (size := facts.row_group(start).num_rows) <= first:
            start, self.row = start + 1, self.row + size
        self._groups = range(start, facts.num_row_groups)
        self._columns = [name for name in dict.fromkeys(columns) if name in self._file.schema_arrow.names]
        per_row, largest = _sizes(facts, self._groups, self._columns)
        if largest > _BATCH_BYTES:  # page by page: else the whole of a column is read into memory
            raw.seek(0)
            self._file = pq.ParquetFile(raw, pre_buffer=False, buffer_size=_PAGES_AT_ONCE)
        self._batch = max(1, min(batch, int(_BATCH_BYTES / max(per_row, 1))))
        self._parts = self._all()
        self._rest: pa.RecordBatch | None = None
        for _ in self.take(first - self.row):
            pass

    def _all(self) -> Iterator[pa.RecordBatch]:
        if self._groups:  # pyarrow takes no list of none for none
            yield from self._file.iter_batches(self._batch, row_groups=list(self._groups), columns=self._columns)

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


def _sizes(facts: Any, groups: Sequence[int], columns: Sequence[str]) -> tuple[float, int]:
    """Returns what a row takes in the row group where rows take most, and what the largest column of one takes."""
    per_row, largest = 0.0, 0
    for number in groups:
        group = facts.row_group(number)
        chunks = (group.column(place) for place in range(group.num_columns))
        sizes = [chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns]
        per_row = max(per_row, sum(sizes) / max(group.num_rows, 1))
        largest = max(largest, *sizes, 0)
    return per_row, largest


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
