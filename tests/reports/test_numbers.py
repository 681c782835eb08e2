"""The page's numbers and names by hand: formats, histograms, counts of words; what subsets and reasons are called."""

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.recipes.recipe import load
from tamis.reports import distributions, formats
from tamis.reports.distributions import BARS, QUANTILES, Histogram, histograms, tallies
from tamis.reports.formats import colours, in_words, names_of
from tamis.runs import Run
from tamis.runs.subset import Subset
from tamis.runs.table import MemoryTable


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (formats.share(1, 3), "33.3 %"),
        (formats.share(1, 1_000_000), "<0.1 %"),
        (formats.share(999_999, 1_000_000), ">99.9 %"),
        (formats.share(1_999, 2_000), ">99.9 %"),
        (formats.number(0.281234), "0.2812"),
        (formats.number(1234567.0), "1,234,567"),
        (formats.fixed(-0.5, "+.3f"), "−0.500"),
    ],
)
def test_numbers_are_short_and_never_say_none_of_some_nor_all_of_most(written: str, text: str) -> None:
    assert written == text


def one(values: Any, keep: list[bool] | None = None, cuts: tuple[float, ...] = (), block: int = 3) -> Histogram:
    column = np.asarray(values, np.float32)
    keeps = [np.asarray(keep, bool)] if keep is not None else []
    return histograms(MemoryTable({"x": column}, block=block), ["x"], keeps, {"x": cuts})["x"]


@given(st.lists(st.floats(width=32) | st.just(float("nan")), max_size=60), st.integers(1, 20))
def test_quantiles_and_counts_equal_those_of_numpy_whatever_the_blocks(values: list[float], block: int) -> None:
    found = one(values, [True] * len(values), block=block)
    finite = np.asarray([value for value in values if np.isfinite(value)], np.float32)
    assert found.judged == finite.size == found.pool.sum() == found.kept[0].sum()
    assert found.null == sum(np.isnan(value) for value in values)
    assert found.kept_null == [found.null]
    for level in QUANTILES:
        expected = np.quantile(finite, level, method="lower") if finite.size else np.nan
        assert np.array_equal(found.quantiles[level], expected, equal_nan=True)
    whole = one(values, block=1000)
    assert (found.pool.tolist(), found.edges.tolist()) == (whole.pool.tolist(), whole.edges.tolist())


def test_whole_numbers_are_in_the_middle_of_their_bars_and_infinity_is_in_none() -> None:
    found = one([1, 2, 2, 3, np.nan, np.inf], [True, True, False, False, True, True])
    assert (found.infinite, found.edges.tolist()) == (1, [0.5, 1.5, 2.5, 3.5])
    assert (found.pool.tolist(), found.kept[0].tolist()) == ([1, 2, 1], [1, 1, 0])
    wide = one(list(range(1, 201)) * 2, block=100)
    assert wide.pool.size <= BARS
    assert len(set(wide.pool.tolist())) == 1


def test_a_long_tail_is_one_bar_at_the_edge_unless_a_cut_is_in_it() -> None:
    values = [*np.linspace(0, 1, 500), 1000.0]
    found = one(values, block=100)
    assert (found.above, found.below, found.high, found.pool.sum()) == (True, False, 1000, 501)
    assert found.edges[-1] < 2
    assert one(values, cuts=(400.0,), block=100).edges[-1] >= 400
    constant = one([-7.5] * 5)
    assert constant.edges[0] < constant.low < constant.edges[-1]
    few = one([0.0] * 998 + [0.5, 0.9], block=400)  # nearly all one value: the others are shown
    assert (few.above, few.edges[-1]) == (False, np.float32(0.9))


def test_a_column_of_many_values_is_named_but_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "MOST", 3)
    found = tallies(MemoryTable({"w": list("abcdefgh")}, block=2), ["w"], [])["w"]
    assert (found.many, found.values) == (True, ())


