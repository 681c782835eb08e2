"""Which rank this process is, if a scheduler starts one command several times to share a run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tamis.errors import StopError


@dataclass(frozen=True)
class Rank:
    """One of the processes that share a run."""

    number: int = 0
    world: int = 1
    local: tuple[int, int] = (0, 1)  # number and world among the ranks of this machine, which share its GPUs and cores
    cores: int | None = None  # for each rank; None: an equal share of the machine's
    own_gpus: bool = False  # a rank sees its own GPUs only

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.world:
            raise StopError(f"rank {self.number} of {self.world} is not possible: ranks are 0 to {self.world - 1}")


def rank_of(environment: Mapping[str, str] = os.environ, *, rank: int | None = None, world: int | None = None) -> Rank:
    """Returns which rank this process is: from the options, else from torchrun's or Slurm's variables.

    In a Slurm array: rank = array task x processes per task + process.

    Raises:
        StopError: nothing gives the rank, or the numbers make no sense.
    """
    if rank is not None and world is not None:
        return Rank(rank, world)
    if rank is not None or world is not None:
        raise StopError("--rank and --world belong together: --rank 0 --world 8 is the first of eight ranks")

    def number(name: str, default: int | None = None) -> int:
        # SLURM_TASKS_PER_NODE looks like "4(x2),3": the first machine stands for all.
        value = re.match(r"\d+(?![^(,])", environment.get(name, ""))
        if value is None and default is None:
            raise StopError(f"the variable {name} must be a whole number, it is {environment.get(name)!r}")
        return int(value[0]) if value else int(default or 0)

    ours = None
    if {"RANK", "WORLD_SIZE"} <= environment.keys():
        ours = Rank(number("RANK"), number("WORLD_SIZE"), (number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1)))
    elif {"SLURM_PROCID", "SLURM_NTASKS"} <= environment.keys():
        local = number("SLURM_LOCALID", 0)
        tasks = number("SLURM_STEP_TASKS_PER_NODE", 0) or number("SLURM_TASKS_PER_NODE", 1)
        ours = Rank(
            number("SLURM_PROCID"),
            number("SLURM_NTASKS"),
            (local, max(tasks, local + 1)),
            cores=number("SLURM_CPUS_PER_TASK", 0) or None,
            own_gpus="SLURM_GPUS_PER_TASK" in environment,
        )
    if "SLURM_ARRAY_TASK_ID" in environment:
        ours = ours or Rank()
        step = max(1, number("SLURM_ARRAY_TASK_STEP"))
        task = (number("SLURM_ARRAY_TASK_ID") - number("SLURM_ARRAY_TASK_MIN")) // step
        rank, world = task * ours.world + ours.number, number("SLURM_ARRAY_TASK_COUNT") * ours.world
        return replace(ours, number=rank, world=world)
    if ours is None:
        raise StopError("which rank is this process? Start it with srun or torchrun, or use --rank 0 --world 8")
    return ours
