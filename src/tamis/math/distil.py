"""The choice of an expensive score from a cheap one: which rows still need the expensive one, and how wrong the choice
can be.

A recipe keeps the M rows with the highest expensive scores. We know a cheap score of every row (a prediction from
embeddings, or the best of one caption where the recipe asks for eight), and both scores of a random sample. The sample
says how likely the expensive score is to reverse the decision about a row: P(flip). Only rows where that is likely are
scored. An audit, a random sample of the other rows, then bounds what is still wrong, whatever the cheap score is worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import U64, Float64s, Mask, Rows
from tamis.errors import require
from tamis.math.order import keep_top

_STRATA = 6
_GRID = 256  # cheap scores at which P is computed; between them it is interpolated
_ROUNDS = 4  # of scoring: each moves the cut a little, so that other rows come close to it


def chances_above(cheap: Float64s, sample_cheap: Float64s, sample_full: Float64s) -> Callable[[float], Float64s]:
    """Returns a function of a cut: how likely the expensive score of each row is to exceed it, (n,), never 0 or 1.

    The difference of the two scores is distributed as in the sample's rows with a similar cheap score: k of them (a
    twentieth of the sample, at least 50), half below and half above, smoothed by normal kernels of Silverman's width.
    On each side k / 2m of a row is added: a sample of m rows cannot tell a chance below 1 / 2m from 0.

    Args:
        cheap: (n,) scores without NaN.
        sample_cheap, sample_full: (m,) both scores of a random sample without NaN.

    Source: Silverman 1986, "Density estimation", equation 3.31, for the width.
    """
    require("scipy", extra="evaluate")
    from scipy.special import ndtr

    if not cheap.size or not sample_cheap.size:
        return lambda cut: np.full(cheap.size, 0.5)
    order = np.argsort(sample_cheap, kind="stable")
    near, rest = sample_cheap[order], (sample_full - sample_cheap)[order]
    k = min(max(near.size // 20, 50), near.size)
    grid = np.unique(np.quantile(cheap, np.linspace(0, 1, _GRID)))
    first = np.clip(np.searchsorted(near, grid) - k // 2, 0, near.size - k)
    local = rest[first[:, None] + np.arange(k)]  # (grid, k)
    quarters = np.quantile(local, (0.25, 0.75), axis=1)
    spread = np.minimum(local.std(1), (quarters[1] - quarters[0]) / 1.34)
    width = np.maximum(0.9 * spread * k**-0.2, 1e-9)[:, None]

    def above(cut: float) -> Float64s:
        exceeding = ndtr((grid[:, None] + local - cut) / width).sum(1)
        chances: Float64s = np.interp(cheap, grid, (exceeding + k / near.size / 2) / (k + k / near.size))
        return chances

    return above


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """A choice of the M rows with the highest expensive scores.

    Attributes:
        cheap: (n,) cheap scores, NaN if there is none.
        kept: M, at most n.
        order: (n,) breaks ties, usually scrambled uids.
        sample: row numbers of a random sample, whose expensive scores will be asked for.
        cut: keep the rows above this expensive score instead of M rows.
        never_lower: the expensive score is never lower than the cheap one.
    """

    cheap: Float64s
    kept: int
    order: U64
    sample: Rows
    cut: float | None = None
    never_lower: bool = False


@dataclass(frozen=True, eq=False)
class Decisions:
    """What is known of a choice.

    Attributes:
        values: (n,) the expensive score where known (-inf if it cannot be computed), else the cheap one + a constant.
        keep: (n,) the rows to keep, which have the highest values.
        flip: (n,) how likely the expensive score is to reverse the decision: 0 where it is certain, 1 without scores.
        cut: the expected M-th highest expensive score: known rows above it + Σ P(row exceeds it) = M.
    """

    values: Float64s
    keep: Mask
    flip: Float64s
    cut: float


def decide(choice: Choice, full: Float64s, asked: Mask) -> Decisions:
    """Decides about all rows, of which those `asked` for (n,) have their expensive score, NaN if there is none."""
    cheap, sample, cut, kept = choice.cheap, choice.sample, choice.cut, choice.kept
    both = sample[np.isfinite(cheap[sample]) & np.isfinite(full[sample])]
    known = np.where(np.isnan(full), -np.inf, full)[asked]
    guessed = ~asked & np.isfinite(cheap)
    guesses = cheap[guessed]
    chances = chances_above(guesses, cheap[both], full[both])

    def above(cut: float) -> Float64s:
        return np.where(guesses >= cut, 1.0, chances(cut)) if choice.never_lower else chances(cut)

    def expected(cut: float) -> float:
        return float(np.count_nonzero(known > cut) + above(cut).sum())

    if cut is None:
        scores = np.concatenate([guesses, known[np.isfinite(known)], [0.0]])
        reach = np.abs(full[both] - cheap[both]).max(initial=0.0)
        low, high = scores.min() - reach, scores.max() + reach
        for _ in range(40):
            cut = (low + high) / 2
            low, high = (cut, high) if expected(cut) > kept else (low, cut)
        # Scores that differ by less than that, such as equal ones that the order tells apart, are counted.
        ends = [high, *np.sort(known[(known > low) & (known <= high)])[::-1], low]
        place = min(max(round(kept - expected(high)), 0), len(ends) - 2)
        cut, exceeding = (ends[place] + ends[place + 1]) / 2, np.count_nonzero(known > high) + place
    else:
        kept, exceeding = round(expected(cut)), np.count_nonzero(known > cut)
    values = np.where(asked, np.where(np.isnan(full), -np.inf, full), cheap)
    wanted = min(max(kept - int(exceeding), 0), guesses.size)
    if guesses.size:  # move the guesses so that as many exceed the cut as are still wanted
        ranked = np.sort(guesses)
        ranked = np.concatenate([[ranked[0] - 1], ranked, [ranked[-1] + 1]])
        values[guessed] += cut - ranked[[-wanted - 2, -wanted - 1]].mean()
    values[np.isnan(values)] = -np.inf
    keep, flip = _best(values, kept, choice.order), np.where(asked, 0.0, 1.0)
    flip[guessed] = np.where(keep[guessed], 1 - above(cut), above(cut))
    return Decisions(values, keep, flip, cut)


def _best(values: Float64s, kept: int, order: U64) -> Mask:
    return keep_top(values, kept, np.ones(values.size, bool), order.__getitem__)[0]


def rows_to_score(decisions: Decisions, wrong: float) -> Mask:
    """Returns the rows to score so that on each side of the cut Σ P(flip) of the others is at most `wrong`: (n,)."""
    rows = np.zeros(decisions.keep.size, bool)
    for side in (decisions.keep, ~decisions.keep):
        among = np.flatnonzero(side & (decisions.flip > 0))
        ranked = among[np.argsort(decisions.flip[among], kind="stable")]
        rows[ranked[np.cumsum(decisions.flip[ranked]) > wrong]] = True
    return rows


def strata(flip: Float64s) -> NDArray[np.int64]:
    """Returns the stratum of each row, (n,) from 0 to 5: rows in the order of P(flip), cut where Σ √P has equal shares.

    Source: Dalenius and Hodges 1959, "Minimum variance stratification".
    """
    order = np.argsort(flip, kind="stable")
    roots = np.sqrt(flip[order])
    out = np.empty(flip.size, np.int64)
    out[order] = _STRATA * (np.cumsum(roots) - roots / 2) / max(roots.sum(), 1e-300)
    return np.minimum(out, _STRATA - 1)


def audit_sizes(rows: NDArray[np.int64], chances: Float64s, n: int) -> NDArray[np.int64]:
    """Returns how many rows of each stratum to audit: about n in all, at least one where there is any.

    In proportion to .7 N_h √p_h + .3 N_h, each part scaled to a sum of 1: the first is best if P(flip) is right
    (Neyman 1934), the second finds errors where P(flip) is wrong.

    Args:
        rows: (h,) N_h.
        chances: (h,) p_h, the mean of P(flip).
        n: number of rows.
    """
    best = rows * np.sqrt(chances)
    shares = 0.7 * best / max(best.sum(), 1e-300) + 0.3 * rows / max(rows.sum(), 1)
    wanted: NDArray[np.int64] = np.minimum(rows, np.maximum(np.ceil(shares * n).astype(np.int64), 1))
    return wanted


def most_wrong(rows: NDArray[np.int64], drawn: NDArray[np.int64], wrong: NDArray[np.int64], alpha: float) -> float:
    """Returns the upper limit, at the confidence 1 - alpha, of the number of wrong rows in all strata.

    With weights w_h = N_h / n_h, y = Σ w_h x_h, v = Σ w_h² x_h and the largest weight w:
    (v + w²) / (2 (y + w)) times the 1 - alpha quantile of χ² with 2 (y + w)² / (v + w²) degrees of freedom. A stratum
    that was drawn completely adds its x_h alone.

    Args:
        rows, drawn, wrong: (h,) N_h, n_h and x_h of each stratum; n_h is 0 only if N_h is.
        alpha: in (0, 1).

    Source: Fay and Feuer 1997, "Confidence intervals for directly standardized rates", equation 6; draws without
        replacement vary less than its Poisson counts.
    """
    require("scipy", extra="evaluate")
    from scipy.special import gammaincinv

    some = drawn < rows
    known = float(wrong[~some].sum())
    if not some.any():
        return known
    weights, counts = rows[some] / drawn[some], wrong[some]
    largest = weights.max()
    y, v = float(weights @ counts) + largest, float(weights**2 @ counts) + largest**2
    limit = v / y * float(gammaincinv(y**2 / v, 1 - alpha))  # half of the quantile of χ²
    most: float = known + min(limit, float(np.sum((rows - drawn + wrong)[some])))
    return most


def settle(
    choice: Choice, ask: Callable[[Mask], Float64s], wrong: float, asked: Mask | None = None
) -> tuple[Decisions, Mask]:
    """Scores rows until about `wrong` decisions are expected to be wrong on each side; returns what is known then.

    Args:
        ask: takes the rows whose expensive score is needed, (n,) bool, and returns all of these scores, (n,) with NaN.
        asked: (n,) rows to begin with, the sample among them; by default the sample, and rows without a cheap score.
    """
    if asked is None:
        asked = np.isnan(choice.cheap)
        asked[choice.sample] = True
    full = ask(asked)
    for last in range(_ROUNDS, -1, -1):
        decisions = decide(choice, full, asked)
        rows = rows_to_score(decisions, wrong)
        if not last or not rows.any():
            break
        asked = asked | rows_to_score(decisions, 0.8 * wrong)  # with a margin, or the next rounds ask for a few rows
        full = ask(asked)
    return decisions, asked


class Certificate(NamedTuple):
    """An audited choice: `asked` includes the audit; the Jaccard index to the true choice is at least `jaccard`."""

    decisions: Decisions
    asked: Mask
    audited: int
    jaccard: float


def certify(
    choice: Choice, ask: Callable[[Mask], Float64s], orders: Callable[[int], U64], *,
    at_most_wrong: float, alpha: float = 0.05, attempts: int = 3,
) -> Certificate:  # fmt: skip
    """Chooses M rows by few expensive scores, so that an audit proves the choice right enough.

    Why the bound holds: for a limit t fixed before the audit, let a be the kept rows at t or below and b the dropped
    ones at t or above. If the true cut is at least t, b is at least the number W of wrong rows on each side, else a is.
    So W <= max(a, b), and one of the two limits at 1 - alpha covers it. What the audit corrects makes it no worse: with
    p rows corrected to dropped and q to kept, |p - q| others change sides, so a and b fall by min(p, q) at least. The
    attempt k has alpha / 2^k, so that all of them together have alpha. Rows with equal scores are told apart by
    the choice's order.

    Args:
        choice: of M rows, without `cut`.
        ask: as `settle` takes it.
        orders: takes a number from 1 on and returns a random order, (n,), usually `scramble(high, low, number)`,
            that draws an audit.
        at_most_wrong: 1 - J, the share of the rows of both choices that they do not have in common.
        alpha: the chance that the bound does not hold.
        attempts: number of audits; after a failed one twice the precision is tried.
    """

    def distinct(rows: Mask) -> Float64s:
        full = ask(rows)
        finite = np.nan_to_num(full, posinf=0, neginf=0).astype(np.float32)
        shifted: Float64s = full - np.spacing(np.abs(finite)) * (order * 2.0**-65)
        return shifted  # still in the order of the scores, which are float32

    order, kept, asked = choice.order, choice.kept, None
    budget = at_most_wrong / (2 - at_most_wrong) * kept
    audited, size = 0, round(100 / at_most_wrong)
    for attempt in range(1, attempts + 1):
        decisions, asked = settle(choice, distinct, budget / 2**attempt, asked)
        sides = [np.flatnonzero(side & ~asked) for side in (decisions.keep, ~decisions.keep)]
        draws = [_audit(rows, decisions.flip, size, orders(attempt)) for rows in sides]
        before, asked = asked, asked.copy()
        for drawn, _, _ in draws:
            asked[drawn] = True
        audited += int(np.count_nonzero(asked & ~before))
        full = distinct(asked)
        full[np.isnan(full)] = -np.inf
        wrong = np.where(decisions.keep, full <= decisions.cut, full >= decisions.cut)
        limits = []
        for (drawn, stratum, sizes), side in zip(draws, (decisions.keep, ~decisions.keep), strict=True):
            taken, bad = (np.bincount(some, minlength=_STRATA) for some in (stratum, stratum[wrong[drawn]]))
            known = np.count_nonzero(before & wrong & side)
            limits.append(known + most_wrong(sizes, taken, bad, alpha / 2**attempt))
        jaccard = 1.0 if asked.all() else max(0.0, (kept - max(limits)) / max(kept + max(limits), 1))
        if jaccard >= 1 - at_most_wrong:
            break
    assert asked is not None  # attempts is at least 1
    values = np.where(asked, full, decisions.values)
    keep, flip = _best(values, kept, order), np.where(asked, 0.0, decisions.flip)
    return Certificate(Decisions(values, keep, flip, decisions.cut), asked, audited, jaccard)


def _audit(rows: Rows, flip: Float64s, n: int, order: U64) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64]]:
    """Draws about n of some rows: those drawn, the stratum of each, and N_h."""
    stratum = strata(flip[rows])
    sizes = np.bincount(stratum, minlength=_STRATA)
    means = np.bincount(stratum, flip[rows], minlength=_STRATA) / np.maximum(sizes, 1)
    wanted = audit_sizes(sizes, means, n)
    ranked = np.lexsort((order[rows], stratum))
    rank = np.arange(rows.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    taken = ranked[rank < np.repeat(wanted, sizes)]
    return rows[taken], stratum[taken], sizes
