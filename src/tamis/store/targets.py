"""Which files and folders a command may write: new ones, and those of its own kind.

Every command asks here before any work. A check that fails raises RunError, which says why and what to do.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from fsspec.utils import glob_translate

from tamis.data import KEEPS
from tamis.errors import RunError
from tamis.pool.files import is_remote, literal_end, stamp
from tamis.processes import TEMPORARY, in_work, temporary_name
from tamis.storage import check_path, check_writable, explained_errors
from tamis.store.checked import read_record, write_record

#: The files that `tamis run` wrote outside of the run.
OUTPUTS = "outputs.json"

#: What a run folder holds, as patterns of names: only commands that work on the run write these.
_OF_A_RUN = (
    *("run.json", "recipe.yaml", "shards.parquet", "lock", "status*.json", "events*.jsonl", "bench.json", "look.json"),
    *(OUTPUTS, "index", "scores", *KEEPS, "failures", "subsets", "unfinished", "claims"),
)

#: Endings that promise a format: a file of another format must not have them.
_PROMISES = ("csv", "tsv", "json", "jsonl", "npy", "npz", "parquet", "html", "htm", "txt", "yaml", "yml", "tar", "xlsx")


def check_target(
    path: Path,
    *,
    what: str,
    ours: Callable[[Path], bool],
    overwrite: bool,
    read: Iterable[str | os.PathLike[str]] = (),
    of_runs: str | None = None,
) -> None:
    """Checks that a file may be written: no file of another kind is replaced.

    Args:
        path: the file.
        what: the kind of file, for messages: "npy export".
        ours: whether a file is of that kind and written by Tamis.
        overwrite: whether one that is may be replaced.
        read: what the command reads: files, and the folders and globs of pools.
        of_runs: the folder of a run ("" for the run folder itself) in which this kind is replaced without `overwrite`.
    """
    check_writable(path)
    overwrite |= _check_runs(path, of_runs)
    inputs = [os.fspath(one) for one in read]
    endings = {os.path.splitext(one)[1] for one in inputs}
    exists, full = path.exists(), str(path.resolve())
    for one in inputs:
        if exists and _is_same(one, path):
            raise RunError(f"{path} would replace {one}, which this command reads: choose another name")
        if path.suffix in endings and lists(one, full):
            raise RunError(f"{path} would become a file of the pool {one}: choose another folder")
    if path.is_symlink():
        raise RunError(f"{path} is a link to {os.readlink(path)}: name that file, or choose another name")
    if not exists:
        return
    if not path.is_file():
        what = "folder" if path.is_dir() else "device, a pipe or a socket"
        raise RunError(f"{path} is a {what}, not a regular file: choose another name")
    if not ours(path):
        raise RunError(f"{path} exists and was not written by tamis as a {what}: choose another name, or delete it")
    if not overwrite:
        raise RunError(f"{path} exists: choose another name, or replace it with --overwrite (overwrite=True)")


def lists(pool: str, file: str) -> bool:
    """Whether a pool's path, a local folder or glob, would list a file."""
    if is_remote(pool):
        return False
    if os.path.isdir(pool):
        return os.path.dirname(file) == os.path.realpath(pool)
    if os.path.lexists(pool):
        return False
    end = literal_end(pool)
    whole = f"{glob.escape(os.path.realpath(pool[:end]))}/{pool[end:]}"
    return fnmatch(file, whole) if "**" in whole else re.match(glob_translate(whole), file) is not None


def note_outputs(run: Path, paths: Iterable[Path]) -> None:
    """Notes in a run the files that `tamis run` wrote outside of it, so that it may write them again."""
    known = _outputs(run)
    new = {os.path.realpath(path): stamp(os.fspath(path)) for path in paths if path.is_file()}
    if not new.items() <= known.items():
        write_record(run / OUTPUTS, {"format": 1, "files": {**known, **new}})


def are_outputs(run: Path, paths: Iterable[Path]) -> bool:
    """Whether all of these paths that exist were written by `tamis run` of this run and have not changed since."""
    known = _outputs(run)
    outside = [path for path in paths if run not in path.parents and path.is_file()]
    return all(known.get(os.path.realpath(path)) == stamp(os.fspath(path)) for path in outside)


