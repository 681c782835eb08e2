"""Arrays of as many rows as a pool has, which memory need not hold."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tamis.core.errors import DiskFullError

#: Bytes of an array in memory; larger ones are in a file.
IN_MEMORY = 1 << 28


def stored(rows: int, dtype: DTypeLike) -> Any:
    """Returns zeros for each row, to be read and written by slices: an array, or of many rows a `StoredRows`.

    Raises DiskFullError if the disk lacks the space.
    """
    kind = np.dtype(dtype)
    return np.zeros(rows, kind) if rows * kind.itemsize <= IN_MEMORY else StoredRows(rows, kind)


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
        self._file, path = tempfile.mkstemp(prefix="tamis-")
        weakref.finalize(self, os.close, self._file)
        os.unlink(path)
        folder, size = Path(path).parent, rows * self.dtype.itemsize
        if size > (free := shutil.disk_usage(folder).free):
            raise DiskFullError(
                f"{folder} has {free / 1e9:.1f} GB free, and {size / 1e9:.1f} GB are needed for a while: name another "
                "folder with --scratch DIR"
            )
        os.truncate(self._file, size)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.size)
        found, size, done = np.empty(max(stop - start, 0), self.dtype), self.dtype.itemsize, 0
        while done < found.nbytes:  # a call reads at most 2 GiB
            done += os.preadv(self._file, [found.view(np.uint8)[done:]], start * size + done)  # type: ignore[list-item]
        return found

    def __setitem__(self, rows: slice, values: Any) -> None:
        start, stop, _ = rows.indices(self.size)
        given = np.ascontiguousarray(np.broadcast_to(np.asarray(values, self.dtype), stop - start)).view(np.uint8)
        done = 0
        try:
            while done < given.size:
                done += os.pwrite(self._file, given[done:], start * self.dtype.itemsize + done)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFullError(
                    f"{tempfile.gettempdir()} is full: name another folder with --scratch DIR"
                ) from error
            raise
