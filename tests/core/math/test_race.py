"""The rule of `tamis choose`, compared with a slow reading of its definition, by hand, and with Dunnett's table."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tamis.core.math.race import Standing, dunnett_bound, parabola_peak, share_bracket, standing

Round = dict[str, list[float]]
Terms = dict[str, tuple[float, float, int]]  # {name: (weight, estimate of a variance, degrees of freedom)}

TABLE = [  # Dunnett 1955, table 1a: one-sided, 5 %; (comparisons, degrees of freedom, bound)
    (1, 5, 2.02), (2, 5, 2.44), (3, 5, 2.68), (2, 10, 2.15), (3, 10, 2.34),
    (1, math.inf, 1.64), (2, math.inf, 1.92), (3, math.inf, 2.06),
]  # fmt: skip


class Plain:
    """The rule in loops over single numbers, with its own sums, mixture of variances and integral."""

    def __init__(self, rounds: Sequence[Round], total: int, first: int) -> None:
        self.means = [{arm: sum(scores) / len(scores) for arm, scores in one.items()} for one in rounds]
        noise = [self.noise(number, one) for number, one in enumerate(rounds)]
        self.errors = [math.sqrt(value(terms)) for terms in noise]
        tau: Terms = {}
        self.raised = []
        for number in range(1, len(rounds)):
            changes = [
                mean - self.means[number - 1][arm]
                for arm, mean in self.means[number].items()
                if arm in self.means[number - 1]
            ]
            if len(changes) < 2:
                continue
            middle, freedom = sum(changes) / len(changes), len(changes) - 1
            spread = sum((change - middle) ** 2 for change in changes) / freedom
            both = added(noise[number], noise[number - 1])
            drift = added({f"drift {number}": (1.0, spread, freedom)}, both, -1.0)
            expected = added(tau, both)
            if value(drift) > value(tau):
                larger = stats.f.sf(spread / value(expected), freedom, freedom_of(expected)) if value(expected) else 0.0
                if number == 1:
                    tau = drift
                elif larger < 0.1:
                    tau = drift
                    self.raised.append(number + 1)
        self.drift = math.sqrt(value(tau))
        self.margins, self.left = [], dict[str, int]()
        for number, means in enumerate(self.means, start=1):
            variance = added(noise[number - 1], tau, float((total - number) ** 2))
            margin = math.inf
            if number >= first and len(means) > 1:
                alpha = 0.05 / len(range(first, total + 1))
                margin = plain_bound(len(means) - 1, freedom_of(variance), alpha) * math.sqrt(2 * value(variance))
            self.margins.append(margin)
            for arm in means:
                if max(means.values()) - means[arm] > margin and arm not in self.left:
                    self.left[arm] = number

    def noise(self, number: int, scores: Round) -> Terms:
        """The variance of an arm's mean: residuals of a table of arms and seeds without both effects."""
        arms, seeds = list(scores), len(next(iter(scores.values())))
        seed_means = [sum(scores[arm][seed] for arm in arms) / len(arms) for seed in range(seeds)]
        everything = sum(seed_means) / seeds
        total = 0.0
        for arm in arms:
            for seed in range(seeds):
                total += (scores[arm][seed] - self.means[number][arm] - seed_means[seed] + everything) ** 2
        freedom = max(1, (len(arms) - 1) * (seeds - 1))
        return {f"noise {number}": (1 / seeds, total / freedom, freedom)}


def added(one: Terms, other: Terms, factor: float = 1.0) -> Terms:
    """One sum of variances plus `factor` times another."""
    terms = dict(one)
    for name, (weight, estimate, freedom) in other.items():
        terms[name] = (terms.get(name, (0.0, 0.0, 0))[0] + factor * weight, estimate, freedom)
    return terms


def value(terms: Terms) -> float:
    return max(0.0, sum(weight * estimate for weight, estimate, _ in terms.values()))


