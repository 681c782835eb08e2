"""Near duplicates among vectors: rows that are too similar to an earlier one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tamis.arrays import Float32s, Floats, Mask, Rows

#: Rows per block: 512 x 512 float32 are 1 MiB, which stays in the processor's cache, and little above the diagonal is
#: multiplied in vain.
BLOCK = 512


@dataclass(frozen=True)
class Nearest:
    """The nearest earlier row of every row.

    Attributes:
        cosine: (n,) float32; -inf for the first row.
        row: (n,) its number, -1 for the first row. Ties go to the earliest.
    """

    cosine: Float32s
    row: Rows


def nearest_before(vectors: Floats, *, block: int = BLOCK) -> Nearest:
    """Returns the largest cosine of each row with the rows before it, without the whole matrix.

    One pass serves any number of thresholds: a row is dropped at epsilon if its cosine is above 1 - epsilon.

    Args:
        vectors: (n, d) unit rows, those to keep first.
        block: rows per product; changes memory and time only.

    Cost: n^2 d / 2 multiplications, block^2 floats of memory.

    Source: Abbas et al. 2023, "SemDeDup" (arXiv 2303.09540), algorithm A7: the column maximum of the upper triangle.

    Raises:
        ValueError: a row holds NaN, which would hide the near ones of all rows after it.
    """
    n = len(vectors)
    cosine, row = np.full(n, -np.inf, np.float32), np.full(n, -1, np.int64)
    rows = np.asarray(vectors, np.float32)
    if np.isnan(np.einsum("nd->n", rows)).any():
        raise ValueError("a row holds NaN: leave out rows without an embedding")
    side = min(block, n)
    # On the diagonal, masks each row itself and those after it.
    behind = np.where(np.arange(side)[:, None] <= np.arange(side)[None, :], np.float32(-np.inf), np.float32(0))
    for start in range(0, n, block):
        stop = min(start + block, n)
        later = rows[start:stop]
        for first in range(0, stop, block):
            last = min(first + block, stop)
            cosines = later @ rows[first:last].T  # (later, earlier)
            if last > start:
                cosines += behind[: stop - start, : stop - start]
            best = cosines.argmax(1)
            value = cosines[np.arange(len(cosines)), best]
            better = value > cosine[start:stop]
            cosine[start:stop][better] = value[better]
            row[start:stop][better] = best[better] + first
    return Nearest(cosine, row)


def equal_before(vectors: Floats) -> Rows:
    """Returns the first earlier row that equals each row: (n,), -1 where there is none.

    Args:
        vectors: (n, d) rows as stored. They are compared bit by bit, except for the sign of zeros.

    Cost: a sort of the rows as bytes; a copy of them.
    """
    rows = np.ascontiguousarray(vectors + 0)  # + 0: no negative zeros
    if not rows.size:
        return np.full(len(rows), -1, np.int64)
    as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first, which = np.unique(as_bytes, return_index=True, return_inverse=True)
    heads = first[which.reshape(-1)].astype(np.int64)
    return np.where(heads < np.arange(len(rows)), heads, -1)


def survivors(before: Rows, stays: Mask) -> Rows:
    """Returns the kept row that each row repeats, itself where it is kept.

    A row dropped for a dropped row belongs to the survivor of that one.

    Args:
        before: (n,) the nearest row before each (`Nearest.row`): -1 where there is none.
        stays: (n,) bool, which rows are kept.

    Returns:
        (n,) row numbers; the row itself where no kept row leads to it (a budget can do that).
    """
    own = np.arange(len(before), dtype=np.int64)
    head = np.where(stays | (before < 0), own, before)
    while (head != (further := head[head])).any():  # each round doubles the steps taken
        head = further
    return np.where(stays[head], head, own)
