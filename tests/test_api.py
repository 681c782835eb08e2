"""What the commands do, as functions: plan, run_recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from factories import write_pool

import tamis
from tamis import api
from tamis import recipe as recipes
from tamis.errors import RecipeError

CHOSEN = [{"top_n": {"score": "words", "n": 5, "missing": "drop"}}]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def recipe(folder: Path, **more: Any) -> dict[str, Any]:
    """A recipe that scores the captions of the pool beside it; everything it writes lies in the folder."""
    return {
        "name": "mine",
        "pool": str(folder / "pool"),
        "run": str(folder / "run"),
        "signals": ["caption_length"],
    } | more


# ---- plan


def test_a_plan_tells_what_every_shard_lacks_and_makes_nothing(pool: Path, tmp_path: Path) -> None:
    before = files(tmp_path)
    planned = tamis.plan(pool, run=tmp_path / "run", signals=["caption_length"], device="cpu", batch_size=8)
    assert files(tmp_path) == before
    assert (planned.kind, planned.shards, planned.run, planned.new) == ("webdataset", 3, tmp_path / "run", True)
    assert (planned.device.kind, planned.device.batch_size) == ("cpu", 8)
    assert [(part.kind, part.label, part.shards) for part in planned.missing] == [
        ("index", "", 3),
        ("scores", "caption_length", 3),
    ]


def test_a_plan_counts_only_what_is_not_there(pool: Path, tmp_path: Path) -> None:
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    (part,) = (run.path / "scores").glob("caption_length-*/00001.parquet")
    part.unlink()
    planned = tamis.plan(pool, run=run.path, signals=["caption_length", "image_size"])
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


def test_a_plan_as_text_is_what_a_dry_run_prints(pool: Path, tmp_path: Path, clip_model: str) -> None:
    planned = tamis.plan(
        pool, run=tmp_path / "run", signals=[{"clip": {"model": clip_model}}], keep=["embeddings"], device="cpu",
        precision="float32", batch_size=8,
    )  # fmt: skip
    lines = str(planned).splitlines()
    assert lines[:4] == [
        "pool      webdataset, 3 shards",
        f"run       {tmp_path / 'run'} (new)",
        "device    cpu, float32, batches of 8",
        "index     index: 3 shards to do",
    ]
    assert [line.partition("-")[0] for line in lines[4:]] == [
        "scores    scores/clip",
        "embeddings embeddings/image_embedding",
        "embeddings embeddings/text_embedding",
    ]


def test_a_plan_of_a_recipe_alone_is_of_its_own_pool_and_run(pool: Path, tmp_path: Path) -> None:
    planned = tamis.plan(recipe=recipe(tmp_path), settings=["signals=[image_size]"])
    assert (planned.shards, planned.run) == (3, tmp_path / "run")
    assert [part.label for part in planned.missing] == ["", "image_size"]


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


def test_one_signal_asked_for_twice_is_planned_once(pool: Path, tmp_path: Path) -> None:
    planned = tamis.plan(pool, run=tmp_path / "run", signals=["image_size"], recipe={"signals": ["image_size"]})
    assert [part.label for part in planned.missing] == ["", "image_size"]


# ---- run_recipe


def test_a_recipe_is_scored_selected_exported_and_reported(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    exports = [{"npy": str(out / "subset.npy")}, {"webdataset": {"out": str(out / "shards"), "shard_size": 3}}]
    done = tamis.run_recipe(
        recipe(tmp_path, select=CHOSEN, export=exports, report=str(out / "page.html")),
        settings=["select.top_n.n=4"],
        quiet=True,
    )
    assert done.run.path == tmp_path / "run"
    assert done.run.failures == {}
    assert done.subset is not None
    assert len(done.subset) == 4
    assert [(one.to, one.out, one.pairs) for one in done.exports] == [
        ("npy", out / "subset.npy", 4),
        ("webdataset", out / "shards", 4),
    ]
    assert np.load(out / "subset.npy").shape == (4,)
    assert sorted(path.name for path in (out / "shards").glob("*.tar")) == ["00000.tar", "00001.tar"]
    assert done.report == out / "page.html"
    assert "<html" in done.report.read_text(encoding="utf-8")
    saved = tamis.Subset.load(tmp_path / "run" / "subsets" / "mine.parquet", done.run)
    assert saved.keep.tolist() == done.subset.keep.tolist()
    assert (
        done.subset.keep.tolist()
        == tamis.select(done.run, {"select": [{"top_n": {**CHOSEN[0]["top_n"], "n": 4}}]}).keep.tolist()
    )


def test_a_recipe_without_select_has_no_subset(pool: Path, tmp_path: Path) -> None:
    done = tamis.run_recipe(recipe(tmp_path), quiet=True)
    assert (done.subset, done.exports) == (None, ())
    assert done.report == tmp_path / "run" / "report.html"
    assert done.report.is_file()


def test_a_file_a_mapping_and_a_loaded_recipe_do_the_same(pool: Path, tmp_path: Path) -> None:
    written = tmp_path / "mine.yaml"
    written.write_text(yaml.safe_dump(recipe(tmp_path, select=CHOSEN)))
    kept = [
        tamis.run_recipe(one, quiet=True).subset
        for one in (written, recipe(tmp_path, select=CHOSEN), recipes.load(written))
    ]
    assert all(subset is not None and subset.keep.tolist() == kept[0].keep.tolist() for subset in kept)  # type: ignore[union-attr]


def test_shards_that_failed_are_told_and_the_rest_is_chosen_from(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=2)
    (pool / "00001.tar").write_bytes(b"no tar")
    done = tamis.run_recipe(recipe(tmp_path, select=CHOSEN), partial=True, quiet=True)
    assert list(done.run.failures) == ["00001"]
    assert done.subset is not None
    assert (done.subset.keep.size, len(done.subset)) == (7, 5)


def test_every_result_is_told_as_soon_as_it_is_there(pool: Path, tmp_path: Path) -> None:
    told: list[Any] = []

    def tell(result: Any) -> None:
        if isinstance(result, tamis.Subset):
            assert not (tmp_path / "a.npy").exists()  # the exports come after it
        if isinstance(result, api.Exported):
            assert result.out.exists()
            assert not (tmp_path / "run" / "report.html").exists()
        told.append(result)

    exports = [{"npy": str(tmp_path / "a.npy")}, {"keys": str(tmp_path / "b.txt")}]
    done = tamis.run_recipe(recipe(tmp_path, select=CHOSEN, export=exports), quiet=True, on_result=tell)
    assert told == [done.run, done.subset, *done.exports, done.report]


def test_a_run_folder_in_the_home_folder_is_found(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    done = tamis.run_recipe(recipe(tmp_path, run="~/runs/mine", select=CHOSEN), quiet=True)
    assert done.run.path == tmp_path / "home" / "runs" / "mine"
    assert (done.run.path / "subsets" / "mine.parquet").is_file()
    assert not (tmp_path / "~").exists()
