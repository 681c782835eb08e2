"""How often to keep each row, so that better rows repeat and the copies add up to a given number.

FLYT's code (2025, arXiv 2503.08805) draws row after row. We compute the copies that its draws give on average and round
them, so that the sum is exact and the order of rows does not matter.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from tamis.arrays import U64, Float64s, Times


def soft_cap(scores: Float64s, copies: int, alpha: float) -> tuple[Float64s, float]:
    """Returns counts max(0, (score - level) / alpha) that add up to `copies`, (n,), and the level.

    Published as a loop: draw rows from the softmax of the scores without replacement, lower the drawn ones by alpha.
    About one copy in 20 of the loop goes to rows just below the level, which get none here.
    """

    def counts(level: float) -> Float64s:
        return np.maximum(0.0, (scores - level) / alpha)

    level = brentq(lambda level: counts(level).sum() - copies, scores.min() - 2 * copies * alpha, scores.max())
    return counts(level), level


def hard_cap(scores: Float64s, copies: int, limit: int) -> Float64s:
    """Returns counts min(limit, exp(score - level)) that add up to `copies`, at most n * limit: (n,).

    Published as draws from the softmax with replacement, where a row drops out after `limit` draws.
    """

    def counts(level: float) -> Float64s:
        return np.minimum(np.exp(np.minimum(scores - level, 700.0)), limit)

    ends = scores.min() - np.log(limit + 1), scores.max() + np.log(scores.size + 1)
    return counts(brentq(lambda level: counts(level).sum() - copies, *ends))


def whole_copies(counts: Float64s, copies: int, order: U64) -> Times:
    """Rounds counts up or down so that they add up to `copies`; the fraction is the chance to be rounded up.

    Systematic sampling in the order of random numbers, usually scrambled uids; its start depends on them too.
    """
    times = np.floor(counts)
    ranked = np.argsort(order, kind="stable")
    passed = np.cumsum((counts - times)[ranked])
    if (extra := copies - int(times.sum())) > 0:
        start = float(np.bitwise_xor.reduce(order) >> np.uint64(11)) * 2.0**-53
        passed = np.floor(np.round(passed * (extra / passed[-1]), 6) + start)  # without errors of rounding
        times[ranked] += np.diff(passed, prepend=0.0)
    return times.astype(np.uint16)
