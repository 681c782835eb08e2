"""Statistics: ranks and their correlations, the AUC, 95 % intervals, an even sample; accuracies and recall at k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Float64s, Floats, Rows
from tamis.core.errors import require
from tamis.core.math.similarity import cosines

Labels = NDArray[np.integer[Any]]

_MANY = 5000  # rows from which fewer draws suffice: the interval of a correlation is narrow
_Z = 1.959963984540054  # the normal distribution's 97.5 % quantile

# Queries per block: for MSCOCO's 25,000 captions and 5,000 images a block is 5 MB.
_BLOCK = 256


@dataclass(frozen=True)
class Estimate:
    """A measured number with its 95 % interval, of n observations."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share_interval(hits: int, n: int) -> Estimate:
    """Returns the share of `hits` in n > 0 observations with Wilson's interval, which is right for shares near 0 and 1.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"expected 0 <= hits <= n and n > 0, got {hits} of {n}")
    p = hits / n
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    # Exactly 0 and 1 at the ends, where the formula rounds.
    return Estimate(p, centre - half if hits else 0.0, centre + half if hits < n else 1.0, n)


def bootstrap(statistic: Callable[..., float], *samples: NDArray[Any], draws: int = 1000, seed: int = 0) -> Estimate:
    """Returns a statistic of one or several independent samples with its percentile-bootstrap interval.

    `statistic` takes as many arrays as there are samples; each is resampled with replacement on its own, `draws` times.

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13.
    """
    if not samples or any(len(sample) == 0 for sample in samples):
        raise ValueError("a bootstrap needs at least one observation of each sample")
    rng = np.random.default_rng(seed)
    values = [
        statistic(*(sample[rng.integers(0, len(sample), len(sample))] for sample in samples)) for _ in range(draws)
    ]
    low, high = np.quantile(values, (0.025, 0.975))
    return Estimate(float(statistic(*samples)), float(low), float(high), sum(len(sample) for sample in samples))


def mean_interval(values: Sequence[float]) -> Estimate:
    """Returns the mean of at least two values with Student's interval: mean ± t · s / √n, s with n - 1.

    It is right for few observations that are about normal, as scores over seeds are. To compare two methods with the
    same seeds, take the mean of their differences.

    Source: Gosset ("Student") 1908, "The probable error of a mean".
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        raise ValueError(f"an interval of a mean needs at least 2 values, got {n}")
    centre = sum(values) / n
    half = float(stdtrit(n - 1, 0.975)) * math.sqrt(sum((value - centre) ** 2 for value in values) / (n - 1) / n)
    return Estimate(centre, centre - half, centre + half, n)


def detectable_difference(differences: Sequence[Estimate]) -> float:
    """Returns the true mean that a two-sided t-test at 5 % finds in four of five experiments as noisy as these.

    (t(0.975) + t(0.8)) · s / √n with n - 1 degrees of freedom. `differences` are one or more results of `mean_interval`
    of the same n; s² is the mean of their variances. Smaller differences may exist: n values are too few to see them.

    Source: Bloom 1995, "Minimum detectable effects".
    """
    from scipy.special import stdtrit

    degrees = differences[0].n - 1
    half = math.sqrt(sum((one.high - one.low) ** 2 / 4 for one in differences) / len(differences))
    return half * (1 + float(stdtrit(degrees, 0.8)) / float(stdtrit(degrees, 0.975)))


