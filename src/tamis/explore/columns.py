"""A run whose columns stay in memory, so that recipes can be applied many times a second; and its histograms."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import U64, Mask
from tamis.reporting.histogram import Histogram, bars_of, histogram, whole_column
from tamis.store.reasons import blocks
from tamis.store.run import Run
from tamis.store.table import Table

#: Bytes of columns that are kept; further ones are read from disk each time.
MOST = 1 << 30

#: The bar of a row that is in no bar: its value is missing or infinite.
NONE = 255


class HeldRun(Run):
    """A run that remembers the columns it has read, except embeddings, which are mapped. Threads may share it."""

    def __init__(self, path: str | os.PathLike[str], *, partial: bool = False, most: int = MOST) -> None:
        super().__init__(path, partial=partial)
        self._held: dict[tuple[int, str, str], Any] = {}
        self._held_uids: dict[int, tuple[U64, U64]] = {}
        self._room = most
        self._guard = threading.Lock()

    def table(self, aliases: Mapping[str, str] | None = None) -> Table:
        plain, names = super().table(aliases), dict(aliases or {})

        def key(block: int, name: str) -> tuple[int, str, str]:
            inner, group, _ = self.locate(names.get(name, name))
            return block, group.folder.name if group is not None else "", inner

        def read(block: int, wanted: Sequence[str]) -> dict[str, Any]:
            held = {name: self._held.get(key(block, name)) for name in wanted}
            missing = [name for name, value in held.items() if value is None]
            found = plain.read(block, missing) if missing else {}
            for name in missing:
                if plain.kind(name) != "vector":
                    self._hold(key(block, name), found[name])
            return {name: found[name] if name in found else held[name] for name in wanted}

        def read_uids(block: int) -> tuple[U64, U64]:
            if block not in self._held_uids:
                self._held_uids[block] = plain.read_uids(block)
            return self._held_uids[block]

        return Table(plain.sizes, read, read_uids, plain.kind, about=plain.about, side_file=plain.side_file)

    def _hold(self, key: tuple[int, str, str], value: Any) -> None:
        with self._guard:
            if key not in self._held and value.nbytes <= self._room:
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False  # it is shared
                self._held[key] = value
                self._room -= value.nbytes

    def forget(self, folder: str) -> None:
        """Drops the scores of one folder after it was written to; they are read again when needed."""
        with self._guard:
            for key in [key for key in self._held if key[1] == folder]:
                self._room += self._held.pop(key).nbytes
            for name in ("scores", "columns"):
                self.__dict__.pop(name, None)


@dataclass(frozen=True, kw_only=True)
class Binned:
    """Column binned as in the report: its distribution over the pool, and the bar of each row, `NONE` if it has none.
    `whole`: all finite values are integers.
    """

    facts: Histogram
    bars: NDArray[np.uint8]
    whole: bool

    def count(self, among: Mask) -> NDArray[np.int64]:
        """Returns the number of some rows in each bar: (bars,)."""
        total = np.zeros(256, np.int64)
        for place in blocks(self.bars.size):
            total += np.bincount(self.bars[place][among[place]], minlength=256)
        return total[: self.facts.pool.size]


def binned(table: Table, column: str) -> Binned:
    """Cuts a column of numbers into bars. Memory: a byte per row."""
    values = whole_column(table, column)
    facts, bars = histogram(values, []), np.full(values.size, NONE, np.uint8)
    for place in blocks(values.size):
        there = np.isfinite(values[place])
        bars[place][there] = bars_of(values[place][there], facts.edges)
    finite = values[bars != NONE]
    return Binned(facts=facts, bars=bars, whole=bool(np.all(finite == np.rint(finite))))


def heat(x: Binned, y: Binned, among: Mask) -> NDArray[np.int64]:
    """Returns the number of some rows in each cell of two columns: (bars of y, bars of x)."""
    across, down = x.facts.pool.size, y.facts.pool.size
    there = among & (x.bars != NONE) & (y.bars != NONE)
    cells = y.bars[there].astype(np.int64) * across + x.bars[there]
    return np.bincount(cells, minlength=across * down).reshape(down, across)
