"""Nucleus sampling: by hand, against sorting, and by its frequencies."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from tamis.models.captioners import nucleus  # noqa: E402
from tamis.models.captioners.nucleus import draw  # noqa: E402


def numbers(seed: int = 0) -> nucleus.Uniforms:
    """Random numbers that depend on draw and attempt alone."""
    return lambda some, attempt: np.array([np.random.default_rng((seed, int(n), attempt)).random() for n in some])


def fixed(*values: float) -> nucleus.Uniforms:
    """The same number for every draw of an attempt."""
    return lambda some, attempt: np.full(len(some), values[attempt])


def scores(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def nucleus_of(probabilities: NDArray[np.float64], top_p: float) -> dict[int, float]:
    """The slow obvious way: sort, take tokens until they have p, make them add up to 1."""
    kept: dict[int, float] = {}
    for token in np.argsort(-probabilities):
        if sum(kept.values()) >= top_p:
            break
        kept[int(token)] = float(probabilities[token])
    return {token: probability / sum(kept.values()) for token, probability in kept.items()}


def test_a_draw_by_hand() -> None:
    # Cumulative in the vocabulary's order: 0.5, 0.55, 0.85, 1.0; the nucleus at 0.9 is {0, 2, 3}: 0.5 + 0.3 + 0.15.
    row = np.array([0])
    given = scores(0.5, 0.05, 0.3, 0.15)
    assert draw(given, row, fixed(0.4), top_p=0.9).tolist() == [0]
    assert draw(given, row, fixed(0.6), top_p=0.9).tolist() == [2]
    assert draw(given, row, fixed(0.9), top_p=0.9).tolist() == [3]
    # Token 1 lies outside: the likelier ones have 0.95 already. The second number counts.
    assert draw(given, row, fixed(0.52, 0.86), top_p=0.9).tolist() == [3]
    # At 0.5 the first token is a nucleus alone.
    assert draw(given, row, fixed(0.6, 0.99, 0.2), top_p=0.5).tolist() == [0]


def test_a_nucleus_of_nothing_takes_the_likeliest() -> None:
    assert draw(scores(0.2, 0.5, 0.3), np.array([0, 0]), fixed(0.99), top_p=0).tolist() == [1, 1]


def test_what_may_not_come_never_comes() -> None:
    given = scores(0.5, 0.5)
    given[0, 0] = -torch.inf
    assert draw(given, np.array([0]), fixed(0.0), top_p=0.9).tolist() == [1]


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_frequencies_are_those_of_the_sorted_way(top_p: float, spread: float) -> None:
    # 300 tokens: more than two blocks of the search.
    given = torch.from_numpy(np.random.default_rng(1).normal(0, spread, (1, 300))).float()
    wanted = nucleus_of(given.double().softmax(-1).numpy()[0], top_p)
    count = 6_000
    rng = np.random.default_rng(2)
    found = Counter(draw(given, np.zeros(count, int), lambda some, _: rng.random(len(some)), top_p=top_p).tolist())
    assert set(found) <= set(wanted)
    often = [token for token in wanted if count * wanted[token] >= 5]
    expected = np.array([count * wanted[token] for token in often] + [1e-9])
    seen = np.array([found[token] for token in often] + [0])
    # What is rarer counts as one, whose expectation is what remains.
    expected[-1] += count - expected.sum()
    seen[-1] = count - seen.sum()
    chi_square = float(((seen - expected) ** 2 / np.maximum(expected, 1e-9))[expected > 1e-6].sum())
    freedom = len(often)
    assert chi_square <= freedom + 5 * (2 * freedom) ** 0.5 + 1e-9


def test_the_k_likeliest_first_then_the_nucleus_among_them() -> None:
    given = scores(0.4, 0.3, 0.2, 0.1)
    rng = np.random.default_rng(3)
    found = Counter(
        draw(given, np.zeros(8000, int), lambda some, _: rng.random(len(some)), top_p=0.5, top_k=3).tolist()
    )
    # Of the three, 4/9 + 3/9 pass one half: the nucleus is {0, 1}, 4 to 3.
    assert set(found) == {0, 1}
    assert found[0] / 8000 == pytest.approx(4 / 7, abs=0.03)


def test_a_draw_depends_on_its_row_and_its_numbers_alone() -> None:
    given = torch.from_numpy(np.random.default_rng(4).normal(0, 2, (6, 200))).float()
    rows = np.array([0, 0, 3, 5, 5, 1])
    together = draw(given, rows, numbers(), top_p=0.7)
    for n, row in enumerate(rows):
        alone = draw(given[row : row + 1], np.array([0]), lambda _, k, n=n: numbers()(np.array([n]), k), top_p=0.7)
        assert alone[0] == together[n]


def test_a_draw_that_misses_for_ever_is_sorted_at_last() -> None:
    # One token of a hundredth of the mass leads; a nucleus of 0.001 is that token alone.
    given = torch.zeros(1, 1000)
    given[0, 700] = 0.5
    assert draw(given, np.array([0]), fixed(*[0.1] * 30), top_p=0.001).tolist() == [700]


def kept_by_transformers(logits: torch.Tensor, top_p: float) -> set[int]:
    from transformers.generation.logits_process import TopPLogitsWarper

    left = TopPLogitsWarper(top_p)(torch.zeros(1, 1, dtype=torch.long), logits)
    return set(torch.nonzero(left[0] > -torch.inf)[:, 0].tolist())


@pytest.mark.parametrize("patience", [24, 0])  # 0: every draw is sorted
@pytest.mark.parametrize("top_p", [0.05, 0.45, 0.73, 0.95])
@pytest.mark.parametrize("kind", ["uniform", "two levels", "bf16"])
def test_of_ties_at_the_end_of_the_nucleus_as_many_stay_as_in_transformers(
    kind: str, top_p: float, patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nucleus, "_PATIENCE", patience)
    logits = {
        "uniform": torch.zeros(1, 10),
        "two levels": torch.tensor([[2.0, 0.0] * 70]),  # more than one block of the search
        "bf16": torch.from_numpy(np.random.default_rng(5).normal(6, 0.3, (1, 140))).bfloat16().float(),
    }[kind]
    rng = np.random.default_rng(6)
    count = 6000
    found = draw(logits, np.zeros(count, int), lambda some, _: rng.random(len(some)), top_p=top_p)
    kept = set(found.tolist())
    # Which of equals stay is up to an unstable sort there; here those with higher ids.
    assert sorted(logits[0, list(kept)]) == sorted(logits[0, list(kept_by_transformers(logits, top_p))])
    last = logits[0, list(kept)].min()
    equals = torch.nonzero(logits[0] == last)[:, 0].tolist()
    assert sorted(kept & set(equals)) == equals[len(equals) - len(kept & set(equals)) :]


def test_a_nucleus_of_equals_by_hand() -> None:
    # Ten tokens of a tenth: the five with the highest ids have 0.5, which is the first sum from 0.45.
    row = np.array([0])
    given = torch.zeros(1, 10)
    assert draw(given, row, fixed(0.51), top_p=0.45).tolist() == [5]
    assert draw(given, row, fixed(0.49, 0.99), top_p=0.45).tolist() == [9]  # token 4 lies outside


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 8.0])
def test_what_is_likelier_is_summed_exactly_where_it_decides(spread: float) -> None:
    given = torch.from_numpy(np.random.default_rng(7).normal(0, spread, (5, 700))).bfloat16().float()
    of_rows = nucleus._Masses(given)
    plain = of_rows.masses.double().numpy()
    tokens = np.random.default_rng(8).integers(0, 700, (5, 40))
    for row, top_p in itertools.product(range(5), (0.1, 0.5, 0.9, 1.0)):
        own = plain[row, tokens[row]]
        order = np.arange(plain.shape[1])
        before = [
            plain[row][(plain[row] > mass) | ((plain[row] == mass) & (order > token))].sum()
            for token, mass in zip(tokens[row], own, strict=True)
        ]
        limit = np.full(40, top_p * plain[row].sum())
        of = torch.full((40,), row)
        found = of_rows.above(of, torch.from_numpy(tokens[row]), torch.from_numpy(limit)).numpy()
        exact = np.array(before)
        assert ((found < limit) == (exact < limit))[abs(exact - limit) > 1e-6].all()