def freedom_of(terms: Terms) -> float:
    """Satterthwaite 1946, equation 17."""
    below = sum((weight * estimate) ** 2 / freedom for weight, estimate, freedom in terms.values())
    return max(1.0, value(terms) ** 2 / below) if below else math.inf


def plain_bound(comparisons: int, freedom: float, alpha: float) -> float:
    """Dunnett's bound by the trapezium rule over the control's mean and the standard deviation, and bisection."""
    mean = np.linspace(-8, 8, 161)
    if math.isinf(freedom):
        deviation, mass = np.ones(1), np.ones(1)
    else:  # evenly in probability, since few degrees of freedom have a long tail
        edges = np.linspace(0, 1, 401)
        deviation = np.sqrt(stats.chi2.ppf((edges[1:] + edges[:-1]) / 2, freedom) / freedom)
        mass = np.full(400, 1 / 400)
    low, high = 0.0, 200.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        inside = stats.norm.cdf(mean + math.sqrt(2) * middle * deviation[:, None]) ** comparisons
        below = float(mass @ np.trapezoid(inside * stats.norm.pdf(mean), mean, axis=1))
        low, high = (middle, high) if 1 - below > alpha else (low, middle)
    return low


def drawn_race(seed: int, total: int, *, first: int = 2) -> list[Round]:
    """A race as it runs: its arms are those left, sometimes fewer; some have ties, no noise, or late drift."""
    rng = np.random.default_rng(seed)
    arms = [f"arm {number}" for number in range(rng.integers(2, 8))]
    noise, drift = rng.choice([0.0, 0.02, 0.2]), rng.choice([0.0, 0.05, 0.5])
    late = rng.choice([0.0, 1.0])
    level = dict(zip(arms, rng.normal(0, 0.3, len(arms)), strict=True))
    rounds: list[Round] = []
    for number in range(total):
        seeds = (2, 2, 3, 4)[number]
        common = rng.normal(0, 0.5, seeds)
        scores = {arm: level[arm] + common + rng.normal(0, noise, seeds) for arm in arms}
        decimals = 1 if seed % 3 == 0 else 12
        rounds.append({arm: [round(float(x), decimals) for x in row] for arm, row in scores.items()})
        left = standing(rounds, total=total, first=first).left
        arms = [arm for arm in level if arm not in left and rng.random() > 0.1]
        if not arms:
            break
        level = {arm: x + rng.normal(0, drift + late * (number > 0)) for arm, x in level.items()}
    return rounds


@pytest.mark.parametrize("seed", range(24))
def test_the_rule_is_its_definition(seed: int) -> None:
    total, first = (4, 2) if seed % 4 else (3, 1)
    rounds = drawn_race(seed, total, first=first)
    found, plain = standing(rounds, total=total, first=first), Plain(rounds, total, first)
    assert [dict(one) for one in found.means] == [pytest.approx(one) for one in plain.means]
    assert found.errors == pytest.approx(plain.errors, abs=1e-9)
    assert found.drift == pytest.approx(plain.drift, abs=1e-7)
    assert found.raised == tuple(plain.raised)
    assert found.margins == pytest.approx(plain.margins, rel=5e-3, abs=1e-7)
    assert found.left == plain.left


def test_the_drawn_races_have_every_kind_of_turn() -> None:
    """Otherwise the comparison with the plain rule would show less than it seems to."""
    rounds = [drawn_race(seed, 4 if seed % 4 else 3, first=2 if seed % 4 else 1) for seed in range(24)]
    found = [standing(one, total=4) for one in rounds]
    assert any(one.left for one in found)
    assert any(one.raised for one in found)
    assert any(one.drift == 0 for one in found)
    assert any(one.errors[0] < 1e-9 for one in found)
    assert any(len(one.means[-1]) == 1 for one in found)
    assert any(len({*one.means[0].values()}) < len(one.means[0]) for one in found)


