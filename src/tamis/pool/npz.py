"""Embeddings in an npz, read in blocks of rows: one that holds half a million rows takes 2.5 GB."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from tamis.arrays import Floats
from tamis.errors import ShardError, UnreachedError
from tamis.pool.files import RangeFile, is_remote, open_file
from tamis.remote import unreached

EMBEDDINGS = ("b32_img", "b32_txt", "l14_img", "l14_txt")

#: Rows that are read at once of each array.
_BLOCK = 1024

_READ_HEADER = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}

#: What stands before a member's bytes in a zip file: so many bytes, and at these places the lengths of what follows.
_LOCAL_HEADER, _NAME_LENGTH = 30, 26


class NpzRows:
    """The rows of an npz's arrays, one after the other from some row on, as float16. It holds a block of each.

    Attributes:
        url: of the npz.
        sizes: how many rows each array has, by name; {} where there is no npz.
    """

    def __init__(self, url: str, first: int = 0) -> None:
        """Opens it at a row.

        Raises:
            ShardError: it cannot be read, or holds something else; the message says what.
        """
        self.url, self._first = url, first
        self._held = ExitStack()
        self._arrays: dict[str, Iterator[Floats]] = {}
        self._blocks: dict[str, Floats] = {}
        self._begin = self._end = first  # rows of the blocks
        with opened_npz(url) as arrays:
            shapes = shapes_of(url, arrays) if arrays is not None else {}
        self.sizes = {name: shape[0] for name, shape in shapes.items()}

    def __enter__(self) -> NpzRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def at(self, row: int) -> Mapping[str, Floats]:
        """Returns a row of each array: (d,) float16. Rows are asked for one after the other.

        Raises:
            ShardError: an array ends before, or cannot be read.
        """
        if row >= self._end:
            self._begin, self._end = self._end, self._end + _BLOCK
            with _explained(self.url):
                self._blocks = {name: self._next(name) for name in self.sizes}
        try:
            return {name: block[row - self._begin] for name, block in self._blocks.items()}
        except IndexError:
            name = next(name for name, block in self._blocks.items() if row - self._begin >= len(block))
            raise ArrayEndError(name, self.sizes[name]) from None

    def _next(self, name: str) -> Floats:
        if name not in self._arrays:
            self._arrays[name] = self._read(name)
        return next(self._arrays[name], np.empty((0, 0), np.float16))

    def _read(self, name: str) -> Iterator[Floats]:
        archive = self._held.enter_context(zipfile.ZipFile(self._held.enter_context(open_file(self.url))))
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as entry:
            shape, by_columns, dtype = _READ_HEADER[np.lib.format.read_magic(entry)[0]](entry)
            before = entry.tell()
        if by_columns:  # rows do not lie one after the other
            with archive.open(info) as entry:
                whole = np.lib.format.read_array(entry, allow_pickle=False)
            yield from (whole[row : row + _BLOCK].astype(np.float16) for row in range(self._first, shape[0], _BLOCK))
            return
        size = dtype.itemsize * math.prod(shape[1:])
        stored = info.compress_type == zipfile.ZIP_STORED
        source = _Stored(self._held, self.url, info) if stored else self._held.enter_context(archive.open(info))
        source.seek(before + size * self._first)  # of one that is compressed, everything before is unpacked
        for row in range(self._first, shape[0], _BLOCK):
            rows = min(_BLOCK, shape[0] - row)
            data = source.read(rows * size)
            if len(data) != rows * size:
                raise ValueError(f"{name} ends before its {shape[0]:,} rows")
            if row + rows == shape[0]:
                source.read(1)  # beyond the last byte, where the checksum is looked at
            yield np.frombuffer(data, dtype).reshape(rows, *shape[1:]).astype(np.float16)


class ArrayEndError(Exception):
    """An array has fewer rows than were asked for.

    Attributes:
        name, rows: the array, and how many it has.
    """

    def __init__(self, name: str, rows: int) -> None:
        super().__init__(f"{name} has {rows:,} rows")
        self.name, self.rows = name, rows


class _Stored:
    """A member of a zip file that is not compressed: read where it lies. Its checksum is looked at if all of it was."""

    def __init__(self, held: ExitStack, url: str, info: zipfile.ZipInfo) -> None:
        self._file, self._info = held.enter_context(RangeFile(url)), info
        (header,) = self._file.read([(info.header_offset, _LOCAL_HEADER)])
        lengths = (header[_NAME_LENGTH : _NAME_LENGTH + 2], header[_NAME_LENGTH + 2 : _NAME_LENGTH + 4])
        self._start = info.header_offset + _LOCAL_HEADER + sum(int.from_bytes(two, "little") for two in lengths)
        self._place = self._checked = self._sum = 0

    def seek(self, place: int) -> None:
        if place and not self._checked and place < 1 << 16:  # the array's own header, before its first row
            self.read(place)
        self._place = place

    def read(self, size: int) -> bytes:
        size = min(size, self._info.file_size - self._place)
        if not size:
            if self._checked == self._place and self._sum != self._info.CRC:
                raise zipfile.BadZipFile(f"Bad CRC-32 for file {self._info.filename!r}")
            return b""
        (data,) = self._file.read([(self._start + self._place, size)])
        if self._checked == self._place:
            self._sum, self._checked = zlib.crc32(data, self._sum), self._place + size
        self._place += size
        return data


def embedding_sizes(url: str) -> dict[str, int]:
    """Returns name and width of the arrays in an npz, without reading them; {} where there is no npz.

    Raises:
        ShardError: it cannot be read, or holds something else; the message says what.
    """
    with opened_npz(url) as arrays:
        return {name: shape[1] for name, shape in shapes_of(url, arrays).items()} if arrays is not None else {}


@contextmanager
def opened_npz(url: str) -> Iterator[Any]:
    """Gives an open npz, or None where there is none; whatever goes wrong in the block is the file's fault."""
    if not is_remote(url) and not os.path.exists(url):
        yield None
        return
    with _explained(url), ExitStack() as held:
        try:
            raw = held.enter_context(open_file(url))
            arrays = np.load(raw, allow_pickle=False)
        except FileNotFoundError:
            arrays = None
        if isinstance(arrays, np.ndarray):
            raise ShardError(f"{url} is one array ({arrays.dtype}, shape {arrays.shape}) and no npz of several")
        yield held.enter_context(arrays) if arrays is not None else None


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turns whatever is raised while an npz is read into a ShardError."""
    try:
        yield
    except ShardError:
        raise
    except ValueError as error:
        if "pickled" not in str(error):
            raise _unreadable(url, error) from error
        raise ShardError(
            f"{url} is neither an npz nor an array: it is a pickle, which could run code and is not opened, or "
            "damaged. Save the embeddings with numpy.savez"
        ) from error
    except Exception as error:  # zip, zlib, header and remote errors alike
        # zipfile takes an end that could not be read for no zip's, and tells the reason only beside it.
        hidden = error.__context__ if isinstance(error, zipfile.BadZipFile) else None
        cause = hidden if isinstance(hidden, OSError) else error
        raise _unreadable(url, cause) from cause


def _unreadable(url: str, error: Exception) -> ShardError:
    kind = UnreachedError if unreached(error) else ShardError
    return kind(f"{url}: the embeddings cannot be read: {type(error).__name__}: {error}")


def shapes_of(url: str, arrays: Any) -> dict[str, tuple[int, int]]:
    """Returns the shape of each array of embeddings, by the headers alone.

    Raises:
        ShardError: one is no table of numbers.
    """
    found = {}
    for name in EMBEDDINGS:
        if name in arrays:
            with arrays.zip.open(f"{name}.npy") as entry:
                shape, _, kind = _READ_HEADER[np.lib.format.read_magic(entry)[0]](entry)
            if kind.hasobject:
                raise ShardError(
                    f"{url}: {name} holds pickled Python objects (shape {shape}), which could run code and are not "
                    "opened; embeddings are numbers: save it as an array of float16 or float32"
                )
            if kind.kind not in "fiu" or len(shape) != 2:
                raise ShardError(
                    f"{url}: {name} is {kind} of the shape {shape}; embeddings are numbers (rows, dimensions)"
                )
            found[name] = shape
    return found
