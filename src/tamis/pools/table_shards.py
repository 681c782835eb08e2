"""Tables of image and caption (Parquet, CSV, TSV, JSON lines, Arrow, Lance); images as paths, bytes or Hub structs."""

from __future__ import annotations

import base64
import binascii
import csv
import fnmatch
import itertools
import json
import os
import posixpath
import re
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from tamis.core.errors import PoolError, SampleError, ShardError, UnreachedError, first_line
from tamis.core.files.find import is_lance, is_remote, read_head
from tamis.core.files.remote import is_transient, is_unreached, redact
from tamis.core.types import RESERVED, STATUSES, Member, Sample
from tamis.pools.images import is_image
from tamis.pools.rows import (
    BATCH,
    CAPTION_COLUMNS,
    PROBLEM,
    TEXT,
    check_texts,
    choose_column,
    column_kinds,
    open_error,
    table_format,
    table_rows,
)
from tamis.pools.source import (
    EXIF,
    PoolSpec,
    SampleFault,
    SampleFiles,
    SampleReader,
    Shard,
    json_bytes,
    own_texts,
    rows_of,
    too_many_bytes,
    utf8,
)

#: Usual names of the image column, the likeliest first.
IMAGE_COLUMNS = (
    *("image", "image_path", "jpg", "path", "file_name", "filename"),
    *("filepath", "file", "image_name", "image_bytes", "bytes"),
)

_CAPTION_COLUMNS = (*CAPTION_COLUMNS, "captions", "sentences")  # the latter hold lists

# Extensions that an image keeps; any other is replaced by one that fits its first bytes.
_EXTENSIONS = frozenset(
    [*("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp"), *("tif", "tiff", "jp2", "avif", "ppm", "tga", "ico")]
)

#: Row groups of a Parquet file are joined into shards of at least `SHARD_ROWS` rows; a shard of more than
#: `WHOLE_ROWS` is cut into shards of `SHARD_ROWS`.
SHARD_ROWS, WHOLE_ROWS = 10_000, 50_000

_IMAGE_STRUCT = "struct<bytes: binary, path: string>"  # how `datasets` writes an image, whatever the column's name

#: How text begins that is an image file in base64 (JPEG, PNG, GIF or WebP), perhaps as a data URL.
_BASE64 = re.compile(r"(?:data:image/[\w.+-]+;base64,)?((?:/9j/|iVBORw0KGgo|R0lGOD|UklGR)[A-Za-z0-9+/]{50})")

#: Kinds of columns that are no field's: lists, structs, bytes.
_COMPOUND = re.compile("<|binary|a list|an object")

#: Kinds of columns that hold no image: numbers, and lists, of bytes, of pixels or of several images.
_NO_IMAGE = re.compile("(large_|fixed_size_)?list|map|u?int|float|double|bool|a ")

#: As the image column: the table holds captions alone.
NO_IMAGES = "none"


class RowRange(NamedTuple):
    """A range of a table's rows."""

    first: int = 0
    rows: int | None = None  # None: all from `first` on
    pairs: int | None = None  # how many rows it has, if counted


