"""What a safetensors file holds, as its library tells: the library checks the header against the file's length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import ModelError, require

Shape = tuple[int, ...]


def shapes_in(path: Path) -> Mapping[str, Shape]:
    """Returns the shape of each tensor of a file; nothing of the tensors is read. A file is looked at once.

    Raises:
        ModelError: it is cut short, too long, or no safetensors file.
        DependencyError: safetensors is not installed.
    """
    facts = path.stat()
    return _shapes(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _shapes(path: Path, size: int, changed: int) -> Mapping[str, Shape]:
    require("safetensors", extra="clip")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OverflowError) as error:
        said = " ".join(str(error).split())[:200]
        raise ModelError(f"{path} is no whole safetensors file ({said}): copy or fetch it again") from error


def arrays_in(path: Path, dimensions: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Returns tensors of a file as arrays.

    Args:
        path: of the file.
        dimensions: of each tensor that is wanted, by its name.

    Raises:
        ModelError: it is damaged, lacks one of them, or has one of other dimensions.
    """
    shapes = shapes_in(path)
    for name, count in dimensions.items():
        if len(shapes.get(name, ())) != count:
            raise ModelError(f"{path} holds no tensor {name} of {count} dimensions: it is of another model")
    from safetensors.numpy import load_file

    found = load_file(path)
    return {name: np.asarray(found[name]) for name in dimensions}
