"""The correlations against their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")

from tamis.math.statistics import agreement, kendall, pearson, spearman


def slow_kendall(one: list[int], other: list[int]) -> float:
    """Concordant pairs less discordant ones, over the geometric mean of the pairs that each column orders."""
    score, here, there = 0, 0, 0
    for a, b in itertools.combinations(range(len(one)), 2):
        first, second = np.sign(one[a] - one[b]), np.sign(other[a] - other[b])
        score, here, there = score + first * second, here + abs(first), there + abs(second)
    return float(score / math.sqrt(here * there)) if here and there else math.nan


def slow_ranks(values: list[int]) -> list[float]:
    return [sum(x < value for x in values) + (sum(x == value for x in values) + 1) / 2 for value in values]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=12))
def test_they_are_their_definitions(rows: list[tuple[int, int]]) -> None:
    one, other = [list(column) for column in zip(*rows, strict=True)]
    constant = len(set(one)) == 1 or len(set(other)) == 1
    expected = math.nan if constant else float(np.corrcoef(slow_ranks(one), slow_ranks(other))[0, 1])
    a, b = np.array(one), np.array(other)
    assert spearman(a, b) == pytest.approx(expected, nan_ok=True)
    assert kendall(a, b) == pytest.approx(slow_kendall(one, other), nan_ok=True)
    assert math.isnan(pearson(a, b)) == constant


def test_intervals_hold_the_value_and_a_constant_column_has_none() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=40)
    found = agreement(scores, scores + rng.normal(size=40), left_out=3)
    assert (found.texts, found.left_out) == (40, 3)
    for one in (found.pearson, found.spearman, found.kendall):
        assert one.low < one.value < one.high
    constant = agreement(np.ones(5), np.arange(5.0)).facts()
    assert constant["spearman"]["value"] is None
    assert constant["texts"] == 5
