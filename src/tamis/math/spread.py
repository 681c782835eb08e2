"""A sample of rows whose scores spread evenly over a square."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float64s


def spread_over(scores: Float64s, count: int, *, seed: int = 0) -> NDArray[np.intp]:
    """Samples rows whose scores are about uniformly distributed over [0, 1] x [0, 1].

    The square is cut into about `count` cells. Every cell gives one row per round, while it has any, until there are
    enough. The rows of a cell, and the cells of the last round, are drawn at random.

    Args:
        scores: (n, 2); values outside the square are clipped to it. Rows with NaN are never chosen.
        count: number of rows; if fewer have scores, all of those.
        seed: of the draws.

    Returns:
        Distinct row numbers in random order.

    Raises:
        ValueError: the shape is wrong, or count is below 1.

    Cost: sorting n numbers.

    Source: Yanuka et al. 2024 (ICC), appendix A.2 and A.9 ask for such a sample; the cells are ours.
    """
    if scores.ndim != 2 or scores.shape[1] != 2:
        raise ValueError(f"expected scores of shape (n, 2), got {scores.shape}")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.flatnonzero(np.isfinite(scores).all(axis=1)))
    side = math.ceil(math.sqrt(count))
    places = np.minimum((np.clip(scores[rows], 0, 1) * side).astype(np.int64), side - 1)  # (n, 2)
    cells = rng.permutation(side * side)[places[:, 0] * side + places[:, 1]]  # in random order
    by_cell = np.argsort(cells, kind="stable")
    starts = np.searchsorted(cells[by_cell], cells[by_cell])
    rounds = np.arange(len(rows)) - starts  # the position of each row in its cell
    first = np.lexsort((cells[by_cell], rounds))[:count]
    return np.asarray(rng.permutation(rows[by_cell[first]]))
