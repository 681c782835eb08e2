"""Which pairs the galleries show. The uids decide, never row order: the same pool gives the same pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Mask, Rows
from tamis.store.reasons import Cut
from tamis.store.table import Table
from tamis.uid import scramble

_BLOCK = 1 << 20


def scrambled(table: Table, seed: int = 0) -> NDArray[np.uint64]:
    """Returns the scrambled uid of every row: (rows,) uint64, an order that does not depend on that of the rows.

    Selectors draw and break ties in the order of seed 0: the first of what they keep, in that order, are not random.
    """
    out = np.empty(len(table), np.uint64)
    for block, size in enumerate(table.sizes):
        if size:
            start = int(table.starts[block])
            out[start : start + size] = scramble(*table.read_uids(block), seed)
    return out


def first_by(order: NDArray[np.uint64], n: int, among: Mask) -> Rows:
    """Returns the n rows of lowest order among some, in that order; fewer where there are fewer."""
    best = np.empty(0, np.int64)
    for start in range(0, among.size, _BLOCK):
        rows = np.flatnonzero(among[start : start + _BLOCK]) + start
        if rows.size > n:
            rows = rows[np.argpartition(order[rows], n)[:n]] if n else rows[:0]
        best = np.concatenate([best, rows])
        best = best[np.argsort(order[best], kind="stable")[:n]]
    return best


def rows_at(
    table: Table, wanted: Mapping[str, Sequence[float]], order: NDArray[np.uint64]
) -> dict[str, dict[float, int]]:
    """Returns a row for each value of number columns: among those with that value the one of lowest order.

    Args:
        table: the pool's rows.
        wanted: values by column; those that no row has are left out.
        order: (rows,) as of `scrambled`.
    """

    def look(place: slice, columns: dict[str, Any]) -> list[tuple[str, float, int]]:
        found = []
        for name, values in wanted.items():
            for value in values:
                rows = np.flatnonzero(columns[name] == np.float32(value)) + place.start
                if rows.size:
                    found.append((name, value, int(rows[np.argmin(order[rows])])))
        return found

    best: dict[str, dict[float, int]] = {name: {} for name in wanted}
    for some in table.map(list(wanted), look) if wanted else ():
        for name, value, row in some:
            known = best[name].get(value)
            if known is None or order[row] < order[known]:
                best[name][value] = row
    return best


def around(
    table: Table, values: NDArray[np.float64], cut: Cut, keep: Mask, fell: Mask, n: int
) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Returns the pairs next to a line on a score: (row, value), the nearest first.

    Args:
        table: the pool's rows.
        values: (rows,) the score, NaN where it is missing.
        cut: the line.
        keep: the rows of the subset.
        fell: the rows that fell at this line's step.
        n: how many on each side, at most.

    Returns:
        Those just kept, and those just dropped. Of equal scores the lower scrambled uid comes first.
    """
    distance = cut.distance(values)
    inside = _nearest(table, distance, keep & (distance >= 0), n)
    outside = _nearest(table, -distance, fell & (distance <= 0), n)
    return [(row, float(values[row])) for row in inside], [(row, float(values[row])) for row in outside]


def _nearest(table: Table, distance: NDArray[np.float64], among: Mask, n: int) -> list[int]:
    """Returns the n rows of least distance among some, the nearest first, ties by scrambled uid."""
    best = np.empty(0)
    for start in range(0, among.size, _BLOCK):
        here = distance[start : start + _BLOCK][among[start : start + _BLOCK]]
        best = np.sort(np.concatenate([best, here if here.size <= n else np.partition(here, n)[:n]]))[:n]
    if not best.size:
        return []
    rows = np.flatnonzero(among & (distance <= best[-1]))
    ties = scramble(*table.uids(rows))
    return [int(row) for row in rows[np.lexsort((ties, distance[rows]))][:n]]
