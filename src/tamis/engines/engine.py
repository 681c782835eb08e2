"""What distributes the shards of a run: local.py and ray.py. All engines make the same files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tamis.engines.plan import Plan, Task
from tamis.engines.progress import ShardReport
from tamis.runs.table import Cluster

#: Called with a shard's name and how many more of its samples are done, from any thread.
EngineProgress = Callable[[str, int], None]


class Engine(Protocol):
    """Gives every task to a `ShardWorker` and yields the reports, in any order.

    An engine passes tasks and reports; pixels and scores never travel: workers read the pool and write parts
    themselves. Each worker claims its shard, so any number of engines may work in one run folder.

    Attributes:
        remote: workers may run on other machines, which may have a GPU that this one lacks.
        suffix: ends the names of the status and events files if several engines share a run, else "".
    """

    @property
    def remote(self) -> bool: ...
    @property
    def suffix(self) -> str: ...

    def speed(self, plan: Plan, tasks: Sequence[Task], /) -> float:
        """Returns how many times as fast it is as one worker on this machine."""

    def __call__(
        self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress, /
    ) -> Iterator[ShardReport]:
        """Does all tasks; raises StopError if every other shard would fail too."""

    def cluster_reader(self) -> AbstractContextManager[Cluster | None]:
        """Provides what reads a run's blocks for `Table.scan` while the context lasts; None: threads do."""
