"""BERTScore, the longest shared runs and c-TF-IDF: by hand, and against their definitions in loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.core.math.texts import bertscore, c_tf_idf, longest_shared_run, longest_words_across, trigram_diversity


def slow_bertscore(candidate: np.ndarray, reference: np.ndarray, counts: list[bool], others: list[bool]) -> list[float]:
    """The published definition, one pair of tokens at a time."""

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    p = [max(cosine(a, b) for b in reference) for a, counted in zip(candidate, counts, strict=True) if counted]
    r = [max(cosine(a, b) for a in candidate) for b, counted in zip(reference, others, strict=True) if counted]
    precision, recall = sum(p) / len(p), sum(r) / len(r)
    return [precision, recall, 2 * precision * recall / (precision + recall)]


def test_it_is_the_definition_with_and_without_special_tokens() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.normal(0.4, 1, (rng.integers(2, 9), 5)), rng.normal(0.4, 1, (rng.integers(2, 9), 5))
        counts = [False, *[True] * (len(one) - 1)]
        others = [True] * (len(other) - 1) + [False]
        found = bertscore(one, other, np.array(counts), np.array(others))
        assert list(found) == pytest.approx(slow_bertscore(one, other, counts, others), abs=1e-6)


def test_a_candidate_of_special_tokens_only_has_0_and_beside_such_a_reference_nothing_has_a_score() -> None:
    nothing, ones = np.array([False, False]), np.ones((2, 3))
    assert bertscore(ones, ones, nothing) == (0, 0, 0)
    for counts in (None, nothing):
        assert np.isnan(bertscore(ones, ones, counts, nothing)).all()


def slow(one: str, other: str) -> int:
    """The classic table: how long a shared run ends at each pair of places."""
    best = 0
    for i in range(len(one)):
        for j in range(len(other)):
            length = 0
            while i + length < len(one) and j + length < len(other) and one[i + length] == other[j + length]:
                length += 1
            best = max(best, length)
    return best


@given(st.text("ab ", max_size=14), st.text("ab c", max_size=14))
def test_it_is_the_longest_of_all(one: str, other: str) -> None:
    assert longest_shared_run(one, other) == slow(one, other)


def slow_across(words: list[str], lines: list[str]) -> int:
    """Every run of words at every place of the text, if it crosses an end and no word does."""
    text, ends = "".join(lines), {sum(map(len, lines[:k])) for k in range(1, len(lines))}
    best = 0
    for first in range(len(words)):
        for last in range(first + 2, len(words) + 1):
            run = "".join(words[first:last])
            gaps = {sum(map(len, words[first:k])) for k in range(first + 1, last)}
            for start in range(len(text) - len(run) + 1):
                crossed = {end - start for end in ends if start < end < start + len(run)}
                if text[start : start + len(run)] == run and crossed and crossed <= gaps:
                    best = max(best, len(run))
    return best


@pytest.mark.parametrize(
    ("words", "lines", "length"),
    [
        (["a", "big", "sale"], ["nowbig", "saleof"], 7),  # other text does not matter
        (["a", "bigsale"], ["big", "sale"], 0),  # a word that a line break cuts does not count
        (["says", "mark"], ["presents", "mark"], 0),  # a word's last letter is not a word
        (["i", "love", "ny"], ["i", "lo", "veny"], 0),
        (["a"], [], 0),
        ([], ["a", "b"], 0),
    ],
)
def test_words_across_lines_by_hand(words: list[str], lines: list[str], length: int) -> None:
    assert longest_words_across(words, lines) == length


@given(*[st.lists(st.text("ab", min_size=1, max_size=3), max_size=5)] * 2)
def test_the_run_of_words_across_lines_is_the_longest_of_all(words: list[str], lines: list[str]) -> None:
    assert longest_words_across(words, lines) == slow_across(words, lines)


def test_c_tf_idf_by_hand_and_by_a_slow_reference() -> None:
    # Two classes with 4 and 2 words: A = 3. "dog" occurs 3 times, all in the first class; "red" once in each.
    counts = np.array([[3, 1, 0], [0, 1, 1]])
    weights = c_tf_idf(counts)
    assert weights[0].tolist() == pytest.approx([3 * math.log(1 + 3 / 3), math.log(1 + 3 / 2), 0])
    assert weights[1].tolist() == pytest.approx([0, math.log(1 + 3 / 2), math.log(1 + 3 / 1)])
    counts = np.random.default_rng(0).integers(0, 5, (4, 7))
    counts[:, 6] = 0  # a term that no class has
    for (number, term), weight in np.ndenumerate(c_tf_idf(counts)):
        everywhere = sum(int(row[term]) for row in counts)
        expected = counts[number, term] * math.log(1 + counts.sum() / 4 / everywhere) if everywhere else 0
        assert weight == pytest.approx(expected)
    assert c_tf_idf(np.zeros((0, 3), int)).shape == (0, 3)


def test_trigram_diversity_by_hand() -> None:
    # a-red-boat twice (case is ignored), red-boat-sails once: 2 distinct of 3. Texts of two words have none.
    assert trigram_diversity(["A red boat", "a red  boat sails", "red boat"]) == pytest.approx(2 / 3)
    assert np.isnan(trigram_diversity(["red boat", ""]))
