"""Groups of copies in the explorer: those that `tamis select` decides, at each distance."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tamis
from tamis.commands.select import select
from tamis.core.errors import RecipeError
from tamis.reports.explore import copies as copies_module
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.explore.copies import DISTANCES, Copies, differing_bits
from tamis.reports.explore.image_cache import Images
from tamis.reports.explore.pages import Pages
from tamis.reports.explore.queries import Explorer

EVERY: dict[str, Any] = {"name": "every", "select": []}


def distinct(**settings: Any) -> dict[str, Any]:
    return {"distinct": {"missing": "drop", **settings}}


@pytest.fixture
def explorer(copied_run: Path) -> Explorer:
    return Explorer(CachedRun(copied_run), [], partial(select, any_model=True))


def shown(found: dict[str, Any]) -> list[list[int]]:
    return [[member["row"] for member in group["members"]] for group in found["shown"]]


@pytest.mark.parametrize("before", [[], [{"at_least": {"score": "words", "value": 4, "missing": "drop"}}]])
@pytest.mark.parametrize("there", [True, False])
def test_groups_at_each_distance_are_what_select_drops(
    explorer: Explorer, copied_run: Path, before: list[Any], there: bool
) -> None:
    page, recipe = Copies(explorer), {"name": "mine", "select": [*before, *([distinct()] if there else [])]}
    kept = []
    for distance in DISTANCES:
        chosen = tamis.select(copied_run, {"select": [*before, distinct(distance=distance)]})
        rows, originals = page.groups(recipe, distance)
        fell = chosen.verdict.dropped_by == len(chosen.verdict.why)  # by the last step
        assert rows.tolist() == np.flatnonzero(fell).tolist()
        assert chosen.keep[originals].all()
        found = page.page(recipe, distance, 0, 24)
        assert (found["copies"], found["groups"]) == (rows.size, len(set(originals.tolist())))
        for group in found["shown"]:
            bits = [member["bits"] for member in group["members"]]
            assert bits == sorted(bits)
            assert bits[-1] <= distance
        kept.append(chosen.kept)
    assert len(set(kept)) > 1  # the distance matters here


def test_the_largest_groups_come_first_and_are_paged(explorer: Explorer) -> None:
    page = Copies(explorer)
    found = page.page({"name": "d", "select": [distinct()]}, None, 0, 24)
    assert (found["step"], found["distance"], found["most"], found["pairs"]) == (1, 8, 10, 24)
    assert [sorted(group) for group in shown(found)] == [[0, 1, 2, 3, 4, 5], [6, 7, 8]]
    assert [group["size"] for group in found["shown"]] == [6, 3]
    first, *others = found["shown"][0]["members"]
    assert (first["kept"], first["repeats"], first["bits"]) == (True, None, 0)
    assert {other["repeats"] for other in others} == {first["row"]}
    assert shown(page.page({"name": "d", "select": [distinct()]}, None, 1, 24)) == shown(found)[1:]
    assert page.members({"name": "d", "select": [distinct()]}, None, others[0]["row"]).tolist() == [0, 1, 2, 3, 4, 5]


def test_without_a_step_the_pairs_that_the_recipe_keeps_are_compared(explorer: Explorer) -> None:
    found = Copies(explorer).page({"name": "x", "select": [{"at_most": {"score": "words", "value": -1}}]}, None, 0, 24)
    assert (found["step"], found["pairs"], found["groups"], found["shown"]) == (0, 0, 0, [])
    assert Copies(explorer).page(EVERY, None, 0, 24)["copies"] == 7


def test_of_many_pairs_only_the_recipes_own_groups_are_shown(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies_module, "COMPARED", 23)
    found = Copies(explorer).page(EVERY, None, 0, 24)
    assert (found["groups"], found["most"], found["limit"]) == (None, None, 23)
    found = Copies(explorer).page({"name": "d", "select": [distinct()]}, None, 0, 24)
    assert (found["groups"], found["most"]) == (2, None)


def test_groups_without_a_step_follow_the_tags_that_the_recipe_reads(explorer: Explorer) -> None:
    page, recipe = Copies(explorer), {"name": "some", "select": [{"tagged": "some"}]}
    explorer.retag(lambda: explorer.tags.change(np.arange(2), add=["some"]))
    assert page.page(recipe, None, 0, 24)["copies"] == 1
    explorer.retag(lambda: explorer.tags.change(np.arange(4), add=["some"]))
    assert page.page(recipe, None, 0, 24)["copies"] == 3
    explorer.retag(lambda: explorer.tags.change(np.arange(4), remove=["some"]))


def test_a_run_without_hashes_has_no_groups_and_no_distance(explorer: Explorer) -> None:
    explorer.run.__dict__["columns"] = {name: of for name, of in explorer.run.columns.items() if name != "image_hash"}
    found = Copies(explorer).page(EVERY, None, 0, 24)
    assert (found["groups"], found["distance"], found["most"]) == (None, None, None)
    with pytest.raises(RecipeError, match="where 'distinct' finds them"):
        Copies(explorer).groups(EVERY, 3)


def test_a_group_is_tagged_and_the_pair_that_stays_is_swapped_as_select_does(
    explorer: Explorer, copied_run: Path
) -> None:
    answers = Pages(explorer, Images(explorer.run)).answers
    recipe = {"name": "mine", "select": [distinct()]}
    (first, second, *_), _ = shown(answers["copies"]({"recipe": recipe}))
    assert answers["tag"]({"group": second, "recipe": recipe, "add": ["dogs"]})["changed"] == 6
    answers["tag"]({"rows": [second], "add": ["original"]})
    prefers = {"name": "mine", "select": [distinct(prefer="original")]}
    (now, *others), _ = shown(answers["copies"]({"recipe": prefers}))
    assert (now, set(others)) == (second, {0, 1, 2, 3, 4, 5} - {second})
    chosen = tamis.select(copied_run, prefers)
    assert chosen.keep.tolist() == explorer.choose(prefers).keep.tolist()
    assert (chosen.keep[second], chosen.keep[first]) == (True, False)
    # At other distances too, where the order is read again after each change of tags.
    assert shown(answers["copies"]({"recipe": prefers, "distance": 10}))[0][0] == second
    answers["undo_tags"]({})
    assert shown(answers["copies"]({"recipe": prefers, "distance": 10}))[0][0] == first
    answers["undo_tags"]({})


def test_bits_are_counted_from_the_first_hash_of_either_image() -> None:
    one, other = "f000000000000000 0000000000000001", "0000000000000000 000000000000000f"
    assert differing_bits(one, other) == 1  # the second hash of one and the first of the other
    assert differing_bits(one, None) is None
