"""The captions that rows of a subset carry instead of their alt-texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tamis.arrays import Rows
from tamis.errors import RunError

if TYPE_CHECKING:
    from tamis.store.run import Run
    from tamis.store.subset import Subset


@dataclass(frozen=True, eq=False)
class OtherCaptions:
    """Texts of some rows of a run; false if there are none. Memory: the texts and 16 bytes for each."""

    rows: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # (n,) ascending
    texts: pa.Array = field(default_factory=lambda: pa.array([], pa.large_string()))  # (n,)

    def __bool__(self) -> bool:
        return bool(self.rows.size)

    def of(self, row: int) -> str | None:
        """Returns the text of a row of the run; None if it carries its alt-text."""
        place = int(np.searchsorted(self.rows, row))
        here = place < self.rows.size and self.rows[place] == row
        return str(self.texts[place]) if here else None

    def instead(self, rows: Rows, captions: pa.Array) -> pa.Array:
        """Returns the captions of rows of the run, with other captions in the place of alt-texts."""
        if not self:
            return captions
        places = np.searchsorted(self.rows, rows).clip(max=self.rows.size - 1)
        texts = self.texts.take(pa.array(places)).cast(captions.type)
        return pc.if_else(pa.array(self.rows[places] == rows), texts, captions)

    @cached_property
    def digest(self) -> bytes:
        """Identifies the rows and texts; empty if there are none."""
        texts = "\0".join(self.texts.to_pylist())
        return xxhash.xxh3_128_digest(self.rows.tobytes() + texts.encode()) if self else b""


def other_captions(subset: Subset) -> OtherCaptions:
    """Reads the other captions of a subset's kept rows.

    Raises:
        RunError: the run no longer has them, or the subset does not say where they are.
    """
    if subset.caption is None or not subset.caption.any():
        return OtherCaptions()
    name, run = subset.captions_from, subset.run
    if not name:
        raise RunError(f"{subset.name!r} says that rows carry other captions: set captions_from to their column")
    table, rows, texts = run.table(), np.flatnonzero(subset.caption), [pa.array([], pa.large_string())]
    for block, part in table.blocks_of(rows):
        values = table.read(block, [name])[name]
        texts.append(values.take(pa.array(rows[part] - table.starts[block])).cast(pa.large_string()))
    found = pa.concat_arrays(texts)
    if found.null_count:
        raise RunError(f"{found.null_count:,} rows of {subset.name!r} have no text in {name!r} any more: select again")
    return OtherCaptions(rows, found)


def captions_of(run: Run, rows: Rows, others: OtherCaptions) -> Iterator[str]:
    """Yields the captions of ascending rows of a run, "" for a missing one."""
    first = 0
    for shard, size in zip(run.shards, run.sizes, strict=True):
        low, high = np.searchsorted(rows, [first, first + size])
        if high > low:
            column = run.index(shard, ["caption"]).column("caption").take(pa.array(rows[low:high] - first))
            yield from (text or "" for text in others.instead(rows[low:high], column.combine_chunks()).to_pylist())
        first += size