def _outputs(run: Path) -> dict[str, str]:
    path = run / OUTPUTS
    return dict(read_record(path)["files"]) if path.is_file() else {}


def check_new_folder(folder: Path) -> None:
    """Checks that a folder to be written is new or empty."""
    check_writable(folder)
    _check_runs(folder)
    if os.path.lexists(folder) and not (folder.is_dir() and next(folder.iterdir(), None) is None):
        raise RunError(f"{folder} is not empty: name a new folder, or remove it")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder to fill, which becomes `path` (new or empty) if the block ends well."""
    check_new_folder(path)
    temporary = temporary_name(path)
    try:
        with explained_errors(path):
            # What killed processes left of the same folder.
            for left in path.parent.glob(f".{glob.escape(path.name)}.*-*-*-*{TEMPORARY}"):
                if left.is_dir() and not in_work(left):
                    shutil.rmtree(left, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            readable_as_usual(temporary)
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_own(
    folder: Path,
    *,
    what: str,
    marks: Sequence[str],
    also: Sequence[str] = (),
    read: Iterable[Path] = (),
    option: str = "--out",
) -> None:
    """Checks that a folder is new, empty, or was written by the same command.

    Args:
        folder: the one to be written into.
        what: what it should hold, for the message: "training", "bench".
        marks: patterns of paths in it that only this command writes: with one of them, other files may be there too.
        also: patterns of names that may be there without a mark, such as a lock. Hidden files may be there too.
        read: what the command reads; it may be in the folder.
        option: names another folder.
    """
    check_path(folder)
    _check_runs(folder)
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        check_writable(folder)
        return
    except OSError as error:
        raise RunError(f"{folder} cannot be written into ({error.strerror}): name another folder ({option})") from error
    root = folder.expanduser().resolve()
    inputs = [path.expanduser().resolve() for path in read]
    read_there = {path.relative_to(root).parts[0] for path in inputs if root in path.parents}
    others = [name for name in names if not any(fnmatch(name, one) for one in (*also, ".*", "lost+found"))]
    others = [name for name in others if name not in read_there]
    if others and not any(next(folder.glob(mark), None) is not None for mark in marks):
        raise RunError(f"{folder} contains other files ({others[0]}, ...), no {what}: name another folder ({option})")


def check_ending(path: Path, *right: str, hint: str = "") -> None:
    """Checks that a file's name does not promise another format than it will have.

    Args:
        path: the file, to be written.
        right: the endings that fit ("parquet"); one that promises nothing ("subset", "subset.v2") fits as well.
        hint: what to do instead, a sentence without its full stop.
    """
    if not path.name:
        raise RunError(f"{path} is a folder, not a file: choose another name")
    ending = path.suffix.lower().removeprefix(".")
    if ending in _PROMISES and ending not in right:
        more = f"; {hint}" if hint else ""
        raise RunError(f"{path} would hold {right[0]}, not {ending}: write {path.with_suffix('.' + right[0])}{more}")


def readable_as_usual(folder: Path) -> None:
    """Gives files the folder's permissions to read: safetensors writes its own for their owner alone."""
    usual = folder.stat().st_mode & 0o666
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(file.stat().st_mode | usual)


def _check_runs(path: Path, of_runs: str | None = None) -> bool:
    """Returns whether a path is where a run has files of this kind; raises if it is a place of other files of a run."""
    place = path.resolve()
    for run in place.parents:
        if len(run.parts) > 1 and (run / "run.json").is_file():
            free = of_runs is not None and place.parent == run / of_runs
            own = any(fnmatch(place.relative_to(run).parts[0], one) for one in _OF_A_RUN)
            if (own and not (free and of_runs)) or (of_runs and place.parent == run):
                raise RunError(f"{path} belongs to the run {run}: choose a name outside of it")
            return free
    return False


def _is_same(one: str, path: Path) -> bool:
    try:
        return os.path.samefile(one, path)
    except (OSError, ValueError, RunError):  # a URL, or no longer there
        return False
