"""Exact top-k of very long columns, without sorting them; counts from fractions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import U64, Floats, Mask


def round_half_up(fraction: float, of: int) -> int:
    """Returns the integer nearest to fraction * of, halves upwards.

    `int(0.29 * 100)` is 28 and `round(2.5)` is 2: neither is what someone who writes a fraction means. The product is
    first rounded to 9 digits, so 0.29 * 50 = 14.499999999999998 counts as 14.5.
    """
    return int(np.floor(round(fraction * of, 9) + 0.5))


def keep_top(
    values: Floats | U64, n: int, candidates: Mask, tie_order: Callable[[NDArray[np.int64]], NDArray[np.uint64]]
) -> tuple[Mask, float | None]:
    """Keeps the n candidates with the highest values; ties go to the lowest `tie_order`.

    Args:
        values: (m,) numbers, no NaN among the candidates.
        n: number of rows to keep, at most the number of candidates.
        candidates: (m,) rows that can be kept.
        tie_order: maps row numbers to one number each, usually the scrambled uid. Called for the rows at the cut only;
            if numbers are equal, the lower row number goes first.

    Returns:
        (m,) bool with exactly n rows set, and the lowest value that is kept (None for n = 0).

    Raises:
        ValueError: n is larger than the number of candidates.
    """
    if n == 0:
        return np.zeros(values.size, bool), None
    if n > (most := int(np.count_nonzero(candidates))):
        raise ValueError(f"there are {most} rows to keep, fewer than n = {n}")
    judged = values[candidates]
    judged.partition(most - n)  # in place: a pool has up to 10^8 rows
    cut = judged[most - n].item()  # exact, also for uint64
    del judged
    keep = values > cut
    keep &= candidates
    tied = values == cut
    tied &= candidates
    rows = np.flatnonzero(tied)
    wanted = n - int(np.count_nonzero(keep))
    if wanted < rows.size:
        rows = rows[np.argsort(tie_order(rows), kind="stable")[:wanted]]
    keep[rows] = True
    return keep, cut
