"""How often rows are kept: by hand, against the published loops, and exact sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.arrays import Float64s
from tamis.ids import scramble
from tamis.math.sampling import hard_cap, soft_cap, whole_copies

finite = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=30)


def order(rows: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return scramble(np.zeros(rows, np.uint64), np.arange(rows, dtype=np.uint64), seed)


def test_soft_cap_by_hand() -> None:
    """Five copies at alpha .5: (3 - .25)/.5 = 5.5 for the first row alone, so the level is (3 + 2 - 2.5) / 2 = 1.25."""
    counts = soft_cap(np.array([2.0, 3.0, 1.0, -4.0]), 5, 0.5)
    assert counts.tolist() == pytest.approx([1.5, 3.5, 0, 0])
    counts = counts.round(9)
    low, high = np.array([1, 2, 3, 4], np.uint64), np.array([1, 2, 3, 1 << 63], np.uint64)  # starts at 0 and at .5
    assert whole_copies(counts, 5, low).tolist() == [1, 4, 0, 0]  # the sum of the fractions is .5, 1, 1, 1
    assert whole_copies(counts, 5, high).tolist() == [2, 3, 0, 0]


def test_hard_cap_by_hand() -> None:
    """Weights 6, 2, 1, 1 and 5 copies: the first row is at its limit of 2, the others share 3 as 2:1:1."""
    weights = np.array([1.0, 6.0, 1.0, 2.0])
    assert hard_cap(np.log(weights), 5, 2).tolist() == pytest.approx([0.75, 2, 0.75, 1.5])
    assert hard_cap(np.log(weights), 5, 9).tolist() == pytest.approx([0.5, 3, 0.5, 1])
    assert hard_cap(np.log(weights), 8, 2).tolist() == [2, 2, 2, 2]
    assert hard_cap(np.array([0.0, -2000.0]), 3, 2).tolist() == pytest.approx([2, 1])  # exp(-2000) is 0


@given(finite, st.integers(1, 300), st.floats(0.01, 3))
def test_copies_add_up_exactly_and_differ_from_the_rule_by_less_than_one(
    scores: list[float], copies: int, alpha: float
) -> None:
    z = np.array(scores, np.float64)
    limit = -(-copies // z.size) + 3
    for counts in (soft_cap(z, copies, alpha), hard_cap(z, copies, limit)):
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


def test_soft_cap_agrees_with_the_published_loop() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2.5, 400)
    loops = np.mean([published_soft(z, 4_000, 0.15, 20, rng) for _ in range(20)], axis=0)
    ours = soft_cap(z, 4_000, 0.15)
    assert np.corrcoef(loops, ours)[0, 1] > 0.995
    # The loop draws from a softmax, so it spreads around the level by about one unit of score: 1 / alpha copies.
    assert np.abs(loops - ours).max() < 1 / 0.15
    well_above = ours > 3 / 0.15
    assert well_above.sum() > 20
    assert (loops[well_above] - ours[well_above]).std() < 1.0


def test_hard_cap_agrees_with_the_published_draws() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(0, 1.0, 60)
    loops = np.mean([published_hard(z, 300, 15, rng) for _ in range(60)], axis=0)
    ours = hard_cap(z, 300, 15)
    apart = np.abs(loops - ours)
    assert apart.max() < 2.0  # near the limit the draws of a row are cut off and the others get them
    assert np.corrcoef(loops, ours)[0, 1] > 0.995


def test_rows_are_rounded_up_as_often_as_their_fraction_says() -> None:
    counts = np.array([0.2, 1.5, 0.3, 2.0, 0.9, 0.1])
    every = np.array([whole_copies(counts, 5, order(6, seed)) for seed in range(4000)])
    assert (every.sum(axis=1) == 5).all()
    assert every.mean(axis=0).tolist() == pytest.approx(counts, abs=0.04)
