"""Side files: what a signal keeps once next to the parts of all shards, such as the embeddings of its class names.

`Signal.side_files` returns them by file name: arrays for names that end in .npy, anything that JSON holds for .json.
They are written before the folder's first part, and `signal.json` notes what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from tamis.data import Device, Node, Signal
from tamis.errors import DamageError
from tamis.ids import json_digest
from tamis.storage import read_json, write_json
from tamis.store.checked import read_array, write_array
from tamis.store.manifest import SIGNAL, described, read_description

#: The names of a signal's classes, and the (k, d) float32 unit rows that embed them.
CLASS_NAMES, CLASS_VECTORS = "class_names.json", "class_vectors.npy"


def keeps_side_files(node: Node | None) -> TypeGuard[Signal]:
    """Whether a node is a signal that may keep side files."""
    return isinstance(node, Signal) and type(node).side_files is not Signal.side_files


def write_side_files(folder: Path, node: Node | None, device: Device) -> None:
    """Writes a signal's side files that are missing or damaged, and notes them in `signal.json`.

    Several workers may do so at once: they write the same up to the rounding of embeddings. So an array's note is its
    shape; its file has its hash.

    Raises:
        DiskFullError: no space is left.
        RunError: the folder cannot be written to.
    """
    if not keeps_side_files(node):
        return
    notes = {}
    for name, content in node.side_files(device).items():
        path = folder / name
        notes[name] = note(path, content)
        if not _is_whole(path, notes[name]):
            write_array(path, content) if path.suffix == ".npy" else write_json(path, content)
    if (folder / SIGNAL).is_file():
        facts = read_description(folder / SIGNAL)
        if facts.get("side_files") != notes:
            write_json(folder / SIGNAL, described(folder, {**facts, "side_files": notes}))


def side_files_are_whole(folder: Path) -> bool:
    """Whether a folder has the side files that its description notes."""
    if not (folder / SIGNAL).is_file():
        return False
    notes = read_description(folder / SIGNAL).get("side_files")
    return notes is not None and all(_is_whole(folder / name, noted) for name, noted in notes.items())


def read_side_file(path: Path, noted: Mapping[str, Any] | None = None) -> Any:
    """Returns an array or JSON; None if there is no such file.

    Args:
        path: of the file.
        noted: what `signal.json` says about it; None: nothing.

    Raises:
        DamageError: it is damaged, missing though it was noted, or does not hold what was noted.
    """
    if not path.is_file():
        if noted is None:
            return None
        raise DamageError(f"{path} is missing, though it was written: repeat `tamis score`", "it is missing")
    try:
        content = read_array(path) if path.suffix == ".npy" else read_json(path)
        if noted is not None and note(path, content) != dict(noted):
            raise DamageError("", "it does not hold what was written")
        return content
    except (DamageError, ValueError) as error:  # ValueError: numbers that JSON does not have
        what = getattr(error, "what", "") or str(error)
        raise DamageError(
            f"{path} is damaged ({what}): delete it and repeat `tamis score`, which makes it again (`tamis check RUN "
            "--delete` finds and deletes all damage)",
            what,
        ) from error


def _is_whole(path: Path, noted: Mapping[str, Any]) -> bool:
    try:
        return read_side_file(path, noted) is not None
    except DamageError:
        return False


def note(path: Path, content: Any) -> dict[str, Any]:
    """Returns what `signal.json` says about a side file; the shape of an array, the digest of JSON."""
    return {"shape": list(content.shape)} if path.suffix == ".npy" else {"digest": json_digest(content)}
