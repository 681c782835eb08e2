"""Engines: who does which shard. One file per engine; all make the same files."""

from tamis.run.engines.engine import Engine, EngineProgress
from tamis.run.engines.local import Local

__all__ = ["Engine", "EngineProgress", "Local"]
