"""The plain ways to read and decode a pool that `benchmarks.score` compares with.

Imports nothing of Tamis: what else a process has loaded changes where its heap ends, and so how often a decoded image's
pages go back to the system. A bare loop in a process that has Tamis loaded is 1.3 times as fast as alone.
"""

from __future__ import annotations

import io
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Spent, spend


def warmed(work: Callable[[list[str]], int], pool: str) -> Spent:
    """Does one shard of a pool, then measures all."""
    warnings.simplefilter("ignore", ResourceWarning)
    shards = sorted(str(path) for path in Path(pool).glob("*.tar"))
    work(shards[:1])
    return spend(lambda: work(shards))


def decode_all(shards: list[str]) -> int:
    from PIL import Image

    images = 0
    for shard in shards:
        with tarfile.open(shard, "r|") as tar:
            for member in tar:
                data = tar.extractfile(member).read()  # type: ignore[union-attr]
                if member.name.endswith(".jpg"):
                    images += Image.open(io.BytesIO(data)).convert("RGB").size[0] > 0
    return images


def bare_loop(pool: str) -> Spent:
    return warmed(decode_all, pool)


def with_webdataset(pool: str) -> Spent:
    import webdataset

    def work(shards: list[str]) -> int:
        samples = webdataset.WebDataset(shards, shardshuffle=False).decode("pil")
        return sum(sample["jpg"].mode == "RGB" for sample in samples)

    return warmed(work, pool)
