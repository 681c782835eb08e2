"""How often rows are kept: by hand, against the published loops and a reference that holds all scores, exact sums."""

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from tamis.core.arrays import U64, Float64s, Times
from tamis.core.files import scratch
from tamis.core.ids import scramble
from tamis.core.math import sampling
from tamis.core.math.sampling import Cap, Copies, Drawn, Spread, exact_sum

CAPS: tuple[Cap, ...] = ("soft", "level", "hard")

finite = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=30)


def order(rows: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return scramble(np.zeros(rows, np.uint64), np.arange(rows, dtype=np.uint64), seed)


def scan_of(scores: Float64s, block: int) -> Callable[..., Iterator[Any]]:
    """Reads scores in blocks; NaN is no score."""

    def scan(work: Callable[..., Any]) -> Iterator[Any]:
        for start in range(0, scores.size, block):
            some = scores[start : start + block]
            rows = np.flatnonzero(~np.isnan(some))
            yield work(slice(start, start + some.size), rows, some[rows])

    return scan


def rule_of(scores: Float64s, copies: int, block: int = 7, std: float | None = None, **rule: Any) -> Copies:
    scan = scan_of(scores, block)
    return sampling.average_copies(scan, Spread.of(scan), copies, Copies(**rule), std)


def average_copies(scores: Float64s, copies: int, **rule: Any) -> Float64s:
    return rule_of(scores, copies, **rule).of(scores)


def drawn(scores: Float64s, copies: int, order: U64, rule: Any, block: int = 7) -> Drawn:
    count = int(np.count_nonzero(~np.isnan(scores)))
    numbers = lambda span, rows: order[span][rows]  # noqa: E731
    return sampling.whole_copies(scan_of(scores, block), numbers, scores.size, count, copies, rule)


class AsGiven:
    """A rule under which the score of a row is its number of copies."""

    def of(self, scores: Float64s) -> Float64s:
        return scores


def whole_copies(counts: Float64s, copies: int, order: U64) -> Times:
    times: Times = drawn(counts, copies, order, AsGiven()).times
    return times


def slow_average(scores: Float64s, copies: int, cap: Cap, alpha: float = 0.15, limit: int = 15) -> Float64s:
    """`average_copies` from all scores at once."""
    if cap == "hard":
        counts = np.full(scores.size, float(limit))
        order = np.argsort(-scores)
        for first in range(scores.size):  # the rows before are at the limit
            weights = np.exp(scores[order[first:]] - scores[order[first]])
            if copies - first * limit <= limit * weights.sum():
                counts[order[first:]] = weights * ((copies - first * limit) / weights.sum())
                break
        return counts
    scores = scores - scores.max()
    rules: dict[str, Callable[[float], Float64s]] = {
        "soft": lambda level: np.logaddexp(0.0, scores - level) / alpha,
        "level": lambda level: np.maximum(0.0, scores - level) / alpha,
    }
    low = max(-alpha * copies, scores.min() - 2 * alpha * copies / scores.size) - 1  # too many, of one row or of all
    high = np.log((scores.size + 1) / min(alpha, 1.0))  # at most one
    return rules[cap](brentq(lambda level: rules[cap](level).sum() - copies, low, high))


def slow_whole(counts: Float64s, copies: int, order: U64) -> Times:
    """`whole_copies` from all rows at once; rows with equal numbers must be in the order of their counts."""
    times = np.floor(counts)
    ranked = np.argsort(order, kind="stable")
    passed = np.cumsum((counts - times)[ranked])
    if (extra := copies - int(times.sum())) > 0:
        start = float(np.bitwise_xor.reduce(order[counts > 0]) >> np.uint64(11)) * 2.0**-53
        passed = np.floor(np.round(passed * (extra / passed[-1]), 6) + start)
        times[ranked] += np.diff(passed, prepend=0.0)
    return times.astype(np.uint16)


def test_the_level_by_hand() -> None:
    """Five copies at alpha .5: (3 - .25)/.5 = 5.5 for the first row alone, so the level is (3 + 2 - 2.5) / 2 = 1.25."""
    counts = average_copies(np.array([2.0, 3.0, 1.0, -4.0]), 5, cap="level", alpha=0.5).round(9)
    assert counts.tolist() == [1.5, 3.5, 0, 0]
    low, high = np.array([1, 2, 3, 4], np.uint64), np.array([1, 1 << 63, 2, 3], np.uint64)  # starts at 0 and at .5
    assert whole_copies(counts, 5, low).tolist() == [1, 4, 0, 0]  # the sum of the fractions is .5, 1, 1, 1
    assert whole_copies(counts, 5, high).tolist() == [2, 3, 0, 0]


def test_soft_cap_by_hand() -> None:
    """At the level 0 and alpha .5, scores log(3), 0, log(1/3) have 2 log(4), 2 log(2) and 2 log(4/3) copies."""
    weights = np.array([4, 2, 4 / 3])
    scale = 6 / (2 * np.log(weights).sum())  # so that the sum is 6
    counts = average_copies(np.log(weights - 1), 6, cap="soft", alpha=0.5 / scale)
    assert counts.tolist() == pytest.approx(2 * scale * np.log(weights))


def test_hard_cap_by_hand() -> None:
    """Weights 6, 2, 1, 1 and 5 copies: the first row is at its limit of 2, the others share 3 as 2:1:1."""
    weights = np.array([1.0, 6.0, 1.0, 2.0])
    assert average_copies(np.log(weights), 5, cap="hard", limit=2).tolist() == pytest.approx([0.75, 2, 0.75, 1.5])
    assert average_copies(np.log(weights), 5, cap="hard", limit=9).tolist() == pytest.approx([0.5, 3, 0.5, 1])
    assert average_copies(np.log(weights), 8, cap="hard", limit=2).tolist() == [2, 2, 2, 2]
    assert average_copies(np.array([0.0, -2000.0]), 3, cap="hard", limit=2).tolist() == pytest.approx(
        [2, 1]
    )  # exp(-2000) is 0


@given(finite, st.integers(1, 300), st.floats(0.01, 3))
def test_copies_add_up_and_differ_from_the_rule_by_less_than_one(
    scores: list[float], copies: int, alpha: float
) -> None:
    z = np.array(scores, np.float64)
    limit = -(-copies // z.size) + 3
    for cap in CAPS:
        counts = average_copies(z, copies, cap=cap, alpha=alpha, limit=limit)
        assert counts.sum() == pytest.approx(copies, rel=1e-9)
        times = whole_copies(counts, copies, order(z.size))
        assert times.sum() == copies
        assert np.abs(times - counts).max() < 1 + 1e-5
        by_score = counts[np.argsort(z, kind="stable")]
        assert (np.diff(by_score) >= 0).all()
    assert counts.max() <= limit


def published_soft(z: Float64s, copies: int, alpha: float, batch: int, rng: np.random.Generator) -> Float64s:
    """FLYT's examples.ipynb: batches from the softmax without replacement; drawn rows lose alpha."""
    z, times = z.copy(), np.zeros(z.size)
    while (left := copies - int(times.sum())) > 0:
        p = np.exp(z - z.max())
        drawn = rng.choice(z.size, min(batch, left), replace=False, p=p / p.sum())
        times[drawn] += 1
        z[drawn] -= alpha
    return times


def published_hard(z: Float64s, copies: int, limit: int, rng: np.random.Generator) -> Float64s:
    """Draws from the softmax with replacement; a row drops out at its limit."""
    weights, times = np.exp(z - z.max()), np.zeros(z.size)
    for _ in range(copies):
        row = rng.choice(z.size, p=weights / weights.sum())
        times[row] += 1
        if times[row] == limit:
            weights[row] = 0
    return times


def test_soft_cap_is_the_average_of_the_published_loop() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2.5, 1000)
    loops = np.mean([published_soft(z, 1000, 0.15, 5, rng) for _ in range(30)], axis=0)
    ours = average_copies(z, 1000, cap="soft")
    edges = np.quantile(z, [0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0])
    for low, high in itertools.pairwise(edges):
        some = (z >= low) & (z < high)
        assert loops[some].mean() == pytest.approx(ours[some].mean(), rel=0.06, abs=0.004), (low, high)
    sharp = average_copies(z, 1000, cap="level")
    assert loops[sharp == 0].sum() > 0.2 * 1000  # what "level" leaves out


def test_hard_cap_is_nearly_the_average_of_the_published_draws() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(0, 1.0, 60)
    loops = np.mean([published_hard(z, 300, 15, rng) for _ in range(60)], axis=0)
    ours = average_copies(z, 300, cap="hard")
    assert np.abs(loops - ours).max() < 2.0  # near the limit the draws of a row are cut off and the others get them
    assert np.corrcoef(loops, ours)[0, 1] > 0.995


def test_large_scores_are_exact() -> None:
    """Neighbouring numbers are 1e14 apart at 1e30, so exp(score - level) is 0 or infinite there."""
    scores = np.array([3.0, 1e30, 0.0, 1e30, -1e30])
    assert average_copies(scores, 35, cap="hard", limit=15).tolist() == pytest.approx(
        [5 / (1 + np.exp(-3)), 15, 5 / (1 + np.exp(3)), 15, 0]
    )
    assert average_copies(scores, 5, cap="hard").tolist() == [0, 2.5, 0, 2.5, 0]
    for cap in ("soft", "level"):
        assert average_copies(scores, 5, cap=cap).tolist() == pytest.approx([0, 2.5, 0, 2.5, 0])


def test_rows_are_rounded_up_as_often_as_their_fraction_says() -> None:
    counts = np.array([0.2, 1.5, 0.3, 2.0, 0.9, 0.1])
    every = np.array([whole_copies(counts, 5, order(6, seed)) for seed in range(4000)])
    assert (every.sum(axis=1) == 5).all()
    assert every.mean(axis=0).tolist() == pytest.approx(counts, abs=0.04)


@given(st.lists(st.floats(0, 2**31), max_size=30), st.randoms())
def test_sums_are_exact_in_any_order(values: list[float], random: Any) -> None:
    expected = sum(int(Fraction(value) * 2**64) for value in values)
    random.shuffle(values)
    assert exact_sum(np.array(values, np.float64)) == expected


@given(finite, st.integers(1, 300), st.floats(0.01, 3), st.sampled_from(CAPS), st.booleans())
def test_the_level_is_that_of_all_scores_at_once(
    scores: list[float], copies: int, alpha: float, cap: Cap, scaled: bool
) -> None:
    z = np.array(scores, np.float64)
    limit = -(-copies // z.size) + 1
    std = 2.5 if scaled else None
    rules = [rule_of(z, copies, block, std, cap=cap, alpha=alpha, limit=limit) for block in (1, 4, 100)]
    assert rules[0] == rules[1] == rules[2]  # to the last bit
    logits = (z - z.mean()) * (2.5 / (z.std() or 1.0)) if scaled and z.max() > z.min() else z
    expected = slow_average(logits, copies, cap, alpha, limit)
    np.testing.assert_allclose(rules[0].of(z), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("held", [1 << 22, 64, 1])
def test_groups_and_files_draw_what_is_drawn_in_memory(cap: Cap, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with equal numbers, and with so many groups that most have no row."""
    rng = np.random.default_rng(4)
    z = rng.normal(0, 2.5, 1000)
    numbers = order(1000)
    numbers[rng.integers(0, 1000, 60)] = numbers[0]
    z[::9] = np.nan
    there = np.flatnonzero(~np.isnan(z))
    there = there[np.argsort(z[there])]
    rule = rule_of(z, 700, cap=cap)
    expected = np.zeros(1000, int)
    expected[there] = slow_whole(rule.of(z[there]), 700, numbers[there])
    if held < 1 << 22:
        monkeypatch.setattr(sampling, "HELD", held)
        monkeypatch.setattr(sampling, "_DEALT", 50)
        monkeypatch.setattr(scratch, "IN_MEMORY", 0)
    for block in (1, 13, 1000):
        found = drawn(z, 700, numbers, rule, block)
        assert found.times[:].tolist() == expected.tolist()
        assert (found.most, found.lowest) == (expected.max(), z[expected > 0].min())


def test_nothing_to_round_up() -> None:
    found = drawn(np.array([2.0, np.nan, 1.0, 0.0]), 3, order(4), AsGiven())
    assert (found.times.tolist(), found.most, found.lowest) == ([2, 0, 1, 0], 2, 1.0)
