"""Which arms of a race are still in it: the rule by which `tamis choose` drops subsets that train worse models.

A round trains a model on each arm left, with several seeds that all arms share, and each round's models see twice as
many samples as those of the round before. A curve that lies behind may still overtake, so an arm leaves only if its
deficit is larger than noise and further drift explain. How far curves drift from round to round is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tamis.core.errors import require

Float64s = NDArray[np.float64]

#: Error that all rounds that may drop arms share.
ALPHA = 0.05

#: A later drift counts as larger than the first one if chance gives such a ratio this rarely.
_LARGER_DRIFT = 0.1

_NODES = 96  # of the quadratures for Dunnett's bound: five digits
_quadrature = lru_cache(np.polynomial.legendre.leggauss)  # it takes as long as the rest


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A race after some rounds. Scores are in the unit of the race's scores; higher is better."""

    means: tuple[Mapping[str, float], ...]  # per round: the mean over the seeds of every arm in it
    errors: tuple[float, ...]  # per round: standard error of such a mean, seeds' common part left out
    #: per round: an arm whose mean is further below the best left; infinite where nothing may leave
    margins: tuple[float, ...]
    left: Mapping[str, int]  # {arm: the round after which it left, from 1}
    drift: float  # standard deviation of the arms' drift from round to round, beyond noise
    raised: tuple[int, ...]  # rounds whose drift was larger than thought, so that arms may have come back

    @property
    def ranked(self) -> list[str]:
        """All arms: those that raced longest first, of these the best."""
        last = {arm: (number, mean) for number, means in enumerate(self.means) for arm, mean in means.items()}
        return sorted(last, key=lambda arm: last[arm], reverse=True)

    @property
    def remaining(self) -> list[str]:
        """The arms that have not left, whenever they last raced, as `ranked`."""
        return [arm for arm in self.ranked if arm not in self.left]


def standing(rounds: Sequence[Mapping[str, Sequence[float]]], *, total: int, first: int = 2) -> Standing:
    """Returns who is left after some rounds of a race over `total` rounds.

    In round r, from `first` on, arm i leaves if max(mean) - mean_i > c sqrt(2 s_r^2 / n_r + 2 (total - r)^2 tau^2).
    s_r^2 is the variance of the residuals of arms and seeds; tau^2 = max(0, var(mean_2 - mean_1) - s_1^2 / n_1 -
    s_2^2 / n_2) the variance of the drift, over the arms of both rounds; c is Dunnett's one-sided bound for the arms
    of the round, with the degrees of freedom of Satterthwaite, at 0.05 over the number of rounds that may drop arms.
    If a later round's drift is significantly larger (F test, p < 0.1), tau^2 grows to it, for earlier rounds too.

    Args:
        rounds: {arm: score of each seed}; a round's arms have the same seeds, two or more.
        total: rounds of the whole race.
        first: the first round that may drop arms; 1 for a race of one round.

    Cost: a bound of Dunnett per round that may drop arms, 10 ms each.

    Source: Dunnett 1955, "A multiple comparison procedure for comparing several treatments with a control";
    Satterthwaite 1946, "An approximate distribution of estimates of variance components"; the drift is ours.
    """
    require("scipy", extra="evaluate")
    from scipy.stats import f

    tables = [np.array([*scores.values()], np.float64) for scores in rounds]
    means = [dict(zip(one, table.mean(1).tolist(), strict=True)) for one, table in zip(rounds, tables, strict=True)]
    errors = [_Variance.of_mean(f"noise {r}", table) for r, table in enumerate(tables, start=1)]
    tau, raised = _Variance({}), []
    for r in range(2, len(rounds) + 1):
        both = [arm for arm in means[r - 1] if arm in means[r - 2]]
        if len(both) < 2:
            continue
        noise = errors[r - 1] + errors[r - 2]
        change = np.array([means[r - 1][arm] - means[r - 2][arm] for arm in both])
        spread = _Variance({f"drift {r}": (1.0, float(change.var(ddof=1)), len(both) - 1)})
        excess, expected = spread + noise * -1, tau + noise
        if excess.value <= tau.value:
            continue
        ratio = spread.value / expected.value if expected.value else math.inf
        if r == 2 or f.sf(ratio, len(both) - 1, expected.freedom) < _LARGER_DRIFT:
            tau = excess
            raised += [r] if r > 2 else []
    margins, left = [], dict[str, int]()
    for r, found in enumerate(means, start=1):
        variance = errors[r - 1] + tau * (total - r) ** 2
        margins.append(math.inf)
        if r >= first and len(found) > 1:
            bound = dunnett_bound(len(found) - 1, variance.freedom, ALPHA / (total - first + 1))
            margins[-1] = bound * math.sqrt(2 * variance.value)
        best = max(found.values())
        for arm, mean in found.items():
            if best - mean > margins[-1]:
                left.setdefault(arm, r)
    return Standing(
        means=tuple(means), errors=tuple(math.sqrt(error.value) for error in errors), margins=tuple(margins),
        left=left, drift=math.sqrt(tau.value), raised=tuple(raised),
    )  # fmt: skip


