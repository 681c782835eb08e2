"""Pools: where the image-text pairs come from. Entry point: `open_pool`."""

from tamis.pools.open import open_pool
from tamis.pools.source import Pool, PoolSpec, Shard

__all__ = ["Pool", "PoolSpec", "Shard", "open_pool"]