def shipped(name: str, *settings: str) -> dict[str, Any]:
    return {**load(name, settings).text, "name": name}


def valued(*values: float) -> list[dict[str, Any]]:
    return [{"name": "mine", "select": [{"at_least": {"score": "clip", "value": value}}]} for value in values]


FRACTION = "select.top_fraction.fraction=0.2"
THREE = ["select.at_most.value=2", "select.2.at_least.value=5", "select.3.at_least.value=9"]


@pytest.mark.parametrize(
    ("chosen", "labels"),
    [
        (
            [shipped("clip-30"), *[shipped("clip-30", FRACTION)] * 2],
            ["clip-30", "clip-30, fraction 0.2", "clip-30, fraction 0.2 (2)"],
        ),
        ([{"name": "basic", "select": []}], ["basic, other steps"]),
        (valued(0.2, 0.3), ["mine, value 0.2", "mine, value 0.3"]),  # told apart from its namesakes
        ([*valued(0.2), {"name": "mine", "select": []}], ["mine", "mine (2)"]),
        ([shipped("basic", *THREE)], ["basic, value 5, value 9, 1 more"]),
        ([shipped("basic", "select.1.equals.value=" + "x" * 500)], ["basic, value " + "x" * 23 + "…"]),
    ],
)
def test_a_subset_is_called_by_its_recipe_and_what_was_changed_of_it(
    small_run: Run, chosen: list[dict[str, Any]], labels: list[str]
) -> None:
    keep = np.ones(len(small_run), bool)
    found = names_of([Subset(run=small_run, keep=keep, recipe=each) for each in chosen])
    assert [each["label"] for each in found] == labels
    assert [each["place"] for each in found] == list(range(len(chosen)))


def test_a_recipe_has_one_colour_wherever_it_is_listed() -> None:
    """CRC-32 of "a" is 0xe8b7be43, whose last three bits are 3: hue 4. So are those of "j", which has the next."""
    assert colours(["j", "a"]) == {"a": "c4", "j": "c5"}
    many = [f"recipe {number}" for number in range(30)]
    found = colours(many)
    assert found == colours(many[::-1])
    assert len({*map(found.get, sorted(many)[:8])}) == 8
    assert {name.partition(" ")[0] for name in map(found.__getitem__, sorted(many)[:8])} == {
        f"c{n}" for n in range(1, 9)
    }
    assert len({*map(found.get, sorted(many)[:24])}) == 24
    # Those that come first do not depend on those that come later.
    assert {name: colours(many[:5], many)[name] for name in many[:5]} == colours(many[:5])


@pytest.mark.parametrize(
    ("scheme", "grounds"), [(0, ("#faf9f6", "#ffffff", "#f1efe9")), (1, ("#15171a", "#1d2024", "#25292e"))]
)
def test_colours_stand_out_from_every_ground(scheme: int, grounds: Sequence[str]) -> None:
    """WCAG 2.2, 1.4.11: 3 to 1 for graphics."""
    text = (files("tamis.reports") / "templates" / "colours.css").read_text()
    hues = re.findall(r"--s\d: (#\w{6})", text)[8 * scheme :][:8]
    assert len(hues) == 8
    assert min(contrast(hue, ground) for hue in hues for ground in grounds) >= 3


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio: (L1 + 0.05) / (L2 + 0.05) of the relative luminances, the lighter first."""

    def luminance(colour: str) -> float:
        levels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("language.top_language is not en", "not English by DataComp's rule"),
        ("in none of english >= 0.02, words <= 4", "probably not in English"),
        ("clip below the cut", "below the cut of clip"),
        ("words below the cut", "below the cut of words"),
        ("words below 3", "with a short caption"),
        ("<b>whatever</b>", "<b>whatever</b>"),
    ],
)
def test_reasons_in_a_curators_words(reason: str, words: str) -> None:
    assert in_words(reason) == words