def average_ranks(values: NDArray[Any]) -> Float64s:
    """Returns ranks from 1 of (n,) values without NaN: (n,) float64; equal values share their mean rank."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: ordered.size])
    ends = np.concatenate([starts[1:], [ordered.size]])[: starts.size]
    out = np.empty(values.size, np.float64)
    out[order] = np.repeat((starts + ends + 1) / 2, ends - starts)
    return out


def rank_correlations(columns: NDArray[np.floating[Any]]) -> Float64s:
    """Returns Spearman's correlation of every two of (n, k) columns, over the rows where both have values: (k, k) in
    [-1, 1].

    NaN where a row has no value; infinite values rank first and last. The result is NaN where a column is constant over
    those rows, or there are fewer than two.

    Cost: one sort per column, and two per pair of columns with different missing rows.

    Source: Spearman 1904, "The proof and measurement of association between two things".
    """
    count = columns.shape[1]
    there = ~np.isnan(columns)
    ranks: dict[tuple[int, bytes], Float64s] = {}
    out = np.full((count, count), np.nan)
    for one in range(count):
        for two in range(one, count):
            both = there[:, one] & there[:, two]
            which = np.packbits(both).tobytes()
            sides = []
            for column in (one, two):
                if (column, which) not in ranks:
                    ranks[column, which] = _centre_ranks(columns[both, column])
                sides.append(ranks[column, which])
            left, right = sides
            if left.size and right.size:
                out[one, two] = out[two, one] = float(np.clip(left @ right, -1, 1))
    return out


def auc(positive: NDArray[Any], negative: NDArray[Any]) -> float:
    """Returns the probability that a positive scores above a negative, neither with NaN; a tie counts one half.

    It is the area under the ROC curve: 1 if every positive is above every negative, 0.5 for a useless score.

    Source: Mann and Whitney 1947, "On a test of whether one of two random variables is stochastically larger".
    """
    if len(positive) == 0 or len(negative) == 0:
        raise ValueError(f"both groups need a score, got {len(positive)} and {len(negative)}")
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    not_above = np.searchsorted(ordered, positive, side="right")
    return float((below + not_above).mean() / 2 / len(negative))


#: Fewest positives and fewest negatives for `find_cut`. Of 10 kept of 10, the recall's interval begins at 72 %.
LEAST_LABELLED = 10

_FOLDS = 10


def find_cut(positive: Float64s, negative: Float64s, *, draws: int = 200) -> dict[str, Any] | None:
    """Returns the cut that maximises Youden's J, with what it does to scores that it was not chosen from.

    A cut fits the scores it was chosen from too well, so the shares are cross-validated: each score is judged by a cut
    (value and side) chosen from the other nine tenths. Their intervals are Wilson's.

    Args:
        positive, negative: (n,) and (m,) scores, float32 as float64; the cut drops a NaN.

    Returns:
        `keeps` ("at_least" or "at_most"); `value`; `low` and `high`, its bootstrap interval on the same side; Estimates
        `precision` (None if nothing is kept), `recall` and `fallout` (share of the negatives that is kept); and `gain`,
        recall - fallout. None with fewer than `LEAST_LABELLED` scores of either, or if all are equal.

    Source: Youden 1950, "Index for rating diagnostic tests"; Stone 1974, "Cross-validatory choice and assessment of
    statistical predictions".
    """
    kinds = [np.random.default_rng(0).permutation(kind) for kind in (positive, negative)]
    scores = [kind[np.isfinite(kind)] for kind in kinds]
    if min(map(len, scores)) < LEAST_LABELLED or np.ptp(np.concatenate(scores)) == 0:
        return None
    kept = np.zeros(2, np.int64)
    for fold in range(_FOLDS):
        sign, value = _better_side(*(np.delete(kind, slice(fold, None, _FOLDS)) for kind in kinds))
        kept += [np.count_nonzero(sign * kind[fold::_FOLDS] >= sign * value) for kind in kinds]
    hits, false = kept.tolist()
    recall, fallout = share_interval(hits, len(positive)), share_interval(false, len(negative))
    sign, value = _better_side(*kinds)
    cut = bootstrap(lambda *some: sign * youden(*(sign * kind for kind in some))[0], *kinds, draws=draws)
    return {
        "keeps": "at_least" if sign > 0 else "at_most", "value": value, "low": cut.low, "high": cut.high,
        "precision": share_interval(hits, hits + false) if hits + false else None,
        "recall": recall, "fallout": fallout, "gain": recall.value - fallout.value,
    }  # fmt: skip


def _better_side(positive: Float64s, negative: Float64s) -> tuple[float, float]:
    """Returns 1 to keep `score >= value` or -1 to keep `score <= value`, and the value."""
    upwards, downwards = youden(positive, negative), youden(-positive, -negative)
    return (1.0, upwards[0]) if upwards[1] >= downwards[1] else (-1.0, -downwards[0])


def youden(positive: Float64s, negative: Float64s) -> tuple[float, float]:
    """Returns the value that maximises Youden's J of `score >= value`: the share of the positives minus the share of
    the negatives that it keeps; and J. The value is the shortest decimal number that separates the same float32 scores.
    """
    scores = np.unique(np.concatenate([positive, negative]))[::-1]
    scores = scores[np.isfinite(scores)]
    above = (np.isfinite(kind).sum() - np.searchsorted(np.sort(kind), scores) for kind in (positive, negative))
    recall, fallout = (kept / len(kind) for kept, kind in zip(above, (positive, negative), strict=True))
    best = int(np.argmax(recall - fallout))
    lowest, below = scores[best], scores[best + 1] if best + 1 < scores.size else scores[best]
    shorter = (float(f"{(lowest + below) / 2:.{digits}g}") for digits in range(1, 10))
    value = next((each for each in shorter if below < np.float32(each) <= lowest), lowest)
    return float(value), float((recall - fallout)[best])


def _centre_ranks(values: NDArray[np.floating[Any]]) -> Float64s:
    """Returns ranks shifted to mean 0 and scaled to length 1; empty where all values are equal."""
    ranks = average_ranks(values)
    if ranks.size < 2:
        return np.empty(0)
    ranks -= (ranks.size + 1) / 2
    length = float(np.sqrt(ranks @ ranks))
    return ranks / length if length > 0 else np.empty(0)


def sample_evenly(scores: Float64s, count: int, *, seed: int = 0) -> NDArray[np.intp]:
    """Samples rows whose (n, 2) scores are about uniformly distributed over [0, 1] x [0, 1], in random order.

    The square is cut into about `count` cells. Every cell gives one row per round, while it has any, until there are
    enough. The rows of a cell, and the cells of the last round, are drawn at random. Values outside the square are
    clipped to it; rows with NaN are never chosen.

    Source: Yanuka et al. 2024 (ICC), appendix A.2 and A.9 ask for such a sample; the cells are ours.
    """
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.flatnonzero(np.isfinite(scores).all(axis=1)))
    side = math.ceil(math.sqrt(count))
    places = np.minimum((np.clip(scores[rows], 0, 1) * side).astype(np.int64), side - 1)  # (n, 2)
    cells = rng.permutation(side * side)[places[:, 0] * side + places[:, 1]]  # in random order
    by_cell = np.argsort(cells, kind="stable")
    starts = np.searchsorted(cells[by_cell], cells[by_cell])
    rounds = np.arange(len(rows)) - starts  # the position of each row in its cell
    first = np.lexsort((cells[by_cell], rounds))[:count]
    return np.asarray(rng.permutation(rows[by_cell[first]]))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Correlations of scores with ratings, with 95 % bootstrap intervals; NaN if one side is constant."""

    texts: int  # with a rating and a score
    left_out: int  # texts without a rating or a score
    pearson: Estimate
    spearman: Estimate
    kendall: Estimate

    def facts(self) -> dict[str, Any]:
        """The numbers for JSON: null for NaN."""
        return {
            name: {key: None if number != number else number for key, number in value.items()}
            if isinstance(value, dict)
            else value
            for name, value in asdict(self).items()
        }


