"""The engine behind `tamis look`: some whole shards, drawn at random, in worker processes, until that is enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import xxhash

from tamis.engines.engine import EngineProgress
from tamis.engines.local import decoders, feeders, worker_processes
from tamis.engines.plan import Plan, Task
from tamis.engines.progress import ShardReport
from tamis.models.device import cores


def draw_order(name: str, seed: int) -> int:
    """Returns a shard's place in a random order, a number that depends on its name and the seed only."""
    return xxhash.xxh3_64_intdigest(name.encode(), seed)


@dataclass
class FirstShards:
    """Engine: shards in the order drawn by a seed, until `pairs` pairs of them are scored, or `shards` are done.

    The limits may be raised while it works. A single worker too is a process: this one has a page to serve. After
    `stop`, the next batch raises KeyboardInterrupt; its shard keeps the rows so far, and a later command continues.
    """

    remote: ClassVar[bool] = False
    suffix: ClassVar[str] = ""
    pairs: int
    shards: int | None = None  # None: any number
    seed: int = 0
    scored: int = 0  # pairs so far, by all calls
    begun: int = 0  # shards, likewise
    stopped: bool = False

    @property
    def enough(self) -> bool:
        """Whether no further shard is begun."""
        return self.scored >= self.pairs or (self.shards is not None and self.begun >= self.shards)

    def stop(self) -> None:
        """Makes the next batch raise KeyboardInterrupt."""
        self.stopped = True

    def speed(self, plan: Plan, tasks: Sequence[Task]) -> float:
        return float(self._size(tasks))

    def _size(self, tasks: Sequence[Task]) -> int:
        return min(feeders(cores(), 1), max(1, len(tasks)))

    def cluster_reader(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        size = self._size(tasks)

        def count(shard: str, pairs: int) -> None:
            if self.stopped:
                raise KeyboardInterrupt
            self.scored += pairs
            progress(shard, pairs)

        def wanted() -> Iterator[Task]:
            for task in sorted(tasks, key=lambda task: draw_order(task.shard.name, self.seed)):
                if self.enough or self.stopped:
                    return
                self.begun += 1
                yield task

        each = decoders(max(1, cores() // size))
        with worker_processes([plan.on("cpu", 1)], run, size, each, shared=False) as workers:
            yield from workers.execute(wanted(), count)
