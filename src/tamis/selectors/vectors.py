"""Reading stored embeddings for selectors: which rows have them, in an order that depends on their uids alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats, Mask, Rows
from tamis.errors import RecipeError
from tamis.store.table import Table
from tamis.uid import scramble

#: Rows per matrix product when a whole column is gone through: a block in float32 stays in the cache.
BLOCK = 4096

#: Rows gathered at once, of all classes or clusters that fit; a larger one is gathered alone.
GATHER = 1 << 18


class ReadsEmbedding:
    """What steps that look at one column of embeddings share; the column is their setting `embedding`."""

    embedding: str

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.embedding})


def check_vectors(step: str, table: Table, names: Sequence[str]) -> None:
    """Checks that columns hold vectors.

    Raises:
        RecipeError: one holds numbers or words.
    """
    for name in names:
        if table.kind(name) != "vector":
            raise RecipeError(
                f"{step}: {name!r} is a column of {table.kind(name)}s, expected stored embeddings such as "
                "image_embedding (score with --keep embeddings)"
            )


def check_sizes(step: str, table: Table, image: str, text: str, names: Floats | None = None) -> None:
    """Checks that images, captions and class names have embeddings of one size.

    Args:
        step: who asks.
        table: whose rows.
        image, text: columns of vectors.
        names: (k, d) embeddings of class names; None: none are asked for.

    Raises:
        RecipeError: they do not.
    """
    first = np.flatnonzero(table.living())[:1]
    if not first.size:
        return
    images, texts = (table.vectors(name, first).shape[1] for name in (image, text))
    if images != texts or (names is not None and names.shape[1] != images):
        labels = "" if names is None else f" and the class names {names.shape[1]}"
        model = "" if names is None else ", and score zero_shot_class with their model"
        raise RecipeError(
            f"{step}: {image} has {images} dimensions, {text} {texts}{labels}: they must come from one model; name "
            f"columns that do with 'image:' and 'text:'{model}"
        )


def present(rows: Floats) -> Mask:
    """Returns which rows are embeddings at all: a missing one is NaN throughout.

    A row that holds NaN or infinity somewhere, or nothing but zeros, has no direction and counts as missing too: one
    such row would make NaN of its whole class or cluster.
    """
    there = np.empty(len(rows), bool)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].astype(np.float32, copy=False)
        squares = np.einsum("nd,nd->n", block, block)
        there[start : start + BLOCK] = np.isfinite(squares) & (squares > 0)
    return there


def embedded(table: Table, name: str) -> Mask:
    """Returns which rows in question have an embedding."""
    alive = table.living()
    there = np.zeros(len(table), bool)

    def work(place: slice, columns: dict[str, Any]) -> None:
        there[place] = present(columns[name]) & alive[place]

    for _ in table.map([name], work):
        pass
    return there


def by_uid(table: Table, rows: Rows, *, groups: NDArray[np.integer[Any]] | None = None, seed: int = 0) -> Rows:
    """Returns rows in an order that depends on their uids alone: by scrambled uid, inside each group.

    Args:
        table: whose rows.
        rows: (n,) ascending row numbers.
        groups: (n,) the group of each; groups follow one another. None: all are one.
        seed: another seed, another order.
    """
    high, low = table.uids(rows)
    tie = scramble(high, low, seed)
    keys = (low, high, tie) if groups is None else (low, high, tie, groups)
    return rows[np.lexsort(keys)]


def gathered(
    table: Table, names: Sequence[str], order: Rows, starts: Rows
) -> Iterator[list[tuple[int, slice, list[Floats]]]]:
    """Yields the vectors of groups, several groups at a time, each block of the table read once for all of them.

    Args:
        table: where they lie.
        names: columns of vectors.
        order: (n,) row numbers, those of one group together.
        starts: (groups + 1,) where each group begins in `order`.

    Yields:
        Lists of (group, its place in `order`, its vectors as stored, one array per name).
    """
    group, groups = 0, len(starts) - 1
    while group < groups:
        stop = group + 1
        while stop < groups and starts[stop + 1] - starts[group] <= GATHER:
            stop += 1
        low = int(starts[group])
        found = [table.vectors(name, order[low : int(starts[stop])]) for name in names]
        yield [
            (
                k,
                slice(int(starts[k]), int(starts[k + 1])),
                [each[starts[k] - low : starts[k + 1] - low] for each in found],
            )
            for k in range(group, stop)
            if starts[k + 1] > starts[k]
        ]
        group = stop
