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
from tamis.store.atomic import FULL, explained, no_space

#: Commands hold the folder's lock for moments only: so long another one waits for it.
PATIENCE_SECONDS = 2.0

#: Where the processes that are at a shard say so: a file per shard, which goes with them.
CLAIMS = "claims"


@contextmanager
def locked(folder: Path, *, what: str = "run folder", option: str = "--run") -> Iterator[None]:
    """Holds the folder's lock while the block runs.

    Args:
        folder: it is made where it is not there.
        what, option: what the folder is called, and which option names another one, for messages.

    Raises:
        RunError: another process keeps it (the message names it), or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno in FULL:
            raise no_space(folder) from error
        raise RunError(
            f"the {what} {folder} cannot be written to: {error.strerror}; choose another with {option}"
        ) from error
    try:
        _wait_for(handle, f"the {what} {folder}")
        with explained(folder / "lock"):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


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

    Raises:
        RunError: the folder cannot be written to.
        DiskFullError: no space is left.
    """
    path = folder / CLAIMS / shard
    with explained(path):
        path.parent.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # A file that was removed between opening and locking is not a claim: the next process would lock another one.
        mine = _taken(handle) and os.fstat(handle).st_nlink > 0
        try:
            yield mine
        finally:
            if mine:
                path.unlink(missing_ok=True)
    finally:
        os.close(handle)


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