def test_a_race_by_hand() -> None:
    # Of two arms whose scores differ by d, residuals are (d - mean d) / 2 and as much below: s^2 = var(d) / 2.
    # d = 5, 6, 7 in both rounds: s^2 = .5 with 2 degrees of freedom, of a mean .5 / 3 = 1/6. No change, no drift.
    first = {"a": [7.0, 9.0, 11.0], "b": [2.0, 3.0, 4.0]}
    second = {"a": [17.0, 16.0, 15.0], "b": [10.0, 10.0, 10.0]}
    found = standing([first, second], total=3)
    assert found.errors == pytest.approx((math.sqrt(1 / 6), math.sqrt(1 / 6)))
    assert (found.drift, found.raised) == (0.0, ())
    # The 97.5 % quantile for 2 degrees of freedom is .95 / sqrt(2 * .975 * .025) = 4.302653; times sqrt(2/6): 2.484138.
    assert found.margins == (math.inf, pytest.approx(2.484138, abs=2e-3))
    assert (found.left, found.remaining) == ({"b": 2}, ["a"])
    # d = 0, 1, 2 first: b falls back by 5 more. Changes of the means differ by 5, their variance is 12.5 with 1 degree:
    # tau^2 = 12.5 - 1/6 - 1/6. In round 2 of 3 the variance is 1/6 + tau^2 = 12.5 - 1/6 = 12.333333, its degrees of
    # freedom 12.333333^2 / (12.5^2 + (1/6)^2 / 2) < 1, so 1: tan(.475 pi) = 12.706205, times sqrt(24.666667): 63.1061.
    found = standing([{"a": [2.0, 4.0, 6.0], "b": [2.0, 3.0, 4.0]}, second], total=3)
    assert found.drift == pytest.approx(math.sqrt(12.5 - 1 / 3))
    assert found.margins == (math.inf, pytest.approx(63.1061, rel=1e-3))
    assert (found.left, found.remaining) == ({}, ["a", "b"])
    # As the last round of two, drift counts no more, and all of the error is its: the 95 % quantile for 2 degrees of
    # freedom is .9 / sqrt(2 * .95 * .05) = 2.919986, times sqrt(2/6): 1.685855.
    found = standing([{"a": [2.0, 4.0, 6.0], "b": [2.0, 3.0, 4.0]}, second], total=2)
    assert found.margins == (math.inf, pytest.approx(1.685855, abs=1e-3))
    assert found.left == {"b": 2}


def close(*means: float) -> Round:
    """Arms a, b, ... with these means, and a little noise that differs between arms."""
    return {
        "abcdefgh"[number]: [mean + sign * (1 + number % 2) * 1e-4 for sign in (1, -1)]
        for number, mean in enumerate(means)
    }


def test_a_larger_drift_later_brings_arms_back() -> None:
    rounds = [close(0, 0, 0, -1), close(0, 0, 0, -1)]
    assert standing(rounds, total=4).left == {"d": 2}
    calm = standing([*rounds, close(0, 0, 0)], total=4)
    assert (calm.left, calm.raised) == ({"d": 2}, ())
    found = standing([*rounds, close(0, 2, -2)], total=4)
    assert (found.left, found.raised) == ({}, (3,))
    assert found.drift == pytest.approx(2, abs=1e-3)  # the variance of 0, 2 and -2 is 4
    assert found.remaining == ["b", "a", "c", "d"]  # those of the last round first


def test_arms_that_are_all_alike_stay() -> None:
    same = {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert standing([same, same], total=2).left == {}
    assert standing([{"a": [1.0, 2.0]}, {"a": [3.0, 1.0]}], total=2) == Standing(
        means=({"a": 1.5}, {"a": 2.0}), errors=(0.0, 0.0), margins=(math.inf, math.inf), left={}, drift=0.0, raised=()
    )
    assert standing([same, {"a": [1.0, 1.0], "b": [0.5, 0.5]}], total=2).left == {"b": 2}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
def test_the_best_of_the_last_round_remains(seed: int) -> None:
    rounds = drawn_race(seed, 4)
    found = standing(rounds, total=4)
    best = max(found.means[-1].values())
    assert found.means[-1][found.remaining[0]] == best
    assert sorted([*found.left, *found.remaining]) == sorted(rounds[0])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.permutations(range(7)), st.floats(0.1, 10), st.floats(-5, 5))