def agreement(scores: NDArray[Any], ratings: NDArray[Any], *, left_out: int = 0) -> Agreement:
    """The correlations of (n,) scores with (n,) ratings, neither with NaN."""
    draws = 1000 if len(scores) < _MANY else 200

    def measured(correlate: Callable[[NDArray[Any], NDArray[Any]], float]) -> Estimate:
        value = correlate(scores, ratings)
        if math.isnan(value):
            return Estimate(value, value, value, len(scores))
        between = bootstrap(
            # A draw of equal rows has no correlation.
            lambda rows: np.nan_to_num(correlate(scores[rows], ratings[rows])),
            np.arange(len(scores)),
            draws=draws,
        )
        return Estimate(value, between.low, between.high, len(scores))

    return Agreement(
        texts=len(scores), left_out=left_out, pearson=measured(pearson), spearman=measured(spearman),
        kendall=measured(kendall),
    )  # fmt: skip


def pearson(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The correlation of values, in [-1, 1]; NaN if one side is constant."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def spearman(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The correlation of ranks, with average ranks for ties; NaN if one side is constant."""
    return pearson(average_ranks(np.asarray(one)), average_ranks(np.asarray(other)))


def kendall(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Kendall's tau-b, which allows for ties; NaN if one side is constant."""
    require("scipy", extra="evaluate")
    from scipy.stats import kendalltau

    return float(kendalltau(one, other).statistic)


def top_classes(scores: Floats, k: int) -> Rows:
    """Returns the k classes with the highest scores (n, K) of each row, best first: (n, min(k, K)) class numbers.

    Ties go to the lower number.
    """
    ranked: Rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return ranked


def group_means(values: NDArray[Any], groups: Labels) -> dict[int, tuple[float, int]]:
    """Returns the mean and the number of values (n,) of each group, by group number (n,).

    The lowest mean is the accuracy of the worst group (Sagawa et al. 2020).
    """
    return {
        int(group): (float(values[groups == group].mean()), int(np.count_nonzero(groups == group)))
        for group in np.unique(groups)
    }


def recall_at(
    queries: Floats, gallery: Floats, query_ids: Labels, gallery_ids: Labels, ks: Sequence[int]
) -> dict[int, float]:
    """Returns the share of queries with a match among their k nearest rows of the gallery, for each k.

    A query with several matches (an image with five captions) counts once: 1 if at least one of them is among the k,
    else 0. Papers on CLIP and clip-benchmark call this recall@k. Tied rows are in random order: a query counts with the
    probability that one of its matches is among the k, so a model that maps everything to one point scores k / n.

    `queries` (m, d) and `gallery` (n, d) are unit rows; a row of the gallery matches queries with the same number in
    `query_ids` (m,) and `gallery_ids` (n,). Raises ValueError if a query has no match.

    Cost: m * n * d multiplications, in blocks of 256 queries; no (m, n) matrix is held.
    """
    unmatched = np.setdiff1d(query_ids, gallery_ids)
    if unmatched.size:
        raise ValueError(f"no row of the gallery matches queries with number {unmatched[0]}")
    totals = dict.fromkeys(ks, 0.0)
    for start in range(0, len(queries), _BLOCK):
        scores = cosines(queries[start : start + _BLOCK], gallery)  # (b, n)
        match = query_ids[start : start + _BLOCK, None] == gallery_ids[None, :]
        best = np.where(match, scores, -np.inf).max(1, keepdims=True)
        above = np.count_nonzero(scores > best, axis=1)
        equal = scores == best
        right = np.count_nonzero(equal & match, axis=1)
        wrong = np.count_nonzero(equal, axis=1) - right
        for k in totals:
            totals[k] += float(_chance(above, right, wrong, k).sum())
    return {k: total / len(queries) for k, total in totals.items()}


def _chance(above: Labels, right: Labels, wrong: Labels, k: int) -> Float64s:
    """Returns the probability of a match among the first k rows: `above` other rows, then `right` matches and `wrong`
    others in random order. For places = k - above it is 1 - C(wrong, places) / C(right + wrong, places).
    """
    places = np.clip(k - above, 0, right + wrong)
    missed = np.ones(len(above))
    for place in range(k):
        used = place < places
        remaining = np.where(used, right + wrong - place, 1)
        missed *= np.where(used, np.maximum(wrong - place, 0) / remaining, 1.0)
    return 1 - missed


def chance_of_share(kept: int, rows: int, all_kept: int, all_rows: int) -> float:
    """Returns how probable it is that a random subset keeps a share of a group that is at least as unusual: `kept` of
    the group's `rows`, where the pool, the group included, keeps `all_kept` of `all_rows`.

    Two-sided: twice the smaller tail of the hypergeometric distribution, at most 1; exact down to about 1e-30.

    Source: Fisher 1935, "The logic of inductive inference".
    """
    share = all_kept / all_rows
    mean = rows * share
    reach = 12 + 12 * math.sqrt(mean * (1 - share) * (all_rows - rows) / max(all_rows - 1, 1))
    low = max(0, rows + all_kept - all_rows, math.floor(mean - reach))
    high = min(rows, all_kept, math.ceil(mean + reach))
    k = np.arange(low, high, dtype=np.float64)
    # log P(k + 1) - log P(k): sums of these need no factorials of 10^8.
    steps = np.log((rows - k) * (all_kept - k)) - np.log((k + 1) * (all_rows - all_kept - rows + k + 1))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    chances = np.exp(logs - logs.max())
    place = min(max(kept, low), high) - low
    tail = min(chances[: place + 1].sum(), chances[place:].sum())
    return min(1.0, 2 * float(tail / chances.sum()))


def false_discovery_rates(chances: Sequence[float]) -> Float64s:
    """Returns for each p-value the lowest rate of false discoveries at which it counts as one: (n,), in [0, 1].

    Source: Benjamini and Hochberg 1995, "Controlling the false discovery rate".
    """
    order = np.argsort(-np.asarray(chances, np.float64), kind="stable")  # the largest first
    raw = np.asarray(chances, np.float64)[order] * len(order) / np.arange(len(order), 0, -1)
    out = np.empty(len(order))
    out[order] = np.minimum.accumulate(np.minimum(raw, 1))
    return out
