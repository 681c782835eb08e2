"""How many captions hold each word, in the pool and in each subset."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tamis.arrays import Mask

#: A word: two letters or more, with apostrophes and hyphens inside. Scripts without spaces give whole runs.
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")

#: A word in fewer captions tells nothing of what a recipe likes; characters of a caption that are read.
RARE, _READ = 5, 2_000


@dataclass(frozen=True, kw_only=True)
class Frequency:
    """One word.

    Attributes:
        pool: captions that hold it.
        kept: those of them that a subset keeps.
        surprise: how many standard deviations that is above (or below) what a subset of this size would keep of any
            pairs: (kept - n p) / sqrt(n p (1 - p)), n captions with it, p the share of all captions that is kept.
    """

    word: str
    pool: int
    kept: int
    surprise: float


def words_of(caption: str) -> set[str]:
    """Returns the words of a caption, each once, in lower case."""
    return {word.casefold() for word in _WORD.findall(caption[:_READ]) if len(word) > 1}


def frequencies(captions: Iterable[str | None], keeps: Sequence[Mask]) -> list[list[Frequency]]:
    """Returns for each subset the words by how much more of their captions it keeps than of others, the most first.

    Args:
        captions: None where a pair has none; it counts for nothing.
        keeps: (n,) bool for each subset.

    Returns:
        Per subset the words that at least `RARE` captions hold; none of a subset that keeps all captions, or no one.
    """
    pool: Counter[str] = Counter()
    kept: list[Counter[str]] = [Counter() for _ in keeps]
    total, totals = 0, [0] * len(keeps)
    for row, caption in enumerate(captions):
        if caption is None:
            continue
        words = words_of(caption)
        pool.update(words)
        total += 1
        for place, keep in enumerate(keeps):
            if keep[row]:
                kept[place].update(words)
                totals[place] += 1
    return [
        _ranked(pool, mine, size / total) if 0 < size < total else [] for mine, size in zip(kept, totals, strict=True)
    ]


def _ranked(pool: Counter[str], kept: Counter[str], part: float) -> list[Frequency]:
    found = []
    for word, rows in pool.items():
        if rows >= RARE:
            surprise = (kept[word] - rows * part) / float(np.sqrt(rows * part * (1 - part)))
            found.append(Frequency(word=word, pool=rows, kept=kept[word], surprise=surprise))
    return sorted(found, key=lambda each: (-each.surprise, each.word))
