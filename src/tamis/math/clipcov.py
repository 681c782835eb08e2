"""ClipCov's objective and its maximisation, one latent class at a time, in O(n d) memory.

Notation, after the paper: pair i has the unit rows v_i (image) and t_i (caption); sim(i, j) = <v_i, t_j> + <v_j, t_i>;
V_k is a latent class, S_k what is chosen of it. Every sum of similarities is an inner product with a running sum of
rows, so no matrix of pairwise similarities is ever made:

    gain(e | S) = modular(e) - (<v_e, T_S> + <t_e, V_S> + <v_e, t_e>) / |V_k|,   T_S, V_S: sums of the rows chosen.

Classes meet only in terms of single pairs, which `modular` holds: each class is maximised alone and the choices are
merged by their gains, which is the greedy algorithm on the whole pool.

Source: Joshi et al. 2024, "Data-efficient contrastive language-image pretraining: prioritizing data quality over
quantity" (AISTATS, arXiv 2403.12267), equations 23 to 36 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float64s, Floats, Mask, Rows

#: The terms of the objective by name: F_cov (F_class and F_self), F_label, F_class^reg (it counts negative), F_inter.
TERMS = ("cov", "label", "class_reg", "inter")

#: The two terms that "cov" stands for, which can be named apart: F_class (equation 23) and F_self.
PARTS = ("class", "self")

#: Rows whose mutual similarities are looked at together. Grows by itself where it is too small, up to the second: a
#: matrix of 64 MiB in float32, however large the class is.
CANDIDATES, _MOST_CANDIDATES = 512, 4096


@dataclass(frozen=True)
class Picks:
    """Rows of one class in the order in which the greedy algorithm takes them.

    Attributes:
        rows: (m,) row numbers inside the class.
        gains: (m,) by how much each raised the objective when it was taken.
    """

    rows: Rows
    gains: Float64s


def check_terms(terms: Sequence[str]) -> None:
    """Checks the names of the objective's terms.

    Raises:
        ValueError: one is none of `TERMS` and `PARTS`, there is none, or "cov" stands beside a part of it.
    """
    strange = [term for term in terms if term not in TERMS + PARTS]
    if strange or not terms:
        found = f"got {strange[0]!r}" if strange else "got none"
        raise ValueError(f"terms are some of {', '.join(TERMS)}, or class or self in place of cov; {found}")
    if "cov" in terms and set(PARTS) & set(terms):
        raise ValueError(f"'cov' is class and self together: write one or the other, got {', '.join(terms)}")


def measured_alpha(cross_modal: float, text: float) -> float:
    """Returns the weight of F_label: average cross-modal similarity through average similarity in text.

    Args:
        cross_modal: mean of sim(i, j) over the pairs i, j of each class, every i counted alike (definition 4.1: a sum
            of two cosines).
        text: mean of <t_i, y_k>, each caption with its own class's label: the quantity that the weight stands before.
            The paper's footnote finds about 1/2 for OpenAI's CLIP.

    Raises:
        ValueError: the average similarity in text is not above 0, so the ratio says nothing.
    """
    if not text > 0:
        raise ValueError(f"captions have a mean cosine of {text:.3g} with their labels: no ratio; give alpha yourself")
    return cross_modal / text


def modular_gains(
    images: Floats,
    texts: Floats,
    *,
    terms: Sequence[str] = TERMS,
    label: Floats | None = None,
    alpha: float = 0.5,
    others: tuple[Floats, Floats] | None = None,
    sums: tuple[Floats, Floats] | None = None,
    size: int | None = None,
) -> Float64s:
    """Returns the part of each pair's gain that does not depend on what else is chosen.

    Args:
        images, texts: (n, d) unit rows of one class.
        terms: which of `TERMS` (or `PARTS`) count.
        label: (d,) unit row of the class's name; needed by "label".
        alpha: weight of "label".
        others: (d,) sums over the other classes of their mean images and mean texts; needed by "inter".
        sums: (d,) sums of `images` and `texts`, where they are known.
        size: |V_k|, where the rows are only some of the class; `sums` are of the whole class then.

    Returns:
        (n,) float64.

    Source: equation 23 (linear part), F_self, F_label, equations 31 and 34.
    """
    gains = np.zeros(len(images))
    if not len(images):
        return gains
    n = size or len(images)
    central = "cov" in terms or "class" in terms
    if central or "class_reg" in terms:
        image_sum, text_sum = sums if sums is not None else (images.sum(0, np.float64), texts.sum(0, np.float64))
        mass = _dots(images, text_sum) + _dots(texts, image_sum)  # sum over j in V_k of sim(i, j)
        if central:
            gains += mass / n
        if "class_reg" in terms:
            gains -= mass / n**2
    if "cov" in terms or "self" in terms:
        gains += 2 * own_cosines(images, texts)
    if "label" in terms:
        if label is None:
            raise ValueError("the term 'label' needs the embedding of the class's name")
        gains += alpha * _dots(texts, label) * (1 - 1 / n)
    if "inter" in terms and others is not None:
        gains -= _dots(images, others[1]) + _dots(texts, others[0])
    return gains


def pair_weight(n: int, terms: Sequence[str] = TERMS, *, share: float = 1.0) -> float:
    """Returns what stands before the similarity of chosen pairs: 1 / |V_k| where F_class counts, else 0.

    Args:
        n: |V_k|.
        terms: of the objective.
        share: that is chosen of all pairs; 1 is the paper's objective. To keep the centre of a class, the similarity
            would have to count by 1 / |S_k|, which is this factor where every class gives the same share: ours.
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
    """Takes the pair of largest marginal gain, again and again: exactly, whatever the signs of the similarities.

    A refresh computes every gain from the running sums. Between two refreshes only the best `candidates` pairs are
    looked at, with their exact gains; the next of them is taken while its gain is above what any other pair's can have
    become: its gain at the refresh plus an upper bound of its rise since. Where no similarity is negative nothing
    rises, F is submodular, and the bound is the lazy evaluation of Minoux (1978). Where some are, the rise after
    choosing rows that sum to q is at most -weight times the least <x_e, q> there can be, for which every x_e = (v_e,
    t_e) is split into its part along the class's mean direction and the rest (Cauchy and Schwarz bound the rest).

    Args:
        images, texts: (n, d) rows of one class. Ties in gain fall to the lower row, so put the rows into an order
            that means nothing (by scrambled uid) before.
        modular: (n,) from `modular_gains`.
        weight: from `pair_weight`.
        count: how many to take at most.
        floor: stops before a gain that is below this.
        candidates: changes the time and no choice (but between gains that differ by rounding). It doubles, up to
            4,096, while a refresh serves few choices.

    Returns:
        The choices in order.

    Cost: a refresh is two products (n, d) x (d,); there is about one for every `candidates` / 2 choices where no
        similarity is negative, at worst one for every choice. Memory: O(n d) and `candidates`^2 similarities.

    Source: algorithm 1, lines 6 to 10.
    """
    n = len(images)
    count = min(count, n)
    rows, found = np.empty(count, np.int64), np.empty(count)
    taken = 0
    if weight == 0:  # nothing depends on what is chosen: a ranking
        order = np.argsort(-modular, kind="stable")[:count].astype(np.int64)
        order = order[modular[order] >= floor]
        return Picks(order, modular[order])
    base = modular - weight * own_cosines(images, texts)
    spread = _Spread.of(images, texts)
    image_sum, text_sum = np.zeros(images.shape[1]), np.zeros(images.shape[1])
    left = np.ones(n, bool)
    while taken < count:
        exact = base - weight * (_dots(images, text_sum) + _dots(texts, image_sum)) if taken else base.copy()
        exact[~left] = -np.inf
        chosen, rest = _best(exact, min(candidates, n - taken))
        x = np.concatenate([images[chosen], texts[chosen]], axis=1)  # (m, 2d)
        q = np.concatenate([texts[chosen], images[chosen]], axis=1)
        similar = x @ q.T  # (m, m): sim(i, j)
        gains = exact[chosen]
        total = np.zeros(q.shape[1])
        first, start = True, taken
        while taken < count:
            best = int(gains.argmax())
            gain = float(gains[best])
            rise = weight * spread.rise(total)
            # Just after a refresh the best candidate is the best of all; later a tie with an outsider needs a new look.
            if not first and not gain > rest + rise:
                break
            if gain < floor:
                count = taken
                break
            rows[taken], found[taken] = chosen[best], gain
            taken += 1
            total += q[best]
            left[chosen[best]] = False
            gains -= weight * similar[best]
            gains[best] = -np.inf
            first = False
        new = rows[start:taken]
        image_sum += images[new].sum(0, np.float64)
        text_sum += texts[new].sum(0, np.float64)
        if taken - start < candidates // 8:
            candidates = max(candidates, min(2 * candidates, _MOST_CANDIDATES))
    return Picks(rows[:taken], found[:taken])


