"""Covariance herding: the pairs that, one after another, bring a subset's cross-covariance nearest to a given one.

Notation: pair i has the centred rows v_i (image) and t_i (caption), and stands for the matrix v_i t_i'. Two pairs have
the inner product k(i, j) = <v_i, v_j> <t_i, t_j>, so no (d, d) matrix is made of a pair. With C the covariance to be
kept and m pairs S chosen, the next one is

    argmax_e  <C, v_e t_e'> - (sum over s in S of k(e, s) + k(e, e) / 2) / (m + 1),

which is the pair that makes || C - mean over S + e of v t' ||_F smallest.

Source: the herding algorithm of Welling 2009, "Herding dynamical weights to learn" (ICML), with the kernel of Chen,
Welling and Smola 2010, "Super-samples from kernel herding" (UAI, arXiv 1203.3472); the half of k(e, e) makes each step
the best one for the norm itself. That ClipCov's objective descends no such norm, and this does, is our finding:
docs/results.md.
"""

from __future__ import annotations

import numpy as np

from tamis.arrays import Float64s, Floats, Rows
from tamis.math.clipcov import Picks

#: Rows of the kernel that are computed together: the guess of the choices to come. More make better matrix products and
#: more rows that are never used.
AHEAD = 64

#: Pairs among which those choices are guessed, per guessed one: more guess better, and pay where rows are long.
_LOOKED_AT = (4, 16)

#: Bytes of kernel rows kept for guesses that may still come true.
_KEPT_BYTES = 1 << 26


def along(images: Floats, texts: Floats, covariance: Floats) -> Float64s:
    """Returns <C, v_i t_i'> of each pair: (n,) float64, high where a pair lies along the covariance to be kept."""
    return np.asarray(np.einsum("nd,nd->n", images @ np.asarray(covariance, images.dtype), texts), np.float64)


