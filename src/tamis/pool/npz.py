"""DataComp's embeddings in an npz, read in blocks of rows: one of half a million rows takes 2.5 GB."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from tamis.arrays import Floats
from tamis.errors import ShardError, UnreachedError
from tamis.pool.files import is_remote, open_file
from tamis.remote import unreached

EMBEDDINGS = ("b32_img", "b32_txt", "l14_img", "l14_txt")

#: Rows that are read at once of each array.
_BLOCK = 1024

_READ_HEADER = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}

# A zip file has a header before each member: 30 bytes, the last four of them the lengths of a name and of more.
_LOCAL_HEADER = 30


def npz_rows(url: str, first: int = 0) -> Iterator[Mapping[str, Floats]]:
    """Yields the rows of an npz's arrays from row `first`: (d,) float16 by name; yields {} endlessly without an npz."""
    shapes = embedding_shapes(url)
    with ExitStack() as held, _explained(url):
        arrays = {name: _blocks(held, url, name, first) for name in shapes}
        while True:
            blocks = {name: next(rows, np.empty((0, 0))) for name, rows in arrays.items()}
            for place in range(_BLOCK):
                for name, block in blocks.items():
                    if place >= len(block):
                        raise ShardError(f"{url}: {name} has {shapes[name][0]:,} rows, its Parquet file has more")
                yield {name: block[place] for name, block in blocks.items()}


def _blocks(held: ExitStack, url: str, name: str, first: int) -> Iterator[Floats]:
    raw = held.enter_context(open_file(url))
    archive = held.enter_context(zipfile.ZipFile(raw))
    info = archive.getinfo(f"{name}.npy")
    source: Any = held.enter_context(archive.open(info))
    shape, by_columns, dtype = _READ_HEADER[np.lib.format.read_magic(source)[0]](source)
    if by_columns:  # rows are not one after the other
        with archive.open(info) as entry:
            whole = np.lib.format.read_array(entry, allow_pickle=False)
        yield from (whole[row : row + _BLOCK].astype(np.float16) for row in range(first, shape[0], _BLOCK))
        return
    size = dtype.itemsize * math.prod(shape[1:])
    place = source.tell() + size * first
    if first and info.compress_type == zipfile.ZIP_STORED:  # zipfile would read what is before it
        raw.seek(info.header_offset + _LOCAL_HEADER - 4)
        place += info.header_offset + _LOCAL_HEADER + sum(struct.unpack("<HH", raw.read(4)))
        source = raw
    source.seek(place)
    for row in range(first, shape[0], _BLOCK):
        rows = min(_BLOCK, shape[0] - row)
        data = source.read(rows * size)
        if len(data) != rows * size:
            raise ValueError(f"{name} ends before its {shape[0]:,} rows")
        if row + rows == shape[0] and source is not raw:
            source.read(1)  # beyond the last byte, where zipfile compares the checksum
        yield np.frombuffer(data, dtype).reshape(rows, *shape[1:]).astype(np.float16)


def embedding_shapes(url: str) -> dict[str, tuple[int, int]]:
    """Returns rows and width of the arrays in an npz, by their headers; {} if there is no npz."""
    if not is_remote(url) and not os.path.exists(url):
        return {}
    found: dict[str, tuple[int, int]] = {}
    with _explained(url), ExitStack() as held:
        try:
            arrays = np.load(held.enter_context(open_file(url)), allow_pickle=False)
        except FileNotFoundError:
            return {}
        if isinstance(arrays, np.ndarray):
            raise ShardError(f"{url} is one array ({arrays.dtype}, shape {arrays.shape}) and no npz of several")
        held.enter_context(arrays)
        for name in EMBEDDINGS:
            if name not in arrays:
                continue
            with arrays.zip.open(f"{name}.npy") as entry:
                shape, _, kind = _READ_HEADER[np.lib.format.read_magic(entry)[0]](entry)
            if kind.kind not in "fiu" or len(shape) != 2:
                what = "pickled Python objects" if kind.hasobject else str(kind)
                raise ShardError(
                    f"{url}: {name} holds {what} (shape {shape}); embeddings are numbers (rows, dimensions): save it "
                    "as an array of float16 or float32"
                )
            found[name] = shape
    return found


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turns whatever is raised while an npz is read into a ShardError."""
    try:
        yield
    except ShardError:
        raise
    except Exception as error:  # zip, zlib, header and remote errors alike
        if isinstance(error, ValueError) and "pickled" in str(error):
            raise ShardError(
                f"{url} is neither an npz nor an array: it is a pickle, which could run code and is not opened, or "
                "damaged. Save the embeddings with numpy.savez"
            ) from error
        # zipfile takes an end that could not be read for that of no zip, with the reason as its context.
        hidden = error.__context__ if isinstance(error, zipfile.BadZipFile) else None
        cause = hidden if isinstance(hidden, OSError) else error
        kind = UnreachedError if unreached(cause) else ShardError
        raise kind(f"{url}: the embeddings cannot be read: {type(cause).__name__}: {cause}") from cause