def objective(images: Floats, texts: Floats, modular: Float64s, *, weight: float, chosen: Rows) -> float:
    """Returns what one class adds to F_ClipCov (equation 36): modular gains less weight * <V_S, T_S>.

    <V_S, T_S> is half the sum of sim(i, j) over i, j in S_k.

    Args:
        images, texts, modular, weight: as for `greedy`.
        chosen: (m,) rows of S_k.
    """
    image_sum, text_sum = images[chosen].sum(0, np.float64), texts[chosen].sum(0, np.float64)
    return float(modular[chosen].sum() - weight * (image_sum @ text_sum))


def double_greedy(images: Floats, texts: Floats, modular: Float64s, *, weight: float, chosen: Rows) -> Mask:
    """Returns which of the chosen rows stay when each may be dropped again.

    The deterministic double greedy of Buchbinder et al. promises half of the best value only, and can end below the
    value that it starts from; then everything stays, so that the objective is never lowered.

    Args:
        images, texts, modular, weight: as for `greedy`.
        chosen: (m,) rows of S_k, in the order in which they are looked at.

    Returns:
        (m,) bool.

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


def merge(picks: Sequence[Picks], ties: Sequence[NDArray[np.uint64]], count: int) -> tuple[Rows, Rows, Float64s]:
    """Puts the choices of all classes into the order in which the greedy algorithm would take them from the whole pool.

    Args:
        picks: of each class. A class's choices stay in their order, also where a gain rises (negative similarities).
        ties: of each class, one number for each choice: where gains tie between classes, the lower goes first.
        count: how many of all.

    Returns:
        Class, place among the class's choices, and gain of each: three (m,) arrays, m = min(count, all).
    """
    empty = np.empty(0, np.int64)
    if not picks:
        return empty, empty, np.empty(0)
    classes = np.concatenate([np.full(len(each.rows), number, np.int64) for number, each in enumerate(picks)])
    places = np.concatenate([np.arange(len(each.rows), dtype=np.int64) for each in picks])
    gains = np.concatenate([each.gains for each in picks])
    # A choice can be taken as soon as those before it are: when the best gain left has sunk to the least of them.
    reach = np.concatenate([np.minimum.accumulate(each.gains) for each in picks])
    turn = np.concatenate(
        [_turns(each.gains, np.minimum.accumulate(each.gains), tie) for each, tie in zip(picks, ties, strict=True)]
    )
    order = np.lexsort((places, classes, turn, -reach))[:count]
    return classes[order], places[order], gains[order]


def _turns(gains: Float64s, reach: Float64s, ties: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns the tie number that counts for each choice: the highest met in its class at the same reach so far.

    A choice whose gain rose above its reach follows its predecessor at once, whatever its own number.
    """
    turns = np.where(gains > reach, np.uint64(0), ties)
    for start, stop in _stretches(reach):
        turns[start:stop] = np.maximum.accumulate(turns[start:stop])
    return turns