def test_neither_order_nor_unit_nor_what_a_seed_shares_matters(
    seed: int, order: list[int], factor: float, shift: float
) -> None:
    rounds = drawn_race(3 * seed + 1, 3)  # without ties: rounding may part them
    arms = [f"arm {number}" for number in order]
    effects = [[shift, -shift, 2 * shift][: len(next(iter(one.values())))] for one in rounds]
    turned = [
        {
            arm: [factor * x + y for x, y in zip(one[arm], effect, strict=True)]
            for arm in sorted(one, key=arms.index)
        }
        for one, effect in zip(rounds, effects, strict=True)
    ]  # fmt: skip
    found, other = standing(rounds, total=4), standing(turned, total=4)
    assert other.drift == pytest.approx(factor * found.drift, abs=1e-6)
    if found.errors[0] > 1e-6:
        assert other.left == found.left


@pytest.mark.parametrize(("comparisons", "freedom", "bound"), TABLE)
def test_the_bound_is_that_of_dunnetts_table(comparisons: int, freedom: float, bound: float) -> None:
    assert dunnett_bound(comparisons, freedom, 0.05) == pytest.approx(bound, abs=0.0051)


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 3])
@pytest.mark.parametrize("freedom", [1.0, 1.56, 2, 7, 40, 1e6])
def test_the_bound_of_one_comparison_is_students(freedom: float, alpha: float) -> None:
    assert dunnett_bound(1, freedom, alpha) == pytest.approx(stats.t.isf(alpha, freedom), rel=3e-4)


@pytest.mark.parametrize(("comparisons", "freedom"), [(2, 3), (5, 8), (19, 57)])
def test_as_many_draws_exceed_the_bound_as_alpha_says(comparisons: int, freedom: int) -> None:
    draws, alpha = 200_000, 0.05 / 3
    rng = np.random.default_rng(comparisons)
    arms = rng.normal(size=(draws, comparisons + 1))
    deviation = np.sqrt(rng.chisquare(freedom, draws) / freedom)
    largest = (arms[:, 1:].max(1) - arms[:, 0]) / (math.sqrt(2) * deviation)
    exceeded = (largest > dunnett_bound(comparisons, freedom, alpha)).mean()
    assert exceeded == pytest.approx(alpha, abs=4 * math.sqrt(alpha / draws))


def test_a_bracket_by_hand() -> None:
    shares = [0.1, 0.2, 0.4, 0.8]
    for left, bracket in (
        ([True, False, False, True], (0.1, 0.8)),
        ([True, True, False, True], (0.2, 0.8)),
        ([False, True, True, True], (0.1, 0.2)),  # an end is its own neighbour
        ([True, True, True, False], (0.4, 0.8)),
        ([True, False, True, False], (0.1, 0.8)),  # what left in between is inside
    ):
        assert share_bracket(shares, left) == bracket


def test_a_peak_by_hand() -> None:
    assert parabola_peak([0.1, 0.2, 0.4], [3.0, 2.0, 1.0]) == 0.1
    assert parabola_peak([0.1, 0.2, 0.4], [1.0, 2.0, 3.0]) == 0.4
    assert parabola_peak([0.1, 0.2, 0.4], [2.0, 3.0, 2.0]) == pytest.approx(0.2)
    # Through (-1, 0), (0, 4), (1, 2) in units of log 2: -3 x^2 + x + 4, highest at 1/6.
    assert parabola_peak([0.1, 0.2, 0.4, 0.8], [0.0, 4.0, 2.0, -9.0]) == pytest.approx(0.2 * 2 ** (1 / 6))
    shares = np.geomspace(0.05, 1, 8)
    means = -((np.log(shares) - math.log(0.3)) ** 2)
    assert parabola_peak(shares.tolist(), means.tolist()) == pytest.approx(0.3)
