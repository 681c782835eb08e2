"""Pruning by the shape of the embedding space: quotas for clusters, and picks that spread over a graph."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import U64, Float32s, Float64s, Rows
from tamis.core.math.similarity import cosines

#: Cosines computed at once: 256 MiB.
_CELLS = 1 << 26


def quotas(shares: Float64s, sizes: Rows, n: int, balance: float) -> Rows:
    """Returns how many rows to take of each cluster: near shares * n, with a floor, at most what it holds, n in all.

    x_j = clip(shares_j n - mu, floor_j, sizes_j) minimises |x - shares n|^2, floor_j = min(floor(balance n / k),
    sizes_j - 1). Bisection finds mu. Each x is rounded down; the largest fractions get what is left. `shares`: (k,)
    with the sum 1; `sizes`: (k,) rows of each cluster, at least 1, n in all or more; `balance`: in [0, 1].

    Source: Abbas et al. 2024 (arXiv 2401.04578), whose code calls a solver and rounds each x, so the sum can differ.
    """
    wanted = shares * n
    floor = np.minimum(np.floor(balance * n / len(sizes)), sizes - 1)
    low, high = float((wanted - sizes).min()), float((wanted - floor).max())
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if np.clip(wanted - middle, floor, sizes).sum() > n else (low, middle)
    exact = np.clip(wanted - high, floor, sizes).round(9)
    whole = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: n - int(whole.sum())]] += 1
    return whole


def nearest_others(unit: Float32s, k: int) -> tuple[NDArray[np.int32], Float32s]:
    """Returns the k nearest other rows of each of (n, d) unit rows, and their cosines: (n, k), nearest first. Cosines
    are rounded to six decimals; ties go to the first row. -1 and -inf where there are fewer than k others.

    Cost: n^2 d multiplications and k n^2 comparisons; 256 MiB.
    """
    n, block = len(unit), max(1, _CELLS // max(len(unit), 1))
    which, near = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, np.float32)
    for start in range(0, n, block):
        products = cosines(unit[start : start + block], unit)
        row = np.arange(len(products))
        products[row, start + row] = -np.inf
        for place in range(min(k, n - 1)):
            best = products.argmax(1)
            which[start + row, place], near[start + row, place] = best, products[row, best]
            products[row, best] = -np.inf
    return which, near


def pick_apart(
    scores: Float64s, neighbours: NDArray[np.int32], weights: Float32s, n: int, tie: U64
) -> tuple[Rows, Float64s]:
    """Picks the row of highest score n times; each pick lowers its neighbours' scores by weight * its own score.
    Returns the rows and their scores when they were picked, (n,) each.

    The published loop searches all rows for each pick. Here a heap holds an upper bound of every score that can be
    next, and a bound that is too high is corrected when it comes up, so the picks are the same. `scores`: (m,) without
    NaN; `neighbours` and `weights`: (m, k) row numbers, -1 for none, and weights of at least 0; `tie`: (m,) numbers,
    usually scrambled uids: of equal scores the lowest goes first.

    Cost: some microseconds per pick and neighbour; one heap entry for each row that came up.

    Source: Maharana et al. 2024, D2 pruning (arXiv 2310.07931), reverse message passing.
    """
    k = neighbours.shape[1]
    # A view reads single numbers about as fast as a list, without an object for each.
    start, current, ranked = scores.data, scores.copy().data, np.lexsort((tie, -scores)).data
    ties, others, less = (np.ascontiguousarray(array).reshape(-1).data for array in (tie, neighbours, weights))
    picks, at, taken = np.empty(n, np.int64), np.empty(n), bytearray(len(scores))
    heap: list[tuple[float, int, int]] = []
    count = entered = 0  # the rows enter the heap in the order of their first scores, one ahead of what comes up
    while count < n:
        if entered < len(scores) and (not heap or -start[ranked[entered]] <= heap[0][0]):
            row = ranked[entered]
            entered += 1
            heappush(heap, (-start[row], ties[row], row))
            continue
        bound, _, row = heappop(heap)
        score = current[row]
        if taken[row] or -bound < score:  # of a raised score there is another entry
            continue
        if -bound > score:
            heappush(heap, (-score, ties[row], row))
            continue
        taken[row], picks[count], at[count] = 1, row, score
        count += 1
        for place in range(row * k, row * k + k):
            other = others[place]
            if other >= 0 and not taken[other]:
                current[other] -= less[place] * score
                if score < 0:  # the neighbour's score went up
                    heappush(heap, (-current[other], ties[other], other))
    return picks, at
