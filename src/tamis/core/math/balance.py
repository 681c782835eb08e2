"""MetaCLIP's balance: captions about frequent things are kept less often, so that the tail keeps its share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Float64s

#: How many captions have each entry.
Counts = NDArray[np.int64]


def tail_share(counts: Counts, t: float) -> float:
    """Returns the share of all matches whose entries have fewer than t of them, in [0, 1]; 0 without any match."""
    return float(counts[counts < t].sum() / max(int(counts.sum()), 1))


def tail_limit(counts: Counts, share: float) -> float:
    """Returns the t, at least 1, at which the tail has about a `share` of all matches: where the cumulative share of
    the sorted counts is nearest to it. Entries with exactly t count as tail.

    Source: Chuang et al. 2025, MetaCLIP 2 (arXiv 2507.22062), the threshold of each language.
    """
    ordered = np.sort(counts[counts > 0])
    if not ordered.size:
        return 1.0
    return float(ordered[np.argmin(np.abs(np.cumsum(ordered) / ordered.sum() - share))])


def keep_chances(ids: NDArray[np.integer], lengths: NDArray[np.integer], chance: Float64s) -> Float64s:
    """Returns the probability to keep each caption: 1 - Π (1 - chance of its entries); 0 without entries.

    `ids`: entries of all captions, one after the other; `lengths`: (n,) how many of them each caption has; `chance`:
    (entries,) min(1, t / count).

    Source: Xu et al. 2024, MetaCLIP (arXiv 2309.16671), algorithm 1: a caption stays if one of its entries draws it.
    """
    kept, some = np.zeros(lengths.size), lengths > 0
    if some.any():
        starts = np.concatenate([[0], np.cumsum(lengths[some])[:-1]])
        kept[some] = 1 - np.multiply.reduceat(1 - chance[ids], starts)
    return kept


def effective_number(counts: Counts) -> float:
    """Returns exp(entropy) of the counts: k for k equally frequent entries, 1 for a single one, 0 for none."""
    shares = counts[counts > 0] / max(int(counts.sum()), 1)
    return float(np.exp(-(shares * np.log(shares)).sum())) if shares.size else 0.0
