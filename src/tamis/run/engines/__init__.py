"""Engines: who does which shard. One file per engine; all make the same files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tamis.errors import StopError, unknown
from tamis.registry import Classes
from tamis.run.engines.engine import Engine, EngineProgress

_CLASSES = Classes(
    "tamis.run.engines", {"local": "local:Local", "ray": "ray:Ray", "static": "static:Static", "place": "static:Place"}
)


def __getattr__(name: str) -> Any:
    return _CLASSES.attribute(name)


__all__ = ["ENGINES", "Engine", "EngineProgress", "Local", "Place", "Ray", "Static", "engine_named"]

#: What each engine is for, by the name that commands take.
ENGINES: Mapping[str, str] = {
    "local": "processes on this machine",
    "ray": "actors on a Ray cluster, or on a Ray of this run's own",
    "static": "ranks that Slurm, torchrun or MPI has started, sharing a run folder",
}


def engine_named(
    name: str,
    *,
    workers: int | None = None,
    address: str | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> Engine:
    """Returns an engine as commands name it.

    Args:
        name: of `ENGINES`.
        workers: processes or actors; None: as many as the machine has cores for where that helps (`Local.fills`), or as
            the engine says.
        address: of a Ray cluster.
        rank, world: of the static engine; None: as the launcher says.

    Raises:
        StopError: there is no such engine, a setting is another engine's, or nothing says the rank.
    """
    if name not in ENGINES:
        raise StopError(unknown("engine", name, ENGINES))
    given = (("--address", address, "ray"), ("--rank", rank, "static"), ("--world", world, "static"))
    for option, value, whose in given:
        if value is not None and name != whose:
            raise StopError(f"{option} goes with --engine {whose}, not with --engine {name}")
    if name == "ray":
        from tamis.run.engines.ray import Ray

        return Ray(address, workers)
    if name == "static":
        from tamis.run.engines.static import Static, place_of

        return Static(place_of(os.environ, rank, world), workers, fills=True)
    from tamis.run.engines.local import Local

    return Local(workers, fills=True)
