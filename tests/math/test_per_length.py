"""Standardisation per length: by hand, against loops, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest

from tamis.math.per_length import MARGIN, PerLength, inverse_logit
from tamis.train.agreement import spearman


def logit(share: float) -> float:
    return float(np.log(share / (1 - share)))


def test_two_lengths_by_hand() -> None:
    scores, lengths = np.array([0.5, 0.9, 0.2, 0.2, 0.8]), np.array([3, 3, 9, 9, 9])
    norms = PerLength.of(scores, lengths, least=2)
    assert norms.starts == (3, 9)
    assert norms.means == pytest.approx((logit(0.9) / 2, logit(0.2) / 3))  # logits 0 and 2.197; -1.386 twice and 1.386
    found = norms.standardise(scores, lengths)
    # of two values each lies one deviation from the mean; of -1, -1, 1 the deviation is 0.943 of their half distance
    up = 1 / (1 + np.exp(-1))
    assert found[:2].tolist() == pytest.approx([1 - up, up])
    low, high = -0.5 * np.sqrt(2), np.sqrt(2)
    assert found[2:].tolist() == pytest.approx([1 / (1 + np.exp(-z)) for z in (low, low, high)])


def test_short_groups_are_pooled_with_longer_ones_and_the_rest_with_the_last() -> None:
    lengths = np.repeat([1, 2, 5, 6, 7, 90], [3, 2, 4, 1, 5, 1])
    scores = np.linspace(0.1, 0.9, len(lengths))
    norms = PerLength.of(scores, lengths, least=4)
    assert norms.starts == (1, 5, 6)  # 1 and 2; 5; 6, 7 and 90
    assert norms.means[2] == pytest.approx(np.mean([logit(score) for score in scores[9:]]))
    assert PerLength.of(scores, lengths, least=1000).starts == (1,)
    order = np.random.default_rng(1).permutation(len(scores))
    assert PerLength.of(scores[order], lengths[order], least=4).means == pytest.approx(norms.means)
    # A length that was not measured counts as the next shorter one, else as the shortest.
    values = norms.standardise(np.full(6, 0.5), np.array([0, 1, 4, 5, 6, 99]))
    assert values[0] == values[1] == values[2] != values[3] != values[4] == values[5]


def test_scores_of_0_and_1_missing_ones_and_constant_groups() -> None:
    scores = np.array([0.0, 1.0, 0.5, np.nan, 0.7, 0.7])
    lengths = np.array([1, 1, 1, 1, 5, 5])
    found = PerLength.of(scores, lengths, least=2).standardise(scores, lengths)
    edge = logit(1 - MARGIN) / np.std([logit(MARGIN), logit(1 - MARGIN), 0.0])
    assert found[:3].tolist() == pytest.approx([1 / (1 + np.exp(edge)), 1 / (1 + np.exp(-edge)), 0.5])
    assert np.isnan(found[3])
    assert found[4:].tolist() == [0.5, 0.5]


def test_what_depended_on_length_no_longer_does_and_order_within_a_length_stays() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 40, 20_000)
    scores = inverse_logit(3 - 0.12 * lengths + (0.5 + lengths / 40) * rng.normal(size=20_000))
    found = PerLength.of(scores, lengths).standardise(scores, lengths)
    assert spearman(scores, lengths) < -0.5
    assert abs(spearman(found, lengths)) < 0.02
    for length in (2, 20, 39):
        inside = lengths == length
        assert spearman(scores[inside], found[inside]) > 0.999
        # Kolmogorov and Smirnov's distance from the logit-normal that the paper asks for
        ordered = np.sort(np.log(found[inside] / (1 - found[inside])))
        normal = np.array([0.5 * (1 + _erf(value / 2**0.5)) for value in ordered])
        assert np.abs(normal - np.arange(1, len(ordered) + 1) / len(ordered)).max() < 0.08


@pytest.mark.parametrize(
    ("scores", "lengths", "message"),
    [
        ([0.5, 1.2], [1, 2], r"got 1.2"),
        ([0.5], [1, 2], "every score needs a length"),
        ([np.nan], [1], "all of them are missing"),
    ],
)
def test_what_cannot_be_standardised_is_an_error(scores: list[float], lengths: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PerLength.of(np.array(scores), np.array(lengths))


def _erf(value: float) -> float:
    from math import erf

    return erf(value)
