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
from dataclasses import dataclass
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


#: Identifies this machine, also in its containers.
MACHINE = _machine()

#: Where a process number is unique: containers of one machine have numbers of their own.
NUMBERED_IN = _process_numbers()

#: Identify the writer of a temporary file: its machine, and a random part that distinguishes reused PIDs.
_HOST = f"{zlib.crc32(NUMBERED_IN.encode()):08x}"
_ME = uuid.uuid4().hex[:8]

#: Temporary files of other machines and containers are kept until this old: no file takes a day to write.
_FOREIGN_SECONDS = 86_400.0


def temporary_name(path: Path) -> Path:
    """Returns a unique name in a path's folder that `sweep` recognises as unfinished."""
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{_ME}-{uuid.uuid4().hex[:8]}{TEMPORARY}")


def in_work(path: Path) -> bool:
    """Whether a temporary file may belong to a process that still writes it."""
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
        return writer == _ME  # else the PID was reused, as in containers
    return process.isdecimal() and alive(int(process))


def alive(process: int) -> bool:
    """Whether a process of this machine is alive. Zombies are not: in some containers they stay for ever."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _facts(process)[:1] not in (["Z"], ["X"])


def started(process: int) -> str:
    """Returns when a process of this machine began: later ones may get its number. "" if unknown."""
    return "".join(_facts(process)[19:20])


def _facts(process: int) -> list[str]:
    """Returns the fields of a process in Linux's /proc after its name: state, parent and so on."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:  # not Linux, or the process has ended
        return []


#: `PR_SET_PDEATHSIG` of Linux's prctl(2): the signal that a process gets when its parent dies.
_SET_DEATH_SIGNAL = 1

_LOOK_SECONDS = 1.0


def die_with(parent: int) -> None:
    """Makes this process die with its parent, however that dies.

    Linux does it at once; elsewhere a thread looks every second. For the kernel, the parent is the thread that started
    us: engines start workers in the thread that waits for them.
    """
    if sys.platform == "linux" and _signalled():
        if os.getppid() != parent:  # it died before the call
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


@dataclass
class _End:
    """End-of-stream marker, with the error that ended the items, if any."""

    error: BaseException | None


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
            del item  # free its memory before waiting for the next
            with changed:
                held -= weight
                changed.notify_all()
    finally:
        with changed:
            over = True
            changed.notify_all()
        thread.join()
