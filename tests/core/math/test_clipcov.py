"""ClipCov's mathematics compared with its definitions, written out with every pair of pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.core.math import clipcov
from tamis.core.math.clipcov import (
    PARTS,
    TERMS,
    Picks,
    centre_error,
    covariance,
    covariance_error,
    double_greedy,
    greedy,
    merge,
    modular_gains,
    objective,
    pair_weight,
)

Array = np.ndarray[Any, Any]

SUBSETS = [
    TERMS,
    *((term,) for term in (*TERMS, *PARTS)),
    ("cov", "inter"),
    ("cov", "inter", "class_reg"),
    ("cov", "label"),
    ("self", "label", "inter"),
    ("class", "label"),
]


@dataclass
class World:
    """A pool with its classes: images v, texts t, the class of each pair, the rows of the classes' names."""

    v: Array
    t: Array
    k: Array
    y: Array

    def members(self, k: int) -> Array:
        return np.flatnonzero(self.k == k)


def world(n: int, classes: int, seed: int, kind: str = "clustered", d: int = 8) -> World:
    rng = np.random.default_rng(seed)

    def unit(rows: Array) -> Array:
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float64)

    k = rng.integers(0, classes, n)
    noise = rng.normal(size=(2, n, d))
    if kind == "random":  # cosines of either sign: the objective is not submodular
        return World(unit(noise[0]), unit(noise[1]), k, unit(rng.normal(size=(classes, d))))
    centres = rng.normal(size=(classes, d)) * 0.7 + 1
    sub = centres[k] + 0.6 * rng.normal(size=(classes, 3, d))[k, rng.integers(0, 3, n)]
    return World(unit(sub + 0.5 * noise[0]), unit(sub + 0.5 * noise[1]), k, unit(centres))


def similarity(w: World) -> Array:
    return np.asarray(w.v @ w.t.T + w.t @ w.v.T)


def by_definition(w: World, chosen: Sequence[int], terms: Sequence[str], alpha: float, share: float = 1) -> float:
    """Equations 23 to 36 with loops over pairs of pairs; the similarity of chosen pairs counts by 1 / share."""
    sim = similarity(w)
    total = 0.0
    kinds = [k for k in range(len(w.y)) if len(w.members(k))]
    for k in kinds:
        members = w.members(k)
        mine = [i for i in chosen if w.k[i] == k]
        size = len(members)
        if "cov" in terms or "class" in terms:
            linear = sum(sim[i, j] for i in mine for j in members)
            inside = sum(sim[i, j] for i in mine for j in mine)
            total += (linear - inside / 2 / share) / size
        if "cov" in terms or "self" in terms:
            total += sum(sim[i, i] for i in mine)
        if "label" in terms:
            total += sum(alpha * w.t[i] @ w.y[k] for i in mine) - sum(alpha * w.t[i] @ w.y[k] / size for i in mine)
        if "class_reg" in terms:
            total -= sum(sim[i, j] / size for i in mine for j in members) / size
        if "inter" in terms:
            for other in kinds:
                if other != k:
                    total -= sum(sim[i, j] / len(w.members(other)) for i in mine for j in w.members(other))
    return float(total)


def ours(w: World, terms: Sequence[str], alpha: float, share: float = 1) -> list[tuple[Array, Array, Array, float]]:
    """Images, texts, modular gains and weight of each class."""
    sizes = np.bincount(w.k, minlength=len(w.y))
    image_means = np.stack([w.v[w.k == k].mean(0) if sizes[k] else np.zeros(w.v.shape[1]) for k in range(len(w.y))])
    text_means = np.stack([w.t[w.k == k].mean(0) if sizes[k] else np.zeros(w.v.shape[1]) for k in range(len(w.y))])
    found = []
    for k in range(len(w.y)):
        images, texts = w.v[w.members(k)], w.t[w.members(k)]
        others = (image_means.sum(0) - image_means[k], text_means.sum(0) - text_means[k])
        modular = modular_gains(images, texts, terms=terms, label=w.y[k], alpha=alpha, others=others)
        found.append((images, texts, modular, pair_weight(len(images), terms, share=share)))
    return found


def whole_greedy(
    w: World, terms: Sequence[str], alpha: float, count: int, **options: Any
) -> tuple[list[int], list[float]]:
    picks = [greedy(v, t, m, weight=x, count=count, **options) for v, t, m, x in ours(w, terms, alpha)]
    ties = [w.members(k)[each.rows].astype(np.uint64) for k, each in enumerate(picks)]
    order = merge(picks, ties, count)
    rows = np.concatenate([w.members(k)[each.rows] for k, each in enumerate(picks)])[order]
    return rows.tolist(), np.concatenate([each.gains for each in picks])[order].tolist()


