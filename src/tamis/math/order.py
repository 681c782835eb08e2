"""Exact top-k of very long columns, without sorting them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats, Mask

_BLOCK = 1 << 20  # rows per block: a block and its temporaries stay in the cache


def round_half_up(fraction: float, of: int) -> int:
    """Returns the integer nearest to fraction * of, halves upwards.

    `int(0.29 * 100)` is 28 and `round(2.5)` is 2: neither is what someone who writes a fraction means. The product is
    first rounded to 9 digits, so 0.29 * 50 = 14.499999999999998 counts as 14.5.
    """
    return int(np.floor(round(fraction * of, 9) + 0.5))


def _kth_largest(values: Floats, k: int, candidates: Mask) -> float:
    """Returns the k-th largest of the candidates' values, exactly, in O(n) time and O(n / 30) additional memory.

    A sample brackets the answer. A bracket that misses (many ties) is widened, at worst to a plain partition.
    """
    count = int(np.count_nonzero(candidates))
    if not 1 <= k <= count:
        raise ValueError(f"k must be from 1 to the number of candidates {count}, got {k}")

    def blocks() -> Iterator[Floats]:
        for start in range(0, values.size, _BLOCK):
            yield values[start : start + _BLOCK][candidates[start : start + _BLOCK]]

    margin = 1.0
    if count > 4 * _BLOCK:
        margin, stride = 0.004, max(1, count // (1 << 18))  # not random: the answer is exact with any sample
        sample = np.sort(np.concatenate([block[::stride] for block in blocks()]))
    while margin < 1:
        low = sample[max(0, int((1 - k / count - margin) * sample.size))]
        high = sample[min(sample.size - 1, int((1 - k / count + margin) * sample.size) + 1)]
        above, inside = 0, 0
        for block in blocks():
            above += int(np.count_nonzero(block > high))
            inside += int(np.count_nonzero((block >= low) & (block <= high)))
        if above < k <= above + inside:
            if low == high:
                return float(low)
            bracket = np.concatenate([block[(block >= low) & (block <= high)] for block in blocks()])
            place = bracket.size - (k - above)
            return float(np.partition(bracket, place)[place])
        margin *= 4
    return float(np.partition(values[candidates], count - k)[count - k])


def keep_top(
    values: Floats, n: int, candidates: Mask, tie_order: Callable[[NDArray[np.int64]], NDArray[np.uint64]]
) -> tuple[Mask, float | None]:
    """Keeps the n candidates with the highest values; ties go to the lowest `tie_order`.

    Args:
        values: (m,) floats, no NaN among the candidates.
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
    cut = _kth_largest(values, n, candidates)
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
