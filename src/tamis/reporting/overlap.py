"""How much of their rows subsets share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Mask


def intersections(keeps: Sequence[Mask]) -> NDArray[np.int64]:
    """Returns how many rows each two of the masks share: (k, k), the masks' own sizes on the diagonal."""
    shared = np.zeros((len(keeps), len(keeps)), np.int64)
    for first, one in enumerate(keeps):
        for second in range(first, len(keeps)):
            shared[first, second] = shared[second, first] = np.count_nonzero(one & keeps[second])
    return shared


def jaccard(shared: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns intersection over union: (k, k) in [0, 1]; NaN for two empty sets, of which there is nothing to say."""
    sizes = np.diagonal(shared)
    union = sizes[:, None] + sizes[None, :] - shared
    out = np.full(shared.shape, np.nan)
    np.divide(shared, union, out=out, where=union > 0)
    return out