def test_a_class_of_two_pairs_worked_by_hand() -> None:
    v = np.array([[1.0, 0.0], [0.0, 1.0]])
    t = np.array([[1.0, 0.0], [0.6, 0.8]])
    # sim(0,0) = 2, sim(1,1) = 1.6, sim(0,1) = 1 * 0.6 + 0 * 1 = 0.6
    modular = modular_gains(
        v, t, terms=TERMS, label=np.array([0.0, 1.0]), alpha=0.5, others=(np.array([0.1, 0.0]), np.array([0.0, 0.2]))
    )
    # cov: (2 + 0.6) / 2 + 2 = 3.3 and (0.6 + 1.6) / 2 + 1.6 = 2.7; reg: 2.6 / 4 and 2.2 / 4
    # label: 0.5 * 0 * (1 - 1/2) and 0.5 * 0.8 * 0.5 = 0.2; inter: <v0, (0, .2)> + <t0, (.1, 0)> = 0.1; 0.2 + 0.06
    assert modular == pytest.approx([3.3 - 0.65 + 0 - 0.1, 2.7 - 0.55 + 0.2 - 0.26])
    found = greedy(v, t, modular, weight=0.5, count=2)
    # gain(0) = 2.55 - (0 + 1) / 2; then gain(1) = 2.09 - (0.6 + 0.8) / 2
    assert found.rows.tolist() == [0, 1]
    assert found.gains == pytest.approx([2.05, 1.39])
    assert objective(v, t, modular, weight=0.5, chosen=found.rows) == pytest.approx(3.44)
    with pytest.raises(ValueError, match="class name"):
        modular_gains(v, t, terms=("label",))


@pytest.mark.parametrize("terms", SUBSETS, ids="+".join)
@pytest.mark.parametrize("kind", ["clustered", "random"])
@pytest.mark.parametrize("share", [1, 0.2])  # 1: the paper's
def test_the_objective_is_its_definition(terms: tuple[str, ...], kind: str, share: float) -> None:
    w = world(40, 4, 1, kind)
    rng = np.random.default_rng(2)
    for size in (0, 1, 7, 40):
        chosen = rng.choice(40, size, replace=False)
        value = sum(
            objective(v, t, m, weight=x, chosen=np.flatnonzero(np.isin(w.members(k), chosen)))
            for k, (v, t, m, x) in enumerate(ours(w, terms, 0.6, share=share))
        )
        assert value == pytest.approx(by_definition(w, chosen.tolist(), terms, 0.6, share=share), abs=1e-9)


@pytest.mark.parametrize("terms", SUBSETS, ids="+".join)
@pytest.mark.parametrize(("kind", "candidates"), [("clustered", 4), ("random", 1), ("random", 3), ("random", 512)])
def test_greedy_takes_the_largest_marginal_gain_of_the_whole_pool_at_every_step(
    terms: tuple[str, ...], kind: str, candidates: int
) -> None:
    w = world(30, 3, 5, kind)
    rows, gains = whole_greedy(w, terms, 0.5, 30, candidates=candidates)
    chosen: list[int] = []
    for row, gain in zip(rows, gains, strict=True):
        before = by_definition(w, chosen, terms, 0.5)
        each = {e: by_definition(w, [*chosen, e], terms, 0.5) - before for e in range(30) if e not in chosen}
        assert gain == pytest.approx(each[row], abs=1e-9)
        assert gain == pytest.approx(max(each.values()), abs=1e-9)
        chosen.append(row)


def test_neither_the_number_of_candidates_nor_float32_change_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipcov, "_MOST_CANDIDATES", 64)
    asked = []
    inner = clipcov._best
    monkeypatch.setattr(clipcov, "_best", lambda values, m: asked.append(m) or inner(values, m))
    w = world(200, 1, 4, "random")
    level = np.zeros(200)  # gains near each other: a refresh serves one choice or two
    straight = greedy(w.v, w.t, level, weight=1.0, count=200, candidates=1000).rows.tolist()
    asked.clear()
    assert greedy(w.v, w.t, level, weight=1.0, count=200, candidates=32).rows.tolist() == straight
    assert max(asked) == 64  # grown once, and no further
    v, t = w.v.astype(np.float32), w.t.astype(np.float32)
    assert greedy(v, t, level, weight=1.0, count=200).rows.tolist() == straight


def test_smaller_budgets_and_floors_give_prefixes() -> None:
    v, t, m, x = ours(world(60, 1, 4), TERMS, 0.5)[0]
    whole = greedy(v, t, m, weight=x, count=60)
    for stop in (0, 20, 60):
        floor = np.inf if stop == 0 else float(whole.gains[stop - 1])
        assert greedy(v, t, m, weight=x, count=stop).rows.tolist() == whole.rows[:stop].tolist()
        assert greedy(v, t, m, weight=x, count=60, floor=floor).rows.tolist() == whole.rows[:stop].tolist()
    ranked = greedy(v, t, m, weight=0, count=9).rows  # without F_class
    assert ranked.tolist() == np.argsort(-m, kind="stable")[:9].tolist()