def herd(images: Floats, texts: Floats, wanted: Float64s, *, count: int, ahead: int = AHEAD) -> Picks:
    """Takes the pair that brings the covariance of the choice nearest to the wanted one, again and again: exactly.

    Every pair's criterion is known at every choice, so no bound is needed. What a choice changes is one row of the
    kernel, and these rows are computed many at a time: for the pairs that the same rule would take next if there were
    only the few hundred pairs of highest criterion. Where the guess is wrong only time is lost.

    Args:
        images, texts: (n, d) centred rows that can be chosen. Ties fall to the lower row, so put the rows into an order
            that means nothing (by scrambled uid) before.
        wanted: (n,) from `along`: the inner product of each pair with the covariance to be kept.
        count: how many to take at most. The choice of fewer is a beginning of the choice of more, to the last bit.
        ahead: changes the time and no choice (but between criteria that differ by rounding).

    Returns:
        The choices in order; `gains` holds the criterion at which each was taken.

    Cost: about 2 n d multiplications for each choice, in matrix products, and some more for guesses that do
        not come true. Memory: the rows, and 64 MiB of kernel, or `ahead` rows of it where they are more.
    """
    n = len(images)
    count = min(count, n)
    rows, found = np.empty(count, np.int64), np.empty(count)
    own = np.asarray(
        np.einsum("nd,nd->n", images, images, dtype=np.float64) * np.einsum("nd,nd->n", texts, texts, dtype=np.float64)
    )
    # (m + 1) times the criterion: what a choice s changes is + wanted - k(e, s), for all pairs e.
    score = wanted - own / 2
    ahead = min(ahead, n // 16 + 1)
    kernel = _KernelRows(images, texts, ahead)
    for taken in range(count):
        best = int(score.argmax())
        if best not in kernel:
            kernel.compute(best, _guess(images, texts, wanted, score, ahead, n - taken))
        rows[taken], found[taken] = best, score[best] / (taken + 1)
        score += wanted
        score -= kernel.take(best)
        score[best] = -np.inf
    return Picks(rows, found)


def turns(sizes: Rows, most: Rows, count: int) -> Rows:
    """Returns whose turn it is to choose: the class of the first choice, of the second, and so on.

    Each class gets its share of the choices by the method of Webster and Sainte-Laguë: the turn goes to the class of
    largest size / (2 choices so far + 1), ties to the lower number. The turns of fewer choices are a beginning.

    Args:
        sizes: (classes,) what each class's share is proportional to.
        most: (classes,) choices that it can make.
        count: of choices in all.

    Returns:
        (m,) int64, m = min(count, sum of `most`).

    Source: Sainte-Laguë 1910; a class whose pairs are used up leaves its turns to the others.
    """
    count = min(count, int(most.sum()))
    if not count:
        return np.empty(0, np.int64)
    held = np.flatnonzero(most)
    # Choice number i of a class is due at (2 i + 1) / size. Up to which i any class can come is bounded by all choices.
    due_by = _due_by(sizes[held], most[held], count)
    choices = np.minimum(most[held], np.maximum(np.ceil((due_by * sizes[held] + 1) / 2), 1).astype(np.int64))
    kinds = np.repeat(held, choices)
    number = np.arange(choices.sum()) - np.repeat(np.cumsum(choices) - choices, choices)
    due = (2 * number + 1) / sizes[kinds]
    return kinds[np.lexsort((number, kinds, due))][:count].astype(np.int64)


def _due_by(sizes: Rows, most: Rows, count: int) -> float:
    """Returns a time by which `count` choices are due, and not many more."""
    low, high = 0.0, float((2 * most / sizes).max())
    for _ in range(60):
        middle = (low + high) / 2
        due = np.minimum(most, np.floor((middle * sizes + 1) / 2).astype(np.int64))
        low, high = (low, middle) if due.sum() >= count else (middle, high)
    return high


def _guess(images: Floats, texts: Floats, wanted: Float64s, score: Float64s, ahead: int, left: int) -> Rows:
    """Returns the pairs that would be taken next if there were only those of highest score; `left` are there."""
    many = min(int(np.clip(len(images) // 1000, *_LOOKED_AT)) * ahead, left)
    near = np.argpartition(-score, many - 1)[:many]
    between = (images[near] @ images[near].T) * (texts[near] @ texts[near].T)
    scores, rises = score[near], wanted[near]
    guessed = np.empty(min(ahead, many), np.int64)
    for place in range(guessed.size):
        best = int(scores.argmax())
        guessed[place] = near[best]
        scores += rises - between[best]
        scores[best] = -np.inf
    return guessed


class _KernelRows:
    """Rows of the kernel that were computed and are not used yet."""

    def __init__(self, images: Floats, texts: Floats, ahead: int) -> None:
        self.images, self.texts = images, texts
        n = len(images)
        most = min(max(_KEPT_BYTES // (images.itemsize * max(n, 1)), ahead + 1), n)
        self.held = np.empty((most, n), images.dtype)
        self.free = list(range(most))
        self.places: dict[int, int] = {}

    def __contains__(self, row: int) -> bool:
        return row in self.places

    def compute(self, needed: int, guessed: Rows) -> None:
        """Computes the row that is needed now, and those of the guess that it does not hold."""
        asked = [needed, *(row for row in guessed.tolist() if row != needed and row not in self.places)]
        if len(asked) > len(self.free):  # old guesses have not come true
            self.free = list(range(len(self.held)))
            self.places.clear()
        block = self.images[asked] @ self.images.T  # (m, n)
        block *= self.texts[asked] @ self.texts.T
        for row, values in zip(asked, block, strict=True):
            self.places[row] = self.free.pop()
            self.held[self.places[row]] = values

    def take(self, row: int) -> Floats:
        """Returns a row and forgets it: it is good until the next call of `compute`."""
        place = self.places.pop(row)
        self.free.append(place)
        values: Floats = self.held[place]
        return values
