"""Checks which files and folders a command may write: new ones, and those that the same command wrote.

Commands call these checks before any work. A failing check raises RunError, which says why and what to do.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from tamis.core.errors import RunError
from tamis.core.files.checked import read_record, write_record
from tamis.core.files.find import glob_pattern, is_remote, literal_end, stamp
from tamis.core.files.storage import check_path, check_writable, explain_errors, sweep, watchers
from tamis.core.processes import TEMPORARY, in_work, temporary_name
from tamis.core.types import KEEPS

REPLACE = "replace it with --overwrite (overwrite=True)"

#: The files that `tamis run` wrote outside of the run.
OUTPUTS = "outputs.json"

#: Patterns of the names in a run folder. Only commands that work on the run write them.
_OF_A_RUN = (
    *("run.json", "recipe.yaml", "shards.parquet", "lock", "status*.json", "events*.jsonl", OUTPUTS, "look.json"),
    *("bench.json", "choose.json", "shares.json", "index", "scores", *KEEPS, "failures", "subsets"),
    *("unfinished", "claims"),
)

#: Endings that stand for a format: files of other formats must not have them.
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
    """Checks that a file may be written, so that nothing else is replaced.

    Args:
        path: the file.
        what: what the file is, for messages: "npy export".
        ours: returns whether an existing file is such a file, written by Tamis.
        overwrite: whether such a file may be replaced.
        read: the command's inputs: files, and folders and globs of pools.
        of_runs: folder inside a run ("" for the run folder itself) where such a file is replaced without `overwrite`.
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
        raise RunError(f"{path} exists: choose another name, or {REPLACE}")


def lists(pool: str, file: str) -> bool:
    """Whether a pool's path (a local folder or glob) would include a file."""
    if is_remote(pool):
        return False
    if os.path.isdir(pool):
        return os.path.dirname(file) == os.path.realpath(pool)
    if os.path.lexists(pool):
        return False
    end = literal_end(pool)
    whole = f"{glob.escape(os.path.realpath(pool[:end]))}/{pool[end:]}"
    return fnmatch(file, whole) if "**" in whole else glob_pattern(whole).match(file) is not None


@contextmanager
def note_outputs(run: Path, paths: Iterable[Path]) -> Iterator[None]:
    """Records the files that `tamis run` writes outside the run in this block, so that it may replace them.

    A file is recorded before it gets its name: after a kill, it or the one before it is there.
    """
    outside = [path for path in paths if run not in path.parents]
    places = set(map(os.path.realpath, outside))
    for path in outside:
        sweep(path.parent, [path.name])  # what killed processes left of the same file

    def note(path: Path, written: Path) -> None:
        if (place := os.path.realpath(path)) in places:
            known, now = _outputs(run), stamp(place) if os.path.isfile(place) else ""
            stamps = [*(one for one in known.get(place, []) if one == now), stamp(os.fspath(written))]
            write_record(run / OUTPUTS, {"format": 2, "files": {**known, place: stamps}})

    watchers.append(note)
    try:
        yield
    finally:
        watchers.remove(note)


def are_outputs(run: Path, paths: Iterable[Path]) -> bool:
    """Whether `tamis run` wrote all existing files among these paths for this run, and none has changed since."""
    known = _outputs(run)
    outside = [path for path in paths if run not in path.parents and path.is_file()]
    return all(stamp(os.fspath(path)) in known.get(os.path.realpath(path), []) for path in outside)


def _outputs(run: Path) -> dict[str, list[str]]:
    """Returns the stamps that each file may have."""
    return dict(read_record(run / OUTPUTS)["files"]) if (run / OUTPUTS).is_file() else {}


def check_new_folder(folder: Path) -> None:
    """Checks that a folder is new or empty."""
    check_writable(folder)
    _check_runs(folder)
    if os.path.lexists(folder) and not (folder.is_dir() and next(folder.iterdir(), None) is None):
        raise RunError(f"{folder} is not empty: name a new folder, or remove it")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder to fill. After the block it becomes `path`, which must be new or empty."""
    check_new_folder(path)
    temporary = temporary_name(path)
    try:
        with explain_errors(path):
            # Delete what killed processes left of the same folder.
            for leftover in path.parent.glob(f".{glob.escape(path.name)}.*-*-*-*{TEMPORARY}"):
                if leftover.is_dir() and not in_work(leftover):
                    shutil.rmtree(leftover, ignore_errors=True)
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
        folder: the output folder.
        what: what it should hold, for the message: "training", "bench".
        marks: patterns of paths that only this command writes. If one exists, other files may be there too.
        also: patterns of names that may be there without a mark, such as a lock; hidden files may be too.
        read: inputs of the command that may be in the folder.
        option: the option that names another folder.
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
        raise RunError(f"{folder} holds other files ({others[0]}, ...) and no {what}: name another folder ({option})")


def check_ending(path: Path, *right: str, hint: str = "") -> None:
    """Checks that a file's ending is not that of another format.

    Args:
        path: the file to write.
        right: the right endings ("parquet"). Endings of no format ("subset", "subset.v2") are allowed too.
        hint: what to do instead: a sentence without a full stop.
    """
    if not path.name:
        raise RunError(f"{path} is a folder, not a file: choose another name")
    ending = path.suffix.lower().removeprefix(".")
    if ending in _PROMISES and ending not in right:
        more = f"; {hint}" if hint else ""
        raise RunError(f"{path} would hold {right[0]}, not {ending}: write {path.with_suffix('.' + right[0])}{more}")


def readable_as_usual(folder: Path) -> None:
    """Makes files readable by all who can read the folder: safetensors' own are readable by the owner only."""
    usual = folder.stat().st_mode & 0o666
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(file.stat().st_mode | usual)


def _check_runs(path: Path, of_runs: str | None = None) -> bool:
    """Returns whether a path is in the folder `of_runs` of a run; raises RunError if it is another file of a run."""
    full = path.resolve()
    for run in full.parents:
        if len(run.parts) > 1 and (run / "run.json").is_file():
            free = of_runs is not None and full.parent == run / of_runs
            own = any(fnmatch(full.relative_to(run).parts[0], one) for one in _OF_A_RUN)
            if (own and not (free and of_runs)) or (of_runs and full.parent == run):
                raise RunError(f"{path} belongs to the run {run}: choose a name outside of it")
            return free
    return False


def _is_same(one: str, path: Path) -> bool:
    try:
        return os.path.samefile(one, path)
    except (OSError, ValueError, RunError):  # a URL, or gone
        return False
