"""What two texts share (BERTScore, runs of characters and words), and which words are a class of texts' own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Float64s, Floats
from tamis.core.math.similarity import unit_rows


def bertscore(
    candidate: Floats,
    reference: Floats,
    candidate_counts: NDArray[np.bool_] | None = None,
    reference_counts: NDArray[np.bool_] | None = None,
) -> tuple[float, float, float]:
    """Returns BERTScore without idf weights and without rescaling: precision, recall and F1, each in [-1, 1].

    Every token that counts is matched with the most similar token of the other text, whether that one counts or not;
    precision is the mean of the candidate's best cosines, recall the mean of the reference's. `candidate` (t, d) and
    `reference` (s, d) are token embeddings, no row zero. The counts, (t,) and (s,), are False for special tokens:
    others can match them, but they have no weight, as in the `bert-score` package. All are 0 where no token of the
    candidate counts, as there; NaN where no token of the reference does. F1 is NaN where precision and recall do not
    sum to more than 0.

    Source: Zhang et al. 2020, "BERTScore: evaluating text generation with BERT" (ICLR), section 3.
    """
    of_candidate = np.ones(len(candidate), bool) if candidate_counts is None else candidate_counts
    of_reference = np.ones(len(reference), bool) if reference_counts is None else reference_counts
    if not of_reference.any():
        return np.nan, np.nan, np.nan
    if not of_candidate.any():
        return 0.0, 0.0, 0.0
    cosines = unit_rows(candidate) @ unit_rows(reference).T  # (t, s)
    precision = float(cosines.max(1)[of_candidate].mean())
    recall = float(cosines.max(0)[of_reference].mean())
    total = precision + recall
    return precision, recall, 2 * precision * recall / total if total > 0 else np.nan


def trigram_diversity(texts: Iterable[str]) -> float:
    """Returns the share of distinct runs of three words among all of them, case folded: in (0, 1], NaN without any. It
    falls as texts are added, so compare equal numbers of texts.

    Source: Nguyen et al. 2023 (arXiv 2307.10350), section 5, counts distinct trigrams for the diversity of captions.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        words = text.casefold().split()
        counts.update(zip(words, words[1:], words[2:], strict=False))
    return len(counts) / counts.total() if counts else np.nan


def longest_shared_run(one: str, other: str) -> int:
    """Returns the length of the longest run of consecutive characters in both texts.

    A shared run of k characters contains one of k - 1, so a binary search finds the length. Cost: O(n log n) for n
    characters in both together, times the length of the run for hashing.
    """
    least, most = 0, min(len(one), len(other))
    while least < most:
        length = (least + most + 1) // 2
        runs = {one[start : start + length] for start in range(len(one) - length + 1)}
        if any(other[start : start + length] in runs for start in range(len(other) - length + 1)):
            least = length
        else:
            most = length - 1
    return least


def longest_words_across(words: Sequence[str], lines: Sequence[str]) -> int:
    """Returns the length of the longest run of words that continues over a line break; 0 without one.

    The words, of at least one character as the lines, follow one another through the lines; each is within one line,
    with at least one before and one after the break. Other text before and after the run does not matter. Cost: words
    times lines, times the length of the runs.
    """
    text = "".join(lines)
    ends: set[int] = set()
    length = 0
    for line in lines[:-1]:
        length += len(line)
        ends.add(length)
    best = 0
    for end in ends:
        for first in range(1, len(words)):
            left = right = end
            for word in reversed(words[:first]):
                if not text.endswith(word, 0, left) or any(left - k in ends for k in range(1, len(word))):
                    break
                left -= len(word)
            for word in words[first:] if left < end else ():
                if not text.startswith(word, right) or any(right + k in ends for k in range(1, len(word))):
                    break
                right += len(word)
            if left < end < right:
                best = max(best, right - left)
    return best


def c_tf_idf(counts: NDArray[np.integer]) -> Float64s:
    """Returns how well each term names each class, c-TF-IDF, from the occurrences (c, t) of each term in each class:
    (c, t).

        W[t, c] = tf[t, c] * log(1 + A / f[t])

    tf[t, c] is how often the term occurs in the class, f[t] how often in all classes, and A the mean number of words
    per class. High: frequent in this class and rare elsewhere. 0: not in the class.

    Source: Grootendorst 2022, "BERTopic" (arXiv 2203.05794), equation 2.
    """
    tf = np.asarray(counts, np.float64)
    everywhere = tf.sum(axis=0)
    mean = tf.sum() / max(len(tf), 1)
    weights: Float64s = tf * np.log1p(mean / np.where(everywhere > 0, everywhere, 1))
    return weights
