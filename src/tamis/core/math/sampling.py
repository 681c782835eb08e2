"""How often to keep each row, so that better rows repeat and the copies add up to a given number.

FLYT's code (2025, arXiv 2503.08805) draws row after row. We compute the copies that its draws give on average and round
them, so that the sum is exact and the order of rows does not matter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Literal

import numpy as np

from tamis.core.arrays import U64, Float64s, Times
from tamis.core.errors import require

Cap = Literal["soft", "level", "hard"]


def average_copies(scores: Float64s, copies: int, *, cap: Cap, alpha: float = 0.15, limit: int = 15) -> Float64s:
    """Returns how often to keep each row on average, (n,), with the sum `copies`: the level is solved for.

    Args:
        scores: (n,) logits, n at least 1.
        copies: at least 1; for "hard" at most n * limit.
        cap: "soft": log(1 + exp(score - level)) / alpha, the average of FLYT's loop, which draws rows from the softmax
            without replacement and lowers the drawn ones by alpha. Proof: a row drawn at the rate exp(score - alpha r)
            after r draws has 1 + (exp(alpha) - 1) exp(score) t as the mean of exp(alpha r) at time t.
            "level": max(0, score - level) / alpha, the same without draws of rows below the level.
            "hard": min(limit, exp(score - level)), draws from the softmax with replacement up to a limit.
        alpha, limit: of the rules.
    """
    require("scipy", extra="evaluate")
    from scipy.optimize import brentq

    if cap == "hard":
        return _limit_copies(scores, copies, limit)
    scores = scores - scores.max()  # exact where large scores are equal
    rules: dict[Cap, Callable[[float], Float64s]] = {
        "soft": lambda level: np.logaddexp(0.0, scores - level) / alpha,
        "level": lambda level: np.maximum(0.0, scores - level) / alpha,
    }
    low = max(-alpha * copies, scores.min() - 2 * alpha * copies / scores.size) - 1  # too many, of one row or of all
    high = np.log((scores.size + 1) / min(alpha, 1.0))  # at most one
    return rules[cap](brentq(lambda level: rules[cap](level).sum() - copies, low, high))


def _limit_copies(scores: Float64s, copies: int, limit: int) -> Float64s:
    """Returns `average_copies` of "hard": finds how many of the best rows are at the limit; the others share the rest.
    Only differences of scores are used, because exp(score - level) is wrong where scores are large.
    """
    order = np.argsort(-scores)
    falling, counts = scores[order], np.full(scores.size, float(limit))

    def weights(first: int) -> Float64s:
        return np.asarray(np.exp(falling[first:] - falling[first]))

    def fits(first: int) -> bool:  # true of all later rows if true of one
        return bool(copies - first * limit <= limit * weights(first).sum())

    first = bisect_left(range(scores.size), True, key=fits)
    counts[order[first:]] = weights(first) * ((copies - first * limit) / weights(first).sum())
    return counts


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
