"""Engines distribute shards to workers. All of them make the same files: see local.py, ray.py, static.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tamis.errors import StopError, unknown
from tamis.run.failures import ShardReport
from tamis.run.plan import Plan, Task

#: Called with a shard's name and a number of its samples that are done.
EngineProgress = Callable[[str, int], None]

#: What each engine is for, by the name that commands take.
ENGINES: Mapping[str, str] = {
    "local": "processes on this machine",
    "ray": "actors on a Ray cluster, or on a Ray started for this run",
    "static": "ranks started by Slurm or torchrun that share a run folder",
}


class Engine(Protocol):
    """Gives every task to a `ShardWorker` and yields the reports, in any order.

    An engine handles shard names and counts only: workers read the pool and write parts themselves. A worker claims its
    shard, so any number of engines may work in one run folder at once.

    Attributes:
        away: workers may run on other machines, which may have a GPU that this one lacks.
        suffix: of the status and events files, if several engines are started for one run; "" otherwise.
    """

    @property
    def away(self) -> bool: ...
    @property
    def suffix(self) -> str: ...

    def __call__(
        self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress, /
    ) -> Iterator[ShardReport]:
        """Does all tasks; raises StopError if every other shard would fail too."""


def engine_named(
    name: str,
    *,
    workers: int | None = None,
    address: str | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> Engine:
    """Returns one of `ENGINES` for a command.

    Raises:
        StopError: there is no such engine, an option belongs to another engine, or the rank is unknown.
    """
    if name not in ENGINES:
        raise StopError(unknown("engine", name, ENGINES))
    for option, value, owner in (
        ("--address", address, "ray"),
        ("--rank", rank, "static"),
        ("--world", world, "static"),
    ):
        if value is not None and name != owner:
            raise StopError(f"{option} goes with --engine {owner}, not with --engine {name}")
    if name == "ray":
        from tamis.run.ray import Ray

        return Ray(address, workers)
    if name == "static":
        from tamis.run.static import Static, place_of

        return Static(place_of(rank=rank, world=world), workers, command=True)
    from tamis.run.local import Local

    return Local(workers, command=True)
