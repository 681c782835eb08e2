"""Exact top-k of very long columns, without sorting them or holding them; counts from fractions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import U64, Float64s, Floats, Mask, Rows

T = TypeVar("T")

#: Keys that are held at once to find the cut among them; counters of one pass over longer columns.
HELD, _COUNTERS = 1 << 22, 1 << 22

#: `scan(work)` calls `work(keys, groups)` for each block, keys (m,) uint64 and groups (m,), and yields the results.
Scan = Callable[[Callable[[U64, Rows], T]], Iterable[T]]


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

    `values` are (m,) numbers, no NaN among the candidates. `tie_order` maps row numbers to one number each, usually the
    scrambled uid: it is called for the rows at the cut only; if numbers are equal, the lower row number goes first.
    Returns (m,) bool with exactly n rows set, and the lowest value that is kept (None for n = 0).

    Raises ValueError if n is larger than the number of candidates.
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


def ordered_bits(values: Float64s) -> U64:
    """Returns integers in the order of numbers: (m,) uint64. No NaN; -0 is 0."""
    bits = (values + 0.0).view(np.uint64)
    flips = bits.view(np.int64) >> 63  # all ones for negative numbers
    flips |= np.iinfo(np.int64).min
    bits ^= flips.view(np.uint64)
    return bits


def number_of(bits: U64) -> Float64s:
    """Returns the numbers that `ordered_bits` was given."""
    return np.where(bits >> np.uint64(63), bits ^ np.uint64(1 << 63), ~bits).view(np.float64)


def nth_largest(
    scan: Scan[Any], wanted: Callable[[Rows], Rows], rows: int, groups: int = 1
) -> tuple[U64, Rows, Rows, Rows]:
    """Finds the n-th largest key of each group, in a few passes over keys that are read block by block.

    A pass counts keys by their highest bits, which leaves one bucket of keys for each group. The next pass counts
    those by the bits below, until what is left can be held.

    Args:
        scan: reads the keys once; the same keys whenever it is called.
        wanted: returns n, (groups,) int64, from the number of keys of each group: from 0 to that number.
        rows: number of keys in all groups, or more.
        groups: their number.

    Returns:
        Per group: the n-th largest key (the largest possible for n = 0), n, how many are larger, and how many equal it.

    Cost: a pass for up to 4 million keys. For more another pass, and one for each 18 bits that do not tell the keys of
        one group apart. Memory: about 100 MB.
    """
    # Of each group's n-th key the highest 64 - `bits` bits are known: `low`. `above` keys are larger than its bucket,
    # and `held` are in it. All buckets together hold `left` keys.
    digit = 18 if groups == 1 else max(1, (_COUNTERS // max(groups, 1)).bit_length() - 1)
    low, above, held = np.zeros(groups, np.uint64), np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    bits, left, n = 64, rows, None

    def inside(keys: U64, group: Rows) -> tuple[U64, Rows]:
        if bits == 64:
            return keys, group
        here = keys >> np.uint64(bits) == of_group(low >> np.uint64(bits), group)
        return keys[here], group[here]

    # A pass counts the keys in the buckets by their next bits. The bucket of the n-th key becomes the new one.
    while left > HELD and bits:
        width = min(digit, bits)
        shift = np.uint64(bits - width)

        def count(keys: U64, group: Rows, shift: np.uint64 = shift, width: int = width) -> tuple[int, Rows]:
            keys, group = inside(keys, group)
            place = (keys >> shift & np.uint64((1 << width) - 1)).view(np.int64)
            if groups > 1:
                place += group << width
            start = int(place.min()) if place.size else 0
            return start, np.bincount(place - start)

        counts = np.zeros(groups << width, np.int64)
        for start, some in scan(count):
            counts[start : start + some.size] += some
        by_bucket = counts.reshape(groups, -1)
        n = wanted(by_bucket.sum(1)) if n is None else n
        larger = by_bucket[:, ::-1].cumsum(1)[:, ::-1]  # with those in the bucket itself
        bucket = np.maximum((above[:, None] + larger >= n[:, None]).sum(1) - 1, 0)
        held = by_bucket[np.arange(groups), bucket]
        above += larger[np.arange(groups), bucket] - held
        low |= bucket.astype(np.uint64) << shift
        bits, left = int(shift), int(held.sum())
    if n is not None and not bits:
        return low, n, above, held
    # What is left is read once more, and held.
    found = [some for some in scan(inside) if some[0].size]
    keys = np.concatenate([np.empty(0, np.uint64), *(keys for keys, _ in found)])
    group = np.concatenate([np.empty(0, np.int64), *(group for _, group in found)])
    del found
    n = wanted(np.bincount(group, minlength=groups)) if n is None else n
    # The n-th key of a group is so many places below its largest as keys of other buckets are above.
    cut = np.full(groups, np.iinfo(np.uint64).max)
    if groups == 1 and n[0]:
        cut[0] = np.partition(keys, place := keys.size - int(n[0] - above[0]))[place]
    elif groups > 1:
        order = np.lexsort((~keys, group))
        keys, group = keys[order], group[order]
        some = n > 0
        cut[some] = keys[(np.searchsorted(group, np.arange(groups)) + n - above - 1)[some]]
    larger, equal = (np.bincount(group[which], minlength=groups) for which in (keys > cut[group], keys == cut[group]))
    return cut, n, above + larger, equal


def quantile(scan: Scan[Any], share: float, rows: int) -> float | None:
    """Returns what `np.quantile` does of numbers by their `ordered_bits`: between the two nearest; None of none.

    Cost: that of `nth_largest`, and for half of all pools one more pass.
    """
    part, place = 0.0, 0

    def wanted(counts: Rows) -> Rows:
        nonlocal part, place
        part, whole = np.modf(max(counts[0] - 1, 0) * share)
        place = int(counts[0] - whole)
        return np.array([place])

    (low,), _, (above,), (equal,) = nth_largest(scan, wanted, rows)
    if not equal:
        return None
    high = low
    if above == place - 1 and above:  # the next number is another
        high = min(scan(lambda keys, _: keys.min(initial=np.iinfo(np.uint64).max, where=keys > low)))
    with np.errstate(invalid="ignore"):  # next to infinity: NaN, as np.quantile has it
        return float(np.quantile(number_of(np.array([low, high])), part))


def as_heads(values: Float64s, ties: U64) -> tuple[Float64s, U64]:
    """Returns keys by which rows of several sequences sort as if the best of all heads were taken again and again.

    Higher values go first, of equal ones lower ties: (n,) of one sequence. A value that is better than one before it
    waits for that one, and then comes next: it gets the values of the worst row up to it.
    """
    order = np.lexsort((ties, -values))
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    worst = order[np.maximum.accumulate(rank)]
    return values[worst], ties[worst]


def of_group(values: U64, group: Rows) -> Any:
    """Returns the value of each row's group; the only value if there is one group."""
    return values[0] if values.size == 1 else values[group]
