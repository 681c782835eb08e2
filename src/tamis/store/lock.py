"""Who may write to a run folder: one command at a time to what the run says of itself, one process to each shard.

Both are locks of the kernel, which frees them when a process dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tamis.errors import RunError
from tamis.store.atomic import FULL, STILL_MINE, explained, no_space

#: Commands hold the folder's lock for moments only: so long another one waits for it.
PATIENCE_SECONDS = 2.0

#: Where the processes that are at a shard say so: a file per shard, which goes with them.
CLAIMS = "claims"


@contextmanager
def locked(folder: Path, *, what: str = "run folder", option: str = "--run") -> Iterator[None]:
    """Holds the folder's lock while the block runs.

    Should somebody remove the lock's file meanwhile, another process could lock a new one: before anything is renamed
    or removed in the block, it is looked whether the file that is there is the one that is locked.

    Args:
        folder: it is made where it is not there.
        what, option: what the folder is called, and which option names another one, for messages.

    Raises:
        RunError: another process keeps it (the message names it), or the folder cannot be written to; or, in the block,
            the lock is no longer the one that is held.
    """
    path = folder / "lock"
    handle = _opened(folder, what, option)
    try:
        _wait_for(handle, f"the {what} {folder}")
        while not _is_there(path, handle):  # removed between opening and locking: the next process would lock another
            os.close(handle)
            handle = _opened(folder, what, option)
            _wait_for(handle, f"the {what} {folder}")
        with explained(path):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        with _insisting(path, handle, f"the lock {path}"):
            yield
    finally:
        os.close(handle)


def _opened(folder: Path, what: str, option: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno in FULL:
            raise no_space(folder) from error
        raise RunError(
            f"the {what} {folder} cannot be written to: {error.strerror}; choose another with {option}"
        ) from error


@contextmanager
def _insisting(path: Path, handle: int, what: str) -> Iterator[None]:
    """Has whoever renames or removes something in the block look first whether a file that is locked is still there."""
    before, held = STILL_MINE.get(), [handle]

    def look() -> None:
        before()
        if held and not _is_there(path, held[0]):
            raise RunError(
                f"{what} was removed or replaced while this process held it: another one may be at work here, so "
                f"nothing more is written. Repeat the command, and leave {path} alone while one runs"
            )

    STILL_MINE.set(look)
    try:
        yield
    finally:
        held.clear()  # for who was given the check and leaves the block elsewhere: in another thread, say
        STILL_MINE.set(before)


def _wait_for(handle: int, what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not _taken(handle):
        if time.monotonic() > end:
            holder = os.pread(handle, 200, 0).decode("utf-8", "replace").strip() or "another process"
            raise RunError(f"{what} is in use by {holder}; wait for it, stop it, or use another folder")
        time.sleep(0.05)


@contextmanager
def claimed(folder: Path, shard: str) -> Iterator[bool]:
    """Claims a shard of a run while the block runs; gives False where another process has it.

    The kernel keeps the claim for the process that made it, also while that is stopped, until it dies. Should somebody
    remove the claim's file meanwhile, another process could claim the shard by a new one: before anything is renamed or
    removed in the block, it is looked whether the file that is there is the one that is locked.

    Raises:
        RunError: the folder cannot be written to; or, in the block, the claim is no longer the one that is held.
        DiskFullError: no space is left.
    """
    path = folder / CLAIMS / shard
    with explained(path):
        path.parent.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # A file that was removed between opening and locking is not a claim: the next process would lock another one.
        if not (_taken(handle) and _is_there(path, handle)):
            yield False
            return
        try:
            with _insisting(path, handle, f"the claim {path}"):
                yield True
        finally:
            if _is_there(path, handle):
                path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def unclaimed(folder: Path, shard: str) -> bool:
    """Tells whether nobody holds the claim whose file is there. It changes nothing."""
    try:
        handle = os.open(folder / CLAIMS / shard, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return _taken(handle)
    finally:
        os.close(handle)


def _is_there(path: Path, handle: int) -> bool:
    """Tells whether an open file is the one that lies at a path. While it is open, no other gets its number."""
    held = os.fstat(handle)
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino)


def sweep_claims(folder: Path) -> None:
    """Removes the claims of processes that were killed."""
    if (folder / CLAIMS).is_dir():
        for name in os.listdir(folder / CLAIMS):
            with claimed(folder, name):
                pass


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
