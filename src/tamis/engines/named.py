"""The engine that a command names."""

from __future__ import annotations

from tamis.core.errors import StopError, unknown_message
from tamis.engines.engine import Engine
from tamis.engines.local import Local, rank_of


def engine_named(
    name: str,
    *,
    workers: int | None = None,
    address: str | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> Engine:
    """Returns an engine for a command: "local", "ray" or "static".

    Raises:
        StopError: there is no such engine, an option belongs to another engine, or the rank is unknown.
    """
    owners = {"--address": (address, "ray"), "--rank": (rank, "static"), "--world": (world, "static")}
    for option, (value, owner) in owners.items():
        if value is not None and name != owner:
            raise StopError(f"{option} goes with --engine {owner}, not with --engine {name}")
    if name == "ray":
        from tamis.engines.ray import Ray

        return Ray(address, workers)
    if name not in ("local", "static"):
        raise StopError(unknown_message("engine", name, ("local", "ray", "static")))
    return Local(workers, rank_of(rank=rank, world=world) if name == "static" else None, command=True)
