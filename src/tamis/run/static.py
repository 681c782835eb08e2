"""The static engine: ranks that a scheduler starts share a run folder, without a coordinator or messages.

Every rank does its own share of the shards first, then what is left of the others'. Claims (`tamis.store.claims`) keep
two ranks from doing one shard, and free the shards of dead ranks.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import xxhash

from tamis.errors import StopError
from tamis.run.failures import ShardReport, error_of, recorded
from tamis.run.local import Local, Place, execute
from tamis.run.plan import Plan, Task
from tamis.storage import has_if_absent
from tamis.store.claims import CLAIMS, being_done

if TYPE_CHECKING:
    from tamis.run.fill import EngineProgress

#: Seconds between folder listings once only other ranks have work; grows by 1.5.
_LOOK_SECONDS = 2.0
_LONGEST_LOOK_SECONDS = 60.0

#: Shards of others that a rank does before it lists the folders again, and how many it looks at to find them.
_HELPS_WITH, _LOOKS_AT = 16, 256

log = logging.getLogger(__name__)


def place_of(
    environment: Mapping[str, str] = os.environ, *, rank: int | None = None, world: int | None = None
) -> Place:
    """Returns which rank this process is: from the options, else from torchrun's or Slurm's variables.

    In a Slurm array: rank = array task x processes per task + process.

    Raises:
        StopError: nothing gives the rank, or the numbers make no sense.
    """
    if rank is not None and world is not None:
        return Place(rank, world)
    if rank is not None or world is not None:
        raise StopError("--rank and --world belong together: --rank 0 --world 8 is the first of eight ranks")

    def number(name: str, default: int | None = None) -> int:
        # SLURM_TASKS_PER_NODE looks like "4(x2),3": the first machine stands for all.
        value = re.match(r"\d+(?![^(,])", environment.get(name, ""))
        if value is None and default is None:
            raise StopError(f"the variable {name} must be a whole number, it is {environment.get(name)!r}")
        return int(value[0]) if value else int(default or 0)

    place = None
    if {"RANK", "WORLD_SIZE"} <= environment.keys():
        place = Place(number("RANK"), number("WORLD_SIZE"), (number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1)))
    elif {"SLURM_PROCID", "SLURM_NTASKS"} <= environment.keys():
        local = number("SLURM_LOCALID", 0)
        tasks = number("SLURM_STEP_TASKS_PER_NODE", 0) or number("SLURM_TASKS_PER_NODE", 1)
        place = Place(
            number("SLURM_PROCID"),
            number("SLURM_NTASKS"),
            (local, max(tasks, local + 1)),
            cores=number("SLURM_CPUS_PER_TASK", 0) or None,
            own_gpus="SLURM_GPUS_PER_TASK" in environment,
        )
    if "SLURM_ARRAY_TASK_ID" in environment:
        place = place or Place()
        step = max(1, number("SLURM_ARRAY_TASK_STEP"))
        task = (number("SLURM_ARRAY_TASK_ID") - number("SLURM_ARRAY_TASK_MIN")) // step
        rank, world = task * place.world + place.rank, number("SLURM_ARRAY_TASK_COUNT") * place.world
        return replace(place, rank=rank, world=world)
    if place is None:
        raise StopError(
            "nothing says which rank this process is: start it with srun or torchrun or in a Slurm array, or use "
            "--rank 0 --world 8 (the first of eight ranks)"
        )
    return place


@dataclass(frozen=True)
class Static:
    """Engine: one rank of several, each started by a scheduler with the same command.

    Attributes:
        place: which rank this is.
        workers: processes of this rank; None: as `Local` chooses.
        command: as of `Local`.
    """

    away: ClassVar[bool] = False
    place: Place
    workers: int | None = None
    command: bool = False

    @property
    def suffix(self) -> str:
        return f"-rank{self.place.rank}"

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        rank, world = self.place.rank, self.place.world
        own = {shard.name for shard in plan.pool.shards[rank::world]}
        failed_before = recorded(run)
        pending = {task.shard.name for task in tasks}
        batch = [task for task in tasks if task.shard.name in own]
        wait = _LOOK_SECONDS
        with Local(self.workers, self.place, self.command).started(plan, run, tasks) as workers:
            while True:
                for report in execute(deque(batch), workers, progress):
                    if not report.elsewhere:
                        pending.discard(report.shard)
                        yield report
                if not pending:
                    return
                if not has_if_absent(run / CLAIMS):
                    log.warning(
                        "%s: this store has no conditional writes, so shards cannot be claimed: each rank does its own "
                        "share. Do not start two other commands at once",
                        run,
                    )
                    return
                missing = {task.shard.name: task for task in plan.tasks(run) if task.shard.name in pending}
                failed = {name for name, tag in recorded(run).items() if tag != failed_before.get(name)}
                for name in sorted(pending & failed | pending - missing.keys()):  # what other ranks have finished
                    pending.discard(name)
                    missing.pop(name, None)
                    yield ShardReport(shard=name, elsewhere=True, error=error_of(run, name) if name in failed else None)
                some = helping_order(missing, rank)[:_LOOKS_AT]
                busy = being_done(run, some)
                batch = [missing[name] for name in some if name not in busy][:_HELPS_WITH]
                if batch:
                    wait = _LOOK_SECONDS
                elif pending:
                    time.sleep(wait)
                    wait = min(wait * 1.5, _LONGEST_LOOK_SECONDS)


def helping_order(names: Iterable[str], rank: int) -> list[str]:
    """Returns the order in which a rank helps with the shards of others: each rank has its own."""
    return sorted(names, key=lambda name: (xxhash.xxh64_intdigest(f"{rank}/{name}".encode()), name))
