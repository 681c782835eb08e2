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
from tamis.reporting.histogram import histograms
from tamis.store.reasons import blocks
from tamis.store.run import Run
from tamis.store.table import Table

#: Bytes of columns that are held; further ones are read from disk each time.
MOST = 1 << 30

#: The bar of a row that is in no bar: its value is missing or infinite.
NONE = 255


class HeldRun(Run):
    """A run that remembers the columns it has read, but for embeddings, which are mapped from their files.

    Threads may share it; at worst two of them read the same column.
    """

    def __init__(self, path: str | os.PathLike[str], *, partial: bool = False, most: int = MOST) -> None:
        super().__init__(path, partial=partial)
        self._held: dict[tuple[int, str, str], Any] = {}
        self._held_uids: dict[int, tuple[U64, U64]] = {}
        self._room = most
        self._guard = threading.Lock()

    def table(self, aliases: Mapping[str, str] | None = None) -> Table:
        plain = super().table(aliases)
        names = dict(aliases or {})

        def read(block: int, wanted: Sequence[str]) -> dict[str, Any]:
            keys = {name: (block, *self._place(names.get(name, name))) for name in wanted}
            missing = [name for name in wanted if keys[name] not in self._held]
            found = plain.read(block, missing) if missing else {}
            for name in missing:
                if plain.kind(name) != "vector":
                    self._hold(keys[name], found[name])
            return {name: found[name] if name in found else self._held[keys[name]] for name in wanted}

        def read_uids(block: int) -> tuple[U64, U64]:
            if block not in self._held_uids:
                self._held_uids[block] = plain.read_uids(block)
            return self._held_uids[block]

        return Table(plain.sizes, read, read_uids, plain.kind, about=plain.about, side_file=plain.side_file)

    def _place(self, name: str) -> tuple[str, str]:
        inner, group, _ = self.locate(name)
        return (group.folder.name if group is not None else "", inner)

    def _hold(self, key: tuple[int, str, str], value: Any) -> None:
        with self._guard:
            if key not in self._held and value.nbytes <= self._room:
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False  # it is handed out again
                self._held[key] = value
                self._room -= value.nbytes

    def forget(self, folder: str) -> None:
        """Drops the scores of one folder, which was written since; they are read again when needed."""
        with self._guard:
            for key in [key for key in self._held if key[1] == folder]:
                self._room += self._held.pop(key).nbytes
            for name in ("scores", "columns"):
                self.__dict__.pop(name, None)


@dataclass(frozen=True, kw_only=True)
class Binned:
    """One column of numbers, cut into bars.

    Attributes:
        edges: (bars + 1,).
        bars: (rows,) uint8, the bar of each row; `NONE` if it is in none.
        pool: (bars,) the number of rows of the pool in each.
        ends: the smallest and the largest finite value; NaN if there is none.
        null: the number of rows without a value.
        whole: whether all finite values are whole numbers.
    """

    edges: NDArray[np.float64]
    bars: NDArray[np.uint8]
    pool: NDArray[np.int64]
    ends: tuple[float, float]
    null: int
    whole: bool

    def count(self, among: Mask) -> NDArray[np.int64]:
        """Returns the number of some rows in each bar: (bars,)."""
        total = np.zeros(256, np.int64)
        for place in blocks(self.bars.size):
            total += np.bincount(self.bars[place][among[place]], minlength=256)
        return total[: self.pool.size]


def binned(table: Table, column: str) -> Binned:
    """Cuts a column of numbers into the bars that the report draws. Memory: a byte per row."""
    facts = histograms(table, [column], [])[column]
    edges = facts.edges
    count = edges.size - 1
    bars = np.full(len(table), NONE, np.uint8)

    def work(place: slice, columns: dict[str, Any]) -> bool:
        values = columns[column]
        there = np.isfinite(values)
        # One multiplication instead of a search; a value at an edge may end on its other side, in both counts alike.
        width = float(edges[-1] - edges[0]) or 1.0
        number = np.floor((values[there].astype(np.float64) - edges[0]) * (count / width))
        bars[place][there] = np.clip(number, 0, count - 1).astype(np.uint8)
        return bool(np.all(values[there] == np.round(values[there])))

    whole = all(list(table.map([column], work)))
    pool = np.bincount(bars, minlength=256)[:count] if bars.size else np.zeros(count, np.int64)
    return Binned(edges=edges, bars=bars, pool=pool, ends=(facts.low, facts.high), null=facts.null, whole=whole)


def heat(x: Binned, y: Binned, among: Mask) -> NDArray[np.int64]:
    """Returns the number of some rows in each cell of two columns: (bars of y, bars of x)."""
    across, down = x.pool.size, y.pool.size
    there = among & (x.bars != NONE) & (y.bars != NONE)
    cells = y.bars[there].astype(np.int64) * across + x.bars[there]
    return np.bincount(cells, minlength=across * down).reshape(down, across)
