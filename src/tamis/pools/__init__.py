"""Pools: where the image-text pairs come from. Entry point: `open_pool`."""

from typing import TYPE_CHECKING, Any

from tamis.pools.source import Pool, PoolSpec, Shard

if TYPE_CHECKING:
    from tamis.pools.open import open_pool

__all__ = ["Pool", "PoolSpec", "Shard", "open_pool"]


def __getattr__(name: str) -> Any:
    if name != "open_pool":
        raise AttributeError(f"module 'tamis.pools' has no attribute {name!r}")
    from tamis.pools.open import open_pool  # with all formats, which reading a run does not need

    return open_pool
