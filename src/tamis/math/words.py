"""The words that name a group of captions: c-TF-IDF."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float64s

#: Words of at least three letters, so no numbers.
_WORD = re.compile(r"[^\W\d_]{3,}")

#: Words that say nothing about what an image shows.
_STOP = """
    about after all also and any are been before being both but can could did does doing down during each few for from
    further had has have having her here hers him his how http https image images into its jpg just more most not now off
    once one only other our out over own photo photograph picture png same she should some such than that the their them
    then there these they this those through too two under until very was were what when where which while who whom why
    will with would www you your
"""
STOP_WORDS = frozenset(_STOP.split())


def c_tf_idf(counts: NDArray[np.integer]) -> Float64s:
    """Returns how well each term names each class: c-TF-IDF, the class-based variant of TF-IDF.

        W[t, c] = tf[t, c] * log(1 + A / f[t])

    tf[t, c] is how often the term occurs in the class, f[t] how often in all classes, and A the mean number of words
    per class. High: frequent in this class and rare elsewhere. 0: not in the class.

    Args:
        counts: (c, t) occurrences of each term in each class.

    Returns:
        (c, t) float64, at least 0.

    Source: Grootendorst 2022, "BERTopic" (arXiv 2203.05794), equation 2.
    """
    tf = np.asarray(counts, np.float64)
    everywhere = tf.sum(axis=0)
    mean = tf.sum() / max(len(tf), 1)
    weights: Float64s = tf * np.log1p(mean / np.where(everywhere > 0, everywhere, 1))
    return weights


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case, without numbers, stop words and words of one or two letters."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


def names(texts: Iterable[str | None], classes: Sequence[int], count: int, *, words: int = 3) -> list[list[str]]:
    """Returns for each of `count` classes its best words by c-TF-IDF, the best first; ties by the alphabet.

    A caption counts a word once. Of words of which one begins another ("dog", "dogs"), only the better is listed.
    A word in a single caption of a class names nothing.
    """
    found = [Counter[str]() for _ in range(count)]
    for text, number in zip(texts, classes, strict=True):
        found[number].update(set(words_of(text or "")))
    vocabulary = sorted(set().union(*found))
    place = {word: number for number, word in enumerate(vocabulary)}
    counts = np.zeros((count, len(vocabulary)), np.int64)
    for number, counter in enumerate(found):
        counts[number, [place[word] for word in counter]] = list(counter.values())
    named = []
    for weights, occurs in zip(c_tf_idf(counts), counts, strict=True):
        chosen: list[str] = []
        for term in np.argsort(-weights, kind="stable")[: 4 * words].tolist():
            word = vocabulary[term]
            if occurs[term] > 1 and not any(word.startswith(one) or one.startswith(word) for one in chosen):
                chosen.append(word)
        named.append(chosen[:words])
    return named
