"""Side files: what a scorer keeps once beside the parts of all shards, such as the embeddings of its class names.

`Scorer.side_files` returns them by file name: arrays for names that end in .npy, anything that
JSON holds for .json. They are written before the folder's first part: where there is a part, they are there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tamis.data import Device, Scorer
from tamis.errors import DamageError
from tamis.store.atomic import read_json, write_json
from tamis.store.parts import read_array, write_array

#: What scorers call the names of their classes, and the (k, d) float32 unit rows that embed them.
CLASS_NAMES, CLASS_VECTORS = "class_names.json", "class_vectors.npy"


def write_side_files(folder: Path, scorer: Scorer, device: Device) -> None:
    """Writes a scorer's side files where they are not there yet.

    Several workers may do so at once: each file is renamed into its place whole, and all of them write the same.

    Raises:
        DiskFullError: no space is left.
        RunError: the folder cannot be written to.
    """
    for name, content in scorer.side_files(device).items():
        path = folder / name
        if path.exists():
            continue
        if path.suffix == ".npy":
            write_array(path, content)
        else:
            write_json(path, content)


def read_side_file(path: Path) -> Any:
    """Returns what a side file holds, an array or JSON; None where there is no such file.

    Raises:
        DamageError: it is damaged.
    """
    if not path.is_file():
        return None
    try:
        return read_array(path) if path.suffix == ".npy" else read_json(path)
    except DamageError as error:
        raise DamageError(
            f"{path} is damaged ({error.what or error}): delete {path.parent} and repeat `tamis score`, or run `tamis "
            "doctor RUN --repair` before that",
            error.what,
        ) from error
