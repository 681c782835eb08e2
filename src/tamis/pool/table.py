"""Tables of image and caption: Parquet, CSV, TSV and JSON lines; images as paths, bytes, or Hugging Face structs."""

from __future__ import annotations

import codecs
import csv
import functools
import io
import itertools
import json
import logging
import os
import posixpath
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.data import Member, Sample
from tamis.errors import PoolError, SampleError, ShardError, UnreachedError, nearest
from tamis.pool.files import is_remote, open_file, read_head, stamp
from tamis.pool.images import is_image
from tamis.pool.parquet import parquet_rows
from tamis.pool.source import (
    MAX_TEXT_BYTES,
    ROWS_SUFFIX,
    PoolSpec,
    Problem,
    SampleFiles,
    ShardReader,
    bounded,
    kind_of,
    set_caption,
    set_identity,
    too_many_bytes,
    utf8,
)
from tamis.remote import passing, redacted, unreached

log = logging.getLogger(__name__)

#: Names that people give these columns, the likelier first.
IMAGE_COLUMNS = (
    "image",
    "image_path",
    "jpg",
    "path",
    "file_name",
    "filename",
    "filepath",
    "file",
    "image_bytes",
    "bytes",
)
CAPTION_COLUMNS = ("caption", "text", "alt_text", "alt", "title", "TEXT")

#: Extensions that an image keeps; any other is made from its first bytes.
_EXTENSIONS = frozenset(
    ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "jp2", "avif", "ppm", "tga", "ico")
)

#: Row groups of a Parquet file are put together into shards of at least this many rows; larger tables are cut into
#: shards of so many.
SHARD_ROWS = 10_000

#: A table, or so many row groups of one as are put together, is cut only where it has more rows than this.
WHOLE_ROWS = 50_000

#: What a column holds that can be captions, as `column_kinds` says it.
TEXT, TEXTS = "text", "a list of texts"

_SHORTEST_ROW = 4  # bytes: a text file in which even such rows would not be too many is not counted

#: What names no column: a table of captions alone, which scorers of captions need no more than.
NO_IMAGES = "none"

# What messages show of a table's columns, so that they end.
_MOST_LISTED = 50
_LONGEST_COLUMN = 60

_LOOK_AT = 100  # lines of a JSONL file that tell its columns

#: No line of a text file, and no row of several lines, has more characters: an image is not written in them.
_MOST_CHARACTERS = 2 * MAX_TEXT_BYTES


class Cut(NamedTuple):
    """A range of a table's rows.

    Attributes:
        first: the number of its first row in the file.
        rows: how many; None: all from the first one on.
        offset: the byte of a text file where the first row begins; 0 where it follows the header.
        pairs: how many rows that are, also where all are meant; None where nobody has counted them.
    """

    first: int = 0
    rows: int | None = None
    offset: int = 0
    pairs: int | None = None


