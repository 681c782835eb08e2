"""Choices of an expensive score from a cheap one: by hand, against slow references, and certified worlds."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from tamis.arrays import Float64s, Mask
from tamis.math.distil import (
    Choice,
    Decisions,
    audit_sizes,
    certify,
    chances_above,
    decide,
    most_wrong,
    rows_to_score,
    strata,
)

special = pytest.importorskip("scipy.special")


def world(kind: str, rows: int, seed: int) -> tuple[Float64s, Float64s]:
    """A cheap score that explains .73 of an expensive one, and the expensive one; not where a shard has shifted."""
    rng = np.random.default_rng(seed)
    cheap, noise = rng.normal(size=rows), rng.normal(size=rows)
    if kind == "heavy tails":
        noise = rng.standard_t(2.5, rows) / math.sqrt(5)
    if kind == "heteroscedastic":
        noise *= np.exp(cheap / 2)
    full = math.sqrt(0.73) * cheap + math.sqrt(0.27) * noise
    if kind == "shifted shard":
        full[: rows // 20] += 2
    return math.sqrt(0.73) * cheap, full


def order(rows: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.random.default_rng([seed, 1]).integers(0, 1 << 63, rows).astype(np.uint64)


def jaccard(one: Mask, other: Mask) -> float:
    return np.count_nonzero(one & other) / np.count_nonzero(one | other)


def test_chances_by_hand() -> None:
    """Four of five rows gain 1 and one gains 3: at the cut 2, a row at 0 exceeds it with (1 + .5) / (5 + 1)."""
    above = chances_above(np.array([0.0, 5.0]), np.zeros(5), np.array([1.0, 1.0, 3.0, 1.0, 1.0]))
    assert above(2.0).tolist() == pytest.approx([1.5 / 6, 5.5 / 6])
    assert chances_above(np.array([1.0]), np.empty(0), np.empty(0))(0.0).tolist() == [0.5]


def test_chances_are_those_of_a_slow_reference() -> None:
    cheap, full = world("heteroscedastic", 400, 5)
    some, all_rows = np.arange(100), np.unique(cheap[100:140])  # so few that each is on the grid
    found = chances_above(all_rows, cheap[some], full[some])(0.4)
    sample = sorted(zip(cheap[some], full[some], strict=True))
    for row, chance in zip(all_rows, found, strict=True):
        start = min(max(sum(x < row for x, _ in sample) - 25, 0), 50)
        rest = [y - x for x, y in sample[start : start + 50]]
        spread = min(float(np.std(rest)), float(np.subtract(*np.quantile(rest, (0.75, 0.25)))) / 1.34)
        width = 0.9 * spread * 50**-0.2
        normal = [(1 + math.erf((row + one - 0.4) / width / math.sqrt(2))) / 2 for one in rest]
        assert chance == pytest.approx((sum(normal) + 0.25) / 50.5, abs=5e-3)  # the grid is interpolated


def test_all_known_is_the_true_choice() -> None:
    cheap, full = world("gaussian", 500, 1)
    found = decide(Choice(cheap=cheap, kept=150, order=order(500), sample=np.arange(100)), full, np.ones(500, bool))
    assert found.keep.tolist() == (full >= np.sort(full)[-150]).tolist()
    assert not found.flip.any()


def test_decisions_keep_the_number_and_know_what_is_certain() -> None:
    cheap, full = world("gaussian", 2000, 2)
    full = np.maximum(cheap, full)  # as more captions give
    asked = np.arange(2000) < 300
    found = decide(
        Choice(cheap=cheap, kept=600, order=order(2000), sample=np.arange(300), never_lower=True),
        np.where(asked, full, np.nan),
        asked,
    )
    assert np.count_nonzero(found.keep) == 600
    assert found.cut == pytest.approx(np.sort(full)[-600], abs=0.1)
    assert not found.flip[asked].any()
    assert not found.flip[cheap >= found.cut].any()
    assert found.keep[cheap >= found.cut].all()
    assert (found.flip[~asked & (cheap < found.cut)] > 0).all()
    assert set(np.argsort(-found.values)[:600]) == set(np.flatnonzero(found.keep))


def test_rows_without_a_cheap_or_a_full_score() -> None:
    cheap, full = np.array([1.0, 2.0, np.nan, 3.0, 4.0]), np.array([np.nan, 2.5, np.nan, np.nan, np.nan])
    found = decide(Choice(cheap=cheap, kept=1, order=order(5), sample=np.arange(2)), full, np.arange(5) < 2)
    assert found.keep.tolist() == [False, False, False, False, True]
    assert found.flip[[0, 1, 2]].tolist() == [0, 0, 1]


def test_the_largest_chances_are_scored_first() -> None:
    flip = np.array([0.4, 0.1, 0.3, 0.2, 0.05, 0.5])
    keep = np.array([True, True, True, False, False, False])
    found = rows_to_score(Decisions(flip, keep, flip, 0.0), 0.3)
    assert found.tolist() == [True, False, True, False, False, True]  # .1 and .05 + .2 may stay


def test_strata_and_audit_sizes_by_hand() -> None:
    """Σ √P is 3: six shares of .5. Of N_h 10 and 30 with p_h .09 and .01, √p N is 3 each: .35 + .075, .225."""
    assert strata(np.array([2.0, 1, 2, 1, 2, 2, 2]) ** 2 / 16).tolist() == [1, 0, 2, 0, 3, 4, 5]
    assert audit_sizes(np.array([10, 30]), np.array([0.09, 0.01]), 20).tolist() == [9, 12]  # 8.5 and 11.5, upwards
    assert audit_sizes(np.array([0, 3, 1000]), np.array([0.0, 0.0, 0.0]), 10).tolist() == [0, 1, 3]


def test_the_upper_limit_by_hand() -> None:
    """No error: N/n times -log α, a Poisson's limit. Three of equal weight: half of χ²(.95, 8 degrees) = 7.754."""
    assert most_wrong(*np.array([[1000], [100], [0]]), 0.05) == pytest.approx(10 * -math.log(0.05))
    assert most_wrong(*np.array([[500, 500], [50, 50], [1, 2]]), 0.05) == pytest.approx(10 * 7.7537, abs=1e-3)
    assert most_wrong(*np.array([[5, 0], [5, 0], [2, 0]]), 0.05) == 2  # all were drawn
    assert most_wrong(*np.array([[12], [10], [0]]), 0.05) == 2  # no more than were not drawn


