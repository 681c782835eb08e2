"""Intervals: by hand, and against the normal approximation."""

from __future__ import annotations

import numpy as np
import pytest

from tamis.math.intervals import bootstrap, mean, share


def test_a_share_of_half_of_ten_by_hand() -> None:
    half = share(5, 10)
    # z = 1.96: centre (0.5 + 3.8415 / 20) / 1.38415 = 0.5, half 1.96 / 1.38415 * sqrt(0.025 + 3.8415 / 400) = 0.2634
    assert (half.value, half.n) == (0.5, 10)
    assert (half.low, half.high) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert (share(3, 3).low, share(3, 3).high) == pytest.approx((0.4385, 1.0), abs=1e-4)
    assert share(0, 3).low == 0.0


def test_the_bootstrap_of_a_mean_is_near_the_normal_interval_and_repeats() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    estimate = bootstrap(lambda x: float(x.mean()), values)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.15)
    assert estimate == bootstrap(lambda x: float(x.mean()), values)


def test_a_mean_by_hand() -> None:
    """1, 2, 3, 4, 5: s = sqrt(2.5), t of 4 degrees of freedom 2.776445, half 2.776445 * 1.581139 / sqrt(5)."""
    estimate = mean([1, 2, 3, 4, 5])
    assert (estimate.value, estimate.n) == (3.0, 5)
    assert (estimate.low, estimate.high) == pytest.approx((3 - 1.963243, 3 + 1.963243), abs=1e-5)
    assert (mean([0.3, 0.3]).low, mean([0.3, 0.3]).high) == (0.3, 0.3)


def test_too_few_observations_are_errors() -> None:
    for hits, n in ((0, 0), (4, 3), (-1, 3)):
        with pytest.raises(ValueError, match=f"{hits} of {n}"):
            share(hits, n)
    with pytest.raises(ValueError, match="at least one observation"):
        bootstrap(lambda x: 0.0, np.empty(0))
    for values in ([], [1.0]):
        with pytest.raises(ValueError, match=f"got {len(values)}"):
            mean(values)
