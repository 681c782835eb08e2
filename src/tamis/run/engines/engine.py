"""What an engine is: whoever decides which process does which shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tamis.run.failures import ShardReport
from tamis.run.plan import Plan, Task

#: Hears of a shard's name and of a number of its samples that are done.
EngineProgress = Callable[[str, int], None]


class Engine(Protocol):
    """Gives every task to a `ShardWorker` and yields what became of it, in any order.

    An engine sees shard names and counts only: pixels, resume state and results stay with the workers, which write
    parts themselves. A worker claims its shard, so that any number of engines may work in one run folder at once; a
    task that is being done elsewhere comes back (`ShardReport.elsewhere`) and is tried again.
    """

    def __call__(
        self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress, /
    ) -> Iterator[ShardReport]:
        """Does all tasks.

        Args:
            plan: what the run shall hold.
            run: its folder.
            tasks: the shards and what they lack.
            progress: called with a shard's name and a number of its samples that are done.

        Raises:
            StopError: no shard would go better.
        """
        ...
