"""Nucleus sampling: by hand, against sorting, by its frequencies, and its ties against transformers."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tamis.models import nucleus
from tamis.models.nucleus import draw

ROW = np.array([0])


def numbers(some: NDArray[np.int64], attempt: int) -> NDArray[np.float64]:
    """Random numbers that depend on draw and attempt alone."""
    return np.array([np.random.default_rng((int(n), attempt)).random() for n in some])


def fixed(*values: float) -> nucleus.RandomNumbers:
    """The same number for every draw of an attempt."""
    return lambda some, attempt: np.full(len(some), values[attempt])


def logits_of(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def many(logits: torch.Tensor, seed: int = 0, count: int = 6000, **settings: Any) -> Counter[int]:
    rng = np.random.default_rng(seed)
    return Counter(draw(logits, np.zeros(count, int), lambda some, _: rng.random(len(some)), **settings).tolist())


def nucleus_of(probabilities: NDArray[np.float64], top_p: float) -> dict[int, float]:
    """The slow obvious way: sort, take tokens until they have p, rescale."""
    kept: dict[int, float] = {}
    for token in np.argsort(-probabilities):
        if sum(kept.values()) >= top_p:
            break
        kept[int(token)] = float(probabilities[token])
    return {token: probability / sum(kept.values()) for token, probability in kept.items()}


# Cumulative in the vocabulary's order: 0.5, 0.55, 0.85, 1.0; the nucleus at 0.9 is {0, 2, 3}: 0.5 + 0.3 + 0.15.
FOUR = (0.5, 0.05, 0.3, 0.15)


@pytest.mark.parametrize(
    ("probabilities", "uniforms", "top_p", "token"),
    [
        (FOUR, [0.4], 0.9, 0),
        (FOUR, [0.6], 0.9, 2),
        (FOUR, [0.9], 0.9, 3),
        (FOUR, [0.52, 0.86], 0.9, 3),  # token 1 is outside: the likelier ones have 0.95 already; the second counts
        (FOUR, [0.6, 0.99, 0.2], 0.5, 0),  # the first token is a nucleus alone
        ((0.2, 0.5, 0.3), [], 0, 1),  # the likeliest
        ((0.0, 1.0), [0.0], 0.9, 1),  # logit -inf: forbidden
        # Ten tokens of a tenth: the five with the highest ids have 0.5, which is the first sum from 0.45.
        ((0.1,) * 10, [0.51], 0.45, 5),
        ((0.1,) * 10, [0.49, 0.99], 0.45, 9),  # token 4 is outside
        # One token of 1.6 thousandths leads; every attempt misses it, so the draw is sorted.
        ((0.5, *[0.3] * 999), [0.1] * 30, 0.001, 0),
    ],
)
def test_a_draw_by_hand(probabilities: tuple[float, ...], uniforms: list[float], top_p: float, token: int) -> None:
    assert draw(logits_of(*probabilities), ROW, fixed(*uniforms), top_p=top_p).tolist() == [token]


@pytest.mark.parametrize(("top_p", "spread"), [(0.05, 3.0), (0.9, 0.3), (1.0, 3.0)])
def test_frequencies_are_those_of_the_sorted_way(top_p: float, spread: float) -> None:
    # 300 tokens: more than two blocks of the search.
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, spread, (1, 300))).float()
    wanted = nucleus_of(logits.double().softmax(-1).numpy()[0], top_p)
    count = 6000
    drawn = many(logits, seed=2, count=count, top_p=top_p)
    assert set(drawn) <= set(wanted)
    often = [token for token in wanted if count * wanted[token] >= 5]
    expected = np.array([count * wanted[token] for token in often] + [1e-9])
    seen = np.array([drawn[token] for token in often] + [0])
    # Rarer tokens count as one, whose expectation is the rest.
    expected[-1] += count - expected.sum()
    seen[-1] = count - seen.sum()
    chi_square = float(((seen - expected) ** 2 / np.maximum(expected, 1e-9))[expected > 1e-6].sum())
    assert chi_square <= len(often) + 5 * (2 * len(often)) ** 0.5 + 1e-9


def test_top_k_first_then_the_nucleus_of_the_k() -> None:
    # Of the three, 4/9 + 3/9 pass one half: the nucleus is {0, 1}, 4 to 3.
    drawn = many(logits_of(0.4, 0.3, 0.2, 0.1), seed=3, top_p=0.5, top_k=3)
    assert set(drawn) == {0, 1}
    assert drawn[0] / 6000 == pytest.approx(4 / 7, abs=0.03)


def test_a_draw_depends_on_its_row_and_its_numbers_alone() -> None:
    logits = torch.from_numpy(np.random.default_rng(4).normal(0, 2, (70, 200))).float()  # more rows than at a time
    rows = np.array([0, 0, 3, 65, 65, 1])
    together = draw(logits, rows, numbers, top_p=0.7)
    for n, row in enumerate(rows):
        alone = draw(logits[row : row + 1], ROW, lambda _, k, n=n: numbers(np.array([n]), k), top_p=0.7)
        assert alone[0] == together[n]


@pytest.mark.parametrize("attempts", [24, 0])  # 0: every draw is sorted
@pytest.mark.parametrize("top_p", [0.05, 0.45, 0.95])
@pytest.mark.parametrize("kind", ["uniform", "two levels", "bf16"])
def test_a_nucleus_that_ends_among_ties_is_as_large_as_that_of_transformers(
    kind: str, top_p: float, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.generation.logits_process import TopPLogitsWarper

    monkeypatch.setattr(nucleus, "_ATTEMPTS", attempts)
    logits = {
        "uniform": torch.zeros(1, 10),
        "two levels": torch.tensor([[2.0, 0.0] * 70]),  # more than one block of the search
        "bf16": torch.from_numpy(np.random.default_rng(5).normal(6, 0.3, (1, 140))).bfloat16().float(),
    }[kind]
    kept = set(many(logits, seed=6, top_p=top_p))
    theirs = TopPLogitsWarper(top_p)(torch.zeros(1, 1, dtype=torch.long), logits)[0]
    assert sorted(logits[0, list(kept)]) == sorted(theirs[theirs > -torch.inf])
    # Which of the equal ones stay depends on an unstable sort there; here it is those with higher ids.
    equal = torch.nonzero(logits[0] == logits[0, list(kept)].min())[:, 0].tolist()
    assert sorted(kept & set(equal)) == equal[len(equal) - len(kept & set(equal)) :]


def test_masses_above_a_token_are_the_same_one_by_one_and_together() -> None:
    logits = torch.from_numpy(np.random.default_rng(7).normal(0, 1, (3, 300))).bfloat16().float()  # many equal ones
    masses, row, token = nucleus._Masses(logits), torch.tensor([2, 0, 2, 1]), torch.tensor([0, 299, 150, 7])
    together = masses.above_together(row, token)
    np.testing.assert_allclose(masses.above_one_by_one(row, token), together, atol=1e-7)
    before = [(p, t) > (masses.masses[2, 150], 150) for t, p in enumerate(masses.masses[2])]
    assert float(masses.masses[2][torch.tensor(before)].double().sum()) == pytest.approx(float(together[2]), abs=1e-7)
