"""A recipe at another share of the pool."""

from typing import Any

import numpy as np
import pytest
from factories import write_run

import tamis
from tamis.core.errors import RecipeError
from tamis.recipes.recipe import at_share, load


def named(recipe: Any, share: float) -> str | None:
    other = at_share(load(recipe), share)
    return other and other.name


def test_the_last_step_keeps_another_share_and_the_rest_stays() -> None:
    recipe = load("clip-50")
    other = at_share(recipe, 0.2)
    assert other is not None
    assert (other.name, other.about, other.signals) == ("clip@0.2", recipe.about, recipe.signals)
    assert other.steps[:-1] == recipe.steps[:-1]
    assert (other.steps[-1].fraction, other.steps[-1].of) == (0.2, "pool")
    assert recipe.steps[-1].fraction == 0.5


def test_a_share_in_the_name_goes_and_any_other_number_stays() -> None:
    step = {"top_fraction": {"score": "clip", "fraction": 0.29, "of": "survivors"}}
    assert named({"name": "mine-29", "select": [step]}, 0.125) == "mine@0.125"
    assert named({"name": "mine-30", "select": [step]}, 1.0) == "mine-30@1"
    assert named("c_rho-clipcov", 0.3) == "c_rho-clipcov@0.3"
    assert named({"name": "mine-29", "select": [{"random_fraction": {"fraction": "0.29"}}]}, 0.5) == "mine@0.5"


def test_a_model_that_someone_typed_is_still_meant() -> None:
    recipe = load("clip-50", ["signals.clip.model=mine/model"])
    other = at_share(recipe, 0.2)
    assert other is not None
    assert [*other.named.values()] == [*recipe.named.values()] == [{"mine/model"}]


def test_a_recipe_without_a_share_has_none() -> None:
    for recipe in ("no-filter", "text_match", {"name": "n", "select": [{"top_n": {"score": "clip", "n": 3}}]}):
        assert named(recipe, 0.2) is None
    for settings in ({"fraction": 0.5}, {"epsilon": 0.1}):  # of its candidates alone
        assert named({"name": "s", "select": [{"semdedup": settings}]}, 0.2) is None
    assert named({"name": "r", "select": [{"random_fraction": {"fraction": None, "n": 5}}]}, 0.2) is None
    # Only the last step decides how many pairs are kept.
    for step in ({"semdedup": {"fraction": 0.5}}, {"cabs": {}}, {"cabs": {"share": 0.5}}):  # not of the pool
        assert named({"name": "n", "select": [step]}, 0.2) is None
    first = [{"random_fraction": {"fraction": 0.5}}, {"at_least": {"score": "clip", "value": 0.2}}]
    assert named({"name": "first", "select": first}, 0.2) is None


def test_the_share_is_one_of_the_pool(tmp_path: Any) -> None:
    run = write_run(tmp_path / "run", {"clip": np.linspace(0, 1, 20).tolist()})
    step = {"top_fraction": {"score": "clip", "fraction": 0.5, "of": "survivors"}}
    half = load({"name": "half", "select": [{"at_least": {"score": "clip", "value": 0.5}}, step]})
    assert tamis.select(run, half).kept == 5
    quarter = at_share(half, 0.25)
    assert quarter is not None
    assert tamis.select(run, quarter).kept == 5


def test_a_share_out_of_range_is_refused() -> None:
    for share in (1.5, -0.1):
        with pytest.raises(RecipeError, match="between 0 and 1"):
            at_share(load("random"), share)
