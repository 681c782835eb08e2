"""Files that are there whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tamis.errors import DamageError, DiskFullError, RunError
from tamis.processes import TEMPORARY, in_work, temporary_name

#: A URL of which `Path` has left out a slash.
_LOST_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/[^/]")

#: What the system says when a disk, or a user's share of it, is full.
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Gives a temporary path to write to, and renames it to `path` if the block ends well.

    A file of a run that lies at a URL is put up there before it is renamed here.

    Args:
        path: of the file.
        durable: have file and folder on the disk before anything else is done, so that a power cut leaves the file of
            before or this one, and none that is empty. It takes milliseconds, on a busy disk more: for files that
            nothing else can make again, or that others are deleted for.

    Raises:
        DiskFullError: no space is left.
        RunError: the folder cannot be written to, or the run's store cannot.
    """
    from tamis.store.mirror import put_up

    check_path(path)
    temporary = temporary_name(path)
    try:
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            if durable:
                to_disk(temporary)
            with put_up(temporary, path):
                os.replace(temporary, path)
            if durable:
                to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True) if os.path.lexists(temporary) else None


def to_disk(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems cannot do that, of folders above all; those that failed at it must be heard.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


#: Endings that promise a format: a file of another one must not have them.
_PROMISES = ("csv", "tsv", "json", "jsonl", "npy", "npz", "parquet", "html", "htm", "txt", "yaml", "yml", "tar", "xlsx")


def lost_slash(path: str | os.PathLike[str]) -> bool:
    """Tells whether a path was a URL, before it became a `Path` with one slash less."""
    return _LOST_SLASH.match(os.fspath(path)) is not None and not Path(path).exists()


def check_path(path: Path) -> None:
    """Makes sure that what is wanted as a path is none that was a URL: folders called "s3:" would be made on this disk.

    Raises:
        RunError: it was one.
    """
    if lost_slash(path) and not Path(path.parts[0]).exists():
        raise RunError(
            f"{path}: a path on a disk is wanted here, not the URL of a store: name a path, and copy the file from "
            "or to the store with the store's own tool (aws s3 cp)"
        )


def check_ending(path: Path, *right: str, hint: str = "") -> None:
    """Checks that a file's name does not promise another format than it will have.

    Args:
        path: the file, to be written.
        right: the endings that fit ("parquet"); one that promises nothing ("subset", "subset.v2") fits as well.
        hint: what to do instead, a sentence without its full stop.

    Raises:
        RunError: it promises another.
    """
    ending = path.suffix.lower().removeprefix(".")
    if ending in _PROMISES and ending not in right:
        more = f"; {hint}" if hint else ""
        raise RunError(f"{path} would hold {right[0]}, not {ending}: write {path.with_suffix('.' + right[0])}{more}")


def readable_as_usual(folder: Path) -> None:
    """Lets those read the files who may read the folder: safetensors writes its own for their owner alone."""
    usual = folder.stat().st_mode & 0o666
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(file.stat().st_mode | usual)


def no_space(folder: Path) -> DiskFullError:
    """Returns the error for a full disk."""
    return DiskFullError(f"no space is left at {folder}; what was complete stays. Free some and repeat the command")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns the system's errors on writing a path into ours.

    Raises:
        DiskFullError: no space is left.
        RunError: the folder cannot be written to.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise no_space(path.parent) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise RunError(f"cannot write {path}: {error.strerror}; choose a folder you can write to") from error
        if error.errno == errno.EFBIG:
            raise RunError(
                f"cannot write {path}: the file is larger than its file system, or a limit of this process (ulimit -f) "
                "allows; what was complete stays. Raise the limit, or choose another folder"
            ) from error
        if error.filename is None:  # of a write, which does not tell where
            error.filename = os.fspath(path)
        raise


def denied(path: Path, error: BaseException) -> RunError | None:
    """Returns our error where a file could not be opened or read for a reason that says nothing of what it holds.

    Such a file may be whole, and must not be called damaged: what is, is deleted and made again.
    """
    if isinstance(error, OSError) and error.errno and error.errno not in (errno.ENOENT, errno.EISDIR, errno.EINVAL):
        return RunError(f"{path} cannot be read: {os.strerror(error.errno)}")  # pyarrow says more than that
    return None


@contextmanager
def disk_errors() -> Iterator[None]:
    """A block in which an error of the disk that safetensors reports becomes the system's `OSError` again."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Writes a JSON file whole.

    Args:
        path, value: of the file.
        durable: as of `writing`. What a run, a scorer or a training is stands in such files: only those that are
            written again and again, or of which the name tells all, do without.
    """
    with writing(path, durable=durable) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Returns what a JSON file of ours holds; `tamis.store.records` also checks that it is what it should be.

    Raises:
        DamageError: the file is damaged; ours are written whole, so something else did that.
        RunError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is damaged ({error}); restore it, or start another run folder") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error


def remove_file(path: Path) -> None:
    """Removes a file, there or not; of a run that lies at a URL, there first."""
    from tamis.store.mirror import take_down

    take_down(path)
    path.unlink(missing_ok=True)


def sweep(folder: Path, names: Sequence[str] = ("",)) -> None:
    """Deletes temporary files that a killed run left in a folder: of all files, or only of the named ones.

    Those of processes that live stay: several may work in one run folder.
    """
    starts = tuple(f".{name}" for name in names)
    if folder.is_dir():
        for entry in list(os.scandir(folder)):
            ours = entry.name.endswith(TEMPORARY) and entry.name.startswith(starts)
            if ours and not entry.is_dir(follow_symlinks=False) and not in_work(Path(entry.path)):
                Path(entry.path).unlink(missing_ok=True)
