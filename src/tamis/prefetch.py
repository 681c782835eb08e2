"""Making items a few ahead, in a thread of their own, of whoever uses them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeVar

T = TypeVar("T")


class _End:
    """Stands behind the last item, with the error that ended them if there was one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


_WAIT_SECONDS: Final = 0.1


def prefetched(make: Callable[[], Iterator[T]], *, depth: int) -> Generator[T, None, None]:
    """Yields what an iterator yields, which runs in a thread of its own up to `depth` items ahead.

    Its errors are raised here. Closing the generator ends the thread after the item it is at.

    Args:
        make: gives the iterator; called in the thread.
        depth: items that wait at most.
    """
    made: queue.Queue[T | _End] = queue.Queue(depth)
    over = threading.Event()

    def put(item: T | _End) -> bool:
        while not over.is_set():
            try:
                made.put(item, timeout=_WAIT_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in make():
                if not put(item):
                    return
            put(_End(None))
        except BaseException as error:  # handed over, not lost in the thread
            put(_End(error))

    thread = threading.Thread(target=work, name="tamis-prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := made.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        over.set()
        thread.join()
