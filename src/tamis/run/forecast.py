"""How many pairs a command has to do, how many it has done, and when it will be through."""

from __future__ import annotations

import time
from collections.abc import Mapping

#: Before so much time has passed since the first batch nothing is said of the time that is left.
_SHORTEST_SECONDS = 0.2


class Forecast:
    """Counts pairs, shard by shard.

    Attributes:
        done: pairs of shards that are through, those of earlier commands among them.
    """

    def __init__(self, shards: Mapping[str, int | None] | None = None, *, done: int = 0) -> None:
        """Args:
        shards: pairs of each shard that is to be done; None where nothing tells.
        done: pairs of the pool's other shards.
        """
        self.done = done
        shards = shards or {}
        self._left = {name: pairs for name, pairs in shards.items() if pairs is not None}
        self._untold = {name for name, pairs in shards.items() if pairs is None}
        # What a shard has in the mean, of those that were told and of those that are through.
        self._counted, self._pairs = len(self._left), sum(self._left.values())
        self._sum_left = self._pairs
        self._at_work: dict[str, int] = {}
        self._first: tuple[float, int] | None = None  # when the first batch was through, and pairs at that time

    def advance(self, shard: str, pairs: int) -> None:
        """Counts pairs of a shard that is worked on."""
        self._at_work[shard] = self._at_work.get(shard, 0) + pairs
        if self._first is None:
            # Loading models is not scoring: the rate counts from the end of the first batch.
            self._first = (time.time(), self.so_far)

    def finish(self, shard: str, rows: int, *, elsewhere: bool) -> None:
        """Counts a shard that is through, here or at another process."""
        self._at_work.pop(shard, None)
        told = self._left.pop(shard, None)
        self._sum_left -= told or 0
        if elsewhere:
            self.done += told if told is not None else round(self._mean or 0)
        else:
            self.done += rows
            if told is None:
                self._counted, self._pairs = self._counted + 1, self._pairs + rows
        self._untold.discard(shard)

    @property
    def so_far(self) -> int:
        """Pairs that are done, those of shards that are worked on among them."""
        return self.done + sum(self._at_work.values())

    @property
    def _mean(self) -> float | None:
        return self._pairs / self._counted if self._counted else None

    @property
    def total(self) -> int | None:
        """Pairs of the whole pool; None while nothing tells of some shard, nor is one through."""
        if self._untold and self._mean is None:
            return None
        untold = round(len(self._untold) * self._mean) if self._untold and self._mean is not None else 0
        return max(self.done + self._sum_left + untold, self.so_far)

    @property
    def exact(self) -> bool:
        """Whether the total was told of every shard."""
        return not self._untold

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all is done, if it goes on as since the first batch; None while that cannot be told."""
        if not self._left and not self._untold:
            return 0.0
        total = self.total
        if self._first is None or total is None:
            return None
        seconds, pairs = time.time() - self._first[0], self.so_far - self._first[1]
        return (total - self.so_far) * seconds / pairs if seconds > _SHORTEST_SECONDS and pairs > 0 else None
