"""Common scales for scores: by hand, against counting, and per length of a text."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.core.math import normalise
from tamis.core.math.normalise import LOGIT_MARGIN, Moments, PerLength, Ranks, extremes, logit, minmax, zscore

NAN, INF = np.nan, np.inf
numbers = st.lists(st.one_of(st.floats(-1e3, 1e3, width=32), st.just(NAN), st.just(0.5)), max_size=40)
cut_places = st.lists(st.integers(0, 40), max_size=6)


def merged(values: NDArray[np.float64], cuts: list[int]) -> Moments:
    total = Moments()
    for block in np.split(values, sorted(min(cut, values.size) for cut in cuts)):
        total = total.merge(Moments.of(block))
    return total


def test_moments_by_hand() -> None:
    moments = Moments.of(np.array([2.0, NAN, 4.0, 9.0, INF, -INF]))
    assert (moments.count, moments.low, moments.high, moments.mean, moments.squares) == (3, 2.0, 9.0, 5.0, 26.0)
    assert moments.deviation == pytest.approx(math.sqrt(26 / 3))
    assert Moments.of(np.array([NAN])) == Moments() == Moments().merge(Moments())
    assert Moments().deviation == 0.0
    far = np.tile([1e9 - 1.0, 1e9 + 1.0], 500)
    assert merged(far, list(range(7, 1_000, 7))).deviation == pytest.approx(1.0, abs=1e-7)


@given(numbers, cut_places)
def test_moments_do_not_depend_on_the_blocks(values: list[float], cuts: list[int]) -> None:
    column = np.array(values, np.float64)
    whole, parts = Moments.of(column), merged(column, cuts)
    assert (parts.count, parts.low, parts.high) == (whole.count, whole.low, whole.high)
    assert parts.mean == pytest.approx(whole.mean, rel=1e-12, abs=1e-9)
    assert parts.squares == pytest.approx(whole.squares, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("scale", "column", "expected"),
    [
        (minmax, [0.2, NAN, 0.4, 0.6], [0, NAN, 0.5, 1]),
        (zscore, [1, 3, NAN], [-1, 1, NAN]),
        (minmax, [-INF, 1, 3, INF], [-INF, 0, 1, INF]),  # infinite values do not count
        (zscore, [-INF, 1, 3, INF], [-INF, -1, 1, INF]),
        (minmax, [INF, 2], [INF, 0]),
        (minmax, [0.3, 0.3, NAN], [0, 0, NAN]),  # all equal
        (zscore, [0.3, 0.3, NAN], [0, 0, NAN]),
    ],
)
def test_scales_by_hand(scale: Callable[..., Any], column: list[float], expected: list[float]) -> None:
    values = np.array(column, np.float64)
    pool = extremes(values) if scale is minmax else [Moments.of(values)]
    np.testing.assert_allclose(scale(values, *pool), expected)


@given(numbers, st.integers(1, 50), st.integers(1, 8), st.sampled_from([np.float32, np.float64]))
def test_rank_equals_counting(values: list[float], held: int, part: int, dtype: type[np.floating[Any]]) -> None:
    column = np.array(values, dtype)
    present = [value for value in values if not math.isnan(value)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalise, "_HELD", held)
        ranks = Ranks(column[start : start + part] for start in range(0, len(column), part)).of(column)
    for value, found in zip(values, ranks, strict=True):
        below = sum(other < value for other in present)
        equal = sum(other == value for other in present) - 1
        expected = (below + 0.5 * equal) / (len(present) - 1) if len(present) > 1 else 0.0
        assert found == pytest.approx(NAN if math.isnan(value) else expected, nan_ok=True)


def test_rank_and_logit_by_hand() -> None:
    column = np.array([10.0, 20.0, 20.0, 30.0, 5.0])
    # Below 20 are 2 of the 4 others, and 1 is equal: (2 + 0.5) / 4.
    np.testing.assert_allclose(Ranks([column]).of(column), [0.25, 0.625, 0.625, 1.0, 0.0])
    most = math.log((1 - LOGIT_MARGIN) / LOGIT_MARGIN)
    shares = np.array([0.5, 0.75, NAN, 1.5, -0.1, 0.0, 1.0])
    np.testing.assert_allclose(logit(shares), [0, math.log(3), NAN, NAN, NAN, -most, most], atol=1e-9)


def log_odds(share: float) -> float:
    return float(np.log(share / (1 - share)))


def test_two_lengths_by_hand() -> None:
    scores, lengths = np.array([0.5, 0.9, 0.2, 0.2, 0.8]), np.array([3, 3, 9, 9, 9])
    norms = PerLength.of(scores, lengths, least=2)
    assert norms.starts == (3, 9)
    assert norms.means == pytest.approx(
        (log_odds(0.9) / 2, log_odds(0.2) / 3)
    )  # logits 0 and 2.197; -1.386 twice and 1.386
    found = norms.standardise(scores, lengths)
    # Two values are one deviation from their mean; the deviation of -1, -1, 1 is 0.943 of their half distance.
    up = 1 / (1 + np.exp(-1))
    assert found[:2].tolist() == pytest.approx([1 - up, up])
    low, high = -0.5 * np.sqrt(2), np.sqrt(2)
    assert found[2:].tolist() == pytest.approx([1 / (1 + np.exp(-z)) for z in (low, low, high)])


def test_short_groups_are_pooled_with_longer_ones_and_the_rest_with_the_last() -> None:
    lengths = np.repeat([1, 2, 5, 6, 7, 90], [3, 2, 4, 1, 5, 1])
    scores = np.linspace(0.1, 0.9, len(lengths))
    norms = PerLength.of(scores, lengths, least=4)
    assert norms.starts == (1, 5, 6)  # 1 and 2; 5; 6, 7 and 90
    assert norms.means[2] == pytest.approx(np.mean([log_odds(score) for score in scores[9:]]))
    assert PerLength.of(scores, lengths, least=1000).starts == (1,)
    for wrong, said in (([0.5, 1.2], "got 1.2"), ([0.5], "every score needs a length"), ([NAN, NAN], "are missing")):
        with pytest.raises(ValueError, match=said):
            PerLength.of(np.array(wrong), np.array([1, 2]))
    # A length that was not measured counts as the next shorter one, else as the shortest.
    values = norms.standardise(np.full(6, 0.5), np.array([0, 1, 4, 5, 6, 99]))
    assert values[0] == values[1] == values[2] != values[3] != values[4] == values[5]
