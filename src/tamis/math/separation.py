"""How well a score tells two groups apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def auc(positive: NDArray[Any], negative: NDArray[Any]) -> float:
    """Returns the probability that a positive scores above a negative; a tie counts one half.

    The area under the ROC curve, by ranks (Mann and Whitney 1947): 1 where every positive is above every negative,
    0.5 where the score knows nothing.

    Args:
        positive, negative: (n,) and (m,) scores without NaN.

    Raises:
        ValueError: a group is empty.
    """
    if len(positive) == 0 or len(negative) == 0:
        raise ValueError(f"both groups need a score, got {len(positive)} and {len(negative)}")
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    not_above = np.searchsorted(ordered, positive, side="right")
    return float((below + not_above).mean() / 2 / len(negative))
