"""BERTScore by hand, against its definition in loops, and its symmetries."""

from __future__ import annotations

import numpy as np
import pytest

from tamis.math.bertscore import bertscore


def slow(candidate: np.ndarray, reference: np.ndarray, counts: list[bool], others: list[bool]) -> list[float]:
    """The published definition, one pair of tokens at a time."""

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    p = [max(cosine(a, b) for b in reference) for a, counted in zip(candidate, counts, strict=True) if counted]
    r = [max(cosine(a, b) for a in candidate) for b, counted in zip(reference, others, strict=True) if counted]
    precision, recall = sum(p) / len(p), sum(r) / len(r)
    return [precision, recall, 2 * precision * recall / (precision + recall)]


def test_two_tokens_against_one_by_hand() -> None:
    # cosines 1 and 0.6: precision is their mean, recall the better one
    found = bertscore(np.array([[2.0, 0.0], [0.6, 0.8]]), np.array([[1.0, 0.0]]))
    assert found.precision == pytest.approx(0.8)
    assert found.recall == pytest.approx(1.0)
    assert found.f1 == pytest.approx(2 * 0.8 / 1.8)


def test_it_is_the_definition_with_and_without_special_tokens() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.normal(0.4, 1, (rng.integers(2, 9), 5)), rng.normal(0.4, 1, (rng.integers(2, 9), 5))
        counts = [False, *[True] * (len(one) - 1)]
        others = [True] * (len(other) - 1) + [False]
        found = bertscore(one, other, np.array(counts), np.array(others))
        assert [found.precision, found.recall, found.f1] == pytest.approx(slow(one, other, counts, others), abs=1e-6)


def test_a_candidate_of_special_tokens_only_has_0_and_beside_such_a_reference_nothing_has_a_score() -> None:
    nothing, ones = np.array([False, False]), np.ones((2, 3))
    found = bertscore(ones, ones, nothing)
    assert (found.precision, found.recall, found.f1) == (0, 0, 0)
    for counts in (None, nothing):
        found = bertscore(ones, ones, counts, nothing)
        assert np.isnan([found.precision, found.recall, found.f1]).all()
