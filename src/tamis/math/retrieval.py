"""How often the right thing is found: recall at k in a joint space, and agreement of sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.math.similarity import cosines

Ids = NDArray[np.integer[Any]]

# Queries compared at once: of MSCOCO's 25,000 captions with its 5,000 images a block is 5 MB.
_BLOCK = 256


def recall_at(
    queries: Floats, gallery: Floats, query_ids: Ids, gallery_ids: Ids, ks: Sequence[int]
) -> dict[int, float]:
    """Returns the share of queries that have a match among their k nearest of the gallery, for each k.

    A query of which several rows of the gallery are matches (an image with five captions) counts once: 1 where at
    least one of them is among the k, else 0. That is what papers on CLIP call recall@k, and clip-benchmark computes.
    Ties are counted as if their order were drawn at random: a query gets the probability that one of its matches
    comes among the k, so that a model that maps everything to one point scores k / n, in whatever order the rows are.

    Args:
        queries: (m, d) unit rows.
        gallery: (n, d) unit rows.
        query_ids, gallery_ids: (m,) and (n,) numbers; a row of the gallery matches a query of the same number.
        ks: how many of the nearest to look at, each at least 1.

    Returns:
        k to a share in [0, 1].

    Raises:
        ValueError: there are no queries, one has no match, rows and numbers do not pair up, or a k is below 1.

    Cost: m * n * d multiplications, in blocks of 256 queries; no (m, n) matrix is held.
    """
    if len(queries) == 0 or len(queries) != len(query_ids) or len(gallery) != len(gallery_ids) or min(ks) < 1:
        raise ValueError(
            f"expected queries with as many numbers, and k of at least 1; got {len(queries)} queries with "
            f"{len(query_ids)} numbers, {len(gallery)} rows with {len(gallery_ids)}, k {list(ks)}"
        )
    alone = np.setdiff1d(query_ids, gallery_ids)
    if alone.size:
        raise ValueError(f"nothing in the gallery matches the queries of number {alone[0]}")
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
            totals[k] += float(_found(above, right, wrong, k).sum())
    return {k: total / len(queries) for k, total in totals.items()}


def _found(above: Ids, right: Ids, wrong: Ids, k: int) -> NDArray[np.float64]:
    """Returns the probability that a match is among the first k where `above` rows come before all matches.

    After them come `right` matches and `wrong` others in random order; of these the first k - above are looked at:
    1 - C(wrong, places) / C(right + wrong, places).
    """
    places = np.clip(k - above, 0, right + wrong)
    missed = np.ones(len(above))
    for place in range(k):
        looked = place < places
        left = np.where(looked, right + wrong - place, 1)
        missed *= np.where(looked, np.maximum(wrong - place, 0) / left, 1.0)
    return 1 - missed


def jaccard(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Returns the size of the intersection of two sets by that of their union, in [0, 1] (Jaccard 1912).

    Args:
        one, other: (n,) membership of the same n things.

    Raises:
        ValueError: the shapes differ, or both sets are empty.
    """
    if one.shape != other.shape:
        raise ValueError(f"expected two sets of the same things, got shapes {one.shape} and {other.shape}")
    union = int(np.count_nonzero(one | other))
    if not union:
        raise ValueError("both sets are empty: there is no share to speak of")
    return int(np.count_nonzero(one & other)) / union
