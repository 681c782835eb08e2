"""One command at a time writes to a run folder. The kernel frees the lock when a process dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tamis.errors import RunError
from tamis.store.atomic import FULL, explained, no_space


@contextmanager
def locked(folder: Path, *, what: str = "run folder", option: str = "--run") -> Iterator[None]:
    """Holds the folder's lock while the block runs.

    Args:
        folder: it is made where it is not there.
        what, option: what the folder is called, and which option names another one, for messages.

    Raises:
        RunError: another process holds it (the message names it), or the folder cannot be written to.
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
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 200, 0).decode("utf-8", "replace").strip() or "another process"
            raise RunError(
                f"the {what} {folder} is in use by {holder}; wait for it, stop it, or use another folder"
            ) from error
        with explained(folder / "lock"):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
