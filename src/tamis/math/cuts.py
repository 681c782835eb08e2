"""The cut of a score that best separates good from bad, chosen from labels, and its precision on unseen pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tamis.arrays import Float64s, Mask
from tamis.math.statistics import Estimate, share_interval

#: Fewest good and fewest bad observations for a cut. Of 10 that are all kept, the recall's interval begins at 72 %.
LEAST = 10

_FOLDS = 10


@dataclass(frozen=True, kw_only=True)
class LabelledCut:
    """A cut chosen from labels.

    Attributes:
        keeps: which side of `value` is kept, `value` included.
        value: the shortest number between the two scores that the cut separates.
        low, high: 95 % bootstrap interval of the cut.
        precision: share of good among what is kept; None if nothing is kept.
        recall: share of the good that is kept.
        fallout: share of the bad that is kept.
    """

    keeps: Literal["at_least", "at_most"]
    value: float
    low: float
    high: float
    precision: Estimate | None
    recall: Estimate
    fallout: Estimate

    @property
    def gain(self) -> float:
        """Youden's J, recall - fallout: 1 separates perfectly, 0 is no better than chance."""
        return self.recall.value - self.fallout.value


def labelled_cut(score: Float64s, good: Mask, *, draws: int = 200, seed: int = 0) -> LabelledCut | None:
    """Returns the cut that maximises Youden's J: the share of the good minus the share of the bad that it keeps.

    A cut fits the labels it was chosen from too well, so precision and recall are cross-validated: each observation is
    judged by a cut (value and side) chosen from the other nine tenths. Their intervals are Wilson's. The interval of
    the cut is the central 95 % of the cuts chosen from `draws` resamples, on the same side.

    Args:
        score: (n,) finite float32 scores, as float64.
        good: (n,) whether each is good; the others are bad.

    Returns:
        None with fewer than `LEAST` good or bad, or if all scores are equal.

    Cost: about `draws` sorts of n scores.

    Source: Youden 1950, "Index for rating diagnostic tests"; Stone 1974, "Cross-validatory choice and assessment of
    statistical predictions"; Efron and Tibshirani 1993, section 13.3.
    """
    if min(np.count_nonzero(good), np.count_nonzero(~good)) < LEAST or score.min() == score.max():
        return None
    random = np.random.default_rng(seed)
    kept, folds = np.zeros(score.size, bool), np.empty(score.size, np.int64)
    for kind in (good, ~good):  # as many of each in every fold, within one
        folds[random.permutation(np.flatnonzero(kind))] = np.arange(np.count_nonzero(kind)) % _FOLDS
    for fold in range(_FOLDS):
        unseen = folds == fold
        sign, value = _best(score[~unseen], good[~unseen])
        kept[unseen] = sign * score[unseen] >= sign * value
    hits, false, goods = int((kept & good).sum()), int((kept & ~good).sum()), int(good.sum())
    sign, value = _best(score, good)
    drawn = random.integers(0, score.size, (draws, score.size))
    cuts = [sign * youden(sign * score[rows], good[rows])[0] for rows in drawn if 0 < good[rows].sum() < score.size]
    low, high = np.quantile(cuts, [0.025, 0.975]).tolist()
    return LabelledCut(
        keeps="at_least" if sign > 0 else "at_most",
        value=value, low=low, high=high,
        precision=share_interval(hits, hits + false) if hits + false else None,
        recall=share_interval(hits, goods),
        fallout=share_interval(false, good.size - goods),
    )  # fmt: skip


def _best(score: Float64s, good: Mask) -> tuple[float, float]:
    """Returns 1 to keep `score >= value` or -1 to keep `score <= value`, and the value."""
    upwards, downwards = youden(score, good), youden(-score, good)
    return (1.0, upwards[0]) if upwards[1] >= downwards[1] else (-1.0, -downwards[0])


def youden(score: Float64s, good: Mask) -> tuple[float, float]:
    """Returns the value that maximises Youden's J of `score >= value`, and J; there must be good and bad.

    The value is the shortest decimal number that separates the same float32 scores.
    """
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], good[order]
    j = np.cumsum(hits) / np.count_nonzero(hits) - np.cumsum(~hits) / np.count_nonzero(~hits)
    ends = np.append(ranked[1:] < ranked[:-1], True)  # no cut separates equal scores
    best = int(np.argmax(np.where(ends, j, -np.inf)))
    lowest, below = float(ranked[best]), float(ranked[best + 1]) if best + 1 < ranked.size else -np.inf
    middle = (lowest + below) / 2 if np.isfinite(below) else lowest
    shorter = (float(f"{middle:.{digits}g}") for digits in range(1, 10))
    return next((value for value in shorter if below < np.float32(value) <= lowest), lowest), float(j[best])
