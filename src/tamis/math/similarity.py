"""Cosine similarities of embeddings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats

#: Cosines this near to one another are equal to `nearest_of`. Equal rows would not do: a matrix product rounds them
#: by where they stand and by how many others there are, so that the batch would decide between two names of one thing.
TIE = 1e-6


def unit_rows(vectors: Floats) -> NDArray[np.float32]:
    """Returns each row divided by its Euclidean length.

    Args:
        vectors: (n, d) floats.

    Returns:
        (n, d) float32 of length 1. A row of zeros, or one that holds NaN or infinity, has no direction: NaN.
    """
    rows = np.array(vectors, np.float32)
    length = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))[:, None]
    length[~((length > 0) & np.isfinite(length))] = np.nan
    rows /= length  # in place: a cluster of a million rows is divided without two more copies of it
    return rows


def nearest_of(
    rows: Floats, others: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Returns which of the others lies nearest to each row by cosine, how near, and how much nearer than the second.

    Args:
        rows: (n, d) floats of any length; products run in float32.
        others: (k, d) unit rows, k at least 2. Cosines within `TIE` of the largest tie, and the earliest one wins.

    Returns:
        (n,) which, -1 where a row has no direction (zeros, NaN, infinity); (n,) cosines, in [-1, 1] up to rounding;
        (n,) margins, 0 and up. Cosine and margin are NaN where a row has no direction.

    Cost: n k d multiplications; n k floats of memory.
    """
    values = rows.astype(np.float32)
    squares = np.einsum("nd,nd->n", values, values)
    there = np.isfinite(squares) & (squares > 0)
    which = np.full(len(rows), -1, np.int64)
    cosine, margin = (np.full(len(rows), np.nan, np.float32) for _ in range(2))
    if there.any():
        products = values[there] @ others.T  # (n, k)
        products /= np.sqrt(squares[there])[:, None]
        best = (products >= products.max(1, keepdims=True) - TIE).argmax(1)
        here = np.arange(len(best))
        nearest = products[here, best]
        products[here, best] = -np.inf
        which[there], cosine[there], margin[there] = best, nearest, np.maximum(nearest - products.max(1), 0)
    return which, cosine, margin


def rowwise_dot(left: Floats, right: Floats) -> NDArray[np.float32]:
    """Returns the inner product of row i of `left` with row i of `right`; of unit rows, their cosine.

    This is CLIPScore without its weight and its clipping at zero (Hessel et al. 2021, equation 1), which is what
    DataComp publishes as `clip_*_similarity_score`.

    Args:
        left, right: (n, d) of any float type; sums run in float32.

    Returns:
        (n,) float32, in [-1, 1] for unit rows up to rounding; NaN where either row holds NaN.

    Raises:
        ValueError: the shapes differ.
    """
    if left.shape != right.shape or left.ndim != 2:
        raise ValueError(f"rows must pair up: got shapes {left.shape} and {right.shape}, expected the same (n, d)")
    dots: NDArray[np.float32] = np.einsum("nd,nd->n", left.astype(np.float32), right.astype(np.float32))
    return dots


def cosines(left: Floats, right: Floats) -> NDArray[np.float32]:
    """Returns the cosine of every unit row of `left` with every one of `right`, to six digits behind the point.

    float32 sums are good to about a millionth, and differ by that much between machines and batch sizes. With the
    rest rounded away, what is equal ties everywhere, and rankings do not depend on how the rows were batched.

    Args:
        left, right: (m, d) and (n, d) unit rows.

    Returns:
        (m, n) float32.
    """
    dots: NDArray[np.float32] = np.round(left.astype(np.float32) @ right.astype(np.float32).T, 6)
    return dots