def test_the_upper_limit_is_fay_and_feuers() -> None:
    stats = pytest.importorskip("scipy.stats")
    sizes, drawn, wrong = np.array([[900, 400, 5000], [300, 40, 100], [7, 1, 0]])
    w = sizes / drawn
    y, v = (w * wrong).sum() + w.max(), (w**2 * wrong).sum() + w.max() ** 2
    assert most_wrong(sizes, drawn, wrong, 0.1) == pytest.approx(v / 2 / y * stats.chi2.ppf(0.9, 2 * y**2 / v))


def test_the_upper_limit_covers_what_is_drawn_without_replacement() -> None:
    rng = np.random.default_rng(0)
    rows, drawn, wrong = np.array([[20_000, 9000, 700], [300, 300, 200], [10, 45, 63]])
    counts = np.stack([rng.hypergeometric(w, n - w, d, 400) for n, d, w in zip(rows, drawn, wrong, strict=True)], 1)
    assert np.mean([most_wrong(rows, drawn, found, 0.05) >= wrong.sum() for found in counts]) >= 0.95


def test_a_certificate_by_hand() -> None:
    """The cheap score is right about all 100 rows; 10 of them are known and the audit draws all others: no error."""
    score = np.arange(100.0)
    choice = Choice(cheap=score, kept=40, order=order(100), sample=np.arange(0, 100, 10))
    found = certify(choice, lambda rows: np.where(rows, score, np.nan), partial(order, 100), at_most_wrong=0.5)
    assert (found.jaccard, found.audited, int(found.asked.sum())) == (1.0, 90, 100)
    assert found.decisions.keep.tolist() == (score >= 60).tolist()


@pytest.mark.parametrize("kind", ["gaussian", "heavy tails", "heteroscedastic", "shifted shard"])
def test_certificates_hold(kind: str) -> None:
    """A smaller `benchmarks/distil.py`; seeds are fixed, so that the result is."""
    held = []
    for seed in range(3):
        (cheap, full), orders = world(kind, 6000, seed), partial(order, 6000)
        sample = np.argsort(orders(0))[:600]
        found = certify(
            Choice(cheap=cheap, kept=1800, order=orders(0), sample=sample),
            lambda rows, full=full: np.where(rows, full, np.nan),
            orders,
            at_most_wrong=0.2,
        )
        assert np.count_nonzero(found.decisions.keep) == 1800
        assert found.asked[sample].all()
        held.append(jaccard(found.decisions.keep, full > np.sort(full)[-1801]) >= found.jaccard)
    assert all(held)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@given(seed=integers(0, 1000), lowest=sampled_from([-1.0, 0.0, 1.0]))
@settings(max_examples=8)
def test_scores_of_which_most_are_equal_are_certified(share: float, seed: int, lowest: float) -> None:
    """Half points, and 60 % of the rows have the lowest; the order tells equal ones apart."""
    (cheap, full), orders, kept = world("gaussian", 2000, seed), partial(order, 2000), round(2000 * share)
    full = np.maximum(np.ceil(2 * (full - np.quantile(full, 0.6))) / 2, 0) + lowest
    choice = Choice(cheap=cheap, kept=kept, order=orders(0), sample=np.argsort(orders(0))[:300])
    found = certify(choice, lambda rows: np.where(rows, full, np.nan), orders, at_most_wrong=0.3)
    keep = np.zeros(2000, bool)
    keep[np.lexsort((orders(0), -full))[:kept]] = True
    assert jaccard(found.decisions.keep, keep) >= found.jaccard >= 0.7
    assert not found.asked.all()


def test_a_useless_cheap_score_and_equal_scores_are_never_certified_wrongly() -> None:
    """Whole numbers, as a judge gives, that the cheap score knows nothing about."""
    rng = np.random.default_rng(0)
    full, draws = rng.integers(1, 6, 3000).astype(np.float64), order(3000)
    found = certify(
        Choice(cheap=rng.normal(size=3000), kept=900, order=draws, sample=np.arange(300)),
        lambda rows: np.where(rows, full, np.nan),
        partial(order, 3000),
        at_most_wrong=0.2,
    )
    keep = np.zeros(3000, bool)
    keep[np.lexsort((draws, -full))[:900]] = True
    assert jaccard(found.decisions.keep, keep) >= found.jaccard
    assert found.asked.mean() > 0.7


def test_an_infinite_score_is_the_highest() -> None:
    (cheap, full), orders = world("gaussian", 3000, 0), partial(order, 3000)
    full[order(3000, 7) < 1 << 61] = np.inf  # every fourth
    choice = Choice(cheap=cheap, kept=900, order=orders(0), sample=np.argsort(orders(0))[:300])
    found = certify(choice, lambda rows: np.where(rows, full, np.nan), orders, at_most_wrong=0.5)
    best = np.zeros(3000, bool)
    best[np.argsort(-full, kind="stable")[:900]] = True
    assert jaccard(found.decisions.keep, best) >= found.jaccard
    assert found.decisions.keep[found.asked & np.isinf(full)].all()
