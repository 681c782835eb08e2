"""Quotas and picks compared with slow plain references, and by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from tamis.core.math.pruning import nearest_others, pick_apart, quotas
from tamis.core.math.similarity import unit_rows

Array = np.ndarray[Any, Any]


def test_quotas_by_hand() -> None:
    """x = clip(shares n - mu, floor, sizes), worked by hand; Abbas et al. 2024 (arXiv 2401.04578), quadratic program.

    n = 10, floors floor(.5 * 10 / 3) = 1: wanted 6, 3, 1. The first holds 4, so 2 more go to the others: mu = -1.
    """
    shares = np.array([0.6, 0.3, 0.1])
    assert quotas(shares, np.array([4, 9, 9]), 10, 0.5).tolist() == [4, 4, 2]
    assert quotas(shares, np.array([9, 9, 9]), 10, 0.5).tolist() == [6, 3, 1]
    # With the floor 3 for all, 10 - 9 is left: mu = 2.
    assert quotas(shares, np.array([9, 9, 9]), 10, 1).tolist() == [4, 3, 3]
    # A floor is at most one less than the cluster has; equal fractions (1.5 and 1.5) go to the first.
    assert quotas(np.full(3, 1 / 3), np.array([1, 9, 9]), 4, 1).tolist() == [1, 2, 1]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 10**6), st.data())
def test_quotas_add_up_within_their_bounds(sizes: list[int], seed: int, data: st.DataObject) -> None:
    shares = np.random.default_rng(seed).dirichlet(np.ones(len(sizes)))
    n, balance = data.draw(st.integers(0, sum(sizes))), data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    found = quotas(shares, np.array(sizes), n, balance)
    floor = np.minimum(np.floor(balance * n / len(sizes)), np.array(sizes) - 1)
    assert found.sum() == n
    assert (found >= floor).all()
    assert (found <= sizes).all()


@pytest.mark.parametrize("seed", range(4))
def test_quotas_solve_the_quadratic_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares, sizes, n = rng.dirichlet(np.full(6, 0.4)), rng.integers(20, 200, 6), 150
    floor = np.minimum(np.floor(0.5 * n / 6), sizes - 1)
    solved = minimize(
        lambda x: 0.5 * ((x - shares * n) ** 2).sum(),
        np.full(6, n / 6),
        jac=lambda x: x - shares * n,
        bounds=list(zip(floor, sizes, strict=True)),
        constraints={"type": "eq", "fun": lambda x: x.sum() - n, "jac": np.ones_like},
        method="SLSQP",
    )
    assert quotas(shares, sizes, n, 0.5) == pytest.approx(solved.x, abs=1)


def test_nearest_others_are_those_of_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = unit_rows(np.random.default_rng(0).normal(size=(40, 5)))
    rows[7] = rows[30] = rows[3]
    whole = np.round(rows @ rows.T, 6) - 9 * np.eye(40, dtype=np.float32)
    order = np.argsort(-whole, axis=1, kind="stable")[:, :4]
    monkeypatch.setattr("tamis.core.math.pruning._CELLS", 7 * 40)
    which, cosine = nearest_others(rows, 4)
    assert which[3].tolist()[:2] == [7, 30]
    assert which.tolist() == order.tolist()
    assert cosine == pytest.approx(np.take_along_axis(whole, order, 1))
    for count in (1, 2):
        which, cosine = nearest_others(rows[:count], 3)
        assert which.tolist() == [[-1] * 3] if count == 1 else [[1, -1, -1], [0, -1, -1]]
        assert np.isneginf(cosine[:, count - 1 :]).all()
    assert nearest_others(rows[:0], 3)[0].shape == (0, 3)


def looped(scores: Array, neighbours: Array, weights: Array, n: int, tie: Array) -> list[int]:
    """The published loop: the largest score of all rows for each pick."""
    current, picks = scores.tolist(), []
    for _ in range(n):
        best = min(set(range(len(current))) - set(picks), key=lambda row: (-current[row], tie[row], row))
        picks.append(best)
        for other, weight in zip(neighbours[best].tolist(), weights[best].tolist(), strict=True):
            if other >= 0 and other not in picks:
                current[other] -= weight * current[best]
    return picks


def test_a_pick_lowers_its_neighbours() -> None:
    """Maharana et al. 2024 (arXiv 2310.07931): 3 is taken first and leaves 2.5 - .5 * 3 = 1 of its neighbour."""
    scores, neighbours = np.array([3.0, 2.5, 2.0]), np.array([[1], [0], [1]], np.int32)
    ties = np.arange(3, dtype=np.uint64)
    assert pick_apart(scores, neighbours, np.full((3, 1), 0.5, np.float32), 3, ties)[0].tolist() == [0, 2, 1]
    assert pick_apart(scores, neighbours, np.zeros((3, 1), np.float32), 2, ties)[0].tolist() == [0, 1]
    assert scores.tolist() == [3.0, 2.5, 2.0]


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 10**6), st.booleans())
def test_picks_are_those_of_the_loop(rows: int, k: int, seed: int, tied: bool) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.choice([-1.0, 0.5, 1.0, 2.0], rows) if tied else rng.normal(size=rows)
    neighbours = rng.integers(-1, rows, (rows, k)).astype(np.int32)
    weights = (rng.choice([0, 0.5, 1], (rows, k)) if tied else rng.random((rows, k))).astype(np.float32)
    tie = rng.permutation(rows).astype(np.uint64)
    n = int(rng.integers(0, rows + 1))
    assert pick_apart(scores, neighbours, weights, n, tie)[0].tolist() == looped(scores, neighbours, weights, n, tie)
