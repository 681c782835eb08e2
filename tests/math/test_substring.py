"""The longest shared run: by hand, and against every run tried in turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.math.substring import longest_run_across, longest_shared_run


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


@pytest.mark.parametrize(
    ("one", "other", "length"),
    [("", "", 0), ("a", "", 0), ("abc", "xabcy", 3), ("abcd", "abxcd", 2), ("sale", "wholesale", 4), ("x", "y", 0)],
)
def test_by_hand(one: str, other: str, length: int) -> None:
    assert longest_shared_run(one, other) == longest_shared_run(other, one) == length


@given(st.text("ab ", max_size=14), st.text("ab c", max_size=14))
def test_it_is_the_longest_of_all(one: str, other: str) -> None:
    assert longest_shared_run(one, other) == slow(one, other)


def slow_across(one: str, gaps: set[int], other: str, breaks: set[int]) -> int:
    """Every pair of equal runs that crosses a break, if each break within it meets a gap."""
    best = 0
    for length in range(2, min(len(one), len(other)) + 1):
        for i in range(len(one) - length + 1):
            for j in range(len(other) - length + 1):
                inside = [at - j for at in breaks if j < at < j + length]
                met = inside and all(i + place in gaps for place in inside)
                if met and one[i : i + length] == other[j : j + length]:
                    best = length
    return best


@pytest.mark.parametrize(
    ("gaps", "breaks", "length"),
    [
        ({3}, {3}, 7),  # BIG | SALE, a big sale
        ({2}, {3}, 0),  # the caption has its gap elsewhere
        (set(), {3}, 0),  # the caption has one word there
        ({3}, {3, 5}, 5),  # and ends where the caption has no second gap
        ({3, 5}, {3, 5}, 7),
    ],
)
def test_runs_across_breaks_by_hand(gaps: set[int], breaks: set[int], length: int) -> None:
    assert longest_run_across("bigsale", gaps, "bigsale", breaks) == length


@given(st.text("ab", max_size=9), st.text("ab", max_size=9), st.data())
def test_the_run_across_breaks_is_the_longest_of_all(one: str, other: str, data: st.DataObject) -> None:
    gaps = data.draw(st.sets(st.integers(1, max(1, len(one) - 1)))) if len(one) > 1 else set()
    breaks = data.draw(st.sets(st.integers(1, max(1, len(other) - 1)))) if len(other) > 1 else set()
    assert longest_run_across(one, gaps, other, breaks) == slow_across(one, gaps, other, breaks)
