"""Cosine similarities of embeddings, and near duplicates: rows that are too similar to an earlier one."""

from __future__ import annotations

import numpy as np

from tamis.core.arrays import U64, Float32s, Floats, Mask, Rows

#: `nearest_of` treats cosines within this distance as equal: a matrix product rounds equal rows differently by position
#: and batch size, so the batch would decide between two names of one class.
TIE = 1e-6

#: Rows that `unit_rows` works on at once: they stay in the cache.
_CACHED = 128


@np.errstate(over="ignore", invalid="ignore")  # rows out of float32's range are worked on again in float64
def unit_rows(vectors: Floats) -> Float32s:
    """Returns (n, d) float32: each row divided by its length; NaN for a row of zeros, or with NaN or infinity."""
    vectors = np.asarray(vectors)
    rows = np.empty(vectors.shape, np.float32)
    for start in range(0, len(rows), _CACHED):
        stored, some = vectors[start : start + _CACHED], rows[start : start + _CACHED]
        if stored.dtype == np.float16:
            _widen(stored, some)
        else:
            some[...] = stored
        squares = np.vecdot(some, some)  # of each row alone, whatever its neighbours
        if (odd := np.flatnonzero(~((squares > 2**-30) & (squares < 2**30)))).size:
            exact = stored[odd].astype(np.float64)
            length = np.sqrt(np.vecdot(exact, exact))[:, None]
            length[~((length > 0) & np.isfinite(length))] = np.nan
            some[odd], squares[odd] = exact / length, 1
        some /= np.sqrt(squares)[:, None]
    return rows


def _widen(stored: Floats, out: Float32s) -> None:
    """Writes float16 numbers as float32, infinity and NaN as at least 65,536; twice as fast as NumPy: the bits of a
    float16, moved 13 to the left, are a float32 that is 2^-112 times the number.
    """
    bits = out.view(np.int32)
    bits[...] = stored.view(np.int16)
    bits <<= 13
    bits &= ~0x70000000  # copies of the sign
    out *= np.float32(2**112)


def nearest_of(rows: Floats, others: Float32s) -> tuple[Rows, Float32s, Float32s]:
    """Returns the nearest of the others to each row by cosine, that cosine, and its margin over the second: (n,) each.

    `rows`: (n, d) floats of any length, multiplied in float32; `others`: (k, d) unit rows, k at least 2. Of cosines
    within `TIE` of the largest, the first wins. Where a row has no direction (zeros, NaN, infinity), the position is
    -1, cosine and margin are NaN.

    Cost: n k d multiplications; n k floats of memory.
    """
    values = rows.astype(np.float32)
    squares = np.einsum("nd,nd->n", values, values)
    valid = np.isfinite(squares) & (squares > 0)
    which = np.full(len(rows), -1, np.int64)
    cosine, margin = (np.full(len(rows), np.nan, np.float32) for _ in range(2))
    if valid.any():
        products = values[valid] @ others.T  # (n, k)
        products /= np.sqrt(squares[valid])[:, None]
        best = (products >= products.max(1, keepdims=True) - TIE).argmax(1)
        row = np.arange(len(best))
        nearest = products[row, best]
        products[row, best] = -np.inf
        which[valid], cosine[valid], margin[valid] = best, nearest, np.maximum(nearest - products.max(1), 0)
    return which, cosine, margin


def rowwise_dot(left: Floats, right: Floats) -> Float32s:
    """Returns the inner product, (n,) float32, of row i of `left` with row i of `right`, (n, d) of any float type; NaN
    where either row has NaN. Of unit rows it is their cosine.

    This is CLIPScore without weight and clipping (Hessel et al. 2021, equation 1), as DataComp publishes it in
    `clip_*_similarity_score`.
    """
    if left.shape != right.shape or left.ndim != 2:
        raise ValueError(f"expected rows of the same shape (n, d), got {left.shape} and {right.shape}")
    dots: Float32s = np.einsum("nd,nd->n", left.astype(np.float32), right.astype(np.float32))
    return dots


def cosines(left: Floats, right: Floats) -> Float32s:
    """Returns the cosine of every unit row of `left` (m, d) with every unit row of `right` (n, d), rounded to six
    decimals.

    float32 sums differ by about a millionth between machines and batch sizes. Rounded, equal cosines tie everywhere,
    and rankings do not depend on the batches.
    """
    dots: Float32s = np.round(left.astype(np.float32) @ right.astype(np.float32).T, 6)
    return dots


#: Rows per block: 512 x 512 float32 are 1 MiB, a block size for L2, with little wasted work above the diagonal.
BLOCK = 512


def nearest_before(vectors: Floats, *, block: int = BLOCK) -> tuple[Float32s, Rows]:
    """Returns the largest cosine of each of (n, d) unit rows with the rows before it, and the row, without the whole
    matrix.

    The first row gets -inf and -1. One pass serves any number of thresholds: at epsilon, rows with a cosine above 1 -
    epsilon are dropped. `block`, rows per product, changes memory and time only. Raises ValueError if a row holds NaN,
    which would hide the near ones of all rows after it.

    Cost: n^2 d / 2 multiplications, block^2 floats of memory.

    Source: Abbas et al. 2023, "SemDeDup" (arXiv 2303.09540), algorithm A7: the column maximum of the upper triangle.
    """
    n = len(vectors)
    cosine, row = np.full(n, -np.inf, np.float32), np.full(n, -1, np.int64)
    rows = np.asarray(vectors, np.float32)
    if np.isnan(np.einsum("nd->n", rows)).any():
        raise ValueError("a row holds NaN: leave out rows without an embedding")
    side = min(block, n)
    # On the diagonal, masks each row itself and the rows after it.
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
    return cosine, row


def equal_before(vectors: Floats | U64) -> Rows:
    """Returns the first earlier row that equals each row: (n,), -1 where there is none. Rows are compared bit by bit as
    stored, except for the sign of zeros, by a sort of a copy.
    """
    rows = np.ascontiguousarray(vectors + 0)  # + 0: no negative zeros
    if not rows.size:
        return np.full(len(rows), -1, np.int64)
    as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first, which = np.unique(as_bytes, return_index=True, return_inverse=True)
    heads = first[which.reshape(-1)].astype(np.int64)
    return np.where(heads < np.arange(len(rows)), heads, -1)


def representatives(before: Rows, stays: Mask) -> Rows:
    """Returns the kept row that each row repeats: if a was dropped for b and b for c, a belongs to c.

    `before`: (n,) the nearest row before each (`nearest_before`), or -1. A row leads to itself if it is kept, or if no
    kept row leads to it (a budget can do that).
    """
    own = np.arange(len(before), dtype=np.int64)
    head = np.where(stays | (before < 0), own, before)
    while (head != (further := head[head])).any():  # each round doubles the steps taken
        head = further
    return np.where(stays[head], head, own)
