"""Correlations: by hand, against their definitions in loops, and their invariances."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.train.agreement import kendall, pearson, spearman

columns = st.lists(st.tuples(st.integers(-5, 5), st.integers(-3, 3)), min_size=2, max_size=60)


def slow_kendall(one: list[int], other: list[int]) -> float:
    """The definition, pair by pair."""
    same = opposite = apart_one = apart_other = 0
    for a, b in itertools.combinations(range(len(one)), 2):
        left, right = np.sign(one[a] - one[b]), np.sign(other[a] - other[b])
        same += left * right > 0
        opposite += left * right < 0
        apart_one += left != 0
        apart_other += right != 0
    return (same - opposite) / (apart_one * apart_other) ** 0.5 if apart_one and apart_other else float("nan")


def slow_ranks(values: list[int]) -> list[float]:
    return [sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values]


def test_four_rows_by_hand() -> None:
    one, other = np.array([1, 2, 3, 4]), np.array([1, 3, 2, 10])
    assert spearman(one, other) == pytest.approx(1 - 6 * 2 / (4 * 15))  # 1 - 6 sum d^2 / (n (n^2 - 1))
    assert kendall(one, other) == pytest.approx((5 - 1) / 6)
    assert pearson(one, other) == pytest.approx(
        13 / (5 * 50) ** 0.5
    )  # products of deviations: 4.5 - .5 - 1 + 9 ... = 13


@settings(max_examples=200)
@given(columns)
def test_they_are_their_definitions(rows: list[tuple[int, int]]) -> None:
    one, other = (list(column) for column in zip(*rows, strict=True))
    found = kendall(np.array(one), np.array(other))
    assert found == pytest.approx(slow_kendall(one, other), rel=0, abs=1e-12, nan_ok=True)
    expected = np.nan
    if len(set(one)) > 1 and len(set(other)) > 1:
        expected = float(np.corrcoef(slow_ranks(one), slow_ranks(other))[0, 1])
    assert spearman(np.array(one), np.array(other)) == pytest.approx(expected, rel=0, abs=1e-12, nan_ok=True)


def test_many_rows_with_ties_and_few_rows_without_are_their_definitions() -> None:
    rng = np.random.default_rng(0)
    for rows in (3, 12, 400):
        one = rng.integers(0, 2 * rows, rows)
        other = one + rng.normal(0, rows, rows).round()
        assert kendall(one, other) == pytest.approx(slow_kendall(list(one), list(other)), rel=0, abs=1e-12)
        expected = np.corrcoef(slow_ranks(list(one)), slow_ranks(list(other)))[0, 1]
        assert spearman(one, other) == pytest.approx(expected, rel=0, abs=1e-12)
        assert pearson(one, other) == pytest.approx(np.corrcoef(one, other)[0, 1], rel=0, abs=1e-12)


def test_ranks_do_not_mind_how_values_are_stretched() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.random(200), rng.random(200)
    assert spearman(np.exp(5 * one), other) == spearman(one, other)
    assert kendall(one, -other) == pytest.approx(-kendall(one, other))


@pytest.mark.parametrize("correlate", [pearson, spearman, kendall])
def test_a_constant_column_and_bad_ones(correlate: object) -> None:
    assert np.isnan(correlate(np.ones(4), np.arange(4)))  # type: ignore[operator]
    assert np.isnan(correlate(np.arange(7), np.full(7, 585.8378819118702)))  # type: ignore[operator]  # its mean is off
    with pytest.raises(ValueError, match="two columns of at least two rows"):
        correlate(np.ones(1), np.ones(1))  # type: ignore[operator]
    with pytest.raises(ValueError, match="no missing or infinite values"):
        correlate(np.array([1, np.nan]), np.ones(2))  # type: ignore[operator]
