"""The cut that labels suggest: a case by hand, every cut tried the slow way, and honest estimates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.core.math.statistics import LEAST_LABELLED, find_cut, share_interval, youden


def test_a_cut_by_hand() -> None:
    """Goods at 3, 4, 5 and 1; bads at 0, 2, 2: `>= 2.5` keeps 3 of 4 goods and no bad."""
    good, bad = np.array([3.0, 4, 5, 1]), np.array([0.0, 2, 2])
    assert youden(good, bad) == (2.5, 0.75)
    # Ten copies of it: one more or less of each moves no cut, so cross-validation judges by this one.
    many = np.tile(good, 10), np.tile(bad, 10)
    found = find_cut(*many)
    assert found is not None
    shares = {"precision": share_interval(30, 30), "recall": share_interval(30, 40), "fallout": share_interval(0, 30)}
    assert found | shares | {"keeps": "at_least", "value": 2.5, "gain": 0.75} == found
    assert found["low"] <= 2.5 <= found["high"]
    turned = find_cut(*(-kind for kind in many))
    assert turned is not None
    assert (turned["keeps"], turned["value"], turned["recall"]) == ("at_most", -2.5, found["recall"])


def test_too_few_labels_and_equal_scores_have_no_cut() -> None:
    some, others = np.arange(LEAST_LABELLED) / 7, np.arange(LEAST_LABELLED) + 5.0
    assert find_cut(some, others) is not None
    assert find_cut(some[1:], others) is None
    assert find_cut(some, others[1:]) is None
    assert find_cut(some, np.empty(0)) is None
    assert find_cut(some * 0, others * 0) is None


def test_pairs_without_a_score_are_dropped_by_its_cut() -> None:
    """A score of half the goods finds half the goods, however well it separates these."""
    none = np.full(20, np.nan)
    good, bad = np.concatenate([np.arange(5.0, 25.0), none]), np.concatenate([np.arange(-20.0, 0.0), none, none])
    found = find_cut(good, bad)
    assert found is not None
    assert -1 < found["value"] <= 5
    assert (found["recall"], found["fallout"]) == (share_interval(20, 40), share_interval(0, 60))
    assert found["precision"] == share_interval(20, 20)
    turned = find_cut(bad, good)
    assert turned is not None
    assert (turned["keeps"], turned["recall"].n, turned["fallout"].n) == ("at_most", 60, 40)
    assert find_cut(np.concatenate([good[: LEAST_LABELLED - 1], none]), bad) is None


def test_the_estimates_are_not_of_the_pairs_that_chose_the_cut() -> None:
    """A score that says nothing separates the labels that it was fitted to; cross-validated it does not."""
    gains, fitted = [], []
    for seed in range(30):
        one, other = np.random.default_rng(seed).random((2, 20))
        cut = find_cut(one, other, draws=2)
        assert cut is not None
        gains.append(cut["gain"])
        fitted.append(max(youden(one, other)[1], youden(-one, -other)[1]))
    assert np.mean(fitted) > 0.2
    assert abs(np.mean(gains)) < 0.1


scores = st.lists(st.sampled_from([-3.0, -0.1, 0.0, 0.25, 0.3, 0.31, 7.0]), min_size=1, max_size=20)


@given(scores, scores)
def test_no_cut_separates_better(goods: list[float], bads: list[float]) -> None:
    """Against a cut at every score: the slow, obvious way."""
    good, bad = (np.array(kind, np.float32) for kind in (goods, bads))
    value, j = youden(good.astype(float), bad.astype(float))
    shares = [(good >= cut).mean() - (bad >= cut).mean() for cut in [*good, *bad]]
    assert j == pytest.approx(max(shares))
    cut = np.float32(value)  # as at_least compares
    assert (good >= cut).mean() - (bad >= cut).mean() == pytest.approx(j)
