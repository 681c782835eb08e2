"""Cosine similarities of embeddings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats

#: `nearest_of` treats cosines within this distance as equal: a matrix product rounds equal rows differently by position
#: and batch size, so the batch would decide between two names of one class.
TIE = 1e-6


def unit_rows(vectors: Floats) -> NDArray[np.float32]:
    """Returns each row divided by its Euclidean length.

    Args:
        vectors: (n, d) floats.

    Returns:
        (n, d) float32 of length 1; NaN for a row of zeros, or with NaN or infinity.
    """
    rows = np.array(vectors, np.float32)
    length = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))[:, None]
    length[~((length > 0) & np.isfinite(length))] = np.nan
    rows /= length  # in place, since a cluster has up to a million rows
    return rows


def nearest_of(
    rows: Floats, others: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Returns the nearest of the others to each row by cosine, that cosine, and its margin over the second.

    Args:
        rows: (n, d) floats of any length; products run in float32.
        others: (k, d) unit rows, k at least 2. Of cosines within `TIE` of the largest, the first wins.

    Returns:
        (n,) positions, -1 where a row has no direction (zeros, NaN, infinity); (n,) cosines, in [-1, 1] up to rounding;
        (n,) margins, at least 0. Cosine and margin are NaN where a row has no direction.

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


def rowwise_dot(left: Floats, right: Floats) -> NDArray[np.float32]:
    """Returns the inner product of row i of `left` with row i of `right`; of unit rows, their cosine.

    This is CLIPScore without weight and clipping (Hessel et al. 2021, equation 1), as DataComp publishes it in
    `clip_*_similarity_score`.

    Args:
        left, right: (n, d) of any float type; sums run in float32.

    Returns:
        (n,) float32, in [-1, 1] for unit rows up to rounding; NaN where either row has NaN.

    Raises:
        ValueError: the shapes differ.
    """
    if left.shape != right.shape or left.ndim != 2:
        raise ValueError(f"expected rows of the same shape (n, d), got {left.shape} and {right.shape}")
    dots: NDArray[np.float32] = np.einsum("nd,nd->n", left.astype(np.float32), right.astype(np.float32))
    return dots


def cosines(left: Floats, right: Floats) -> NDArray[np.float32]:
    """Returns the cosine of every unit row of `left` with every one of `right`, rounded to six decimals.

    float32 sums differ by about a millionth between machines and batch sizes. Rounded, equal cosines tie everywhere,
    and rankings do not depend on the batches.

    Args:
        left, right: (m, d) and (n, d) unit rows.

    Returns:
        (m, n) float32.
    """
    dots: NDArray[np.float32] = np.round(left.astype(np.float32) @ right.astype(np.float32).T, 6)
    return dots
