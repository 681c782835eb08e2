"""How often to keep each row, so that better rows repeat and the copies add up to a given number.

Both rules come from FLYT (2025, arXiv 2503.08805), whose code draws row after row. We compute the number of copies that
its draws give on average and round it, so that the sum is exact and the result does not depend on the order of rows.
"""

from __future__ import annotations

import math

import numpy as np

from tamis.arrays import U64, Float64s, Times


def soft_cap(scores: Float64s, copies: int, alpha: float) -> tuple[Float64s, float]:
    """Returns how often each row is kept on average: max(0, (score - level) / alpha), with the level that it needs.

    Published as a loop: draw rows from the softmax of the scores without replacement, and lower the score of each drawn
    row by alpha. It levels the scores of the drawn rows like water. About one copy in 20 of the loop goes to rows just
    below the level, which get none here.

    Args:
        scores: (n,) logits, n at least 1. One copy more per alpha, so their scale matters.
        copies: the sum of the result, at least 1.
        alpha: above 0; smaller repeats the best rows more often.

    Returns:
        (n,) counts of 0 or more, and the level: rows at or below it are not kept.

    Cost: one sort.
    Source: FLYT, soft cap sampling.
    """
    ranked = np.sort(scores)[::-1]
    levels = (np.cumsum(ranked) - copies * alpha) / np.arange(1, scores.size + 1)  # if only the first rows are kept
    level = float(levels[np.flatnonzero(ranked > levels)[-1]])
    return np.maximum(0.0, (scores - level) / alpha), level


def hard_cap(scores: Float64s, copies: int, limit: int) -> Float64s:
    """Returns how often each row is kept on average: min(limit, exp(score - level)), with the level that it needs.

    Published as draws from the softmax of the scores, with replacement, where a row drops out after `limit` draws.

    Args:
        scores: (n,) logits, n at least 1.
        copies: the sum of the result, from 1 to n * limit.
        limit: the most copies of a row.

    Cost: one sort and a logarithm per row.
    Source: FLYT, hard cap sampling.
    """
    ranked = np.sort(scores)
    total = np.logaddexp.accumulate(ranked)[::-1]  # logarithm of the sum of exp, without the first 0, 1, ... rows
    left = copies - limit * np.arange(scores.size)  # copies for the other rows, if the first 0, 1, ... are at the limit
    with np.errstate(divide="ignore", invalid="ignore"):
        level = total - np.log(left)
        fits = np.flatnonzero((left > 0) & (ranked[::-1] - level <= math.log(limit)))
    if not fits.size:  # n * limit copies
        return np.full(scores.size, float(limit))
    logs = scores - level[fits[0]]
    return np.where(logs < math.log(limit), np.exp(np.minimum(logs, math.log(limit))), float(limit))


def whole_copies(counts: Float64s, copies: int, order: U64) -> Times:
    """Rounds counts up or down to whole numbers with the sum `copies`; the fraction is the chance to be rounded up.

    Args:
        counts: (n,) 0 or more, at most 65,535, with about the sum `copies`.
        copies: the exact sum of the result.
        order: (n,) random numbers, usually the scrambled uids. Systematic sampling in this order, with a start that
            also depends on them alone.

    Returns:
        (n,) uint16.
    """
    times = np.floor(counts)
    ranked = np.argsort(order, kind="stable")
    passed = np.cumsum((counts - times)[ranked])
    extra = copies - int(times.sum())
    if extra > 0:
        start = float(np.bitwise_xor.reduce(order) >> np.uint64(11)) * 2.0**-53
        passed = np.floor(np.round(passed * (extra / passed[-1]), 6) + start)  # takes out errors of rounding
        times[ranked] += np.diff(passed, prepend=0.0)
    return times.astype(np.uint16)
