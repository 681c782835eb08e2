"""Folders that a command writes into: its own, and nobody else's."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

from tamis.errors import RunError
from tamis.store.atomic import check_path


def check_own(
    folder: Path, *, what: str, marks: Sequence[str], also: Sequence[str] = (), option: str = "--out"
) -> None:
    """Makes sure, before anything is written, that a folder is new, empty, or was written into by the same command.

    Args:
        folder: the one to be written into.
        what: what it should hold, for the message: "training", "bench".
        marks: patterns of paths in it, one of which only this command writes: with it whatever else lies there may.
        also: patterns of names that may be there before the first mark is: a lock, say. Hidden files may be there too,
            such as what a command that was killed left half-written.
        option: names another folder.

    Raises:
        RunError: it is a file or a URL, cannot be read, or holds other files and no mark.
    """
    check_path(folder)
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{folder} cannot be written into ({error.strerror}): name another folder ({option})") from error
    if any(next(folder.glob(mark), None) is not None for mark in marks):
        return
    others = [name for name in names if not any(Path(name).match(one) for one in (*also, ".*", "lost+found"))]
    if others:
        raise RunError(f"{folder} holds no {what} but other files ({others[0]}, ...): name another folder ({option})")


def inside(folder: Path, paths: Iterable[Path]) -> list[str]:
    """Returns patterns of the names in a folder below which some files lie that a command reads, for `check_own`."""
    root = folder.expanduser().resolve()
    whole = [path.expanduser().resolve() for path in paths]
    return [glob.escape(path.relative_to(root).parts[0]) for path in whole if root in path.parents]