def _stretches(values: Float64s) -> list[tuple[int, int]]:
    """Returns the runs of equal values that are longer than one."""
    edges = np.flatnonzero(np.diff(values) != 0) + 1
    starts = np.concatenate([[0], edges])
    stops = np.concatenate([edges, [values.size]])
    return [(int(a), int(b)) for a, b in zip(starts, stops, strict=True) if b - a > 1]


def floor_for(modular: Sequence[Float64s], slopes: Sequence[Float64s], count: int) -> float:
    """Returns a gain that about `count` choices of all classes reach: a guess that spares ranking every class whole.

    Taking b pairs of a class is guessed to lower the gain of its pair i by b * slope_i. A wrong guess costs time only.

    Args:
        modular: of each class, (n,) gains before anything is chosen.
        slopes: of each class, (n,) how much one choice lowers each gain on average: weight * mass / n.
        count: how many choices are wanted.
    """
    if sum(map(len, modular)) <= count:
        return -np.inf
    pairs = [(gains, slope) for gains, slope in zip(modular, slopes, strict=True) if len(gains)]
    low = min(float((gains - len(gains) * np.maximum(slope, 0)).min()) for gains, slope in pairs)
    high = max(float(gains.max()) for gains, _ in pairs)
    for _ in range(14):
        middle = (low + high) / 2
        if sum(_reaching(gains, slope, middle) for gains, slope in pairs) >= count:
            low = middle
        else:
            high = middle
    return low


