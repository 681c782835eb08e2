"""Pairs for training, read by byte ranges from the shards they came in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.errors import RunError, ShardError
from tamis.pool import Pool
from tamis.store.run import Run

_AT_ONCE = 512  # rows whose bytes are in memory together
_TABLES = 64  # shards whose index is kept open


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair as it was read.

    Attributes:
        image: the bytes of its image file; None where there is none.
        caption: None where there is none that can be judged.
    """

    image: bytes | None
    caption: str | None


def training_samples(run: Run, pool: Pool, rows: NDArray[np.int64]) -> Iterator[Pair]:
    """Yields the pairs of a run's rows, in exactly their order, repeats included.

    Args:
        run: whose index says where the bytes lie.
        pool: the files.
        rows: numbers of rows of the run.

    Raises:
        RunError: the pool lacks a shard, or a shard cannot be read.
    """
    shards = {shard.name: shard for shard in pool.shards}
    starts = np.concatenate([[0], np.cumsum(run.sizes)])
    tables: OrderedDict[int, pa.Table] = OrderedDict()
    for start in range(0, rows.size, _AT_ONCE):
        some, back = np.unique(rows[start : start + _AT_ONCE], return_inverse=True)
        blocks = np.searchsorted(starts, some, side="right") - 1
        found: list[Pair] = []
        for block in np.unique(blocks).tolist():
            name = run.shards[block]
            if name not in shards:
                raise RunError(f"the pool no longer has the shard {name!r}, from which pairs are trained on")
            inside = (some[blocks == block] - starts[block]).tolist()
            table = tables.pop(block, None)
            if table is None:
                table = run.index(name, ["caption", "caption_judged"])
            tables[block] = table
            if len(tables) > _TABLES:
                tables.popitem(last=False)
            taken = table.take(pa.array(inside, pa.int64())).to_pydict()
            captions = [
                text if good else None for text, good in zip(taken["caption"], taken["caption_judged"], strict=True)
            ]
            members = run.members(name, inside)
            try:
                for files, caption in zip(shards[name].files(inside, members), captions, strict=True):
                    lower = {ext.lower(): data for ext, data in files.items()}
                    known = [ext.lower() for ext in pool.spec.image_extensions]
                    image = next((lower[ext] for ext in known if ext in lower), None)
                    found.append(Pair(image, caption))
            except (OSError, ShardError) as error:
                raise RunError(f"{shards[name].url} cannot be read: {error}; mend it and repeat the command") from error
        yield from (found[place] for place in back.tolist())
