"""What the commands do, as functions: plan, run_recipe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tamis
from tamis.commands.run_recipe import Exported
from tamis.core.errors import RecipeError
from tamis.recipes.recipe import load

CHOSEN = [{"top_n": {"score": "words", "n": 5, "missing": "drop"}}]


def recipe(folder: Path, **more: Any) -> dict[str, Any]:
    """A recipe that scores the captions of the pool beside it; everything it writes lies in the folder."""
    return {
        "name": "mine",
        "pool": str(folder / "pool"),
        "run": str(folder / "run"),
        "signals": ["caption_length"],
    } | more


def test_a_plan_counts_what_every_shard_lacks_and_makes_nothing(pool: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    planned = tamis.plan(pool, run=tmp_path / "run", signals=["caption_length"], device="cpu", batch_size=8)
    assert sorted(tmp_path.rglob("*")) == before
    assert (planned.kind, planned.shards, planned.run, planned.new) == ("webdataset", 3, tmp_path / "run", True)
    assert (planned.device.kind, planned.device.batch_size) == ("cpu", 8)
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    (part,) = (run.path / "scores").glob("caption_length-*/00001.parquet")
    part.unlink()
    twice = {"signals": ["image_size"], "pool": str(pool), "run": str(run.path)}
    planned = tamis.plan(recipe=twice, settings=["signals=[caption_length, image_size]"])
    assert not planned.new
    assert {part.label: part.shards for part in planned.missing} == {"": 0, "caption_length": 1, "image_size": 3}


def test_what_a_plan_names_is_what_scoring_then_writes(pool: Path, tmp_path: Path, clip_model: str) -> None:
    what: dict[str, Any] = {
        "run": tmp_path / "run",
        "signals": ["caption_length", {"clip": {"model": clip_model, "label": "tiny"}}],
        "recipe": {"signals": ["image_size"], "keep": ["embeddings"]},
        "device": "cpu",
    }
    planned = tamis.plan(pool, **what)
    assert {part.shards for part in planned.missing} == {3}
    run = tamis.score(pool, **what, quiet=True)
    for part in planned.missing:
        assert len([path for path in (run.path / part.folder).iterdir() if path.suffix != ".json"]) == 3
    assert {part.label for part in planned.missing if part.kind == "scores"} == set(run.scores)
    assert {part.shards for part in tamis.plan(pool, **what).missing} == {0}


@pytest.mark.parametrize("function", ["plan", "run_recipe"])
def test_planning_stops_where_running_would(function: str, pool: Path, tmp_path: Path) -> None:
    def refused(message: str, **more: Any) -> None:
        with pytest.raises(RecipeError, match=message):
            getattr(tamis, function)(recipe=recipe(tmp_path) | more)

    refused("names no pool", pool=None)
    refused("names no run folder", run=None)
    refused("did you mean 'words'", select=[{"at_least": {"score": "wrods", "value": 3}}])
    step = {"reference": "lost.npy", "embedding": "words"}
    refused("image_based: lost.npy is neither a run folder nor", select=[{"image_based": step}])
    assert not (tmp_path / "run").exists()


def test_a_pool_without_a_run_is_no_plan(pool: Path, tmp_path: Path) -> None:
    for given in ({"pool": pool}, {"run": tmp_path / "run"}):
        with pytest.raises(ValueError, match="takes a pool and its run, or neither and a recipe"):
            tamis.plan(**given, signals=["caption_length"])


def test_a_recipe_is_scored_selected_exported_and_reported_each_result_as_soon_as_it_exists(
    pool: Path, tmp_path: Path
) -> None:
    out, told = tmp_path / "out", []

    def tell(result: Any) -> None:
        if isinstance(result, tamis.Subset):
            assert not out.exists()  # the exports come after it
        if isinstance(result, Exported):
            assert result.out.exists()
            assert not (out / "page.html").exists()
        told.append(result)

    exports = [{"npy": str(out / "subset.npy")}, {"webdataset": {"out": str(out / "shards"), "shard_size": 3}}]
    whole = recipe(tmp_path, select=CHOSEN, export=exports, report=str(out / "page.html"))
    done = tamis.run_recipe(whole, settings=["select.top_n.n=4"], quiet=True, on_result=tell)
    assert told == [done.run, done.subset, *done.exports, done.report]
    assert (done.run.path, done.run.failures) == (tmp_path / "run", {})
    assert [(one.to, one.out, one.pairs) for one in done.exports] == [
        ("npy", out / "subset.npy", 4),
        ("webdataset", out / "shards", 4),
    ]
    assert np.load(out / "subset.npy").shape == (4,)
    assert sorted(path.name for path in (out / "shards").glob("*.tar")) == ["00000.tar", "00001.tar"]
    assert "<html" in (out / "page.html").read_text(encoding="utf-8")
    saved = tamis.Subset.load(tmp_path / "run" / "subsets" / "mine.parquet", done.run)
    four = tamis.select(done.run, {"select": [{"top_n": {**CHOSEN[0]["top_n"], "n": 4}}]})
    assert saved.keep.tolist() == done.subset.keep.tolist() == four.keep.tolist()


def test_a_file_a_mapping_and_a_loaded_recipe_do_the_same(pool: Path, tmp_path: Path) -> None:
    written = tmp_path / "mine.yaml"
    written.write_text(yaml.safe_dump(recipe(tmp_path, select=CHOSEN)))
    kept = [
        tamis.run_recipe(one, quiet=True).subset for one in (written, recipe(tmp_path, select=CHOSEN), load(written))
    ]
    assert all(subset is not None and subset.keep.tolist() == kept[0].keep.tolist() for subset in kept)  # type: ignore[union-attr]
