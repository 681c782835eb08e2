"""Which files and folders a command may write: new ones, and those of its own kind. Every command asks here first."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from tamis.errors import RunError
from tamis.pool.files import stamp
from tamis.processes import TEMPORARY, in_work, temporary_name
from tamis.store.atomic import check_path, explained, readable_as_usual, write_json
from tamis.store.mirror import FOLDERS
from tamis.store.records import OutputsFacts, read_checked, with_hash

#: What `tamis run` wrote outside of a run, in the run folder.
OUTPUTS = "outputs.json"

#: What a run folder holds, as patterns of names in it: only what works on the run writes these.
_OF_A_RUN = (
    *("run.json", "recipe.yaml", "shards.parquet", "lock", "status*.json", "events*.jsonl", "bench.json", "look.json"),
    *(OUTPUTS, *FOLDERS, "claims"),
)


def check_target(
    path: Path,
    *,
    what: str,
    ours: Callable[[Path], bool],
    overwrite: bool,
    read: Iterable[str | os.PathLike[str]] = (),
    of_runs: str | None = None,
) -> None:
    """Checks, before any work, that a file may be written: nothing of somebody else's is replaced.

    Args:
        path: the file.
        what: the kind of file, for messages: "npy export".
        ours: tells whether a regular file is of that kind, and written by Tamis.
        overwrite: whether one that is may be replaced.
        read: the files that the command reads, the pool's shards among them; URLs are passed over.
        of_runs: the folder of a run ("" for the run folder itself) in which this kind is replaced without `overwrite`.

    Raises:
        RunError: the path belongs to a run, is read by the command, is no regular file, holds something else, may not
            be replaced, or its folder cannot be written to. The message says which.
    """
    check_path(path)
    overwrite |= _check_runs(path, of_runs)
    if not os.path.lexists(path):
        _check_writable(path)
        return
    if path.exists():
        here = path.stat()
        for one in read:
            if _is_file_at(one, here):
                raise RunError(f"{path} would replace {os.fspath(one)}, which this command reads: choose another name")
    if path.is_dir():
        raise RunError(f"{path} is a folder, not a file: choose another name")
    if path.is_symlink():
        raise RunError(f"{path} is a link to {os.readlink(path)}: name that file, or choose another name")
    if not path.is_file():
        raise RunError(f"{path} is a device, a pipe or a socket, not a regular file: choose another name")
    if not ours(path):
        raise RunError(f"{path} is there and is no {what} of tamis: choose another name, or delete it")
    if not overwrite:
        raise RunError(f"{path} is there: choose another name, or replace it with --overwrite (overwrite=True)")
    _check_writable(path)


def note_outputs(run: Path, paths: Iterable[Path]) -> None:
    """Notes in a run the files that `tamis run` wrote outside of it, so that it may write them again."""
    known = _outputs(run)
    fresh = {os.path.realpath(path): stamp(os.fspath(path)) for path in paths if path.is_file()}
    if not fresh.items() <= known.items():
        write_json(run / OUTPUTS, with_hash({"format": 1, "files": {**known, **fresh}}))


def are_outputs(run: Path, paths: Iterable[Path]) -> bool:
    """Whether `tamis run` of this run wrote those of some paths that are there, and nothing changed them since."""
    known = _outputs(run)
    return all(known.get(os.path.realpath(path)) == stamp(os.fspath(path)) for path in paths if path.is_file())


def _outputs(run: Path) -> dict[str, str]:
    path = run / OUTPUTS
    return dict(read_checked(path, OutputsFacts)["files"]) if path.is_file() else {}


def check_new_folder(folder: Path) -> None:
    """Checks, before any work, that a folder to be written is new or empty.

    Raises:
        RunError: it is not, belongs to a run, or cannot be written to.
    """
    check_path(folder)
    _check_runs(folder)
    if os.path.lexists(folder) and not (folder.is_dir() and next(folder.iterdir(), None) is None):
        raise RunError(f"{folder} is not empty: name a new folder, or remove it")
    _check_writable(folder)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder to fill, and renames it to `path`, which is new or empty, if the block ends well.

    What a process that was killed left of the same folder goes first.

    Raises:
        DiskFullError: no space is left.
        RunError: something is there, or the folder cannot be written to.
    """
    check_new_folder(path)
    temporary = temporary_name(path)
    try:
        with explained(path):
            _sweep_folders(path)
            temporary.mkdir(parents=True)
            yield temporary
            readable_as_usual(temporary)
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
        RunError: it is a file or a URL, belongs to a run, cannot be read or written to, or holds other files and no
            mark.
    """
    check_path(folder)
    _check_runs(folder)
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        _check_writable(folder)
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


def _check_runs(path: Path, of_runs: str | None = None) -> bool:
    """Returns whether a path is where a run has files of this kind; stops at one of any run's own files."""
    place = Path(os.path.realpath(path))
    for run in place.parents:
        if (run / "run.json").is_file():
            first = place.relative_to(run).parts[0]
            free = of_runs is not None and place.parent == run / of_runs
            if any(fnmatch(first, one) for one in _OF_A_RUN) and not (free and of_runs):
                raise RunError(f"{path} belongs to the run {run}: choose a name outside of it")
            return free
    return False


def _check_writable(path: Path) -> None:
    """Checks that the folder of a path can be written to, or the one in which it would be made."""
    folder = path.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise RunError(f"cannot write {path}: {folder} is not a folder; choose a folder you can write to")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(f"cannot write {path}: {folder} is read-only; choose a folder you can write to")


def _is_file_at(path: str | os.PathLike[str], here: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), here)
    except (OSError, ValueError):  # a URL, or no longer there
        return False


def _sweep_folders(path: Path) -> None:
    """Deletes what killed processes left of a folder that they were filling: names of our own form only."""
    ours = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}-\d+-[0-9a-f]{8}-[0-9a-f]{8}" + re.escape(TEMPORARY))
    if path.parent.is_dir():
        for entry in list(os.scandir(path.parent)):
            left = Path(entry.path)
            if ours.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False) and not in_work(left):
                shutil.rmtree(left, ignore_errors=True)
