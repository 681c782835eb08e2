"""From a pool to subsets that cover it: scores with kept embeddings, clusters, recipes, the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import pair, write_pool, write_tar

import tamis
from tamis import api, recipe
from tamis.errors import RecipeError, RunError
from tamis.store import Run
from tamis.store.subset import Subset


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, clip_model: str) -> Run:
    folder = tmp_path_factory.mktemp("cover")
    write_pool(folder / "pool", shards=3, rows=7)
    twice = [("copy", pair(0, uid=f"{10**6:032x}")), ("broken", pair(1) | {"jpg": b"none"})]
    write_tar(folder / "pool" / "00003.tar", twice)
    return tamis.score(
        folder / "pool",
        run=folder / "run",
        scores=[{"clip": {"model": clip_model}}, "image_hash", "class_mentions", "image_size"],
        keep=["embeddings"],
        quiet=True,
    )


def test_embeddings_are_columns_of_recipes(scored: Run, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("dog\ncat\nboat\n")
    chosen = {
        "keep": ["embeddings"],
        "select": [{"clipcov": {"fraction": 0.5, "of": "pool", "classes": str(names), "missing": "drop"}}],
    }
    subset = tamis.select(scored, chosen)
    line = subset.funnel[0]
    assert line["before"] == 23
    assert line["dropped"]["missing"] == 1
    assert line["kept"] == 12 - line["facts"]["dropped_by_double_greedy"]
    assert sum(each["kept"] for each in line["facts"]["classes"]) == len(subset)
    assert sum(each["pairs"] for each in line["facts"]["classes"]) == 22
    # The run says which model made the embeddings; a smaller budget is a beginning.
    fewer = tamis.select(scored, chosen, settings=["select.clipcov.fraction=0.2", "select.clipcov.double_greedy=false"])
    more = tamis.select(scored, chosen, settings=["select.clipcov.double_greedy=false"])
    assert (more.keep | ~fewer.keep).all()


def test_copies_are_found_by_embedding_and_by_hash(scored: Run) -> None:
    order = [(shard, row) for shard, size in zip(scored.shards, scored.sizes, strict=True) for row in range(size)]
    same = [order.index(("00000", 0)), order.index(("00003", 0))]
    by_hash = tamis.select(scored, {"select": [{"distinct": {"distance": 0, "missing": "drop"}}]})
    assert by_hash.keep[same].sum() == 1
    by_embedding = tamis.select(scored, {"select": [{"semdedup": {"epsilon": 1e-5, "clusters": 1, "missing": "drop"}}]})
    assert by_embedding.keep[same].sum() == 1


def test_image_based_takes_a_run_as_reference(scored: Run) -> None:
    step = {"image_based": {"reference": str(scored.path), "clusters": 1, "missing": "drop"}}
    assert len(tamis.select(scored, {"select": [step]})) == 22


def test_a_run_gets_clusters_as_columns(scored: Run) -> None:
    pytest.importorskip("faiss")
    done = api.cluster(scored, clusters=4)
    label = [name for name in done.scores if name.startswith("cluster")]
    assert label == ["cluster"]
    values = done.to_numpy("cluster")
    assert np.isnan(values).sum() == 1
    assert set(values[~np.isnan(values)].tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert (np.nan_to_num(done.to_numpy("centroid_cosine"), nan=1) > 0).all()
    stamp = (done.scores["cluster"].folder / "00000.parquet").stat().st_mtime_ns
    api.cluster(done.path, clusters=4)
    assert (done.scores["cluster"].folder / "00000.parquet").stat().st_mtime_ns == stamp
    subset = tamis.select(done, {"select": [{"top_n": {"score": "clip", "n": 1, "per": "cluster", "missing": "drop"}}]})
    assert len(subset) == 4
    assert sorted(values[subset.keep].tolist()) == [0.0, 1.0, 2.0, 3.0]
    other = api.cluster(done, clusters=2)
    assert len([name for name in other.scores if name.startswith("cluster")]) == 2
    before = set(other.scores)
    with pytest.raises(RecipeError, match="99 clusters of 22 rows"):
        api.cluster(done, clusters=99)
    assert set(Run(done.path).scores) == before  # no columns without values stand in the run
    with pytest.raises(RecipeError, match="'clip' is a column of numbers, expected stored embeddings"):
        api.cluster(done, embedding="clip")


def test_the_report_tells_what_the_steps_found(scored: Run, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("dog\ncat\n")
    clipcov = tamis.select(
        scored, {"name": "cover", "select": [{"clipcov": {"n": 9, "classes": str(names), "missing": "drop"}}]}
    )
    distinct = tamis.select(scored, {"name": "one-of-each", "select": [{"distinct": {"missing": "drop"}}]})
    distinct.save(tmp_path / "one.parquet")
    distinct = Subset.load(tmp_path / "one.parquet", scored)
    page = tamis.report(scored, [clipcov, distinct], out=tmp_path / "report.html").read_text()
    assert "covariance error" in page
    assert "Repeated pictures" in page
    assert "2 pairs, one stays" in page
    assert "Step 1: adds less" in page


def test_embeddings_that_are_not_there_are_told_before_any_work(scored: Run, tmp_path: Path, clip_model: str) -> None:
    bare = tmp_path / "bare"
    tamis.score(write_pool(tmp_path / "pool", shards=1, rows=2), run=bare, scores=["image_size"], quiet=True)
    with pytest.raises(RunError, match=r"unknown stored embedding 'image_embedding'.*--keep embeddings"):
        tamis.select(bare, {"select": [{"semdedup": {"epsilon": 0.1}}]})
    with pytest.raises(RunError, match="--keep embeddings"):
        api.cluster(bare)
    scores: list[Any] = [{"clip": {"model": clip_model}}]
    steps = [{"semdedup": {"epsilon": 0.1}}]
    api.check_columns(recipe.load({"scores": scores, "keep": ["embeddings"], "select": steps}))
    with pytest.raises(RecipeError, match=r"add 'keep: \[embeddings\]' and a scorer that makes them"):
        api.check_columns(recipe.load({"scores": scores, "select": steps}))


def test_files_of_the_steps_that_are_not_there_are_told_before_any_work(
    scored: Run, tmp_path: Path, clip_model: str
) -> None:
    lost = str(tmp_path / "lost.txt")
    for steps, message in (
        ([{"clipcov": {"n": 3, "classes": lost}}], "unknown list of classes"),
        ([{"all_of": [[{"clipcov": {"n": 3, "classes": lost}}]]}], "unknown list of classes"),
        ([{"image_based": {"reference": lost}}], "neither a run folder nor"),
    ):
        with pytest.raises(RecipeError, match=message):
            api.check_files(recipe.load({"select": steps}))
    good = [{"clipcov": {"n": 3}}, {"image_based": {"reference": str(scored.path)}}, {"top_n": {"score": "a", "n": 1}}]
    api.check_files(recipe.load({"select": good}))


def test_references_of_another_model_are_refused(scored: Run, tmp_path: Path, siglip_model: str) -> None:
    other = tamis.score(
        write_pool(tmp_path / "pool", shards=1, rows=2),
        run=tmp_path / "run",
        scores=[{"clip": {"model": siglip_model}}],
        keep=["embeddings"],
        quiet=True,
    )
    step = {"image_based": {"reference": str(other.path), "clusters": 1, "missing": "drop"}}
    with pytest.raises(RecipeError, match=r"made the embeddings of .* those of the pool: embed both with one model"):
        tamis.select(scored, {"select": [step]})


def test_settings_of_the_steps_are_checked_where_recipes_are_read() -> None:
    with pytest.raises(RecipeError, match="clipcov needs fraction or n"):
        recipe.load({"select": ["clipcov"]})
    with pytest.raises(RecipeError, match=r"unknown setting 'epsilom' \(did you mean 'epsilon'"):
        recipe.load({"select": [{"semdedup": {"epsilom": 0.1}}]})
    loaded = recipe.load({"select": [{"clipcov": {"n": 3, "terms": ["cov", "inter"], "templates": ["a {}"]}}]})
    assert loaded.steps[0].terms == ("cov", "inter")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["clipcov", "semdedup", "image-based", "image∩clip", "text-based", "cit", "distinct"])
def test_the_recipes_that_cover_a_pool_ship(name: str) -> None:
    api.check_columns(recipe.load(name))


def test_the_reference_of_the_intersection_can_be_set() -> None:
    loaded = recipe.load("image∩clip", ["select.all_of.1.image_based.reference=elsewhere"])
    assert loaded.steps[0].parts[1][-1].reference == "elsewhere"  # type: ignore[attr-defined]
