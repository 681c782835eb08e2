"""What selectors read besides scores: stored embeddings, groups, and rows in an order that depends only on uids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.arrays import Floats, Mask, Rows
from tamis.ids import scramble
from tamis.store.table import Table

#: Rows per matrix product over a whole column: a block in float32 stays in the cache.
BLOCK = 4096

#: Rows gathered at once, of as many groups as fit; a larger group is gathered alone.
GATHER = 1 << 18


def present(vectors: Floats) -> Mask:
    """Returns which rows of (n, d) are embeddings: (n,) bool.

    A missing one is NaN throughout. One with NaN or infinity somewhere, or only zeros, has no direction and would make
    its whole class or cluster NaN, so it counts as missing too.
    """
    there = np.empty(len(vectors), bool)
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK].astype(np.float32, copy=False)
        squares = np.einsum("nd,nd->n", block, block)
        there[start : start + BLOCK] = np.isfinite(squares) & (squares > 0)
    return there


def embedded(table: Table, name: str) -> Mask:
    """Returns which candidates have an embedding."""
    there = table.living().copy()

    def work(place: slice, columns: dict[str, Any]) -> None:
        there[place] &= present(columns[name])

    list(table.map([name], work))
    return there


def group_codes(table: Table, column: str) -> tuple[NDArray[np.int64], list[str] | list[float]]:
    """Returns the group of every row by the value of a column, (rows,), -1 for none; and the value of each group."""
    codes = np.full(len(table), -1, np.int64)
    numbers: dict[Any, int] = {}
    for place, values in table.map([column], lambda place, columns: (place, columns[column])):
        if isinstance(values, np.ndarray):
            distinct, inside = np.unique(values + 0, return_inverse=True)  # + 0: no negative zero
            inside = np.where(np.isnan(values), -1, inside.reshape(-1))
            distinct = distinct[~np.isnan(distinct)]
        else:
            words = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
            distinct = words.dictionary
            inside = words.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        known = np.array([*(numbers.setdefault(value, len(numbers)) for value in distinct.tolist()), -1], np.int64)
        codes[place] = known[inside]
    return codes, list(numbers)


def by_uid(table: Table, rows: Rows, *, groups: NDArray[np.integer[Any]] | None = None, seed: int = 0) -> Rows:
    """Returns ascending row numbers in an order that depends only on their uids and the seed.

    `groups` are the group of each row: one group comes after another.
    """
    high, low = table.uids(rows)
    tie = scramble(high, low, seed)
    return rows[np.lexsort((low, high, tie) if groups is None else (low, high, tie, groups))]


def gathered(
    table: Table, names: Sequence[str], order: Rows, starts: Rows
) -> Iterator[list[tuple[int, slice, list[Floats]]]]:
    """Yields lists of (group, its slice of `order`, its stored vectors by name); one table scan per list.

    `order` are (n,) row numbers, one group after another, `starts` (groups + 1,) where each group begins in it.
    """
    group, groups = 0, len(starts) - 1
    while group < groups:
        stop = group + 1
        while stop < groups and starts[stop + 1] - starts[group] <= GATHER:
            stop += 1
        low = int(starts[group])
        found = [table.vectors(name, order[low : int(starts[stop])]) for name in names]
        places = [(k, slice(int(starts[k]), int(starts[k + 1]))) for k in range(group, stop)]
        yield [
            (k, place, [each[place.start - low : place.stop - low] for each in found])
            for k, place in places
            if place.start < place.stop
        ]
        group = stop
