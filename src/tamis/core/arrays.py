"""Names for array types, and a reader of `.npy` files. Docstrings of functions give the shapes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.errors import check_file

Floats = NDArray[np.floating[Any]]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]

#: Row numbers of a table.
Rows = NDArray[np.int64]

#: A bool per row.
Mask = NDArray[np.bool_]

#: How often each row is kept, 0 if dropped; its caption: 1 for the chosen other one, 0 for the alt-text or if dropped.
Times = NDArray[np.uint16]
Captions = NDArray[np.uint8]

#: Halves of uids, and other bits.
U64 = NDArray[np.uint64]

#: (height, width, 3) RGB.
Pixels = NDArray[np.uint8]


def as_arrow(values: NDArray[Any]) -> pa.Array:
    """Returns numbers as an Arrow array, without a copy. `pa.array` would import pandas, which takes 0.2 s."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(values)])


def skip_pandas() -> None:
    """Lets pyarrow go without pandas, which it would import at its first array: for processes that are ours alone.

    Until the first import of pandas, `pa.array` then reads a Series as it reads a NumPy array.
    """

    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, SimpleNamespace(find_spec=find_spec))
    pa.array([0])  # it tries only once
    del sys.meta_path[0]


def load_array(source: Path | BinaryIO, *, mapped: bool = False) -> NDArray[Any]:
    """Returns the array of a `.npy` file, never by unpickling; `mapped` needs a path. OSError if it cannot be read,
    ValueError if it is not one array.
    """
    if isinstance(source, Path):
        check_file(source)
    try:
        found = np.load(source, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError):
        raise
    except Exception as error:  # NumPy 2.4 lets errors of tokenize and zipfile through
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise ValueError("it holds several arrays: save the one you need as a .npy file")
    return found
