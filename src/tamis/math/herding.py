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

from collections.abc import Sequence

import numpy as np

from tamis.arrays import Float64s, Floats, Rows
from tamis.math.clipcov import Picks

#: How the choices to come are guessed: among so many pairs of highest criterion (a quarter at most), so many choices.
#: Those pairs choose by the same rule, and guess in turn by the next entry. More pairs guess better; more choices make
#: better products.
_GUESSES = ((8192, 64), (256, 12))

#: Up to so many times d pairs the whole kernel is made at once: half of its products, and none of them for nothing.
_WHOLE = 16

#: Rows of the second factor at a time.
_BLOCK = 1024

#: Bytes of kernel rows kept for guesses that may still come true.
_KEPT_BYTES = 1 << 28


def along(images: Floats, texts: Floats, covariance: Floats) -> Float64s:
    """Returns <C, v_i t_i'> of each pair: (n,) float64, high where a pair lies along the covariance to be kept."""
    return np.asarray(np.einsum("nd,nd->n", images @ np.asarray(covariance, images.dtype), texts), np.float64)


def herd(images: Floats, texts: Floats, wanted: Float64s, *, count: int) -> Picks:
    """Takes the pair that brings the covariance of the choice nearest to the wanted one, again and again: exactly.

    Every pair's criterion is known at every choice, so no bound is needed. What a choice changes is one row of the
    kernel, and these rows are computed many at a time: for the pairs that the same rule would take next if there were
    only those of highest criterion. Where the guess is wrong only time is lost.

    Args:
        images, texts: (n, d) centred rows that can be chosen. Ties fall to the lower row, so put the rows into an order
            that means nothing (by scrambled uid) before.
        wanted: (n,) from `along`: the inner product of each pair with the covariance to be kept.
        count: how many to take at most. The choice of fewer is a beginning of the choice of more, to the last bit.

    Returns:
        The choices in order; `gains` holds the criterion at which each was taken.

    Cost: about 4 n d multiplications for each choice, in matrix products, of which half are for guesses that do not
        come true; n^2 d in all where n is at most 16 d and the whole kernel has at most 256 MiB. Memory: the rows, and
        256 MiB of kernel, or 65 rows of it where they are more.
    """
    own = np.asarray(
        np.einsum("nd,nd->n", images, images, dtype=np.float64) * np.einsum("nd,nd->n", texts, texts, dtype=np.float64)
    )
    # (m + 1) times the criterion: what a choice s changes is + wanted - k(e, s), for all pairs e.
    n, d = images.shape
    guesses = () if n <= _WHOLE * d and n * n * images.itemsize <= _KEPT_BYTES else _GUESSES
    rows, found = _greedy(images, texts, wanted, wanted - own / 2, count, guesses)
    return Picks(rows, found / np.arange(1, rows.size + 1))


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


def _greedy(
    images: Floats, texts: Floats, wanted: Float64s, score: Float64s, count: int, guesses: Sequence[tuple[int, int]]
) -> tuple[Rows, Float64s]:
    """Takes the pair of highest score, again and again; writes what that changes into `score`.

    Returns:
        The choices in order, and the score at which each was taken.
    """
    n = len(images)
    count = min(count, n)
    rows, found = np.empty(count, np.int64), np.empty(count)
    if not count:
        return rows, found
    kernel = _Ahead(images, texts, guesses) if guesses else _WholeKernel(images, texts)
    for taken in range(count):
        best = int(score.argmax())
        rows[taken], found[taken] = best, score[best]
        row = kernel.row(best, wanted, score)
        score += wanted
        score -= row
        score[best] = -np.inf
    return rows, found


class _WholeKernel:
    """The kernel of few pairs."""

    def __init__(self, images: Floats, texts: Floats) -> None:
        self.rows: Floats = images @ images.T  # BLAS computes half of a product with its own transpose
        for start in range(0, len(images), _BLOCK):
            self.rows[start : start + _BLOCK] *= texts[start : start + _BLOCK] @ texts.T

    def row(self, best: int, wanted: Float64s, score: Float64s) -> Floats:
        values: Floats = self.rows[best]
        return values


class _Ahead:
    """The kernel of many pairs: rows that are needed, computed together with those that will be, by a guess."""

    def __init__(self, images: Floats, texts: Floats, guesses: Sequence[tuple[int, int]]) -> None:
        self.images, self.texts = images, texts
        n = len(images)
        (among, self.ahead), *self.further = guesses
        self.among = max(min(among, n // 4), 1)
        most = min(max(_KEPT_BYTES // (images.itemsize * n), self.ahead + 1), n)
        self.held = np.empty((most, n), images.dtype)
        self.free = list(range(most))
        self.places: dict[int, int] = {}

    def row(self, best: int, wanted: Float64s, score: Float64s) -> Floats:
        """Returns the row of the choice and forgets it: it is good until the next call."""
        if best not in self.places:
            self._compute(best, self._guess(wanted, score))
        place = self.places.pop(best)
        self.free.append(place)
        values: Floats = self.held[place]
        return values

    def _guess(self, wanted: Float64s, score: Float64s) -> Rows:
        """Returns the choices that come next if no others than the pairs of highest score can be chosen."""
        near = np.argpartition(-score, self.among - 1)[: self.among]
        near.sort()
        near = near[np.isfinite(score[near])]  # the rest is chosen already
        rows, _ = _greedy(self.images[near], self.texts[near], wanted[near], score[near], self.ahead, self.further)
        return near[rows]

    def _compute(self, needed: int, guessed: Rows) -> None:
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
