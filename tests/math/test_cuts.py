"""The cut that labels suggest: a case by hand, every cut tried the slow way, and honest estimates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.math.cuts import LEAST, labelled_cut, youden
from tamis.math.statistics import share_interval


def test_a_cut_by_hand() -> None:
    """Goods at 3, 4, 5 and 1; bads at 0, 2, 2: `>= 2.5` keeps 3 of 4 goods and no bad."""
    score, good = np.array([3.0, 4, 5, 1, 0, 2, 2]), np.array([True] * 4 + [False] * 3)
    assert youden(score, good) == (2.5, 0.75)
    # Ten copies of it: one more or less of each moves no cut, so cross-validation judges by this one.
    many, kinds = np.tile(score, 10), np.tile(good, 10)
    found = labelled_cut(many, kinds)
    assert found is not None
    assert (found.keeps, found.value) == ("at_least", 2.5)
    assert (found.precision, found.recall, found.fallout) == (
        share_interval(30, 30),
        share_interval(30, 40),
        share_interval(0, 30),
    )
    assert found.low <= 2.5 <= found.high
    turned = labelled_cut(-many, kinds)
    assert turned is not None
    assert (turned.keeps, turned.value, turned.recall) == ("at_most", -2.5, found.recall)


def test_too_few_labels_and_equal_scores_have_no_cut() -> None:
    good = np.arange(2 * LEAST) < LEAST
    score = np.arange(2 * LEAST, dtype=float)
    assert labelled_cut(score, good) is not None
    assert labelled_cut(score[1:], good[1:]) is None
    assert labelled_cut(score[:-1], good[:-1]) is None
    assert labelled_cut(np.zeros(2 * LEAST), good) is None


def test_the_estimates_are_not_of_the_pairs_that_chose_the_cut() -> None:
    """A score that says nothing separates the labels that it was fitted to; cross-validated it does not."""
    gains, fitted = [], []
    for seed in range(30):
        random = np.random.default_rng(seed)
        score, good = random.random(40), np.arange(40) < 20
        cut = labelled_cut(score, good, draws=2)
        assert cut is not None
        gains.append(cut.gain)
        fitted.append(max(youden(score, good)[1], youden(-score, good)[1]))
    assert np.mean(fitted) > 0.2
    assert abs(np.mean(gains)) < 0.1


@given(st.lists(st.tuples(st.sampled_from([-3.0, -0.1, 0.0, 0.25, 0.3, 0.31, 7.0]), st.booleans()), min_size=2))
def test_no_cut_separates_better(pairs: list[tuple[float, bool]]) -> None:
    """Against a cut at every score: the slow, obvious way."""
    score, good = np.array([np.float32(value) for value, _ in pairs], float), np.array([kind for _, kind in pairs])
    if good.all() or not good.any():
        return
    value, j = youden(score, good)
    shares = [(score >= cut)[good].mean() - (score >= cut)[~good].mean() for cut in score]
    assert j == pytest.approx(max(shares))
    kept = score.astype(np.float32) >= np.float32(value)  # as at_least compares
    assert kept[good].mean() - kept[~good].mean() == pytest.approx(j)
