"""Metrics of classification and retrieval, from class numbers and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float64s, Floats, Mask, Rows
from tamis.math.similarity import cosines

Labels = NDArray[np.integer[Any]]

# Queries per block: for MSCOCO's 25,000 captions and 5,000 images a block is 5 MB.
_BLOCK = 256


def top_classes(scores: Floats, k: int) -> Rows:
    """Returns the k classes with the highest scores of each row, best first; ties go to the lower class number.

    Args:
        scores: (n, K) floats without NaN.
        k: at least 1; with fewer classes, all of them are returned.

    Returns:
        (n, min(k, K)) class numbers.
    """
    ranked: Rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return ranked


def hits(ranked: Labels, labels: Labels) -> Mask:
    """Returns whether the label (n,) of each row is among its classes (n, k): the mean is the accuracy at k."""
    correct: Mask = (ranked == labels[:, None]).any(1)
    return correct


def group_means(values: NDArray[Any], groups: Labels) -> dict[int, tuple[float, int]]:
    """Returns the mean and the number of values (n,) of each group, by group number (n,).

    The lowest mean is the accuracy of the worst group (Sagawa et al. 2020).
    """
    return {
        int(group): (float(values[groups == group].mean()), int(np.count_nonzero(groups == group)))
        for group in np.unique(groups)
    }


def recall_at(
    queries: Floats, gallery: Floats, query_ids: Labels, gallery_ids: Labels, ks: Sequence[int]
) -> dict[int, float]:
    """Returns the share of queries with a match among their k nearest rows of the gallery, for each k.

    A query with several matches (an image with five captions) counts once: 1 if at least one of them is among the k,
    else 0. Papers on CLIP and clip-benchmark call this recall@k. Tied rows are in random order: a query counts with the
    probability that one of its matches is among the k, so a model that maps everything to one point scores k / n.

    Args:
        queries: (m, d) unit rows.
        gallery: (n, d) unit rows.
        query_ids, gallery_ids: (m,) and (n,) numbers; a row of the gallery matches queries with the same number.
        ks: numbers of nearest rows, each at least 1.

    Returns:
        From k to a share in [0, 1].

    Raises:
        ValueError: a query has no match.

    Cost: m * n * d multiplications, in blocks of 256 queries; no (m, n) matrix is held.
    """
    unmatched = np.setdiff1d(query_ids, gallery_ids)
    if unmatched.size:
        raise ValueError(f"no row of the gallery matches queries with number {unmatched[0]}")
    totals = dict.fromkeys(ks, 0.0)
    for start in range(0, len(queries), _BLOCK):
        scores = cosines(queries[start : start + _BLOCK], gallery)  # (b, n)
        match = query_ids[start : start + _BLOCK, None] == gallery_ids[None, :]
        best = np.where(match, scores, -np.inf).max(1, keepdims=True)
        above = np.count_nonzero(scores > best, axis=1)
        equal = scores == best
        right = np.count_nonzero(equal & match, axis=1)
        wrong = np.count_nonzero(equal, axis=1) - right
        for k in totals:
            totals[k] += float(_chance(above, right, wrong, k).sum())
    return {k: total / len(queries) for k, total in totals.items()}


def _chance(above: Labels, right: Labels, wrong: Labels, k: int) -> Float64s:
    """Returns the probability of a match among the first k rows: `above` other rows, then `right` matches and `wrong`
    others in random order. For places = k - above it is 1 - C(wrong, places) / C(right + wrong, places).
    """
    places = np.clip(k - above, 0, right + wrong)
    missed = np.ones(len(above))
    for place in range(k):
        used = place < places
        remaining = np.where(used, right + wrong - place, 1)
        missed *= np.where(used, np.maximum(wrong - place, 0) / remaining, 1.0)
    return 1 - missed