@dataclass(frozen=True, kw_only=True)
class TableShard(Shard):
    """One table, or a range of its rows; without an image column it holds captions alone."""

    batch: ClassVar[int] = BATCH  # rows held at once

    image: str | None
    caption: str
    range: RowRange = RowRange()

    @property
    def pairs(self) -> int | None:
        """How many rows it has, if counted."""
        return self.range.pairs

    def _samples(self) -> Iterator[Sample]:
        return (sample for number, row in self.rows() for sample in self.samples_in(number, row))

    def rows(self, first: int = 0, most: int | None = None) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yields rows of this shard with their numbers: of a format with groups `most` from `first` on, else all."""
        first = first if table_format(self.url).groups else 0
        left = None if self.range.rows is None else self.range.rows - first
        left = most if left is None or (most is not None and most < left) else left
        try:
            yield from enumerate(
                table_rows(self.url, self.columns(), self.range.first + first, left, self.batch), first
            )
        except (OSError, ValueError, OverflowError, pa.ArrowException, csv.Error) as error:
            kind = UnreachedError if is_unreached(error) else ShardError
            raise kind(f"{self.url}: cannot be read further: {error}") from error

    def columns(self) -> list[str]:
        """Returns the columns to read from Parquet or Lance."""
        images = [] if self.image is None else [self.image]
        return [*images, self.caption, "key", "uid", "original_width", "original_height", EXIF, *self.spec.fields]

    def samples_in(self, number: int, row: Mapping[str, Any], only: Sequence[str | None] = ()) -> Iterator[Sample]:
        """Reads the image of a row and yields its samples: one for each caption to use, or `only` those."""
        key = row.get("key")
        sample = Sample(uid=(0, 0), key=utf8(str(key)) if key not in (None, "") else f"{self.range.first + number:09d}")
        if problem := row.get(PROBLEM):
            sample.mark("json_broken", str(problem))
        ext, image = ("jpg", None) if self.image is None else self._image(sample, row.get(self.image))
        sample.image, sample.image_bytes = image, len(image or b"")
        at = number if self.spec.captions == "each" else -1
        where = f"column {self.caption!r}"
        for each in rows_of(sample, row.get(self.caption), where, row, self.spec, image=image, only=only):
            text = (each.shown_caption or "").encode()
            each.members = (Member(ext, at, len(image or b"")), Member("txt", at, len(text)))
            yield each

    def _image(self, sample: Sample, value: Any) -> tuple[str, bytes | None]:
        """Returns extension and bytes of what the image column holds: bytes, a path, or {bytes, path}."""
        cell = value if isinstance(value, Mapping) else {"path": value, "bytes": value}
        path, data = cell.get("path"), cell.get("bytes")
        path, data = path if isinstance(path, str) else None, data if isinstance(data, bytes) else None
        if data is None and path and (found := _BASE64.match(path)):
            try:
                data = base64.b64decode(path[found.start(1) :] + "==")
            except binascii.Error:
                data = b""  # which no decoder reads
        if data is None and path:
            data = self._file(sample, path)
        elif data is None:
            sample.mark("image_missing", f"there is no image in the column {self.image!r}")
        elif len(data) > self.spec.max_bytes:
            sample.mark("image_too_large", f"the image has {too_many_bytes(len(data), self.spec.max_bytes)}")
            data = None
        return _extension(path or "", data or b""), data

    def _file(self, sample: Sample, path: str) -> bytes | None:
        folder, slash, _ = self.url.rpartition("/")
        full = path if is_remote(path) or os.path.isabs(path) else folder + slash + path
        try:
            return read_file(full, self.spec.max_bytes)
        except SampleError as error:
            sample.mark(error.status, f"the image {redact(path)!r} {error.reason}")
        except Exception as error:  # a missing file, or whatever a remote store raises
            # Many image servers are gone for good: that costs rows, not the shard. But we wait for stores, and for the
            # table's own server.
            elsewhere = full.startswith(("http://", "https://")) and full.split("/")[:3] != self.url.split("/")[:3]
            if is_transient(error) and not elsewhere:
                raise UnreachedError(f"{self.url}: the image {redact(path)!r} cannot be read: {error}") from None
            what = first_line(error)
            sample.mark("image_missing", f"the image {redact(path)!r} cannot be read: {what}")
        return None

    def image_member(self, members: Sequence[Member]) -> Member | None:
        return members[0] if members and self.image is not None else None

    def reader(self, *, whole: bool, keep_open: bool) -> SampleReader:
        if is_lance(self.url):
            return _ByRun(self, whole)
        if whole or (table_format(self.url).groups and column_kinds(self.url)[self.image or ""] != TEXT):
            return _ByRow(self, whole)
        first = next(self.rows(0, 1), (0, {}))[1].get(self.image or "")
        if isinstance(first, str) and _BASE64.match(first):
            return _ByRow(self, whole)
        return _ByPath(self)  # the images are files beside the table

    def read_again(
        self, row: int, cells: Mapping[str, Any], members: Sequence[Member], caption: str | None, *, whole: bool
    ) -> SampleFiles | SampleFault:
        """Returns the sample of a row as it is now, with its image and, if `whole`, its caption and cells as files."""
        sample = next(self.samples_in(row, cells, [caption]))
        member = self.image_member(members)
        if member is not None and sample.image is None and (member.size or not whole):
            status = sample.status if STATUSES[sample.status].no_image else "image_missing"
            return SampleFault(status, sample.reason or "the image cannot be read")
        files: dict[str, bytes] = {}
        # The column may name any file on this machine, so only images are returned.
        if member is not None and sample.image is not None and is_image(sample.image):
            files[member.ext] = sample.image
        if whole:
            plain = {
                name: value
                for name, value in cells.items()
                if isinstance(name, str) and isinstance(value, str | int | float | bool | type(None))
            }
            files["txt"] = (sample.shown_caption or "").encode()
            files["json"] = json_bytes(plain)
            own_texts(files, sample, self.spec, "txt")
        return SampleFiles(sample, files)

    def no_row(self, row: int) -> SampleFault:
        return SampleFault(
            "changed", f"{self.url} has changed since it was scored: it has no row {self.range.first + row}"
        )


class _ByRow:
    """Reads rows in order (in Parquet from any row on), for images inside the table or for whole rows."""

    sequential = True

    def __init__(self, shard: TableShard, whole: bool) -> None:
        self._shard, self._whole = shard, whole
        self._lock: AbstractContextManager[Any] = threading.Lock()
        self._rows: Iterator[tuple[int, Mapping[str, Any]]] = iter(())
        self._next = -1  # the next row of the iterator; -1: not started
        self._cells: Mapping[str, Any] = {}  # of the row before it: the next may be another caption of it

    def read(
        self, rows: Sequence[int], members: Sequence[Sequence[Member]], captions: Sequence[str | None]
    ) -> list[SampleFiles | SampleFault]:
        with self._lock:
            which = zip(rows, members, captions, strict=True)
            return [self._one(_table_row(row, some), some, caption) for row, some, caption in which]

    def close(self) -> None:
        self._rows, self._next, self._cells = iter(()), -1, {}

    def _one(self, row: int, members: Sequence[Member], caption: str | None) -> SampleFiles | SampleFault:
        if self._next < 0 or row < self._next - 1:
            self._rows = self._shard.rows(row)
        here = [(row, self._cells)] if row == self._next - 1 else []
        self._next = -1  # stays so if reading fails
        for number, cells in itertools.chain(here, self._rows):
            if number == row:
                self._next, self._cells = row + 1, cells
                return self._shard.read_again(row, cells, members, caption, whole=self._whole)
        self.close()
        return self._shard.no_row(row)


class _ByRun(_ByRow):
    """Reads rows of a Lance dataset in any order, neighbours with one scan."""

    sequential = False

    def read(
        self, rows: Sequence[int], members: Sequence[Sequence[Member]], captions: Sequence[str | None]
    ) -> list[SampleFiles | SampleFault]:
        places = [_table_row(row, some) for row, some in zip(rows, members, strict=True)]
        held: dict[int, Mapping[str, Any]] = {}
        for _, run in itertools.groupby(enumerate(sorted(set(places))), key=lambda place: place[1] - place[0]):
            numbers = [row for _, row in run]
            held |= self._shard.rows(numbers[0], len(numbers))
        return [
            self._shard.read_again(row, held[row], some, caption, whole=self._whole)
            if row in held
            else self._shard.no_row(row)
            for row, some, caption in zip(places, members, captions, strict=True)
        ]


class _ByPath(_ByRow):
    """Reads images by their paths in the table. It holds all paths in memory, so it reads rows in any order."""

    sequential = False

    def __init__(self, shard: TableShard) -> None:
        super().__init__(shard, whole=False)
        self._lock = nullcontext()
        names = [shard.image or "", shard.caption, "uid"]
        rows = ({name: row.get(name) for name in names} for _, row in shard.rows())
        self._all = pa.array([json.dumps(row, default=_as_text) for row in rows], pa.large_string())

    def _one(self, row: int, members: Sequence[Member], caption: str | None) -> SampleFiles | SampleFault:
        if row >= len(self._all):
            return self._shard.no_row(row)
        return self._shard.read_again(row, json.loads(self._all[row].as_py()), members, caption, whole=False)


def _table_row(row: int, members: Sequence[Member]) -> int:
    """Returns a sample's row in its shard's table: with `captions: each` its members have it, else it is `row`."""
    return members[0].offset if members and members[0].offset >= 0 else row


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def read_file(path: str, limit: int) -> bytes:
    """Returns the bytes of a regular file; raises SampleError for another one, or one over the limit."""
    for protocol in ("file://", "local://"):
        path = path.removeprefix(protocol)
    if not is_remote(path):
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):  # a pipe would wait for ever, a device may never end
            raise SampleError("image_missing", "is not a regular file")
        if facts.st_size > limit:
            raise SampleError("image_too_large", f"has {too_many_bytes(facts.st_size, limit)}")
    data = read_head(path, limit + 1)  # by one request
    if len(data) > limit:
        raise SampleError("image_too_large", f"has more bytes than the limit of {limit:,}")
    return data


def _extension(path: str, data: bytes) -> str:
    """Returns an image's extension. The column may name any file, so an export must not get its extension unchecked."""
    ext = posixpath.splitext(path)[1].lstrip(".").lower()
    if ext in _EXTENSIONS:
        return ext
    if data.startswith((b"\x89PNG", b"GIF8")):
        return "gif" if data.startswith(b"GIF8") else "png"
    return "webp" if data[8:12] == b"WEBP" else "jpg"


