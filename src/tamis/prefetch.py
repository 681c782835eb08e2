"""Making items in a thread, a few ahead of their use."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

T = TypeVar("T")


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
