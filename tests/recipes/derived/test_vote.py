"""`vote` against a plain loop, by hand, and what it refuses; derived signals in commands and after a pool has grown."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from command_line import Tamis
from factories import pair, write_metadata, write_run, write_tar

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.core.files import scratch
from tamis.core.math import order
from tamis.recipes.derived.concepts import ConceptWeight
from tamis.recipes.derived.mix import Mix
from tamis.recipes.derived.vote import Vote
from tamis.runs import Run
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


RECIPE = {
    "signals": ["caption_length", {"vote": {"scores": ["words", "characters"], "quantile": 0.5}}],
    "select": [{"at_least": {"score": "votes", "value": 2}}],
}


def test_a_recipe_is_scored_derived_and_selected_and_again_when_the_pool_grows(tamis: Tamis, tmp_path: Path) -> None:
    for shard in range(3):
        write_tar(tmp_path / f"{shard:05d}.tar", [(f"{row}", pair(row)) for row in range(4 * shard, 4 * shard + 4)])
    Path("votes.yaml").write_text(json.dumps(RECIPE))
    first = ["{00000..00001}.tar", "--run", "run", "--device", "cpu"]
    dry = tamis("score", *first, "--recipe", "votes.yaml", "--dry-run")
    assert "derived   vote: 2 shards to do" in dry.out
    tamis.ok("run", *first, "--recipe", "votes.yaml")
    run = Run("run")
    words, characters = run["words"], run["characters"]
    expected = (words > np.median(words)) + 1.0 * (characters > np.median(characters))
    np.testing.assert_array_equal(run["votes"], expected)
    assert "derived   vote: 0 shards to do" in tamis("score", *first, "--recipe", "votes.yaml", "--dry-run").out

    tamis.ok("score", "00002.tar", "--run", "run", "--signals", "caption_length", "--grow")
    message = tamis.refused("select", "run", "--recipe", "votes.yaml", "--out", "out.parquet")
    assert "2 of 3 shards have it (00002 has not); repeat `tamis derive` first" in message
    tamis.ok("derive", "run", "--recipe", "votes.yaml")
    words = Run("run")["words"]
    assert words.size == 12
    assert (Run("run")["votes"] >= (words > np.median(words))).all()
    assert len(list(Path("run/scores").glob("vote-*"))) == 1
    tamis.ok("select", "run", "--recipe", "votes.yaml", "--out", "out.parquet")


def test_shards_without_rows_take_no_values_of_others(tmp_path: Path) -> None:
    arrays = [
        write_metadata(tmp_path / "m" / f"{shard:08d}.parquet", rows, seed=shard)
        for shard, rows in enumerate((0, 5, 0))
    ]
    run = tamis.score(tmp_path / "m", run=tmp_path / "run", signals=["caption_length"])
    np.save(tmp_path / "targets.npy", arrays[1]["l14_img"])
    names, target = {"image": "l14_img", "text": "l14_txt"}, str(tmp_path / "targets.npy")
    signals = [{"norm_sim": {"targets": target, "embedding": "l14_img"}}, {"clip_loss": names}]
    frame = tamis.derive(run, signals).to_pandas()
    np.testing.assert_allclose(frame["norm_sim"], np.ones(5), rtol=1e-3)
    assert frame["clip_loss"].notna().all()


def test_a_derivation_ends_well_while_another_writes_its_unfinished_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_metadata(tmp_path / "m" / "00000000.parquet")
    run = tamis.score(tmp_path / "m", run=tmp_path / "run", signals=["caption_length"])
    monkeypatch.setattr(Path, "rmdir", Mock(side_effect=OSError(39, "Directory not empty")))
    derived = tamis.derive(run, [{"clip_loss": {"image": "l14_img", "text": "l14_txt"}}])
    assert not np.isnan(derived["clip_loss"]).any()


def test_signals_of_pools_that_do_not_fit_into_memory_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(1)
    numbers, images = draw.integers(0, 30, (2, 200)).astype(np.float32), draw.normal(size=(200, 4)).astype(np.float16)
    numbers[draw.random(numbers.shape) < 0.2] = np.nan
    images[::7] = np.nan
    np.save(tmp_path / "concepts.npy", draw.normal(size=(9, 4)).astype(np.float32))
    columns = {"a": numbers[0], "b": numbers[1], "i": images}
    signals = [
        Vote(scores=("a", "b", "a + rank(b)"), quantile=0.7),
        Mix(terms={"a": 0.7, "b": -2.0}),
        ConceptWeight(concepts=str(tmp_path / "concepts.npy"), k=3, embedding="i"),
    ]

    def values(block: int) -> list[list[float]]:
        table = MemoryTable(columns, block=block)
        found = [signal.compute(table, lambda name, make: make()) for signal in signals]
        return [some[signal.columns[0].name][:].tolist() for some, signal in zip(found, signals, strict=True)]

    expected = values(200)
    assert [sum(np.isnan(some)) > 0 for some in expected] == [True] * 3
    monkeypatch.setattr(scratch, "IN_MEMORY", 0)
    monkeypatch.setattr(order, "HELD", 4)
    monkeypatch.setattr(order, "_COUNTERS", 8)
    for one, other in zip(values(7), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)  # the moments of `mix` depend on blocks


def test_a_score_that_is_infinite_at_its_quantile_votes_for_no_row() -> None:
    table = MemoryTable({"a": np.array([1, np.inf], np.float32)})
    assert Vote(scores=("a",)).compute(table, lambda _, make: make())["votes"][:].tolist() == [0, 0]
