"""Edit similarity: by hand, and against the usual table of distances."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.signals.sba import edit_similarity

texts = st.text(alphabet="abcß日é ", max_size=70)


def slow(one: str, other: str) -> int:
    """The whole table, one cell at a time."""
    above = list(range(len(other) + 1))
    for row, character in enumerate(one, 1):
        line = [row]
        for column, sign in enumerate(other, 1):
            line.append(min(above[column] + 1, line[-1] + 1, above[column - 1] + (character != sign)))
        above = line
    return above[-1]


def test_the_similarity_by_hand() -> None:
    # three of seven characters change
    assert edit_similarity("kitten", "sitting") == pytest.approx(4 / 7)
    assert edit_similarity("ab", "ba") == 0
    assert edit_similarity("abc", "") == 0
    assert edit_similarity("", "") == 1
    assert edit_similarity("abc", "abc") == 1


@settings(max_examples=300)
@given(texts, texts)
def test_the_distance_is_that_of_the_whole_table(one: str, other: str) -> None:
    expected = 1.0 - slow(one, other) / max(len(one), len(other), 1)
    assert edit_similarity(one, other) == edit_similarity(other, one) == expected


def test_texts_longer_than_a_machine_word_are_no_special_case() -> None:
    one, other = "abcde" * 60, "abxde" * 55 + "tail"
    assert edit_similarity(one, other) == 1.0 - slow(one, other) / 300
