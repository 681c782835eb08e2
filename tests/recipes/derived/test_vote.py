"""`vote` against a plain loop, by hand, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import write_run

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.recipes.derived.vote import Vote
from tamis.runs.table import MemoryTable


def votes(columns: dict[str, Any], block: int = 1 << 20, **settings: Any) -> Any:
    table = MemoryTable({name: np.asarray(values, np.float32) for name, values in columns.items()}, block=block)
    return Vote(**settings).compute(table, lambda name, make: make())


def test_each_score_votes_for_what_is_above_its_quantile() -> None:
    """By hand: the .8 quantile of 0, 1, 2, 3, 4 is 3.2; of 0, 0, 0, 0, 1 it is .2; equal values are above nothing."""
    found = votes({"a": [0, 1, 2, 3, 4], "b": [1, 0, 0, 0, 0], "c": [7] * 5}, scores=("a", "b", "c", "-a"))
    assert found["votes"].tolist() == [2, 0, 0, 0, 1]
    assert found["cuts.npy"].tolist() == pytest.approx([3.2, 0.2, 7, -0.8])


def test_votes_are_those_of_a_plain_loop_in_any_order_and_blocks() -> None:
    draw = np.random.default_rng(0)
    columns = {name: draw.integers(0, 30, 200).astype(np.float32) for name in "abc"}
    for values in columns.values():
        values[draw.random(200) < 0.3] = np.nan
    expected = np.full(200, np.nan)
    for values in columns.values():
        cut = np.nanquantile(values.astype(float), 0.6)
        for row in np.flatnonzero(~np.isnan(values)):
            expected[row] = np.nan_to_num(expected[row]) + (values[row] > cut)
    assert np.isnan(expected).any()
    settings = {"scores": ("a", "b", "c"), "quantile": 0.6}
    np.testing.assert_array_equal(votes(columns, **settings)["votes"], expected)
    order = draw.permutation(200)
    moved = votes({name: values[order] for name, values in columns.items()}, block=7, **settings)
    np.testing.assert_array_equal(moved["votes"], expected[order])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scores": []}, "name at least one score"),
        ({"scores": ["clip"], "quantile": 80}, "quantile must be above 0 and below 1, got 80"),
        ({"scores": ["clip"], "quantil": 0.5}, r"did you mean 'quantile'\?"),
        ({"scores": ["clipp"]}, r"did you mean 'clip'\?"),
        ({"scores": ["rnk(clip)"]}, r"unknown function 'rnk'.*did you mean 'rank'"),
        ({"scores": ["kind"]}, "the column 'kind' holds words, expected numbers"),
        ({"scores": ["empty"]}, "no row has a value for 'empty'"),
        ({}, "scores"),
    ],
)
def test_votes_that_cannot_be_counted(settings: Any, said: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"clip": [1, 2, 3], "kind": ["a", "b", "c"], "empty": [np.nan] * 3})
    with pytest.raises((RecipeError, RunError), match=said):
        tamis.derive(run, [{"vote": settings}])
