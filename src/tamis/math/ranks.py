"""Ranks, rank correlations, and the area under the ROC curve."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float64s


def average_ranks(values: NDArray[Any]) -> Float64s:
    """Returns ranks from 1; equal values share their mean rank.

    Args:
        values: (n,) without NaN.

    Returns:
        (n,) float64.

    Cost: one sort.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: ordered.size])
    ends = np.concatenate([starts[1:], [ordered.size]])[: starts.size]
    out = np.empty(values.size, np.float64)
    out[order] = np.repeat((starts + ends + 1) / 2, ends - starts)
    return out


def rank_correlations(columns: NDArray[np.floating[Any]]) -> Float64s:
    """Returns Spearman's correlation of every two columns, over the rows where both have values.

    Args:
        columns: (n, k), NaN where a row has no value; infinite values rank first and last.

    Returns:
        (k, k) in [-1, 1], symmetric, 1 on the diagonal; NaN where a column is constant over those rows, or there are
        fewer than two.

    Cost: one sort per column, and two per pair of columns with different missing rows.

    Source: Spearman 1904, "The proof and measurement of association between two things".
    """
    count = columns.shape[1]
    there = ~np.isnan(columns)
    ranks: dict[tuple[int, bytes], Float64s] = {}
    out = np.full((count, count), np.nan)
    for one in range(count):
        for two in range(one, count):
            both = there[:, one] & there[:, two]
            which = np.packbits(both).tobytes()
            sides = []
            for column in (one, two):
                if (column, which) not in ranks:
                    ranks[column, which] = _centred(columns[both, column])
                sides.append(ranks[column, which])
            left, right = sides
            if left.size and right.size:
                out[one, two] = out[two, one] = float(np.clip(left @ right, -1, 1))
    return out


def auc(positive: NDArray[Any], negative: NDArray[Any]) -> float:
    """Returns the probability that a positive scores above a negative; a tie counts one half.

    It is the area under the ROC curve: 1 if every positive is above every negative, 0.5 for a useless score.

    Args:
        positive, negative: (n,) and (m,) scores without NaN.

    Raises:
        ValueError: a group is empty.

    Source: Mann and Whitney 1947, "On a test of whether one of two random variables is stochastically larger".
    """
    if len(positive) == 0 or len(negative) == 0:
        raise ValueError(f"both groups need a score, got {len(positive)} and {len(negative)}")
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    not_above = np.searchsorted(ordered, positive, side="right")
    return float((below + not_above).mean() / 2 / len(negative))


def _centred(values: NDArray[np.floating[Any]]) -> Float64s:
    """Returns ranks shifted to mean 0 and scaled to length 1; empty where all values are equal."""
    ranks = average_ranks(values)
    if ranks.size < 2:
        return np.empty(0)
    ranks -= (ranks.size + 1) / 2
    length = float(np.sqrt(ranks @ ranks))
    return ranks / length if length > 0 else np.empty(0)
