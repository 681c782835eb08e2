from __future__ import annotations

import pytest

from tamis.reporting import formats


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "–"),
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 3, "33.3 %"),
        (1, 1_000_000, "<0.1 %"),
        (999_999, 1_000_000, ">99.9 %"),
    ],
)
def test_a_share_never_says_none_of_some_nor_all_of_most(part: int, whole: int, text: str) -> None:
    assert formats.share(part, whole) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.281234, "0.2812"),
        (3.0, "3"),
        (1234567.0, "1,234,567"),
        (1234.5, "1,234"),
        (-0.5, "−0.5"),
        (float("nan"), "–"),
        (float("inf"), "∞"),
        (1e-9, "1e−09"),
        (3e38, "3e+38"),
    ],
)
def test_numbers_are_short_and_have_thousands(value: float, text: str) -> None:
    assert formats.number(value) == text


def test_sizes_counts_and_times() -> None:
    assert [formats.size(value) for value in (0, 999, 7250, 33_100_000, 5e12)] == [
        "0 B", "999 B", "7.25 kB", "33.1 MB", "5e+03 GB",
    ]  # fmt: skip
    assert formats.plural(1, "pair") == "1 pair"
    assert formats.plural(2000, "pair") == "2,000 pairs"
    assert formats.when(0) == "1970-01-01 00:00 UTC"
