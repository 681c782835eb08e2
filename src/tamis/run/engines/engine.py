"""What an engine is: whoever decides which process does which shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tamis.errors import StopError, TamisError
from tamis.run.failures import ShardReport
from tamis.run.plan import Plan, Task
from tamis.run.shard import Progress, ShardWorker

#: Hears of a shard's name and of a number of its samples that are done.
EngineProgress = Callable[[str, int], None]


class Engine(Protocol):
    """Gives every task to a `ShardWorker` and yields what became of it, in any order.

    An engine sees shard names and counts only: pixels, resume state and results stay with the workers, which write
    parts themselves. A worker claims its shard, so that any number of engines may work in one run folder at once; a
    task that is being done elsewhere comes back (`ShardReport.elsewhere`) and is tried again.

    Attributes:
        away: its workers may be on other machines: what this one lacks, a GPU say, those may have.
        suffix: what tells its status and its events from those of other engines that are started together for one run;
            "" where it is the only one.
    """

    @property
    def away(self) -> bool: ...
    @property
    def suffix(self) -> str: ...

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


def placed(plan: Plan, device: str, threads: int | None) -> Plan:
    """Returns a plan for one worker: on a device of its own, with a number of threads for the models."""
    return replace(plan, identities=plan.identities.on(replace(plan.device, kind=device, threads=threads)))


def answer(worker: ShardWorker, task: Task, progress: Progress) -> ShardReport | StopError:
    """Does a task, and returns what stops the run instead of raising it: answers travel between processes."""
    try:
        return worker.do(task, progress)
    except StopError as error:
        return error
    except TamisError as error:
        return StopError(str(error))
