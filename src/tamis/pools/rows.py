"""Columns and rows of tables: Parquet, CSV, TSV, JSON lines, Arrow, Lance."""

from __future__ import annotations

import csv
import io
import itertools
import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.core.errors import PoolError, UnreachedError, nearest
from tamis.core.files.find import ARROW, LANCE, open_file, stamp
from tamis.core.files.remote import is_transient
from tamis.pools.lance import fragment_rows, lance_batches, lance_schema
from tamis.pools.source import MAX_TEXT_BYTES, json_type_name

Row = Mapping[str, Any]

CAPTION_COLUMNS = ("caption", "text", "alt_text", "alt", "title", "TEXT")

#: What `column_kinds` returns for columns that can hold captions.
TEXT, TEXTS = "text", "a list of texts"

#: Key for the error of an unreadable row; its other columns may be missing.
PROBLEM: Any = None

# A message lists at most so many columns, and no name longer than that.
_MOST_LISTED, _LONGEST_COLUMN = 50, 60

BATCH = 256  # rows held at once, with their images

_LOOK_AT = 100  # lines of a JSONL file that are read to find its columns

#: Most characters of a row of CSV or TSV, and most bytes of a line of JSON: they hold no image bytes.
LONGEST_LINE = 2 * MAX_TEXT_BYTES


def table_rows(
    url: str, columns: Sequence[str], first: int = 0, rows: int | None = None, batch: int = BATCH
) -> Iterator[Row]:
    """Yields rows as {column: value}; a format without groups is read whole, whatever the other arguments are."""
    return table_format(url).rows(url, columns, first, rows, batch)


def _separator(header: str) -> str:
    """Returns the separator of a CSV file: open_clip's default is a tab, Flickr30k has bars, Excel semicolons."""
    return max(",\t;|", key=header.count)


def _csv_rows(url: str, *_: Any, tabs: bool = False) -> Iterator[Row]:
    csv.field_size_limit(MAX_TEXT_BYTES)
    held = 0  # characters since the last row: csv.reader itself has no limit

    def lines() -> Iterator[str]:
        nonlocal held
        while line := text.readline(LONGEST_LINE + 1):
            held += len(line)
            if held > LONGEST_LINE:
                raise csv.Error(f"a row has more than {LONGEST_LINE:,} characters")
            yield line

    # A caption may begin with a quote that is never closed, which would swallow the rows up to the next quote. A TSV
    # needs no quotes, so each line is a row; a CSV is read as its quotes say.
    # surrogateescape keeps bytes that are not UTF-8, so that the error names their row.
    with open_file(url) as raw, io.TextIOWrapper(raw, "utf-8-sig", errors="surrogateescape", newline="") as text:
        found = lines()
        first = next(found, "")
        every, mark = itertools.chain([first], found), "\t" if tabs else _separator(first)
        quoting: Any = csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
        reader = csv.reader(every, delimiter=mark, quoting=quoting, skipinitialspace=mark == "|")
        header: list[str] | None = None
        for cells in reader:
            held = 0
            if tabs:
                cells = [_unquote(cell) for cell in cells]
            if header is None:
                header = cells
            elif cells:  # skip blank lines: many files end with one
                row: dict[Any, Any] = {name: _number(name, cell) for name, cell in zip(header, cells, strict=False)}
                if len(cells) != len(header):
                    row[PROBLEM] = f"the row has {len(cells)} cells, the header {len(header)}"
                yield row


def _csv_kinds(url: str, *, tabs: bool = False) -> dict[str, str]:
    with open_file(url) as raw:
        first = raw.readline(LONGEST_LINE).decode("utf-8-sig", "replace")
    mark = "\t" if tabs else _separator(first)
    return dict.fromkeys(next(csv.reader([first], delimiter=mark, skipinitialspace=mark == "|"), []), TEXT)


def _unquote(cell: str) -> str:
    """Removes the quotes that some writers put around a cell of a TSV, unless a quote inside is single."""
    inner = cell[1:-1].replace('""', "")
    if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"' or '"' in inner:
        return cell
    return cell[1:-1].replace('""', '"')


def _number(name: str, cell: str) -> Any:
    if name in ("original_width", "original_height") and cell.isascii() and cell.isdigit() and len(cell) < 20:
        return int(cell)
    return cell


def _json_rows(url: str, *_: Any) -> Iterator[Row]:
    with open_file(url) as raw:
        while line := raw.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                while line and not line.endswith(b"\n"):
                    line = raw.readline(LONGEST_LINE)
                yield {PROBLEM: f"the line has more than {LONGEST_LINE:,} bytes"}
                continue
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield {PROBLEM: f"the line is not JSON: {error}"}
                continue
            yield (
                row
                if isinstance(row, dict)
                else {PROBLEM: f"the line holds a {type(row).__name__}, expected an object"}
            )


