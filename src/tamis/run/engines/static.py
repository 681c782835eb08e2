"""The static engine: ranks that a scheduler has started share a run folder. No daemon, no coordinator, no messages.

Every rank does its own share of the shards first, then what is left of the others'. Claims (`tamis.store.claims`) keep
two from working at one shard, and free what a dead rank was at.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import xxhash

from tamis.errors import StopError
from tamis.run.engines.engine import EngineProgress
from tamis.run.engines.local import Local
from tamis.run.failures import ShardReport, error_of, recorded
from tamis.run.plan import Plan, Task
from tamis.store.claims import being_done, takes_over

#: Before the folders are listed again, where other ranks are at all that is left: longer every time, up to a minute.
_LOOK_SECONDS = 2.0
_LONGEST_LOOK_SECONDS = 60.0

#: Shards of others that a rank takes on before it lists the folders again.
_AT_ONCE = 16

#: How each launcher numbers the processes that it starts: rank, how many there are, and the same within a machine. In
#: turn: torchrun, Open MPI, other MPIs, srun.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)

#: How many tasks of a step, or of a job, Slurm starts on each of its machines: "4(x2),3" is 4, 4 and 3.
_TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")


@dataclass(frozen=True)
class Place:
    """Which rank of how many this process is.

    Attributes:
        rank: counted from 0.
        world: how many ranks there are.
        neighbours: which of how many ranks on this machine, counted from 0.
        cores: that the launcher gives each rank; None: it does not say. A rank that may use no more has its own, and
            shares none with its neighbours.
        own_gpus: whether a rank sees no GPUs but its own.
    """

    rank: int
    world: int
    neighbours: tuple[int, int] = (0, 1)
    cores: int | None = None
    own_gpus: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise StopError(
                f"rank {self.rank} of {self.world} ranks is not possible: ranks are counted from 0 to {self.world - 1}"
            )


def place_of(environment: Mapping[str, str], rank: int | None = None, world: int | None = None) -> Place:
    """Finds which rank this process is, from what was asked for, else from what the launcher says.

    The tasks of a Slurm array count too: each may start several processes with srun, torchrun or mpirun, and those of
    the second task come after those of the first.

    Args:
        environment: the variables of the process.
        rank, world: as asked for; both or neither. Only the world: the index of an indexed Kubernetes job is the rank.

    Raises:
        StopError: nothing says it, or what says it makes no sense.
    """
    if rank is not None and world is not None:
        return Place(rank, world)
    if world is not None and "JOB_COMPLETION_INDEX" in environment:
        return Place(_number(environment, "JOB_COMPLETION_INDEX"), world)
    if rank is not None or world is not None:
        raise StopError("--rank and --world belong together: --rank 0 --world 8 is the first of eight ranks")
    inner = _launched(environment)
    if "SLURM_ARRAY_TASK_ID" in environment:
        first, step = (_number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("MIN", "STEP"))
        task = (_number(environment, "SLURM_ARRAY_TASK_ID") - first) // max(1, step)
        tasks = _number(environment, "SLURM_ARRAY_TASK_COUNT")
        inner = inner or Place(0, 1)
        return replace(inner, rank=task * inner.world + inner.rank, world=tasks * inner.world)
    if inner is None:
        raise StopError(
            "nothing says which rank this process is: start it with srun, torchrun or mpirun, in a Slurm array, or say "
            "--rank 0 --world 8 (the first of eight ranks)"
        )
    return inner


def _launched(environment: Mapping[str, str]) -> Place | None:
    for rank, world, local_rank, local_world in _LAUNCHERS:
        if rank in environment and world in environment:
            number, count = (
                _number(environment, name) if environment.get(name, "").isdecimal() else default
                for name, default in ((local_rank, 0), (local_world, 1))
            )
            by_slurm = rank == "SLURM_PROCID"
            if by_slurm:
                count = _tasks_here(environment) or count
            each = environment.get("SLURM_CPUS_PER_TASK", "") if by_slurm else ""
            return Place(
                _number(environment, rank),
                _number(environment, world),
                (number, max(count, number + 1)),
                cores=int(each) if each.isdecimal() else None,
                own_gpus=by_slurm and "SLURM_GPUS_PER_TASK" in environment,
            )
    return None


def _tasks_here(environment: Mapping[str, str]) -> int | None:
    """Returns how many tasks Slurm starts on this machine; None where it does not say."""
    node = environment.get("SLURM_NODEID", "0")
    told = next((environment[name] for name in _TASKS_PER_NODE if name in environment), "")
    if not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", told) or not node.isdecimal():
        return None
    left = int(node)
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", told):
        if left < int(times or 1):
            return int(tasks)
        left -= int(times or 1)
    return None


def _number(environment: Mapping[str, str], name: str) -> int:
    found = environment.get(name, "")
    if not found.isdecimal():
        raise StopError(f"the variable {name} must be a whole number, it is {found!r}; or say --rank and --world")
    return int(found)


def share(names: Sequence[str], rank: int, world: int) -> list[str]:
    """Returns the shards that a rank does first: every world-th of the pool, from its own on."""
    return list(names[rank::world])


def helping_order(names: Iterable[str], rank: int) -> list[str]:
    """Returns the shards of others in the order in which a rank offers its help: each rank has another."""
    return sorted(names, key=lambda name: (xxhash.xxh64_intdigest(f"{rank}/{name}".encode()), name))


@dataclass(frozen=True)
class Static:
    """Engine: one rank of several, each started by a scheduler, all with the same command.

    Attributes:
        place: which rank this is.
        workers: processes of this rank; None: one per GPU of its own, or one.
        fills: as of `Local`.
    """

    away: ClassVar[bool] = False
    place: Place
    workers: int | None = None
    fills: bool = False

    @property
    def suffix(self) -> str:
        return f"-rank{self.place.rank}"

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        place = self.place
        local = Local(self.workers, place.neighbours, self.fills, cores=place.cores, own_gpus=place.own_gpus)
        rank, world = self.place.rank, self.place.world
        mine = set(share([shard.name for shard in plan.pool.shards], rank, world))
        before = recorded(run)
        unknown = {task.shard.name for task in tasks}  # what became of them
        own = [task for task in tasks if task.shard.name in mine]
        with local.at_work(plan, run, progress, tasks) as workers:
            for report in workers.do(own, patient=False):
                if not report.elsewhere:
                    unknown.discard(report.shard)
                    yield report
            if not takes_over(run):
                return
            wait = _LOOK_SECONDS
            while unknown:
                left = {task.shard.name: task for task in plan.tasks(run) if task.shard.name in unknown}
                for report in _of_others(run, unknown, left, before):
                    unknown.discard(report.shard)
                    left.pop(report.shard, None)
                    yield report
                free = _free(run, helping_order(left, rank))
                for report in workers.do([left[name] for name in free], patient=False):
                    if not report.elsewhere:
                        unknown.discard(report.shard)
                        yield report
                if free:
                    wait = _LOOK_SECONDS
                elif unknown:
                    time.sleep(wait)
                    wait = min(wait * 1.5, _LONGEST_LOOK_SECONDS)


def _free(run: Path, names: Sequence[str]) -> list[str]:
    """Returns the first shards that nobody is at: each of them costs a look at a shared disk."""
    free: list[str] = []
    for start in range(0, len(names), 4 * _AT_ONCE):
        some = names[start : start + 4 * _AT_ONCE]
        busy = being_done(run, some)
        free += [name for name in some if name not in busy]
        if len(free) >= _AT_ONCE:
            break
    return free[:_AT_ONCE]


def _of_others(run: Path, unknown: Set[str], left: Mapping[str, Task], before: Mapping[str, str]) -> list[ShardReport]:
    """Returns what became of shards at other ranks: done, or failed since this command began.

    Args:
        run: the run folder.
        unknown: the shards that are asked for.
        left: those of them that lack parts now.
        before: when errors were recorded, by shard, as this command began.
    """
    now = recorded(run)
    found = []
    for name in sorted(unknown):
        failed = name in now and now[name] != before.get(name)
        if name not in left or failed:
            found.append(ShardReport(shard=name, elsewhere=True, error=error_of(run, name) if failed else None))
    return found