def table_shards(url: str, stem: str, spec: PoolSpec) -> list[TableShard]:
    """Returns the shards of a table, named after `stem`: one, or several row ranges of a large Parquet file."""
    kinds = column_kinds(url)
    present = list(kinds)
    structs = [name for name, kind in kinds.items() if kind.startswith(_IMAGE_STRUCT)]
    usual = (*IMAGE_COLUMNS, *structs[: len(structs) == 1])
    image = None
    if spec.image != NO_IMAGES:
        fitting = [name for name in usual if not _NO_IMAGE.match(kinds.get(name, "a "))]
        image = choose_column("image", spec.image, [*fitting, *usual], present, url)
        if _NO_IMAGE.match(kinds[image]):
            what = "expected the bytes of an image file, its path, base64, or a struct of bytes and path"
            raise PoolError(
                f"{url}: the image column {image!r} holds {kinds[image]}, {what}: convert it, or name another"
            )
    caption = choose_column("caption", spec.caption, _CAPTION_COLUMNS, present, url)
    check_texts(caption, kinds, url)
    spec = replace(spec, fields=_fields(spec.fields, kinds, (image, caption)))
    ranges = [RowRange()]
    if groups := table_format(url).groups:
        try:
            ranges = row_ranges(groups(url))
        except (OSError, pa.ArrowException) as error:
            raise open_error(url, "a table", error) from error
    return [
        TableShard(name=piece_name(stem, ranges, part), url=url, spec=spec, image=image, caption=caption, range=part)
        for part in ranges
    ]


