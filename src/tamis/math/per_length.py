"""Scores of texts whose distribution does not depend on the length of the text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float64s

Integers = NDArray[np.integer]

#: Lengths with fewer texts are pooled with their neighbours.
LEAST = 100

#: Scores are clipped to this distance from 0 and 1, or the logit of one perfect reconstruction would dominate the mean
#: of its length. One character in a hundred is about the finest step of captions.
MARGIN = 0.01


@dataclass(frozen=True)
class PerLength:
    """Mean and standard deviation of the logits of the scores of each group of lengths.

    Attributes:
        starts: (m,) ascending: the shortest length of each group, which extends to the next start.
        means, deviations: (m,) of the logits in each group.
    """

    starts: tuple[int, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    @classmethod
    def of(cls, scores: Float64s, lengths: Integers, *, least: int = LEAST) -> PerLength:
        """Measures a set of scores.

        Lengths with fewer than `least` texts are pooled with the next longer ones; too few at the long end join the
        last group.

        Args:
            scores: (n,) in [0, 1]; NaN is ignored.
            lengths: (n,) whole numbers, in any unit: words, tokens, characters.
            least: number of texts in a group, unless there are fewer in all.

        Raises:
            ValueError: shapes differ, a score is outside [0, 1], or all are NaN.
        """
        _check(scores, lengths)
        present = np.isfinite(scores)
        if not present.any():
            raise ValueError("no score to standardise by: all of them are missing")
        logits, known = _logit(scores[present]), np.asarray(lengths)[present]
        distinct, counts = np.unique(known, return_counts=True)
        starts: list[int] = []
        gathered = least  # the first length opens a group
        for length, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            if gathered >= least:
                starts.append(length)
                gathered = 0
            gathered += count
        if gathered < least and len(starts) > 1:
            starts.pop()
        groups = _group(np.array(starts), known)
        members = np.bincount(groups, minlength=len(starts))
        means = np.bincount(groups, logits, len(starts)) / members
        squares = np.bincount(groups, (logits - means[groups]) ** 2, len(starts))
        deviations = np.sqrt(squares / members)
        return cls(tuple(starts), tuple(means.tolist()), tuple(deviations.tolist()))

    def standardise(self, scores: Float64s, lengths: Integers) -> Float64s:
        """Returns scores whose distribution is the same at every length.

        Logits are standardised by the mean and deviation of their group, and mapped back by the inverse logit: normal
        logits become logit-normal scores with parameters 0 and 1. The order within a group does not change. A length
        that was not measured counts as the next shorter one that was, else as the shortest.

        Args:
            scores: (n,) in [0, 1]; NaN stays NaN.
            lengths: (n,) in the same unit as before.

        Returns:
            (n,) float64 in (0, 1); 0.5 throughout a group whose scores are all equal.

        Raises:
            ValueError: shapes differ, or a score is outside [0, 1].

        Source: Yanuka et al. 2024 (ICC), appendix A.1.
        """
        _check(scores, lengths)
        groups = _group(np.array(self.starts), np.asarray(lengths))
        deviations = np.array(self.deviations)[groups]
        distances = _logit(scores) - np.array(self.means)[groups]
        equal = np.where(np.isnan(distances), np.nan, 0.0)
        # Rounding gives equal scores a deviation just above 0.
        standard = np.divide(distances, deviations, out=equal, where=deviations > 1e-9)
        return inverse_logit(standard)


def inverse_logit(values: Float64s) -> Float64s:
    """Returns 1 / (1 + exp(-x)), without overflow: in [0, 1], NaN where x is."""
    return np.asarray(0.5 * (1 + np.tanh(np.asarray(values, np.float64) / 2)))


def _group(starts: Integers, lengths: Integers) -> NDArray[np.intp]:
    return np.maximum(np.searchsorted(starts, lengths, side="right") - 1, 0)


def _logit(scores: Float64s) -> Float64s:
    inside = np.clip(np.asarray(scores, np.float64), MARGIN, 1 - MARGIN)
    return np.asarray(np.log(inside / (1 - inside)))


def _check(scores: Float64s, lengths: Integers) -> None:
    if scores.shape != lengths.shape or scores.ndim != 1:
        raise ValueError(f"every score needs a length: got shapes {scores.shape} and {lengths.shape}")
    with np.errstate(invalid="ignore"):
        outside = (scores < 0) | (scores > 1)
    if outside.any():
        raise ValueError(
            f"scores to standardise must be in [0, 1], got {scores[outside][0]:g}: clip them first, as BERTScore's by "
            "max(score, 0)"
        )