@dataclass(frozen=True, kw_only=True)
class TableShard:
    """One table, or a range of its rows.

    Attributes:
        image, caption: the columns; no image column: captions alone.
        cut: which of the file's rows.
    """

    name: str
    url: str
    spec: PoolSpec
    image: str | None
    caption: str
    cut: Cut = Cut()

    @property
    def first_row(self) -> int:
        """How many rows of the file come before, for keys."""
        return self.cut.first

    @property
    def pairs(self) -> int | None:
        """How many rows it has, where the pool was told when it was opened."""
        return self.cut.pairs

    def stamp(self) -> str:
        return stamp(self.url)

    def samples(self) -> Iterator[Sample]:
        return bounded(self._samples(), self.url)

    def _samples(self) -> Iterator[Sample]:
        seen: set[str] = set()
        for number, row in enumerate(self._rows()):
            sample = self.sample(number, row)
            if sample.key in seen:
                sample.mark("duplicate_key", f"an earlier sample of this shard has the key {sample.key[:200]!r} too")
            seen.add(sample.key)
            yield sample

    def sample(self, number: int, row: Mapping[str, Any]) -> Sample:
        """Returns the sample that a row of this shard makes up, its image read."""
        key = row.get("key")
        number += self.first_row
        sample = Sample(uid=(0, 0), key=utf8(str(key)) if key not in (None, "") else f"{number:09d}")
        if problem := row.get(None):  # type: ignore[call-overload]  # how a row that is no row comes along
            sample.mark("json_broken", str(problem))
        ext, image = ("jpg", None) if self.image is None else self._image(sample, row.get(self.image))
        set_caption(sample, row.get(self.caption), f"column {self.caption!r}")
        raw = None if sample.shown_caption is None else sample.shown_caption.encode()
        set_identity(sample, row, image, raw, self.spec.fields)
        sample.image, sample.image_bytes = image, len(image or b"")
        sample.members = (Member(ext, -1, len(image or b"")), Member("txt", -1, len(raw or b"")))
        return sample

    def _image(self, sample: Sample, value: Any) -> tuple[str, bytes | None]:
        """Returns extension and bytes of what the image column holds: bytes, a path, or {bytes, path}."""
        path, data = None, None
        if isinstance(value, Mapping):
            path, data = value.get("path"), value.get("bytes")
            path, data = path if isinstance(path, str) else None, data if isinstance(data, bytes) else None
        elif isinstance(value, bytes):
            data = value
        elif isinstance(value, str) and value:
            path = value
        if data is None and path:
            try:
                data = _read_image(self._beside(path), self.spec.max_bytes)
            except SampleError as error:
                sample.mark(error.status, f"the image {redacted(path)!r} {error.reason}")
            except Exception as error:  # a missing file, or whatever a remote store raises
                if passing(error) and self._beside_it(path):
                    raise UnreachedError(f"{self.url}: the image {redacted(path)!r} cannot be read: {error}") from None
                what = f"{type(error).__name__}: {error}"
                sample.mark("image_missing", f"the image {redacted(path)!r} cannot be read: {what}")
        elif data is None:
            sample.mark("image_missing", f"there is no image in the column {self.image!r}")
        elif len(data) > self.spec.max_bytes:
            sample.mark("image_too_large", f"the image has {too_many_bytes(len(data), self.spec.max_bytes)}")
            data = None
        # The column may name any file: a path must not choose what a file of an export is called.
        ext = posixpath.splitext(path or "")[1].lstrip(".").lower()
        return ext if ext in _EXTENSIONS else _ext_of(data), data

    def _beside(self, path: str) -> str:
        if is_remote(path) or os.path.isabs(path):
            return path
        folder, slash, _ = self.url.rpartition("/")
        return folder + slash + path

    def _beside_it(self, path: str) -> bool:
        """Tells whether an image lies on a store, or on the table's own web server.

        Among images all over the web many servers are gone for good: each costs its row, not the shard.
        """
        path = self._beside(path)
        return not path.startswith(("http://", "https://")) or path.split("/")[:3] == self.url.split("/")[:3]

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        with _reported(self.url):
            if self.url.endswith(".parquet"):
                yield from parquet_rows(self.url, self._columns(), *self.cut[:2])
            else:
                with open_file(self.url) as raw:
                    yield from itertools.islice(text_rows(self.url, raw, self.cut.offset), self.cut.rows)

    def _columns(self) -> list[str]:
        images = [] if self.image is None else [self.image]
        return [*images, self.caption, "key", "uid", "original_width", "original_height", *self.spec.fields]

    def rows_from(self, first: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yields numbered rows of this shard, from one at or before `first`: of a Parquet file from that one."""
        if not self.url.endswith(".parquet"):
            yield from enumerate(self._rows())
            return
        with _reported(self.url):
            left = None if self.cut.rows is None else self.cut.rows - first
            yield from enumerate(parquet_rows(self.url, self._columns(), self.cut.first + first, left), start=first)

    def image_member(self, members: Sequence[Member]) -> Member | None:
        return members[0] if members and self.image is not None else None

    def text_members(self, members: Sequence[Member]) -> Sequence[Member]:
        return ()

    def reader(self, *, whole: bool, keep_open: bool) -> ShardReader:
        if not whole and (rows := self._rows_of_paths()) is not None:
            return _ByPath(self, rows)
        return _ByRow(self, whole)

    def _rows_of_paths(self) -> pa.Array | None:
        """Returns each row's image path, caption and uid as JSON; None where the images are (or may be) in the file."""
        names = [self.image or "", self.caption, "uid"]
        found = self._rows()
        if self.url.endswith(".parquet"):
            with _reported(self.url), open_file(self.url) as raw:
                kind = pq.ParquetFile(raw, pre_buffer=False).schema_arrow.field(self.image).type
            if not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
                return None
        return pa.array(
            [json.dumps({name: row.get(name) for name in names}, default=_as_text) for row in found], pa.large_string()
        )

    def again(
        self, row: int, cells: Mapping[str, Any], members: Sequence[Member], *, whole: bool
    ) -> SampleFiles | Problem:
        """Returns the sample that a row of this shard makes up now: its image and, where `whole`, caption and cells."""
        sample = self.sample(row, cells)
        member = self.image_member(members)
        if member is not None and sample.image is None and (member.size or not whole):
            status = sample.status if sample.status.startswith("image") else "image_missing"
            return Problem(status, sample.reason or "the image cannot be read")
        files: dict[str, bytes] = {}
        # The column may name any file of this machine; none but images are handed out.
        if member is not None and sample.image is not None and is_image(sample.image):
            files[member.ext] = sample.image
        if whole:
            plain = {name: value for name, value in cells.items() if _is_plain(name, value)}
            files["txt"] = (sample.shown_caption or "").encode()
            # A lone surrogate becomes the escape that JSON has for it.
            files["json"] = json.dumps(plain, ensure_ascii=False).encode("utf-8", "backslashreplace")
        return SampleFiles(sample, files)


class _ByPath:
    """The images that a table names by their paths: the paths are held, so that any row can be read."""

    sequential = False

    def __init__(self, shard: TableShard, rows: pa.Array) -> None:
        self._shard, self._rows = shard, rows

    def read(self, rows: Sequence[int], members: Sequence[Sequence[Member]]) -> list[SampleFiles | Problem]:
        return [self._one(row, some) for row, some in zip(rows, members, strict=True)]

    def _one(self, row: int, members: Sequence[Member]) -> SampleFiles | Problem:
        if row >= len(self._rows):
            return _no_row(self._shard, row)
        return self._shard.again(row, json.loads(self._rows[row].as_py()), members, whole=False)

    def close(self) -> None:
        """There is nothing open."""


class _ByRow:
    """A table read row by row, and a Parquet file by row groups: images lie in it, or whole rows are wanted."""

    sequential = True

    def __init__(self, shard: TableShard, whole: bool) -> None:
        self._shard, self._whole = shard, whole
        self._lock = threading.Lock()
        self._rows: Iterator[tuple[int, Mapping[str, Any]]] = iter(())
        self._next = -1  # the row from which on the iterator can give rows; -1: it has not begun
        self._told = False

    def read(self, rows: Sequence[int], members: Sequence[Sequence[Member]]) -> list[SampleFiles | Problem]:
        with self._lock:
            return [self._one(row, some) for row, some in zip(rows, members, strict=True)]

    def close(self) -> None:
        self._rows, self._next = iter(()), -1

    def _one(self, row: int, members: Sequence[Member]) -> SampleFiles | Problem:
        if self._next < 0 or row < self._next:
            self._rows = self._shard.rows_from(row)
        self._next = -1  # as it stays where reading fails
        for number, cells in self._rows:
            if number == row:
                self._next = row + 1
                found = self._shard.again(row, cells, members, whole=self._whole)
                if self._whole and isinstance(found, SampleFiles):
                    self._warn_of_no_image(row, found)
                return found
        self.close()
        return _no_row(self._shard, row)

    def _warn_of_no_image(self, row: int, found: SampleFiles) -> None:
        if self._told or found.sample.image is None or found.files.keys() > {"txt", "json"}:
            return
        self._told = True
        log.warning(
            "%s: what the column %r holds is not an image in row %d (and maybe others): it is not copied",
            *(self._shard.url, self._shard.image, self._shard.first_row + row),
        )


def _no_row(shard: TableShard, row: int) -> Problem:
    return Problem("changed", f"{shard.url} has changed since it was scored: it has no row {shard.first_row + row}")


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


@contextmanager
def _reported(url: str) -> Iterator[None]:
    """Turns what a damaged or missing table raises into a ShardError."""
    try:
        yield
    except (OSError, ValueError, OverflowError, pa.ArrowException, csv.Error) as error:
        kind = UnreachedError if unreached(error) else ShardError
        raise kind(f"{url}: cannot be read further: {error}") from error


def _read_image(path: str, limit: int) -> bytes:
    """Returns the bytes of an image file.

    Raises:
        SampleError: it is not a regular file, or has more bytes than the limit.
        Exception: it cannot be read; remote stores have errors of their own.
    """
    for protocol in ("file://", "local://"):
        path = path.removeprefix(protocol)
    if not is_remote(path):
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):  # a pipe would wait for ever, a device may never end
            raise SampleError("image_missing", "is not a regular file")
        if facts.st_size > limit:
            raise SampleError("image_too_large", f"has {too_many_bytes(facts.st_size, limit)}")
        with open_file(path) as file:
            data = file.read(limit + 1)
    else:
        data = read_head(path, limit + 1)  # by one request
    if len(data) > limit:
        raise SampleError("image_too_large", f"has more bytes than the limit of {limit:,}")
    return data


