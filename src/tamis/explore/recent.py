"""Answers that are remembered for a while: those that were asked for last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values by key, at most so many: the one that was not asked for the longest is forgotten first.

    Threads may share it. Two that find nothing under a key may both make its value; the later one stays.

    Args:
        most: how many values are kept, 1 or more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Returns the value of a key; None where it was never put here or is forgotten."""
        with self._guard:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Remembers a value and returns it."""
        with self._guard:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return value

    def forget(self, unwanted: Callable[[Key], bool] = lambda key: True) -> None:
        """Forgets the values of some keys, of all without an argument."""
        with self._guard:
            for key in [key for key in self._kept if unwanted(key)]:
                del self._kept[key]