def _fields(requested: Sequence[str], kinds: Mapping[str, str], used: Sequence[str | None]) -> tuple[str, ...]:
    """Returns the fields asked for, with the columns of numbers and texts that a pattern such as "*" names."""
    free = [name for name, kind in kinds.items() if name not in (*used, *RESERVED) and not _COMPOUND.search(kind)]
    matching = (fnmatch.filter(free, name) if "*" in name else [name] for name in requested)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(matching)))


def piece_name(stem: str, ranges: Sequence[RowRange], part: RowRange) -> str:
    """Returns the name of a shard of a table."""
    return stem if len(ranges) == 1 else f"{stem}-rows{part.first:09d}"


def row_ranges(groups: Sequence[int]) -> list[RowRange]:
    """Returns the shards of a Parquet file. `groups`: the rows of each row group."""
    ends, total = [0], 0
    for size in groups:
        total += size
        if total - ends[-1] >= SHARD_ROWS:
            ends.append(total)
    if len(ends) == 1 or ends[-1] < total:
        ends.append(total)
    starts: list[int] = []
    for start, end in itertools.pairwise(ends):
        starts += range(start, end, SHARD_ROWS) if end - start > WHOLE_ROWS else [start]
    ranges = [RowRange(start, end - start, pairs=end - start) for start, end in itertools.pairwise([*starts, total])]
    return [*ranges[:-1], ranges[-1]._replace(rows=None)]