def _reaching(gains: Float64s, slopes: Float64s, floor: float) -> int:
    """Returns the largest b for which b pairs still reach the floor after b - 1 choices."""
    if not len(gains):
        return 0
    with np.errstate(divide="ignore", invalid="ignore"):
        life = np.where(slopes > 0, (gains - floor) / slopes, np.where(gains >= floor, np.inf, -1.0))
    life = np.sort(life)[::-1]
    return int(np.count_nonzero(life >= np.arange(len(life))))


def covariance(images: Floats, texts: Floats) -> Float64s:
    """Returns the cross-covariance of images and captions: (d, d), mean of v t' less the product of the means.

    Raises:
        ValueError: there are no rows.
    """
    if not len(images):
        raise ValueError("no rows have no covariance")
    return covariance_of_sums(images.T @ texts, images.sum(0, np.float64), texts.sum(0, np.float64), len(images))


def covariance_of_sums(products: Floats, image_sum: Floats, text_sum: Floats, n: int) -> Float64s:
    """Returns the cross-covariance from the sums of v t', of v and of t over n rows, gathered block by block."""
    return np.asarray(products / n - np.outer(image_sum / n, text_sum / n), np.float64)


def covariance_error(whole: Floats, part: Floats, *, up_to_scale: bool = False) -> float:
    """Returns ||C_V - C_S||_F / ||C_V||_F, 0 for a subset that keeps the cross-covariance.

    Args:
        whole, part: (d, d) cross-covariances of the pool and of the subset.
        up_to_scale: the least that ||C_V - c C_S||_F / ||C_V||_F can be for any c >= 0, in [0, 1]. The encoders that
            minimise the paper's loss (equation 12) for c C_S are those for C_S times a number, which cosines do not
            see; and well aligned pairs have a larger covariance than the pool whatever they cover.

    Source: Joshi et al. 2024, equations 11 and 14: what a subset should preserve. The paper leaves the norm open and
        does not divide; the Frobenius norm, the division and the scale are ours.
    """
    scale = float(np.linalg.norm(whole))
    if not scale:
        return 0.0
    if up_to_scale:
        squares = float(np.sum(part * part))
        part = part * (max(float(np.sum(whole * part)), 0.0) / squares if squares else 0.0)
    return float(np.linalg.norm(whole - part)) / scale


def centre_error(whole: tuple[Floats, Floats], part: tuple[Floats, Floats]) -> float:
    """Returns how far the centres of a class's images and captions move when only a subset is looked at.

    Args:
        whole: (d,) mean image and (d,) mean caption of V_k.
        part: those of S_k.

    Returns:
        ||mu_image(S_k) - mu_image(V_k)|| + ||mu_text(S_k) - mu_text(V_k)||, in [0, 4] for unit rows; 0: both stay.

    Source: Joshi et al. 2024, equation 17, left side: what F_class is derived from, by way of a bound.
    """
    return sum(float(np.linalg.norm(mine - all_)) for mine, all_ in zip(part, whole, strict=True))


@dataclass(frozen=True)
class _Spread:
    """What bounds <x_e, q> for every row of a class: the range along one direction, the largest rest beside it."""

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
        margin = 1e-5  # of rounding in float32
        return cls(direction, float(along.min()) - margin, float(along.max()) + margin, float(rest) + margin)

    def rise(self, total: Float64s) -> float:
        """Returns the most by which -<x_e, q> can exceed 0; q is given with its halves in the order (t, v)."""
        share = float(total @ self.direction)
        beside = float(np.sqrt(max(float(total @ total) - share * share, 0.0)))
        return -(share * (self.low if share > 0 else self.high)) + self.rest * beside


def _best(values: Float64s, m: int) -> tuple[Rows, float]:
    """Returns the m rows of highest value, ascending, ties to lower rows, and the highest value of all others."""
    if m >= np.count_nonzero(values > -np.inf):
        return np.flatnonzero(values > -np.inf), -np.inf
    cut = np.partition(values, values.size - m)[values.size - m]
    above = np.flatnonzero(values > cut)
    tied = np.flatnonzero(values == cut)
    wanted = m - above.size
    rows = np.sort(np.concatenate([above, tied[:wanted]]))
    if wanted < tied.size:
        return rows, float(cut)
    outside = values[values < cut]
    return rows, float(outside.max()) if outside.size else -np.inf


def _dots(rows: Floats, vector: Floats) -> Float64s:
    """Returns the inner product of every row with a vector, in the rows' own precision."""
    return np.asarray(rows @ np.asarray(vector, rows.dtype), np.float64)