@dataclass(frozen=True)
class _Variance:
    """A weighted sum of independent estimates of variances: {name: (weight, estimate, degrees of freedom)}."""

    terms: Mapping[str, tuple[float, float, int]]

    @classmethod
    def of_mean(cls, name: str, scores: Float64s) -> _Variance:
        """The variance of an arm's mean, from the residuals of (arms, seeds) scores; all arms share a seed's effect."""
        arms, seeds = scores.shape
        rest = scores - scores.mean(1, keepdims=True) - scores.mean(0) + scores.mean()
        freedom = max(1, (arms - 1) * (seeds - 1))
        return cls({name: (1 / seeds, float((rest**2).sum()) / freedom, freedom)})

    def __add__(self, other: _Variance) -> _Variance:
        weights = {**self.terms, **other.terms}
        for name in self.terms.keys() & other.terms.keys():
            weights[name] = (self.terms[name][0] + other.terms[name][0], *self.terms[name][1:])
        return _Variance(weights)

    def __mul__(self, factor: float) -> _Variance:
        return _Variance({name: (factor * weight, estimate, n) for name, (weight, estimate, n) in self.terms.items()})

    @property
    def value(self) -> float:
        return max(0.0, sum(weight * estimate for weight, estimate, _ in self.terms.values()))

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom."""
        spread = sum((weight * estimate) ** 2 / freedom for weight, estimate, freedom in self.terms.values())
        return max(1.0, self.value**2 / spread) if spread else math.inf


def share_bracket(shares: Sequence[float], left: Sequence[bool]) -> tuple[float, float]:
    """Returns the shares between which the best lies: the neighbours of the lowest and of the highest one not `left`.

    `shares` ascend; at an end of the curve, the end itself. The ends of a parabola's confidence interval cover the best
    share far less often where a curve is not symmetric.
    """
    among = [place for place, gone in enumerate(left) if not gone]
    return shares[max(among[0] - 1, 0)], shares[min(among[-1] + 1, len(shares) - 1)]


def parabola_peak(shares: Sequence[float], means: Sequence[float]) -> float:
    """Returns where the parabola through the best of ascending shares and its neighbours, in log(share), is highest.

    The best share itself if it is the first or the last.
    """
    best = int(np.argmax(means))
    if best in (0, len(shares) - 1):
        return shares[best]
    x = np.log(shares[best - 1 : best + 2])
    curvature, slope, _ = np.polyfit(x - x[1], means[best - 1 : best + 2], 2)
    return float(np.exp(x[1] - slope / (2 * curvature))) if curvature < 0 else shares[best]


@lru_cache(maxsize=1024)
def dunnett_bound(comparisons: int, freedom: float, alpha: float) -> float:
    """Returns c such that the largest of several t statistics exceeds it with probability alpha, one-sided.

    Each compares an arm with the same other one, all means have one variance, so two statistics correlate by 1/2.

    Cost: 10 ms, remembered. Within 0.0005 of the exact bound from 2 degrees of freedom on, 0.01 % of it below.

    Source: Dunnett 1955, table 1.
    """
    require("scipy", extra="evaluate")
    from scipy.optimize import brentq
    from scipy.special import chdtri, ndtr, ndtri  # ten times as fast as those of scipy.stats

    points, weights = _quadrature(_NODES)
    level, share = (points + 1) / 2, weights / 2  # on (0, 1)
    common = ndtri(level)[:, None]  # the other arm's mean, in standard errors
    spread = np.sqrt(chdtri(freedom, 1 - level) / freedom) if math.isfinite(freedom) else np.ones(_NODES)

    def exceeded(bound: float) -> float:
        inside = ndtr(math.sqrt(2) * bound * spread[None, :] + common) ** comparisons
        return float(1 - share @ inside @ share - alpha)

    return float(brentq(exceeded, 0.0, 200.0, xtol=1e-6))