def _is_plain(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, str | int | float | bool | type(None))


def _ext_of(data: bytes | None) -> str:
    head = (data or b"")[:12]
    if head.startswith(b"\x89PNG"):
        return "png"
    if head.startswith(b"GIF8"):
        return "gif"
    return "webp" if head[8:12] == b"WEBP" else "jpg"


class _Lines:
    """The lines of a text file, for `csv.reader`: it takes as many as a row has, and itself holds a row of any length.

    Attributes:
        held: characters since the last row, which whoever takes the rows sets to 0.
        read: characters so far.
    """

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self.held = self.read = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._text.readline(_MOST_CHARACTERS + 1)
        self.held += len(line)
        self.read += len(line)
        if self.held > _MOST_CHARACTERS:
            raise csv.Error(f"a row has more than {_MOST_CHARACTERS:,} characters")
        if not line:
            raise StopIteration
        return line


def text_rows(url: str, raw: Any, offset: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a CSV, TSV or JSON lines file, from the row on that begins at an offset; 0: all."""
    if url.endswith(".jsonl"):
        raw.seek(offset) if offset else None
        return jsonl_rows(raw)
    return csv_rows(raw, _delimiter(url), offset)


def _delimiter(url: str) -> str:
    return "\t" if url.endswith(".tsv") else ","


def csv_rows(raw: Any, delimiter: str, offset: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a CSV or TSV file by the names of its header, from the row on that begins at an offset."""
    with _csv_lines(raw, delimiter, "utf-8-sig") as (_, lines):
        header = next(lines, [])
        if not offset:
            yield from _named(header, lines)
    if offset:
        raw.seek(offset)
        with _csv_lines(raw, delimiter, "utf-8") as (_, lines):
            yield from _named(header, lines)


def _named(header: Sequence[str], lines: Iterator[list[str]]) -> Iterator[Mapping[str, Any]]:
    for cells in lines:
        if not cells:
            continue  # a blank line, as at the end of many files
        row: dict[Any, Any] = dict(zip(header, cells, strict=False))
        if len(cells) != len(header):
            row[None] = f"the row has {len(cells)} cells, the header {len(header)}"
        yield {name: _number(name, cell) for name, cell in row.items()}


@contextmanager
def _csv_lines(raw: Any, delimiter: str, encoding: str) -> Iterator[tuple[_Lines, Iterator[list[str]]]]:
    """Gives the lines of an open file, and the cells of its rows: [] for a blank line."""
    csv.field_size_limit(MAX_TEXT_BYTES)
    # surrogateescape carries bytes that are not UTF-8 through to the row, where they are reported.
    text = io.TextIOWrapper(raw, encoding=encoding, errors="surrogateescape", newline="")
    # Some captions begin with a quote that nothing closes; it would swallow the lines up to the next one. A TSV needs
    # no quotes, so there each line is a row; a CSV is taken at its word.
    tabs = delimiter == "\t"
    source = _Lines(text)
    reader = csv.reader(source, delimiter=delimiter, quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL)

    def rows() -> Iterator[list[str]]:
        for cells in reader:
            source.held = 0
            yield [_unquoted(cell) for cell in cells] if tabs else cells

    try:
        yield source, rows()
    finally:
        text.detach()  # the file is its opener's to close


def _row_starts(url: str, raw: Any) -> Iterator[int]:
    """Yields the byte at which each row of a text file begins, as far as rows can be told from one another.

    Cost: a GB takes some 2 s as JSON lines, 5 to 10 s as CSV or TSV.
    """
    try:
        if url.endswith(".jsonl"):
            before = 0
            while line := raw.readline(_MOST_CHARACTERS + 1):
                if len(line) > _MOST_CHARACTERS:
                    return
                if line.strip():
                    yield before
                before += len(line)
            return
        start = len(codecs.BOM_UTF8)
        before = start if raw.read(start) == codecs.BOM_UTF8 else 0
        raw.seek(before)
        # Latin-1 has a character for each byte, and what parts rows and cells is the same in it as in UTF-8.
        with _csv_lines(raw, _delimiter(url), "latin-1") as (source, lines):
            begin = before
            for number, cells in enumerate(lines):
                if number and cells:
                    yield begin
                begin = before + source.read
    except csv.Error:  # what follows is its shard's to report
        return


def _unquoted(cell: str) -> str:
    """Returns a cell of a TSV without the quotes that some writers put around it, where they are in pairs."""
    inner = cell[1:-1].replace('""', "")
    if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"' or '"' in inner:
        return cell
    return cell[1:-1].replace('""', '"')


def _number(name: Any, cell: str) -> Any:
    if name in ("original_width", "original_height") and cell.isascii() and cell.isdigit() and len(cell) < 20:
        return int(cell)
    return cell


def jsonl_rows(raw: Any) -> Iterator[Mapping[str, Any]]:
    while line := raw.readline(_MOST_CHARACTERS + 1):
        if len(line) > _MOST_CHARACTERS:
            while line and not line.endswith(b"\n"):
                line = raw.readline(_MOST_CHARACTERS)
            yield {None: f"the line has more than {_MOST_CHARACTERS:,} bytes"}  # type: ignore[dict-item]
            continue
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield {None: f"the line is not JSON: {error}"}  # type: ignore[dict-item]
            continue
        if isinstance(row, dict):
            yield row
        else:
            yield {None: f"the line holds a {type(row).__name__}, expected an object"}  # type: ignore[dict-item]


def column_kinds(url: str) -> dict[str, str]:
    """Returns what each column of a table holds, from its first bytes: "text", "a list of texts", or something else.

    Raises:
        PoolError: the file is no such table.
        UnreachedError: its store or disk did not answer: the file may be whole.
    """
    try:
        with open_file(url) as raw:
            if url.endswith(".parquet"):
                return {column.name: _arrow_kind(column.type) for column in pq.ParquetFile(raw).schema_arrow}
            if url.endswith(".jsonl"):
                return _json_kinds(itertools.islice(jsonl_rows(raw), _LOOK_AT))
            first = raw.readline(_MOST_CHARACTERS).decode("utf-8-sig", "replace")
            names = next(csv.reader([first], delimiter="\t" if url.endswith(".tsv") else ","), [])
            return dict.fromkeys(names, TEXT)
    except (OSError, ValueError, pa.ArrowException, csv.Error) as error:
        raise unopened(url, "a table", error) from error


def column_names(url: str) -> list[str]:
    """Returns the columns of a table; errors as of `column_kinds`."""
    return list(column_kinds(url))


def _arrow_kind(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return TEXT
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if lists and _arrow_kind(kind.value_type) == TEXT:
        return TEXTS
    return TEXT if pa.types.is_null(kind) else str(kind)[:_LONGEST_COLUMN]


def _json_kinds(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the kinds of some rows: a broken first line, or one that leaves out a column, must not stand for all."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(name, str):
                found.setdefault(name, set()).update(() if value is None else (kind_of(value),))
    usable = (TEXT, TEXTS)
    return {
        name: next((one for one in (*usable, *sorted(kinds)) if one in kinds), TEXT) for name, kinds in found.items()
    }


def check_texts(column: str, kinds: Mapping[str, str], url: str) -> None:
    """Checks that a column holds texts, or lists of them, so that no other is taken for captions.

    Raises:
        PoolError: it holds something else; the message names the columns of texts.
    """
    if kinds[column] not in (TEXT, TEXTS):
        texts = [name for name, kind in kinds.items() if kind == TEXT]
        listed = ", ".join(name[:_LONGEST_COLUMN] for name in texts[:_MOST_LISTED]) or "none"
        raise PoolError(
            f"{url}: the column {column!r} holds {kinds[column]}, and captions are text; its columns of text: {listed}"
        )


def unopened(url: str, kind: str | None, error: Exception) -> PoolError | UnreachedError:
    """Returns what is said where a file of a pool cannot be opened, by whether it may go better later.

    Args:
        url: of the file.
        kind: what it should be, where that is to be said.
        error: what was raised.
    """
    if passing(error):
        return UnreachedError(f"{url} cannot be reached now ({error}): it may be whole, so repeat the command later")
    return PoolError(f"{url} cannot be read{f' as {kind}' if kind else ''}: {error}")


def choose_column(kind: str, asked: str | None, usual: Sequence[str], present: Sequence[str], url: str) -> str:
    """Returns the column to use: the one asked for, or the first of a usual name.

    Raises:
        PoolError: the table has none; the message lists what it has.
    """
    if asked is not None:
        if asked in present:
            return asked
        raise PoolError(
            f"{url} has no column {asked!r}{nearest(asked, present)}; its columns: {listed_columns(present)}"
        )
    for name in usual:
        if name in present:
            return name
    raise PoolError(
        f"{url} has no column that looks like the {kind} (looked for {', '.join(usual)}); its columns: "
        f"{listed_columns(present)}. Name the right one with '{kind}: COLUMN' under 'pool', or --{kind}"
        + (f"; captions alone are a pool with {kind}: {NO_IMAGES}" if kind == "image" else "")
    )


def listed_columns(names: Sequence[str]) -> str:
    """Returns the columns of a table for a message; how many there are where they look like no columns.

    A file that is no table has one "column", its first line, and that may be a password.
    """
    if len(names) > 1 and all(len(name) <= _LONGEST_COLUMN for name in names):
        more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
        return ", ".join(map(str, names[:_MOST_LISTED])) + more
    return f"{len(names)}, of names that are not shown here" if names else "none"


def without_images(spec: PoolSpec) -> bool:
    """Tells whether a pool is said to be captions alone."""
    return spec.image == NO_IMAGES


def table_shards(url: str, stem: str, spec: PoolSpec, given: Set[str] = frozenset()) -> list[TableShard]:
    """Returns the shards of one table: itself, or ranges of its rows.

    Args:
        url: of the table.
        stem: what shards are called after.
        spec: of the pool.
        given: names of shards that a run has: a table that it knows in one piece, or in fewer, stays so.

    Raises:
        PoolError, UnreachedError: as of `column_names`; or the table lacks a column.
    """
    kinds = column_kinds(url)
    present = list(kinds)
    image = None if without_images(spec) else choose_column("image", spec.image, IMAGE_COLUMNS, present, url)
    caption = choose_column("caption", spec.caption, CAPTION_COLUMNS, present, url)
    check_texts(caption, kinds, url)
    cuts = _cuts(url, stem, given)
    return [
        TableShard(name=piece_name(stem, cuts, cut), url=url, spec=spec, image=image, caption=caption, cut=cut)
        for cut in cuts
    ]


def piece_name(stem: str, cuts: Sequence[Cut], cut: Cut) -> str:
    """Returns what one of the shards of a table is called."""
    return stem if len(cuts) == 1 else f"{stem}-rows{cut.first:09d}"


def _cuts(url: str, stem: str, given: Set[str]) -> Sequence[Cut]:
    try:
        if not url.endswith(".parquet"):
            return [Cut()] if stem in given else _text_cuts(url, stamp(url), SHARD_ROWS, WHOLE_ROWS)
        with open_file(url) as raw:
            facts = pq.ParquetFile(raw).metadata
            sizes = [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]
    except OSError as error:
        raise unopened(url, "a table", error) from error
    before = _put_together(sizes)
    now = [piece for cut in before for piece in pieces_of(cut, sum(sizes))]
    known = {name for name in given if name == stem or ROWS_SUFFIX.sub("", name) == stem}
    return before if known and known <= {piece_name(stem, before, cut) for cut in before} else now


def _put_together(sizes: Sequence[int]) -> list[Cut]:
    """Returns the row groups of a Parquet file, as many together as make a shard."""
    if sum(sizes) <= SHARD_ROWS or len(sizes) == 1:
        return [Cut(pairs=sum(sizes))]
    cuts, rows, before = [], 0, 0
    for number, size in enumerate(sizes, start=1):
        rows += size
        if rows >= SHARD_ROWS or number == len(sizes):
            cuts.append(Cut(before, rows if number < len(sizes) else None, pairs=rows))
            before, rows = before + rows, 0
    return cuts


def pieces_of(cut: Cut, total: int) -> list[Cut]:
    """Cuts a range of rows into shards, where it is too large for one.

    Args:
        cut: the range.
        total: rows of the file.
    """
    end = total if cut.rows is None else cut.first + cut.rows
    if end - cut.first <= WHOLE_ROWS:
        return [cut._replace(pairs=end - cut.first)]
    sizes = [(start, min(SHARD_ROWS, end - start)) for start in range(cut.first, end, SHARD_ROWS)]
    cuts = [Cut(start, size, pairs=size) for start, size in sizes]
    return cuts if cut.rows is not None else [*cuts[:-1], cuts[-1]._replace(rows=None)]


@functools.lru_cache(1024)
def _text_cuts(url: str, version: str, shard_rows: int, whole_rows: int) -> Sequence[Cut]:
    """Returns the ranges of rows of a text file, which is read once for it where it may have too many for one shard.

    Raises:
        OSError: it cannot be read.
    """
    if int(version.partition(":")[0] or 0) < whole_rows * _SHORTEST_ROW:
        return [Cut()]
    with open_file(url) as raw:
        rows, starts = 0, []
        for offset in _row_starts(url, raw):
            if rows % shard_rows == 0:
                starts.append((rows, offset))
            rows += 1
    if rows <= whole_rows:
        return [Cut(pairs=rows)]
    cuts = [Cut(first, shard_rows, offset if first else 0, shard_rows) for first, offset in starts]
    return [*cuts[:-1], cuts[-1]._replace(rows=None, pairs=rows - cuts[-1].first)]
