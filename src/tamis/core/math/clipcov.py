"""ClipCov's objective and its maximisation, one latent class at a time, in O(n d) memory.

Notation of the paper: pair i has the unit rows v_i (image) and t_i (caption); sim(i, j) = <v_i, t_j> + <v_j, t_i>; V_k
is a latent class, S_k its chosen pairs. Every sum of similarities is an inner product with a running sum of rows, so no
matrix of pairwise similarities is needed:

    gain(e | S) = modular(e) - (<v_e, T_S> + <t_e, V_S> + <v_e, t_e>) / |V_k|,   T_S, V_S: sums of the chosen rows.

Only `modular`, a term of single pairs, connects the classes. So each class is maximised alone and the choices are
merged by their gains, which equals the greedy algorithm on the whole pool.

Source: Joshi et al. 2024, "Data-efficient contrastive language-image pretraining: prioritizing data quality over
quantity" (AISTATS, arXiv 2403.12267), equations 23 to 36 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Float64s, Floats, Mask, Rows
from tamis.core.math.order import as_heads, keep_top

#: The terms of the objective: F_cov (F_class and F_self), F_label, F_class^reg (subtracted), F_inter.
TERMS = ("cov", "label", "class_reg", "inter")

#: The two parts of "cov", which can be named separately: F_class (equation 28) and F_self.
PARTS = ("class", "self")

#: Rows whose mutual similarities are in memory, at first and at most: 4096 make a float32 matrix of 64 MiB.
CANDIDATES, _MOST_CANDIDATES = 512, 4096

#: Gains that differ by no more are equal: those of copies of a row differ by rounding.
_ROUNDING = 1e-6

#: Candidates below the floor of gains: where a gain could rise, fewer of them cost a refresh sooner.
_SPARE = 16


@dataclass(frozen=True)
class Picks:
    """Row numbers (m,) within one class in the order of the greedy algorithm, and the gain (m,) of each."""

    rows: Rows
    gains: Float64s


def modular_gains(
    images: Floats,
    texts: Floats,
    *,
    terms: Sequence[str] = TERMS,
    label: Floats | None = None,
    alpha: float = 0.5,
    others: tuple[Floats, Floats] | None = None,
    whole: tuple[Floats, Floats, int] | None = None,
) -> Float64s:
    """Returns the part of each pair's gain that does not depend on the other choices: (n,) float64.

    Args:
        images, texts: (n, d) unit rows of one class.
        terms: terms of the objective, from `TERMS` and `PARTS`.
        label: (d,) unit row of the class name, and alpha its weight; for "label".
        others: (d,) sums over the other classes of their mean images and mean texts; for "inter".
        whole: (d,) sums of images and of texts of the whole class, and |V_k|, if known or if the rows are only some.

    Source: equation 23 (linear part), F_self, F_label, equations 31 and 34.
    """
    gains = np.zeros(len(images))
    if not len(images):
        return gains
    image_sum, text_sum, n = whole or (images.sum(0, np.float64), texts.sum(0, np.float64), len(images))
    central = "cov" in terms or "class" in terms
    if central or "class_reg" in terms:
        mass = _dots(images, text_sum) + _dots(texts, image_sum)  # sum over j in V_k of sim(i, j)
        if central:
            gains += mass / n
        if "class_reg" in terms:
            gains -= mass / n**2
    if "cov" in terms or "self" in terms:
        gains += 2 * own_cosines(images, texts)
    if "label" in terms:
        if label is None:
            raise ValueError("the term 'label' needs the embedding of the class name")
        gains += alpha * _dots(texts, label) * (1 - 1 / n)
    if "inter" in terms and others is not None:
        gains -= _dots(images, others[1]) + _dots(texts, others[0])
    return gains


def pair_weight(n: int, terms: Sequence[str] = TERMS, *, share: float = 1.0) -> float:
    """Returns the weight of the similarity of chosen pairs: 1 / |V_k| if F_class counts, else 0.

    `share`: of all pairs, the share that is chosen; 1 is the paper's objective. Ours: the weight that keeps the centre
    of a class is 1 / |S_k|, and this is that weight if every class gives the same share.
    """
    return 1 / (n * share) if n and ("cov" in terms or "class" in terms) else 0.0


def own_cosines(images: Floats, texts: Floats) -> Float64s:
    """Returns <v_i, t_i> of each pair: (n,) float64."""
    return np.asarray(np.einsum("nd,nd->n", images, texts), np.float64)


def greedy(
    images: Floats,
    texts: Floats,
    modular: Float64s,
    *,
    weight: float,
    count: int,
    floor: float = -np.inf,
    candidates: int = CANDIDATES,
) -> Picks:
    """Repeatedly takes the pair with the largest marginal gain, exactly, also with negative similarities.

    A refresh computes every gain from the running sums. Between refreshes only the best `candidates` pairs have exact
    gains. The best of them is taken while its gain is above the highest possible gain of any other pair: its gain at
    the refresh plus an upper bound of its rise since. Without negative similarities nothing rises, F is submodular, and
    this is the lazy evaluation of Minoux (1978). With them, `_Spread` bounds the rise.

    Args:
        images, texts: (n, d) rows of one class. Ties in gain go to the lower row, so sort the rows by scrambled uid.
        modular, weight: from `modular_gains` and `pair_weight`.
        count, floor: highest number of rows, and lowest gain, to take.
        candidates: changes the time and no choice (except between gains that differ by rounding). It doubles, up to
            4,096, while a refresh serves few choices.

    Cost: a refresh is two products (n, d) x (d,). There is about one per `candidates` / 2 choices without negative
    similarities, at worst one per choice. Memory: O(n d) and `candidates`^2 similarities.

    Source: algorithm 1, lines 6 to 10.
    """
    n = len(images)
    count = min(count, n)
    rows, taken_gains = np.empty(count, np.int64), np.empty(count)
    taken = 0
    if weight == 0:  # gains do not depend on the choices: a ranking
        order = np.argsort(-modular, kind="stable")[:count].astype(np.int64)
        order = order[modular[order] >= floor]
        return Picks(order, modular[order])
    base = modular - weight * own_cosines(images, texts)
    spread = _Spread.of(images, texts)
    image_sum, text_sum = np.zeros(images.shape[1]), np.zeros(images.shape[1])
    available = np.ones(n, bool)
    while taken < count:
        exact = base - weight * (_dots(images, text_sum) + _dots(texts, image_sum)) if taken else base.copy()
        exact[~available] = -np.inf
        able = int(np.count_nonzero(exact >= floor))  # without a rise, no other row will be taken
        chosen, rest = _best(exact, min(candidates, n - taken, able + able // 4 + _SPARE))
        x = np.concatenate([images[chosen], texts[chosen]], axis=1)  # (m, 2d)
        q = np.concatenate([texts[chosen], images[chosen]], axis=1)
        similar = x @ q.T  # (m, m): sim(i, j)
        gains = exact[chosen]
        total = np.zeros(q.shape[1])
        first, start = True, taken
        while taken < count:
            best = int((gains >= gains.max() - _ROUNDING).argmax())
            gain = float(gains[best])
            rise = weight * spread.rise(total)
            # Right after a refresh the best candidate is the best of all; later a tie with another row needs a refresh.
            if not first and not gain > rest + rise:
                break
            if gain < floor:
                count = taken
                break
            rows[taken], taken_gains[taken] = chosen[best], gain
            taken += 1
            total += q[best]
            available[chosen[best]] = False
            gains -= weight * similar[best]
            gains[best] = -np.inf
            first = False
        new = rows[start:taken]
        image_sum += images[new].sum(0, np.float64)
        text_sum += texts[new].sum(0, np.float64)
        if taken - start < candidates // 8:
            candidates = max(candidates, min(2 * candidates, _MOST_CANDIDATES))
    return Picks(rows[:taken], taken_gains[:taken])


def objective(images: Floats, texts: Floats, modular: Float64s, *, weight: float, chosen: Rows) -> float:
    """Returns the share of one class in F_ClipCov (equation 36): modular gains minus weight * <V_S, T_S>, which is half
    the sum of sim(i, j) over i, j in S_k. `chosen`: (m,) rows of S_k; see `greedy` for the others.
    """
    image_sum, text_sum = images[chosen].sum(0, np.float64), texts[chosen].sum(0, np.float64)
    return float(modular[chosen].sum() - weight * (image_sum @ text_sum))


def double_greedy(images: Floats, texts: Floats, modular: Float64s, *, weight: float, chosen: Rows) -> Mask:
    """Returns which of the (m,) chosen rows, in the order of processing, stay if each can be dropped again: (m,) bool.

    The deterministic double greedy of Buchbinder et al. guarantees only half of the best value, and can end below its
    start; then all rows stay, so that the objective never falls.

    Source: algorithm 1, lines 11 to 21; Buchbinder et al. 2015, "A tight linear time (1/2)-approximation for
    unconstrained submodular maximization".
    """
    stay = np.ones(len(chosen), bool)
    if not len(chosen):
        return stay
    x = np.concatenate([images[chosen], texts[chosen]], axis=1).astype(np.float64)
    q = np.concatenate([texts[chosen], images[chosen]], axis=1).astype(np.float64)
    own = own_cosines(images[chosen], texts[chosen])
    grown, shrunk = np.zeros(q.shape[1]), q.sum(0)
    for place, row in enumerate(chosen):
        add = modular[row] - weight * (x[place] @ grown + own[place])
        drop = weight * (x[place] @ shrunk - own[place]) - modular[row]
        if add >= drop:
            grown += q[place]
        else:
            shrunk -= q[place]
            stay[place] = False
    before = objective(images, texts, modular, weight=weight, chosen=chosen)
    after = objective(images, texts, modular, weight=weight, chosen=chosen[stay])
    return stay if after >= before else np.ones(len(chosen), bool)


def merge(picks: Sequence[Picks], ties: Sequence[NDArray[np.uint64]], count: int) -> Rows:
    """Merges the choices of all classes into the order of the greedy algorithm on the whole pool.

    The choices of a class keep their order, also where a gain rises (negative similarities). Of equal gains in several
    classes, the lower number in `ties` goes first. Returns at most `count` positions in the choices of all classes, one
    class after another.
    """
    heads = [as_heads(each.gains, tie) for each, tie in zip(picks, ties, strict=True)]
    gains, tie = (np.concatenate(parts) for parts in zip(*heads, strict=True))
    return np.lexsort((tie, -gains))[:count].astype(np.int64)


def covariance(products: Floats, image_sum: Floats, text_sum: Floats, n: int) -> Float64s:
    """Returns the cross-covariance of images and captions: (d, d), mean of v t' minus the product of the means; 0 for n
    = 0. `products`, `image_sum` and `text_sum` are the sums of v t' (d, d), v and t (d,) over n rows.
    """
    if not n:
        return np.zeros_like(products)
    return np.asarray(products / n - np.outer(image_sum / n, text_sum / n), np.float64)


def covariance_error(whole: Floats, part: Floats, *, up_to_scale: bool = False) -> float:
    """Returns ||C_V - C_S||_F / ||C_V||_F: 0 for a subset that keeps the pool's cross-covariance (d, d).

    With `up_to_scale` the least ||C_V - c C_S||_F / ||C_V||_F over c >= 0, in [0, 1]. The encoders that minimise the
    paper's loss (equation 12) for c C_S are the encoders for C_S times a number, which cosines ignore; and well aligned
    pairs have a larger covariance than the pool, whatever they cover.

    Source: Joshi et al. 2024, equations 11 and 14: what a subset should preserve. The Frobenius norm, the division and
    the scale are ours; the paper leaves them open.
    """
    scale = float(np.linalg.norm(whole))
    if not scale:
        return 0.0
    if up_to_scale:
        squares = float(np.sum(part * part))
        part = part * (max(float(np.sum(whole * part)), 0.0) / squares if squares else 0.0)
    return float(np.linalg.norm(whole - part)) / scale


def centre_error(whole: tuple[Floats, Floats], part: tuple[Floats, Floats]) -> float:
    """Returns ||mu_image(S_k) - mu_image(V_k)|| + ||mu_text(S_k) - mu_text(V_k)||, in [0, 4] for unit rows: how far a
    part is from the centres, (d,) mean image and (d,) mean caption, of its whole class.

    Source: Joshi et al. 2024, equation 17, left side, from which F_class is derived by a bound.
    """
    return sum(float(np.linalg.norm(mine - all_)) for mine, all_ in zip(part, whole, strict=True))


@dataclass(frozen=True)
class _Spread:
    """Bounds <x_e, q> for every row x_e = (v_e, t_e) of a class and the sum q of chosen rows. Rows are split into the
    part along the class's mean direction and the rest (bounded by Cauchy and Schwarz).
    """

    direction: Float64s
    low: float
    high: float
    rest: float

    @classmethod
    def of(cls, images: Floats, texts: Floats) -> _Spread:
        centre = np.concatenate([images.mean(0, dtype=np.float64), texts.mean(0, dtype=np.float64)])
        length = float(np.linalg.norm(centre))
        direction = centre / length if length else centre
        half = images.shape[1]
        along = _dots(images, direction[:half]) + _dots(texts, direction[half:])
        squares = np.einsum("nd,nd->n", images, images) + np.einsum("nd,nd->n", texts, texts)
        rest = np.sqrt(np.maximum(squares.astype(np.float64) - along**2, 0)).max()
        margin = 1e-5  # for rounding in float32
        return cls(direction, float(along.min()) - margin, float(along.max()) + margin, float(rest) + margin)

    def rise(self, total: Float64s) -> float:
        """Returns an upper bound of -<x_e, q> over all rows; the halves of q are in the order (t, v)."""
        along = float(total @ self.direction)
        across = float(np.sqrt(max(float(total @ total) - along * along, 0.0)))
        return -(along * (self.low if along > 0 else self.high)) + self.rest * across


def _best(values: Float64s, m: int) -> tuple[Rows, float]:
    """Returns the m rows with the highest values, ascending (ties go to lower rows), and the best value of the rest."""
    able = values > -np.inf
    if m >= np.count_nonzero(able):
        return np.flatnonzero(able), -np.inf
    kept, _ = keep_top(values, m, able, lambda rows: rows.view(np.uint64))
    return np.flatnonzero(kept), float(values[~kept].max())


def _dots(rows: Floats, vector: Floats) -> Float64s:
    """Returns the inner product of every row with a vector, in the precision of the rows."""
    return np.asarray(rows @ np.asarray(vector, rows.dtype), np.float64)
