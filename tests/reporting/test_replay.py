from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import write_run

import tamis
from tamis.reporting.replay import replay
from tamis.store.subset import Subset


def chosen(tmp_path: Path, steps: list[Any], **columns: list[Any]) -> Subset:
    run = write_run(
        tmp_path / "run", columns or {"x": [1, 2, 3, 4, 5, float("nan")], "w": ["a", "b", "a", "b", None, "a"]}
    )
    return tamis.select(run, {"name": "mine", "select": steps})


def reasons(subset: Subset) -> list[str]:
    found = replay(subset)
    assert found.problem == ""
    assert found.dropped_by is not None
    return [found.reasons[code] for code in found.dropped_by]


def test_every_dropped_row_has_its_step_and_reason(tmp_path: Path) -> None:
    subset = chosen(tmp_path, [
        {"equals": {"score": "w", "value": "a", "missing": "drop"}},
        {"at_least": {"score": "x", "value": 2.5, "missing": "drop"}},
    ])  # fmt: skip
    assert reasons(subset) == [
        "Step 2: x below 2.5", "Step 1: w is not a", "", "Step 1: w is not a",
        "Step 1: no value for w", "Step 2: no value for x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "ends"),
    [
        ({"at_least": {"score": "x", "value": 2.5, "missing": "drop"}}, (2.5, None)),
        ({"at_most": {"score": "x", "value": 2.5, "missing": "drop"}}, (None, 2.5)),
        ({"between": {"score": "x", "low": 2, "high": 4, "missing": "drop"}}, (2, 4)),
        ({"top_n": {"score": "x", "n": 2, "missing": "drop"}}, (4, None)),
        ({"top_fraction": {"score": "2*x", "fraction": 0.5, "of": "pool", "missing": "drop"}}, (6, None)),
    ],
)
def test_steps_that_rank_draw_a_line(tmp_path: Path, step: Any, ends: tuple[float | None, float | None]) -> None:
    found = replay(chosen(tmp_path, [step]))
    assert found.ranking is not None
    assert (found.ranking.low, found.ranking.high) == ends


def test_a_row_on_the_line_in_float32_lies_inside(tmp_path: Path) -> None:
    subset = chosen(tmp_path, [{"at_least": {"score": "x", "value": 0.281}}], x=[0.281, 0.1, 0.5])
    cut = replay(subset).cuts[0]
    assert subset.keep.tolist() == [True, False, True]
    assert (cut.distance(subset.run.to_numpy("x").astype(np.float64)) >= 0).tolist() == [True, False, True]


def test_the_ranking_is_the_last_line_that_some_row_fell_at(tmp_path: Path) -> None:
    subset = chosen(tmp_path, [
        {"at_least": {"score": "x", "value": 2, "missing": "drop"}},
        {"at_most": {"score": "x", "value": 99}},
    ])  # fmt: skip
    ranking = replay(subset).ranking
    assert ranking is not None
    assert ranking.step == "x >= 2"


def test_parts_of_groups_say_which_part_decided(tmp_path: Path) -> None:
    parts = [
        [{"at_least": {"score": "x", "value": 3, "missing": "drop"}}],
        [{"equals": {"score": "w", "value": "a", "missing": "drop"}}],
    ]
    assert reasons(chosen(tmp_path, [{"all_of": parts}])) == [
        "Step 1: not in x >= 3", "Step 1: not in x >= 3", "", "Step 1: not in w is a", "Step 1: not in w is a",
        "Step 1: not in x >= 3",
    ]  # fmt: skip


def test_any_of_and_none_of(tmp_path: Path) -> None:
    parts = [
        [{"at_least": {"score": "x", "value": 4, "missing": "drop"}}],
        [{"equals": {"score": "w", "value": "a", "missing": "drop"}}],
    ]
    either = reasons(chosen(tmp_path / "1", [{"any_of": parts}]))
    assert [bool(reason) for reason in either] == [False, True, False, False, False, False]
    assert either[1] == "Step 1: in none of x >= 4, w is a"
    neither = reasons(chosen(tmp_path / "2", [{"none_of": parts}]))
    assert [bool(reason) for reason in neither] == [True, False, True, True, True, True]
    assert neither[3] == "Step 1: in x >= 4"


def test_a_subset_that_its_recipe_no_longer_gives_gets_no_reasons(tmp_path: Path) -> None:
    subset = chosen(tmp_path, [{"at_least": {"score": "x", "value": 2, "missing": "drop"}}])
    other = Subset(run=subset.run, keep=~subset.keep, recipe=subset.recipe)
    found = replay(other)
    assert found.dropped_by is None
    assert "keeps other pairs" in found.problem


@pytest.mark.parametrize(
    "recipe", [{}, {"select": [{"no_such_step": {}}]}, {"select": [{"at_least": {"score": "gone", "value": 1}}]}]
)
def test_a_recipe_that_cannot_be_applied_is_a_problem_not_an_error(tmp_path: Path, recipe: Any) -> None:
    run = write_run(tmp_path / "run", {"x": [1, 2, 3]})
    assert replay(Subset(run=run, keep=np.ones(3, bool), recipe=recipe)).problem != ""
