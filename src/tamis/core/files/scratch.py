"""Arrays of as many rows as a pool has, which memory need not hold."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tamis.core.errors import DiskFullError, StopError

#: Bytes of an array in memory; larger ones are in a file.
IN_MEMORY = 1 << 28

#: Rows that are read and written again to change some of them.
_BLOCK = 1 << 20


_ADVICE = "name another folder with TMPDIR or `tamis select --scratch`"

_FOLDER: ContextVar[str | None] = ContextVar("folder of temporary files", default=None)


@contextmanager
def scratch_in(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Puts temporary files into a folder while the block runs; None: the system's, or TMPDIR."""
    if folder is not None and not (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
        raise StopError(f"--scratch {folder} is no folder that can be written to")
    token = _FOLDER.set(None if folder is None else os.fspath(folder))
    try:
        yield
    finally:
        _FOLDER.reset(token)


def temporary_folder() -> str:
    return _FOLDER.get() or tempfile.gettempdir()


def temporary_file(size: int) -> BinaryIO:
    """Returns a file of zeros that goes when it is closed; DiskFullError if the disk lacks the space."""
    folder = temporary_folder()
    with _no_space(folder):
        if size > (free := shutil.disk_usage(folder).free):
            what = f"{free / 1e9:.3g} GB free, and {size / 1e9:.3g} GB are needed for a while"
            raise DiskFullError(f"{folder} has {what}: {_ADVICE}")
        file: BinaryIO = tempfile.TemporaryFile(prefix="tamis-", dir=folder, buffering=0)  # noqa: SIM115
        file.truncate(size)
        return file


@contextmanager
def _no_space(folder: str) -> Iterator[None]:
    """Turns the errors of a full disk, a quota, a limit, or a folder that is gone into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOENT):
            raise
        raise DiskFullError(f"temporary files do not fit into {folder} ({error.strerror}): {_ADVICE}") from error


def stored(rows: int, dtype: DTypeLike) -> Any:
    """Returns zeros for each row, to be read and written by slices: an array, or of many rows a `StoredRows`.

    Raises DiskFullError if the disk lacks the space.
    """
    kind = np.dtype(dtype)
    return np.zeros(rows, kind) if rows * kind.itemsize <= IN_MEMORY else StoredRows(rows, kind)


def put(array: Any, rows: NDArray[np.int64], values: Any) -> None:
    """Writes the values, (n,), of any rows of an array or of `StoredRows`."""
    if isinstance(array, np.ndarray):
        array[rows] = values
        return
    order = np.argsort(rows)
    rows, values = rows[order], np.broadcast_to(values, rows.size)[order]
    for start in range(0, len(array), _BLOCK):
        first, last = np.searchsorted(rows, [start, start + _BLOCK])
        if first < last:
            some = array[start : start + _BLOCK]
            some[rows[first:last] - start] = values[first:last]
            array[start : start + _BLOCK] = some


def filled(rows: int, dtype: DTypeLike, parts: Iterable[tuple[slice, Any]]) -> Any:
    """Returns values for each row, as `stored` does, from slices of the rows and their values."""
    out = stored(rows, dtype)
    for span, values in parts:
        out[span] = values
    return out


class StoredRows:
    """(rows,) zeros of any type in a temporary file, read and written by slices; the file goes with the object."""

    def __init__(self, rows: int, dtype: DTypeLike) -> None:
        self.size, self.dtype = rows, np.dtype(dtype)
        self._folder, self._file = temporary_folder(), temporary_file(rows * self.dtype.itemsize)
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.size)
        found, size, done = np.empty(max(stop - start, 0), self.dtype), self.dtype.itemsize, 0
        while done < found.nbytes:  # a call reads at most 2 GiB
            read = os.preadv(self._file.fileno(), [found.view(np.uint8)[done:]], start * size + done)  # type: ignore[list-item]
            if not read:
                raise DiskFullError("a temporary file was cut short by another program")
            done += read
        return found

    def __setitem__(self, rows: slice, values: Any) -> None:
        start, stop, _ = rows.indices(self.size)
        given = np.ascontiguousarray(np.broadcast_to(np.asarray(values, self.dtype), stop - start)).view(np.uint8)
        done = 0
        while done < given.size:
            with _no_space(self._folder):
                done += os.pwrite(self._file.fileno(), given[done:].data, start * self.dtype.itemsize + done)
