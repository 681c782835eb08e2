"""Which shard killed an actor that was at several at once: they are halved until one is left that kills alone.

A half runs as a group, on an actor that is at nothing else. A death that no shard is to blame for costs two groups; a
shard that kills costs one death for each halving, log2 of how many there were, and then those that prove it alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tamis.run.plan import Task


@dataclass
class Suspects:
    """Shards that actors were at when they died.

    Attributes:
        most: a shard at which so many actors have died, while they were at no other, is guilty.
        groups: shards to be done together by an actor that is at nothing else, so that it is known whose death the next
            one is. The next group comes first.
        postponed: those that another process was at when their group was done.
        deaths: how many actors have died at a shard that was the only one they were at.
    """

    most: int
    groups: deque[tuple[Task, ...]] = field(default_factory=deque)
    postponed: list[Task] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        """Returns how many shards are suspected."""
        return sum(map(len, self.groups)) + len(self.postponed)

    def died(self, tasks: Sequence[Task]) -> Task | None:
        """Takes the shards, one at least, that an actor was at when it died; returns the one that is guilty, if any."""
        if len(tasks) > 1:
            middle = (len(tasks) + 1) // 2
            self.groups.extend((tuple(tasks[:middle]), tuple(tasks[middle:])))
            return None
        (task,) = tasks
        self.deaths[task.shard.name] += 1
        if self.deaths[task.shard.name] >= self.most:
            return task
        self.groups.appendleft((task,))
        return None

    def take(self) -> tuple[Task, ...]:
        """Returns the group that is to be done next; none are left where this is empty."""
        if self.groups:
            return self.groups.popleft()
        group, self.postponed = tuple(self.postponed), []
        return group