def column_kinds(url: str) -> dict[str, str]:
    """Returns what each column holds, judging by the start of the file: `TEXT`, `TEXTS`, or something else."""
    try:
        return table_format(url).kinds(url)
    except (OSError, ValueError, pa.ArrowException, csv.Error) as error:
        raise open_error(url, "a table", error) from error


def kinds_in(schema: pa.Schema) -> dict[str, str]:
    """Returns what the columns of a schema hold."""
    return {column.name: _arrow_kind(column.type) for column in schema}


def _arrow_kind(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return TEXT
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if lists and _arrow_kind(kind.value_type) == TEXT:
        return TEXTS
    return TEXT if pa.types.is_null(kind) else str(kind)[:_LONGEST_COLUMN]


def _json_kinds(url: str) -> dict[str, str]:
    """Returns what each column holds, judging by several rows: one may be broken or lack a column."""
    found: dict[str, set[str]] = {}
    for row in itertools.islice(_json_rows(url), _LOOK_AT):
        for name, value in row.items():
            if isinstance(name, str):
                found.setdefault(name, set()).update(() if value is None else (json_type_name(value),))

    def usable_first(kind: str) -> tuple[bool, bool, str]:
        return kind != TEXT, kind != TEXTS, kind

    return {name: min(kinds, key=usable_first, default=TEXT) for name, kinds in found.items()}


def check_texts(column: str, kinds: Mapping[str, str], url: str) -> None:
    """Checks that a column holds texts, or lists of texts."""
    if kinds[column] not in (TEXT, TEXTS):
        texts = [name for name, kind in kinds.items() if kind == TEXT]
        listed = ", ".join(name[:_LONGEST_COLUMN] for name in texts[:_MOST_LISTED]) or "none"
        raise PoolError(f"{url}: {column!r} holds {kinds[column]}; columns of text: {listed}")


def open_error(url: str, kind: str | None, error: Exception) -> PoolError | UnreachedError:
    """Returns the error for a file that cannot be opened; `kind` is the expected content."""
    if is_transient(error):
        return UnreachedError(f"{url} cannot be reached now ({error}); the file may be fine: repeat this later")
    return PoolError(f"{url} cannot be read{f' as {kind}' if kind else ''}: {error}")


def choose_column(kind: str, requested: str | None, usual: Sequence[str], present: Sequence[str], url: str) -> str:
    """Returns the requested column, or the first present one of the usual names."""
    if requested is not None:
        if requested in present:
            return requested
        raise PoolError(
            f"{url} has no column {requested!r}{nearest(requested, present)}; it has: {list_columns(present)}"
        )
    for name in usual:
        if name in present:
            return name
    headless = any("://" in name or len(name) > 1_000 for name in present)
    urls = any("url" in name.lower() or "://" in name for name in present)
    raise PoolError(
        f"{url} has no column that looks like the {kind} (looked for {', '.join(usual)}); its columns: "
        f"{list_columns(present)}. Name the right one with '{kind}: COLUMN' under 'pool', or --{kind}"
        + ("; its first line seems to be no header: sed -i '1i caption\\turl' FILE adds one" if headless else "")
        + ("; captions alone are a pool with image: none" if kind == "image" else "")
        + ("; images at URLs are not downloaded: img2dataset does, into tars" if kind == "image" and urls else "")
    )


def list_columns(names: Sequence[str]) -> str:
    """Returns the columns of a table for a message; only their number if they do not look like columns.

    If the file is not a table, its first line looks like a column name, and may be a password.
    """
    if (len(names) > 1 or {*names} & {*CAPTION_COLUMNS}) and all(len(name) <= _LONGEST_COLUMN for name in names):
        more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
        return ", ".join(map(str, names[:_MOST_LISTED])) + more
    return f"{len(names)} of unreadable names" if names else "none"


# ---- rows of Parquet files, a few at a time --------------------------------------------------------------------------
# Parquet cannot seek inside a row group, so we leave the reader open for the next range. So a process reads a file
# once, however many shards it has.

_BATCH_BYTES = 64 << 20  # held at once: fewer rows than `BATCH` if they are larger
_PAGES_AT_ONCE = 8 << 20  # bytes of a large column that are read at once

#: The reader left open at the end of a range, by file, columns, rows held at once, and next row.
_left_open: dict[tuple[Any, ...], Generator[Row, None, None]] = {}
_guard = threading.Lock()


def _parquet_kinds(url: str) -> dict[str, str]:
    with open_file(url) as raw:
        return kinds_in(pq.ParquetFile(raw).schema_arrow)


def _parquet_groups(url: str) -> list[int]:
    with open_file(url) as raw:
        facts = pq.ParquetFile(raw).metadata
        return [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]


def _parquet_rows(url: str, columns: Sequence[str], first: int, rows: int | None, batch: int) -> Iterator[Row]:
    file = (url, stamp(url) if first or rows is not None else "", tuple(columns), batch)
    with _guard:
        reader = _left_open.pop((*file, first), None) or _rows_from(url, columns, first, batch)
    done = False
    try:
        yield from itertools.islice(reader, rows)
        done = True
    finally:
        if not done or rows is None:
            reader.close()
        else:
            with _guard:
                for other in _left_open.values():
                    other.close()
                _left_open.clear()
                _left_open[*file, first + rows] = reader


def _rows_from(url: str, columns: Sequence[str], first: int, batch: int) -> Generator[Row, None, None]:
    """Yields all rows from `first` on; earlier rows of its row group are decoded and dropped."""
    with open_file(url) as raw:
        # `paged` reads page by page, for row groups that are too large to hold whole.
        paged = pq.ParquetFile(raw, pre_buffer=False, buffer_size=_PAGES_AT_ONCE)
        whole = pq.ParquetFile(raw, pre_buffer=False, metadata=paged.metadata)
        columns = [name for name in dict.fromkeys(columns) if name in whole.schema_arrow.names]
        for number in range(whole.num_row_groups):
            group = whole.metadata.row_group(number)
            if group.num_rows <= first:
                first -= group.num_rows
                continue
            file, held = whole, batch
            if group.total_byte_size > _BATCH_BYTES:
                file, held = paged, max(1, min(batch, _BATCH_BYTES * group.num_rows // group.total_byte_size))
            for part in file.iter_batches(held, row_groups=[number], columns=columns):
                yield from _cells(part.slice(first))
                first = max(0, first - part.num_rows)


def _arrow_batches(url: str) -> Iterator[pa.RecordBatch]:
    """Yields the batches of an Arrow file on a disk; their bytes are read when looked at."""
    with pa.memory_map(url) as raw, _open_arrow(raw) as reader:
        many = getattr(reader, "num_record_batches", None)
        yield from reader if many is None else map(reader.get_batch, range(many))


def _arrow_kinds(url: str) -> dict[str, str]:
    with pa.memory_map(url) as raw:
        return kinds_in(_open_arrow(raw).schema)


def _open_arrow(raw: Any) -> Any:
    """Opens Arrow's stream form, as `datasets` saves it, or its file form (Feather 2), as polars does."""
    is_file = raw.read(6) == b"ARROW1"
    raw.seek(0)
    return pa.ipc.open_file(raw) if is_file else pa.ipc.open_stream(raw)


def _arrow_rows(url: str, columns: Sequence[str], first: int, rows: int | None, batch: int) -> Iterator[Row]:
    return itertools.islice(itertools.chain.from_iterable(map(_cells, _arrow_parts(url, columns, first, batch))), rows)


def _arrow_parts(url: str, columns: Sequence[str], first: int, batch: int) -> Iterator[pa.RecordBatch]:
    for part in _arrow_batches(url):
        if part.num_rows > first:
            part = part.select([name for name in dict.fromkeys(columns) if name in part.schema.names])
            part.validate(full=True)  # a wrong offset would make pyarrow read any memory
            held = max(1, min(batch, int(_BATCH_BYTES * part.num_rows / max(part.nbytes, 1))))
            for start in range(first, part.num_rows, held):
                yield part.slice(start, held)
        first = max(0, first - part.num_rows)


def _cells(part: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return part.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:  # some text is not UTF-8: keep its bytes, so that the error names its row
        columns = {}
        for name, column in zip(part.schema.names, part.columns, strict=True):
            is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            values = (column.cast(pa.large_binary()) if is_text else column).to_pylist()
            if is_text:
                values = [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]
            columns[name] = values
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class TableFormat(NamedTuple):
    """How tables of one format are read, each by its URL.

    Attributes:
        kinds: returns what each column holds; see `column_kinds`.
        rows: yields rows; see `table_rows`.
        groups: returns the rows of each part of a table that can be read alone; None: tables are read whole.
    """

    kinds: Callable[[str], dict[str, str]]
    rows: Callable[[str, Sequence[str], int, int | None, int], Iterator[Row]]
    groups: Callable[[str], list[int]] | None = None


_ARROW = TableFormat(_arrow_kinds, _arrow_rows, lambda url: [part.num_rows for part in _arrow_batches(url)])

#: The formats of tables by the ending of their files.
TABLES: Mapping[str, TableFormat] = {
    ".parquet": TableFormat(_parquet_kinds, _parquet_rows, _parquet_groups),
    ".csv": TableFormat(_csv_kinds, _csv_rows),
    ".tsv": TableFormat(partial(_csv_kinds, tabs=True), partial(_csv_rows, tabs=True)),
    ".jsonl": TableFormat(_json_kinds, _json_rows),
    **dict.fromkeys(ARROW, _ARROW),
    LANCE: TableFormat(
        lambda url: kinds_in(lance_schema(url)),
        lambda *how: itertools.chain.from_iterable(map(_cells, lance_batches(*how))),
        fragment_rows,
    ),
}


def table_format(url: str) -> TableFormat:
    """Returns the format of a table by the ending of its URL."""
    return next((found for ending, found in TABLES.items() if url.endswith(ending)), TABLES[".csv"])
