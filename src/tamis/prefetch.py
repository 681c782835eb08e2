"""Making items a few ahead, in a thread of their own, of whoever uses them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

T = TypeVar("T")


class _End:
    """Stands behind the last item, with the error that ended them if there was one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetched(
    make: Callable[[], Iterator[T]], *, depth: int, weigh: Callable[[T], int] = lambda item: 0, most: int = 0
) -> Generator[T, None, None]:
    """Yields what an iterator yields, which runs in a thread of its own up to `depth` items ahead.

    Its errors are raised here. Closing the generator ends the thread after the item it is at.

    Args:
        make: gives the iterator; called in the thread.
        depth: items that wait at most.
        weigh: what an item takes, such as bytes.
        most: what the items that wait, and the one in use, take together at most; a larger one is handed over alone.
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
