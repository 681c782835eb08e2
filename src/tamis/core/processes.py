"""Processes and threads: temporary files named for their writer, workers that die with their parent, prefetching."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

A = TypeVar("A")
T = TypeVar("T")

#: The end of temporary files. A killed command leaves some, and the next one removes them.
TEMPORARY = ".tmp"


def _process_numbers() -> str:
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{machine} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()


#: Identifies the machine or container in which process numbers are unique.
NUMBERED_IN = _process_numbers()

#: Identify the writer of a temporary file: its machine, and a random part that distinguishes reused PIDs.
_HOST = f"{zlib.crc32(NUMBERED_IN.encode()):08x}"
_ME = uuid.uuid4().hex[:8]

#: Temporary files of other machines and containers are kept for this long: no file takes a day to write.
_FOREIGN_SECONDS = 86_400.0


def temporary_name(path: Path) -> Path:
    """Returns a unique name in a path's folder that `sweep` recognises as unfinished."""
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{_ME}-{uuid.uuid4().hex[:8]}{TEMPORARY}")


def in_work(path: Path) -> bool:
    """Whether a process may still be writing a temporary file."""
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
    """Whether a process of this machine is alive. Zombies count as dead: some containers never remove them."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _facts(process)[:1] not in (["Z"], ["X"])


def start_of(process: int) -> str:
    """Returns when a process of this machine started, as later ones may get its number; "" if unknown."""
    return "".join(_facts(process)[19:20])


def _facts(process: int) -> list[str]:
    """Returns the fields of a process in Linux's /proc after its name: state, parent and so on."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:  # not Linux, or the process has ended
        return []


def die_with_parent() -> None:
    """Makes this process, which multiprocessing started, end when its parent ends, however that happens."""
    import multiprocessing

    def watch() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="tamis-parent", daemon=True).start()


#: Threads of `prefetch_items` whose generator was closed.
_CLOSED: WeakSet[threading.Thread] = WeakSet()


def is_abandoned() -> bool:
    """Whether this thread prefetches for a generator that was closed, so that nobody waits for its result."""
    return threading.current_thread() in _CLOSED


def prefetch_items(
    make: Callable[[], Iterator[T]], *, depth: int, weigh: Callable[[T], int] = lambda item: 0, most: int = 0
) -> Generator[T, None, None]:
    """Yields the items of an iterator that runs in a thread, and raises its errors; closing it ends the thread after
    its item.

    `make` is called in the thread. At most `depth` items wait, of a total size of at most `most`, by `weigh` and with
    the one in use; a larger item waits alone.
    """
    waiting: deque[tuple[T, int]] = deque()
    changed = threading.Condition()  # guards everything here
    held, closed, ended = 0, False, False
    error: BaseException | None = None

    def work() -> None:
        nonlocal held, ended, error
        try:
            for item in make():
                weight = weigh(item)
                with changed:
                    changed.wait_for(lambda: closed or (len(waiting) < depth and (not held or held + weight <= most)))  # noqa: B023
                    if closed:
                        return
                    waiting.append((item, weight))
                    held += weight
                    changed.notify_all()
        except BaseException as raised:  # raised again in the reader
            error = raised
        with changed:
            ended = True
            changed.notify_all()

    thread = threading.Thread(target=work, name="tamis-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: waiting or ended)
                if not waiting:
                    break
                item, weight = waiting.popleft()
                changed.notify_all()
            yield item
            del item  # free its memory before waiting for the next
            with changed:
                held -= weight
                changed.notify_all()
    finally:
        _CLOSED.add(thread)
        with changed:
            closed = True
            changed.notify_all()
        thread.join()
    if error is not None:
        raise error


def in_order(submit: Callable[[A], Future[T]], items: Iterable[A], most: int) -> Iterator[T]:
    """Yields the results of what `submit` starts for each item, in order; at most so many are started ahead."""
    started: deque[Future[T]] = deque()
    for item in items:
        started.append(submit(item))
        if len(started) == most:
            yield started.popleft().result()
    while started:
        yield started.popleft().result()
