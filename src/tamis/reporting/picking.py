"""Which pairs the page shows. The uids decide, never row order: the same pool gives the same pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Mask, Rows
from tamis.store.reasons import Cut, blocks
from tamis.store.table import Table
from tamis.uid import scramble

K = TypeVar("K")

#: A row and its value of a score.
Scored = tuple[int, float]


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
    for place in blocks(among.size):
        rows = np.flatnonzero(among[place]) + place.start
        if rows.size > n:
            rows = rows[np.argpartition(order[rows], n)[:n]] if n else rows[:0]
        best = np.concatenate([best, rows])
        best = best[np.argsort(order[best], kind="stable")[:n]]
    return best


def first_of_each(
    table: Table,
    columns: Sequence[str],
    masks: Callable[[Mapping[str, Any]], Mapping[K, Mask]],
    order: NDArray[np.uint64],
    n: int,
) -> dict[K, tuple[int, list[int]]]:
    """Returns of each kind of rows how many there are, and the n of lowest order, in one pass.

    Args:
        table: the pool's rows.
        columns: what is read for it.
        masks: gives, of a block's columns, the rows of each kind.
        order: (rows,) as of `scrambled`.
        n: how many rows of each kind.
    """

    def look(place: slice, values: dict[str, Any]) -> list[tuple[K, int, Rows]]:
        kinds = masks(values).items()
        return [
            (kind, int(np.count_nonzero(mask)), first_by(order[place], n, mask) + place.start) for kind, mask in kinds
        ]

    found: dict[K, tuple[int, list[int]]] = {}
    for block in table.map(columns, look):
        for kind, rows, first in block:
            count, best = found.get(kind, (0, []))
            found[kind] = count + rows, sorted([*best, *first.tolist()], key=lambda row: int(order[row]))[:n]
    return found


def around(
    table: Table, values: NDArray[np.float64], cut: Cut, keep: Mask, fell: Mask, n: int
) -> tuple[list[Scored], list[Scored]]:
    """Returns the pairs closest to a cut, those just kept and those just dropped, the nearest first.

    Args:
        table: the pool's rows.
        values: (rows,) the score, NaN where it is missing.
        cut: where the step cuts it.
        keep: the rows of the subset.
        fell: the rows that fell at this cut.
        n: how many on each side, at most. Of equal scores the lower scrambled uid comes first.
    """
    distance = cut.distance(values)
    inside = _nearest(table, distance, keep & (distance >= 0), n)
    outside = _nearest(table, -distance, fell & (distance <= 0), n)
    return [(row, float(values[row])) for row in inside], [(row, float(values[row])) for row in outside]


def _nearest(table: Table, distance: NDArray[np.float64], among: Mask, n: int) -> list[int]:
    best = np.empty(0)
    for place in blocks(among.size):
        here = distance[place][among[place]]
        best = np.sort(np.concatenate([best, here if here.size <= n else np.partition(here, n)[:n]]))[:n]
    if not best.size:
        return []
    rows = np.flatnonzero(among & (distance <= best[-1]))
    ties = scramble(*table.uids(rows))
    return [int(row) for row in rows[np.lexsort((ties, distance[rows]))][:n]]
