"""How probable a model finds the right answers: a continuous score where accuracy only counts which answer is first.

DataDecide (Magnusson et al. 2025, arXiv:2504.11393) finds that continuous scores of small models rank training data
more reliably than accuracies do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Floats
from tamis.core.errors import require
from tamis.core.math.similarity import cosines
from tamis.core.math.statistics import Labels

_BLOCK = 1024  # rows of scores held at once

#: The scales that are tried: cosines times the first are all alike, times the second the largest one has everything.
_SCALES = (0.1, 1000.0)


@dataclass(frozen=True, eq=False)
class Questions:
    """Queries (m, d) and the gallery (n, d) among which each has its answers: the rows with its number. Unit rows."""

    queries: Floats
    gallery: Floats
    query_ids: Labels  # (m,)
    gallery_ids: Labels  # (n,)


def mean_log_probability(parts: Sequence[Questions], scale: float) -> float:
    """Returns the mean log-probability of a right answer, in nats, at most 0: the mean over parts of the mean over
    queries of log(sum over right rows of p), where p is the softmax over the gallery of scale * cosine.

    With one right row it is CLIP's contrastive log-likelihood over the whole gallery. A query needs a right row.

    Cost: m * n * d multiplications; 1,024 rows of scores are held.

    Source: Radford et al. 2021 (CLIP), section 2.3.
    """
    means = []
    for part in parts:
        total = 0.0
        for start in range(0, len(part.queries), _BLOCK):
            rows = slice(start, start + _BLOCK)
            logits = scale * cosines(part.queries[rows], part.gallery).astype(np.float64)
            right = part.query_ids[rows, None] == part.gallery_ids[None, :]
            total += float((_log_sum(np.where(right, logits, -np.inf)) - _log_sum(logits)).sum())
        means.append(total / len(part.queries))
    return sum(means) / len(means)


def best_log_likelihood(parts: Sequence[Questions]) -> float:
    """Returns `mean_log_probability` at the scale that makes it largest: 0, which is chance, or from 0.1 to 1,000.

    A model's own scale follows the noise of its training pairs and how often it saw them. At the best one, only the
    order and the distances of its cosines count, and no model is worse than one that knows nothing.

    Cost: about twelve times that of `mean_log_probability`.
    """
    require("scipy", extra="evaluate")
    from scipy.optimize import minimize_scalar

    bounds = [math.log(scale) for scale in _SCALES]
    found = minimize_scalar(
        lambda power: -mean_log_probability(parts, math.exp(power)), bounds=bounds, method="bounded",
        options={"xatol": 1e-2},
    )  # fmt: skip
    return max(-float(found.fun), mean_log_probability(parts, 0.0))


def _log_sum(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns log(sum(exp(row))) of each row; each has a finite value."""
    largest = logits.max(1)
    return np.asarray(largest + np.log(np.exp(logits - largest[:, None]).sum(1)))
