"""Which pairs the page shows. The uids decide, never row order: the same pool gives the same pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import U64, Float64s, Mask, Rows
from tamis.ids import format_uid, scramble
from tamis.store.reasons import Cut, blocks
from tamis.store.table import Table

K = TypeVar("K")

#: A row and its value of a score.
Scored = tuple[int, float]

#: Group of duplicates: its `size` and some of its `rows`; representative first.
Group = dict[str, Any]

#: Groups of repeated images that are shown of a subset, and pairs of each.
_GROUPS, _MEMBERS = 8, 4


def scrambled(table: Table, seed: int = 0) -> U64:
    """Returns the scrambled uid of every row: (rows,), an order that does not depend on that of the rows.

    Use another seed for samples: selectors use seed 0, so the first rows they keep would be biased.
    """
    out = np.empty(len(table), np.uint64)
    for block, size in enumerate(table.sizes):
        if size:
            start = int(table.starts[block])
            out[start : start + size] = scramble(*table.read_uids(block), seed)
    return out


def first_by(order: NDArray[Any], n: int, among: Mask) -> Rows:
    """Returns the n rows of lowest order among some, in that order; fewer where there are fewer."""
    best = np.empty(0, np.int64)
    for place in blocks(among.size):
        rows = np.flatnonzero(among[place]) + place.start
        if rows.size > n:
            rows = rows[np.argpartition(order[rows], n)[:n]]
        best = np.concatenate([best, rows])
        best = best[np.argsort(order[best], kind="stable")[:n]]
    return best


def first_of_each(
    table: Table, columns: Sequence[str], masks: Callable[[Mapping[str, Any]], Mapping[K, Mask]], order: U64, n: int
) -> dict[K, tuple[int, list[int]]]:
    """Returns of each kind of rows how many there are, and the n of lowest order, in one pass.

    `masks` gives, of a block's `columns`, the rows of each kind.
    """

    def look(place: slice, values: dict[str, Any]) -> list[tuple[K, int, Rows]]:
        kinds = masks(values).items()
        return [(kind, int(mask.sum()), first_by(order[place], n, mask) + place.start) for kind, mask in kinds]

    found: dict[K, tuple[int, list[int]]] = {}
    for block in table.map(columns, look):
        for kind, rows, first in block:
            count, best = found.get(kind, (0, []))
            found[kind] = count + rows, sorted([*best, *first.tolist()], key=lambda row: int(order[row]))[:n]
    return found


def around(
    table: Table, values: Float64s, cut: Cut, keep: Mask, fell: Mask, n: int
) -> tuple[list[Scored], list[Scored]]:
    """Returns the n pairs closest to a cut, those just kept and those just dropped (`fell`), the nearest first.

    Of equal scores the lower scrambled uid comes first.
    """
    distance = cut.distance(values)
    inside = _nearest(table, distance, keep & (distance >= 0), n)
    outside = _nearest(table, -distance, fell & (distance <= 0), n)
    return [(row, float(values[row])) for row in inside], [(row, float(values[row])) for row in outside]


def _nearest(table: Table, distance: Float64s, among: Mask, n: int) -> list[int]:
    best = first_by(distance, n, among)
    if not best.size:
        return []
    rows = np.flatnonzero(among & (distance <= distance[best[-1]]))  # all that tie with the last one
    ties = scramble(*table.uids(rows))
    return [int(row) for row in rows[np.lexsort((ties, distance[rows]))][:n]]


def shown_groups(groups: Iterable[Mapping[str, Any]], table: Table) -> list[Group]:
    """Returns the first groups of repeated images that the run still has in the same rows."""
    found = []
    for group in groups:
        rows = np.array(group["rows"][:_MEMBERS], np.int64)
        if rows.size and rows.max() < len(table):
            uids = [format_uid(*halves) for halves in zip(*table.uids(rows), strict=True)]
            if uids == group["uids"][:_MEMBERS]:
                found.append({"size": int(group["size"]), "rows": rows.tolist()})
    return found[:_GROUPS]
