"""Processes and threads: temporary files named for their writer, workers that die with their parent, prefetching."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: Temporary files end so; a run that was killed leaves some, and the next one sweeps them.
TEMPORARY = ".tmp"


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _process_numbers() -> str:
    try:
        return f"{MACHINE} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return MACHINE


#: What tells this machine from others: processes of containers on one machine share its locks.
MACHINE = _machine()

#: Within what a number names one process: containers may share a machine, and its name, but not their numbers.
NUMBERED_IN = _process_numbers()

#: Who writes: this machine, this process, and what tells it from an earlier one of the same number.
_HOST = f"{zlib.crc32(NUMBERED_IN.encode()):08x}"
_ME = uuid.uuid4().hex[:8]

#: Temporary files of other machines, and of containers beside this one, are left alone for so long: nothing takes a day
#: to write.
_FOREIGN_SECONDS = 86_400.0


def temporary_name(path: Path) -> Path:
    """Returns a name beside a path that `sweep` knows as unfinished, and that no other call returns."""
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{_ME}-{uuid.uuid4().hex[:8]}{TEMPORARY}")


def in_work(path: Path) -> bool:
    """Tells whether a temporary file may belong to a process that is still at it."""
    parts = path.name.removesuffix(TEMPORARY).rpartition(".")[2].split("-")
    if len(parts) != 4:
        return False
    host, process, writer, _ = parts
    if host != _HOST:
        try:
            return time.time() - path.stat().st_mtime < _FOREIGN_SECONDS
        except OSError:
            return False
    if process == str(os.getpid()):
        return writer == _ME  # else an earlier process had our number, as in containers
    return process.isdecimal() and alive(int(process))


def alive(process: int) -> bool:
    """Tells whether a process of this machine lives: not one that has ended and that nobody has asked how.

    Such stay for ever where the first process of a container does not ask.
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _facts(process)[:1] not in (["Z"], ["X"])


def started(process: int) -> str:
    """Returns when a process of this machine began, which tells it from an earlier one of its number; "" if unknown."""
    return "".join(_facts(process)[19:20])


def _facts(process: int) -> list[str]:
    """Returns what Linux says of a process after its name: state, parent and so on."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:  # no Linux, or it is gone meanwhile
        return []


#: `PR_SET_PDEATHSIG` of Linux's prctl(2): the signal that a process gets when its parent dies.
_SET_DEATH_SIGNAL = 1

_LOOK_SECONDS = 1.0


def die_with(parent: int) -> None:
    """Has this process killed when its parent dies, however that dies; ends it now if it is dead already.

    Linux does it at once; elsewhere a thread looks every second. (The kernel means the thread that started us: engines
    start workers in the thread that waits for them.)
    """
    if sys.platform == "linux" and _signalled():
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)
        return
    threading.Thread(target=_watch, args=(parent,), name="tamis-parent", daemon=True).start()


def _signalled() -> bool:
    try:
        return bool(ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):  # a C library without it
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


class _End:
    """Follows the last item, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetched(
    make: Callable[[], Iterator[T]], *, depth: int, weigh: Callable[[T], int] = lambda item: 0, most: int = 0
) -> Generator[T, None, None]:
    """Yields the items of an iterator that runs in a thread, and raises its errors.

    Closing the generator ends the thread after its current item.

    Args:
        make: returns the iterator; called in the thread.
        depth: the most items that wait.
        weigh: the size of an item, such as bytes.
        most: the largest total size of the waiting items and the one in use; a larger item waits alone.
    """
    waiting: deque[tuple[T | _End, int]] = deque()
    changed = threading.Condition()
    held = 0
    over = False

    def put(item: T | _End, weight: int) -> bool:
        nonlocal held
        with changed:
            changed.wait_for(lambda: over or (len(waiting) < depth and (not held or held + weight <= most)))
            if not over:
                waiting.append((item, weight))
                held += weight
                changed.notify_all()
            return not over

    def work() -> None:
        try:
            for item in make():
                if not put(item, weigh(item)):
                    return
            put(_End(None), 0)
        except BaseException as error:  # handed over, not lost in the thread
            put(_End(error), 0)

    thread = threading.Thread(target=work, name="tamis-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: waiting)
                item, weight = waiting.popleft()
                changed.notify_all()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
            del item  # before the next is waited for: what it holds has room again
            with changed:
                held -= weight
                changed.notify_all()
    finally:
        with changed:
            over = True
            changed.notify_all()
        thread.join()
