"""What subsets are called: by their recipe, by what was changed of it, each differently; and reasons in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tamis.recipes.recipe import load
from tamis.reports.formats import colour, in_words, names_of
from tamis.runs import Run
from tamis.runs.subset import Subset


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
    assert [colour({"place": place}) for place in (0, 7, 8)] == ["c1", "c8", "c1"]


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
