"""Intervals and the AUC: by hand, against slow references, and their invariances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.math.intervals import bootstrap, mean, share, student
from tamis.math.ranks import auc


def test_a_share_of_half_of_ten_by_hand() -> None:
    found = share(5, 10)
    # z = 1.96: centre (0.5 + 3.8415 / 20) / 1.38415 = 0.5, half 1.96 / 1.38415 * sqrt(0.025 + 3.8415 / 400) = 0.2634
    assert (found.value, found.n) == (0.5, 10)
    assert found.low == pytest.approx(0.2366, abs=1e-4)
    assert found.high == pytest.approx(0.7634, abs=1e-4)


def test_all_of_few_is_not_certain() -> None:
    assert share(3, 3).low == pytest.approx(0.4385, abs=1e-4)
    assert share(3, 3).high == 1.0
    assert share(0, 3).low == 0.0


@pytest.mark.parametrize(("hits", "n"), [(0, 0), (4, 3), (-1, 3)])
def test_a_share_of_nothing_is_refused(hits: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"{hits} of {n}"):
        share(hits, n)


def test_the_bootstrap_of_a_mean_is_near_the_normal_interval_and_repeats() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    found = bootstrap(lambda x: float(x.mean()), values)
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.15)
    assert found == bootstrap(lambda x: float(x.mean()), values)


def test_the_bootstrap_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one observation"):
        bootstrap(lambda x: 0.0, np.empty(0))


def test_the_auc_by_hand() -> None:
    # 3 beats 1 and 2, 2 beats 1 and ties with 2: 3.5 of 4
    assert auc(np.array([3.0, 2.0]), np.array([1.0, 2.0])) == 0.875


SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=20)


@given(SCORES, SCORES)
def test_the_auc_is_the_share_of_pairs_in_order(positive: list[int], negative: list[int]) -> None:
    won = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    found = auc(np.array(positive), np.array(negative))
    assert found == pytest.approx(sum(won) / len(won))
    assert found == pytest.approx(1 - auc(np.array(negative), np.array(positive)))
    assert found == pytest.approx(auc(np.exp(np.array(positive)), np.exp(np.array(negative))))


def test_the_auc_of_an_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match="1 and 0"):
        auc(np.array([1.0]), np.array([]))


def test_a_mean_by_hand() -> None:
    """1, 2, 3, 4, 5: s = sqrt(2.5), t of 4 degrees of freedom 2.776445, half 2.776445 * 1.581139 / sqrt(5)."""
    found = mean([1, 2, 3, 4, 5])
    assert (found.value, found.n) == (3.0, 5)
    assert (found.low, found.high) == pytest.approx((3 - 1.963243, 3 + 1.963243), abs=1e-5)
    assert (mean([0.3, 0.3]).low, mean([0.3, 0.3]).high) == (0.3, 0.3)


def test_students_quantiles_are_those_of_scipy() -> None:
    t = pytest.importorskip("scipy.stats").t
    for degrees in [*range(1, 40), 60, 120, 1000]:
        assert student(degrees) == pytest.approx(t.ppf(0.975, degrees), abs=2e-5)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_a_mean_of_fewer_than_two_has_no_interval(values: list[float]) -> None:
    with pytest.raises(ValueError, match=f"at least 2 values, got {len(values)}"):
        mean(values)
    with pytest.raises(ValueError, match="at least 1 degree of freedom, got 0"):
        student(0)
