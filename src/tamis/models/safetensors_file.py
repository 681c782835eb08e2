"""What a safetensors file says it holds, checked against its length: nothing of the tensors themselves is read.

The format: 8 bytes with the length of the header (little-endian), the header (JSON: of each tensor its type, its shape
and its place), then the tensors one after the other to the end of the file. Source: the documentation of the format,
github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import ModelError, brief

#: Bits of a number of each type.
_BITS: Mapping[str, int] = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

#: No header is longer: the library refuses one that is.
_LONGEST_HEADER = 100_000_000

Shape = tuple[int, ...]


def shapes_in(path: Path) -> Mapping[str, Shape]:
    """Returns the shape of each tensor of a file; a file is looked at once until it changes.

    Raises:
        ModelError: it is cut short, too long, or no safetensors file.
    """
    facts = path.stat()
    return _shapes(path, facts.st_size, facts.st_mtime_ns)


def arrays_in(path: Path, dimensions: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Returns tensors of a file as arrays.

    Args:
        path: of the file.
        dimensions: of each tensor that is wanted, by its name.

    Raises:
        ModelError: it is damaged, lacks one of them, or has one of other dimensions.
    """
    from safetensors.numpy import load_file

    shapes = shapes_in(path)
    for name, count in dimensions.items():
        if len(shapes.get(name, ())) != count:
            raise ModelError(f"{path} holds no tensor {name} of {count} dimensions: it is of another model")
    found = load_file(path)
    return {name: np.asarray(found[name]) for name in dimensions}


@lru_cache(maxsize=256)
def _shapes(path: Path, size: int, changed: int) -> Mapping[str, Shape]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _damaged(path, f"it ends within its header, after {size:,} bytes: it was cut short, or is none")
        if length > _LONGEST_HEADER:
            raise _damaged(path, f"its header would have {length:,} bytes")
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is no JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    places = sorted(
        (_place(path, name, tensor) for name, tensor in header.items() if name != "__metadata__"),
        key=lambda place: place[:2],
    )
    end = 0
    for start, stop, name, _ in places:
        if start != end:
            raise _damaged(path, f"the tensor {brief(name)} does not begin where the one before it ends")
        end = stop
    if end != size - 8 - length:
        raise _damaged(
            path, f"its tensors take {end:,} bytes, and {size - 8 - length:,} are there: it was cut short, or added to"
        )
    return {name: shape for _, _, name, shape in places}


def _place(path: Path, name: str, tensor: Any) -> tuple[int, int, str, Shape]:
    """Returns where a tensor begins and ends, its name and its shape."""
    try:
        kind, shape, (start, stop) = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
        bits = _BITS[kind]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"what its header says of the tensor {brief(name)} is of no known type or form") from error
    if not whole or stop < start or 8 * (stop - start) != bits * math.prod(shape):
        raise _damaged(path, f"the place of the tensor {brief(name)} is not as long as its shape and type ask")
    return start, stop, name, tuple(shape)


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} is no whole safetensors file: {what}. Copy or fetch it again")
