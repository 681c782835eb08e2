"""What subsets are called: by their recipe, by what was changed of it, each differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tamis import recipe as recipes
from tamis.reporting.subset_names import names_of
from tamis.store import Run
from tamis.store.subset import Subset


def labels(run: Run, *chosen: dict[str, Any]) -> list[str]:
    keep = np.ones(len(run), bool)
    return [each.label for each in names_of([Subset(run=run, keep=keep, recipe=each) for each in chosen])]


def shipped(name: str, *settings: str) -> dict[str, Any]:
    return {**recipes.load(name, settings).text, "name": name}


def test_a_shipped_recipe_is_called_by_what_was_changed_of_it(small_run: Run) -> None:
    fraction = "select.top_fraction.fraction=0.2"
    assert labels(
        small_run,
        shipped("clip-30"),
        shipped("clip-30", fraction),
        shipped("clip-30", fraction, "select.top_fraction.of=survivors"),
        shipped("clip-30", fraction),
    ) == ["clip-30", "clip-30, fraction 0.2", "clip-30, fraction 0.2, of survivors", "clip-30, fraction 0.2 (2)"]
    assert labels(small_run, shipped("semdedup", "select.semdedup.epsilon=0.05")) == ["semdedup, epsilon 0.05"]
    assert labels(small_run, {"name": "basic", "select": []}) == ["basic, other steps"]


def test_a_recipe_of_ones_own_is_told_from_its_namesakes_by_what_differs(small_run: Run) -> None:
    mine = [{"name": "mine", "select": [{"at_least": {"score": "clip", "value": value}}]} for value in (0.2, 0.3)]
    assert labels(small_run, *mine) == ["mine, value 0.2", "mine, value 0.3"]
    assert labels(small_run, mine[0]) == ["mine"]
    assert labels(small_run, mine[0], {"name": "mine", "select": []}, mine[0]) == ["mine", "mine (2)", "mine (3)"]


def test_many_changes_are_counted_and_long_values_cut(small_run: Run) -> None:
    changed = [f"select.{step}.value={value}" for step, value in (("at_most", 2), ("2.at_least", 5), ("3.at_least", 9))]
    assert labels(small_run, shipped("basic", *changed)) == ["basic, value 5, value 9, 1 more"]
    (label,) = labels(small_run, shipped("basic", "select.1.equals.value=" + "x" * 500))
    assert label == "basic, value " + "x" * 23 + "…"


@pytest.mark.parametrize("recipe", [{}, {"name": "no-filter", "select": []}, {"select": ["random_fraction"]}])
def test_recipes_without_settings_have_their_name(small_run: Run, recipe: dict[str, Any]) -> None:
    assert labels(small_run, recipe) == [recipe.get("name", "subset")]