def test_copies_among_other_pairs_are_taken_in_their_order() -> None:
    """In float32 a product of a row depends on its place by rounding."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        w, pairs = world(25, 1, seed, d=64), rng.integers(0, 25, 103)
        v, t = (side[pairs].astype(np.float32) for side in (w.v, w.t))
        found = greedy(v, t, modular_gains(v, t, terms=("cov",)), weight=pair_weight(103, ("cov",)), count=50)
        for pair in range(25):
            taken = found.rows[pairs[found.rows] == pair].tolist()
            assert taken == np.flatnonzero(pairs == pair)[: len(taken)].tolist()


def test_equal_pairs_are_taken_in_their_order() -> None:
    v = np.repeat(world(4, 1, 3).v, 5, axis=0)
    t = np.repeat(world(4, 1, 3).t, 5, axis=0)
    modular = modular_gains(v, t, terms=("cov",))
    for candidates in (1, 2, 100):
        rows = greedy(v, t, modular, weight=pair_weight(20, ("cov",)), count=20, candidates=candidates).rows
        for first in range(0, 20, 5):
            mine = [int(row) for row in rows if first <= row < first + 5]
            assert mine == sorted(mine)


@given(st.integers(0, 10**6), st.sampled_from(["clustered", "random"]), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_double_greedy_never_lowers_the_objective(seed: int, kind: str, n: int) -> None:
    v, t, m, x = ours(world(n, 1, seed, kind), TERMS, 0.5)[0]
    m = m - np.quantile(m, 0.7)  # many gains below 0: something to drop
    chosen = greedy(v, t, m, weight=x * 5, count=n).rows
    stay = double_greedy(v, t, m, weight=x * 5, chosen=chosen)
    before = objective(v, t, m, weight=x * 5, chosen=chosen)
    assert objective(v, t, m, weight=x * 5, chosen=chosen[stay]) >= before - 1e-9


def test_double_greedy_follows_algorithm_1() -> None:
    v, t, m, x = ours(world(30, 1, 6), TERMS, 0.5)[0]
    m = m - np.quantile(m, 0.2) + 0.5
    chosen = greedy(v, t, m, weight=3 * x, count=30).rows

    def value(rows: list[int]) -> float:
        return objective(v, t, m, weight=3 * x, chosen=np.array(rows, np.int64))

    one: list[int] = []
    two = chosen.tolist()
    for e in chosen.tolist():
        without = [row for row in two if row != e]
        if value([*one, e]) - value(one) >= value(without) - value(two):
            one.append(e)
        else:
            two = without
    stay = double_greedy(v, t, m, weight=3 * x, chosen=chosen)
    assert 0 < len(one) < 30
    assert chosen[stay].tolist() == one


def test_choices_are_merged_by_gain_and_keep_their_order_where_gains_rise_and_tie() -> None:
    picks = [Picks(np.arange(3), np.array([3.0, 1.0, 2.0])), Picks(np.arange(2), np.array([3.0, 2.0]))]
    ties = [np.array([7, 1, 2], np.uint64), np.array([5, 3], np.uint64)]
    assert merge(picks, ties, 9).tolist() == [3, 0, 4, 1, 2]
    assert merge(picks, ties, 2).tolist() == [3, 0]


def test_covariance_and_centres_are_their_definitions() -> None:
    w = world(50, 2, 1)
    mean_v, mean_t = w.v.mean(0), w.t.mean(0)
    slow = sum(np.outer(v - mean_v, t - mean_t) for v, t in zip(w.v, w.t, strict=True)) / 50
    assert covariance(w.v.T @ w.t, w.v.sum(0), w.t.sum(0), 50) == pytest.approx(slow)
    assert not covariance(np.zeros((8, 8)), np.zeros(8), np.zeros(8), 0).any()
    assert covariance_error(slow, slow) == 0
    assert covariance_error(slow, np.zeros_like(slow)) == 1
    assert covariance_error(np.zeros((2, 2)), np.ones((2, 2))) == 0
    # Up to scale: the part of C_V that no multiple of C_S has, by Pythagoras; a multiple itself has none.
    other = covariance(w.v[:9].T @ w.t[:9], w.v[:9].sum(0), w.t[:9].sum(0), 9)
    cosine = np.sum(slow * other) / np.linalg.norm(slow) / np.linalg.norm(other)
    assert covariance_error(slow, other, up_to_scale=True) == pytest.approx(np.sqrt(1 - cosine**2))
    assert covariance_error(slow, 7 * slow, up_to_scale=True) == pytest.approx(0, abs=1e-12)
    assert covariance_error(slow, -slow, up_to_scale=True) == 1
    assert covariance_error(slow, np.zeros_like(slow), up_to_scale=True) == 1
    whole, part = (np.array([1.0, 0.0]), np.array([0.0, 1.0])), (np.array([1.0, 0.3]), np.array([0.4, 1.0]))
    assert centre_error(whole, part) == pytest.approx(0.3 + 0.4)
