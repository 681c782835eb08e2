"""Covariance herding beside its definition, with every pair's matrix written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.math import herding
from tamis.math.herding import along, herd, turns

Array = np.ndarray[Any, Any]
Guesses = tuple[tuple[int, int], ...]


def rows(n: int, d: int, seed: int, dtype: Any = np.float64) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(4, d))[rng.integers(0, 4, n)]
    sides = (middle + rng.normal(size=(n, d)) for _ in range(2))
    images, texts = ((side - side.mean(0)).astype(dtype) for side in sides)
    return images, texts


def by_definition(images: Array, texts: Array, covariance: Array, count: int) -> tuple[list[int], list[float]]:
    """Each pair's (d, d) matrix, and at every choice the norm for every pair that is left."""
    matrices = [np.outer(v, t) for v, t in zip(images, texts, strict=True)]
    chosen: list[int] = []
    norms = []
    for _ in range(min(count, len(images))):
        best, least = -1, np.inf
        for e in range(len(images)):
            if e not in chosen:
                norm = float(np.linalg.norm(covariance - np.mean([matrices[s] for s in (*chosen, e)], axis=0)))
                best, least = (e, norm) if norm < least else (best, least)
        chosen.append(best)
        norms.append(least)
    return chosen, norms


def test_three_pairs_worked_by_hand() -> None:
    images = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    texts = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.5]])
    covariance = np.diag([0.5, 0.4])
    aim = along(images, texts, covariance)
    assert aim == pytest.approx([0.5, 0.4, 0.2])  # <C, v t'>
    found = herd(images, texts, aim, count=3)
    # Criteria at first: 0.5 - 1/2, 0.4 - 1/2, 0.2 - 0.25/2 = 0, -0.1, 0.075: the third pair, of which C - v t' has the
    # norm sqrt(0.25 + 0.01). Then 0.5 - (0 + 1/2) / 2 = 0.25 and 0.4 - (0.5 + 1/2) / 2 = -0.1: the first.
    assert found.rows.tolist() == [2, 0, 1]
    assert found.gains == pytest.approx([0.075, 0.25, 0.4 - (0.5 + 0.0 + 0.5) / 3])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 24), st.integers(1, 5), st.integers(0, 10_000), st.sampled_from([((4, 3),), ((9, 5), (3, 2)), ()])
)
def test_every_choice_brings_the_covariance_nearest(n: int, d: int, seed: int, guesses: Guesses) -> None:
    images, texts = rows(n, d, seed)
    covariance = images.T @ texts / n
    half = np.arange(0, n, 2)  # some pairs can be chosen, all count
    images, texts = images[half], texts[half]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(herding, "_GUESSES", guesses)
        patch.setattr(herding, "_WHOLE", 0)
        found = herd(images, texts, along(images, texts, covariance), count=9)
    expected, norms = by_definition(images, texts, covariance, 9)
    reached = [
        float(np.linalg.norm(covariance - images[found.rows[: m + 1]].T @ texts[found.rows[: m + 1]] / (m + 1)))
        for m in range(len(found.rows))
    ]
    assert reached == pytest.approx(norms, abs=1e-9)
    assert len(set(found.rows.tolist())) == len(expected)


def test_the_choice_is_that_of_the_definition() -> None:
    for seed in range(12):
        images, texts = rows(60, 6, seed)
        covariance = images.T @ texts / 60
        found = herd(images, texts, along(images, texts, covariance), count=25)
        assert found.rows.tolist() == by_definition(images, texts, covariance, 25)[0]


def test_how_many_rows_of_the_kernel_are_guessed_or_kept_changes_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts = rows(500, 8, 3)
    aim = along(images, texts, images.T @ texts / 500)
    straight = herd(images, texts, aim, count=200)
    for guesses in ((1, 1),), ((40, 31),), ((499, 3), (100, 7), (20, 2)), ():
        monkeypatch.setattr(herding, "_GUESSES", guesses)
        assert herd(images, texts, aim, count=200).rows.tolist() == straight.rows.tolist()
    monkeypatch.setattr(herding, "_GUESSES", ((400, 30),))
    monkeypatch.setattr(herding, "_KEPT_BYTES", 0)  # guesses that do not come true at once are forgotten
    assert herd(images, texts, aim, count=200).rows.tolist() == straight.rows.tolist()


def test_few_pairs_have_their_whole_kernel_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts = rows(300, 20, 4)  # 16 x 20 are more
    aim = along(images, texts, images.T @ texts / 300)
    whole = herd(images, texts, aim, count=300).rows.tolist()
    monkeypatch.setattr(herding, "_WHOLE", 0)
    assert herd(images, texts, aim, count=300).rows.tolist() == whole


def test_fewer_choices_are_a_beginning_to_the_last_bit() -> None:
    images, texts = rows(300, 8, 5, np.float32)
    aim = along(images, texts, images.T @ texts / 300)
    whole = herd(images, texts, aim, count=300)
    assert sorted(whole.rows.tolist()) == list(range(300))
    for count in (0, 1, 77, 1000):
        fewer = herd(images, texts, aim, count=count)
        assert fewer.rows.tolist() == whole.rows[:count].tolist()
        assert fewer.gains.tolist() == whole.gains[:count].tolist()


def test_no_pairs_and_equal_pairs() -> None:
    none = np.empty((0, 4))
    assert herd(none, none, np.empty(0), count=3).rows.tolist() == []
    same = np.ones((5, 4))
    assert herd(same, same, along(same, same, np.eye(4)), count=3).rows.tolist() == [0, 1, 2]


def slow_turns(sizes: list[int], most: list[int], count: int) -> list[int]:
    chosen = [0] * len(sizes)
    found = []
    while len(found) < count and any(a < b for a, b in zip(chosen, most, strict=True)):
        quotients = [
            (size / (2 * done + 1) if done < limit else -1.0)
            for size, done, limit in zip(sizes, chosen, most, strict=True)
        ]
        k = quotients.index(max(quotients))
        chosen[k] += 1
        found.append(k)
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=8), st.integers(0, 150))
def test_turns_are_those_of_the_largest_quotient(classes: list[tuple[int, int]], count: int) -> None:
    sizes, most = [size for size, _ in classes], [min(size, limit) for size, limit in classes]
    expected = slow_turns(sizes, most, count)
    assert turns(np.array(sizes), np.array(most), count).tolist() == expected


def test_turns_are_in_proportion() -> None:
    found = turns(np.array([600, 300, 100]), np.array([600, 300, 100]), 100)
    assert np.bincount(found).tolist() == [60, 30, 10]
    assert found[:5].tolist() == [0, 1, 0, 0, 1]  # 600, 300, 600 / 3, 600 / 5, then 300 / 3 before 100 of the third
