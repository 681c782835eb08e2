"""BERTScore: similarity of two texts by the contextual embeddings of their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.math.similarity import unit_rows


@dataclass(frozen=True)
class BertScore:
    """Precision (of the candidate's tokens), recall (of the reference's), and their harmonic mean, each in [-1, 1]."""

    precision: float
    recall: float
    f1: float


def bertscore(
    candidate: Floats,
    reference: Floats,
    candidate_counts: NDArray[np.bool_] | None = None,
    reference_counts: NDArray[np.bool_] | None = None,
) -> BertScore:
    """Returns BERTScore without idf weights and without rescaling by a baseline.

    Every token that counts is matched with the most similar token of the other text, whether that one counts or not;
    precision is the mean of the candidate's best cosines, recall that of the reference's.

    Args:
        candidate, reference: (t, d) and (s, d) token embeddings; rows are not zero.
        candidate_counts, reference_counts: (t,) and (s,), False for special tokens: others can match them, but they
            have no weight, as in the `bert-score` package. None: every token counts.

    Returns:
        The three numbers: 0 where no token of the candidate counts, as in the `bert-score` package; NaN where no token
        of the reference does. `f1` is NaN where precision and recall do not sum to more than 0.

    Source: Zhang et al. 2020, "BERTScore: evaluating text generation with BERT" (ICLR), section 3.
    """
    of_candidate = np.ones(len(candidate), bool) if candidate_counts is None else candidate_counts
    of_reference = np.ones(len(reference), bool) if reference_counts is None else reference_counts
    if not of_reference.any():
        return BertScore(np.nan, np.nan, np.nan)
    if not of_candidate.any():
        return BertScore(0.0, 0.0, 0.0)
    cosines = unit_rows(candidate) @ unit_rows(reference).T  # (t, s)
    precision = float(cosines.max(1)[of_candidate].mean())
    recall = float(cosines.max(0)[of_reference].mean())
    total = precision + recall
    return BertScore(precision, recall, 2 * precision * recall / total if total > 0 else np.nan)
