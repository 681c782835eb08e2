"""From a pool to subsets that cover it: scores with kept embeddings, clusters, recipes, the report."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import pair, score, write_pool, write_tar

import tamis
from tamis.commands import select as choosing
from tamis.core.errors import RecipeError, RunError
from tamis.recipes import recipe
from tamis.recipes.derived import cluster_columns
from tamis.recipes.steps.outcome import check_files
from tamis.runs import Run, manifest
from tamis.runs.claims import claim_shard, lock_run
from tamis.runs.subset import Subset

CLIPCOV: dict[str, Any] = {"select": [{"clipcov": {"n": 3, "missing": "drop"}}]}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("names") / "names.txt"
    file.write_text("dog\ncat\nboat\ntree\n")
    return str(file)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, clip_model: str, names: str) -> Run:
    folder = tmp_path_factory.mktemp("cover")
    write_pool(folder / "pool", shards=3, rows=7)
    twice = [("copy", pair(0, uid=f"{10**6:032x}")), ("broken", pair(1) | {"jpg": b"none"})]
    write_tar(folder / "pool" / "00003.tar", twice)
    zero_shot = {"zero_shot_class": {"model": clip_model, "classes_from": names, "templates": "name"}}
    signals = [{"clip": {"model": clip_model}}, zero_shot, "image_hash", "class_mentions", "image_size"]
    return score(folder / "pool", folder / "run", *signals, keep=["embeddings"])


def test_embeddings_and_classes_are_columns_of_recipes(scored: Run) -> None:
    chosen = {"select": [{"clipcov": {"fraction": 0.5, "of": "pool", "missing": "drop"}}]}
    subset = tamis.select(scored, chosen)
    line = subset.funnel[0]
    assert line["before"] == 23
    assert line["dropped"]["missing"] == 1
    assert line["kept"] == 12 - line["facts"]["dropped_by_double_greedy"]
    assert sum(each["kept"] for each in line["facts"]["classes"]) == len(subset)
    assert sum(each["pairs"] for each in line["facts"]["classes"]) == 22


def test_classes_that_a_run_lacks_say_which_signal_makes_them(tmp_path: Path, scored: Run) -> None:
    bare = tmp_path / "bare"
    tamis.score(write_pool(tmp_path / "pool", shards=1, rows=2), run=bare, signals=["image_size"], quiet=True)
    with pytest.raises(
        RunError,
        match=r"reads: 'zero_shot_class'\. To score it:\ntamis score .*pool --run .*bare --signals "
        r"zero_shot_class --set signals\.zero_shot_class\.model=openai/clip-vit-base-patch32\nBuilt-in .*=lab/clip$",
    ):
        tamis.select(bare, {"columns": {"image_embedding": "width", "text_embedding": "height"}, **CLIPCOV})
    with pytest.raises(RecipeError, match=r"the signal zero_shot_class makes it"):
        choosing.check_reads(recipe.load({"signals": [{"clip": {"model": "x"}}], "keep": ["embeddings"], **CLIPCOV}))
    with pytest.raises(RunError, match=r"--set signals\.zero_shot_class\.label=birds\n"):
        tamis.select(scored, {"select": [{"clipcov": {"n": 1, "per": "birds.zero_shot_class"}}]})
    with pytest.raises(RunError, match=r"tamis derive .*bare --signals concepts --set .*\.concepts\.at_least=0\.2$"):
        tamis.select(bare, {"select": [{"cabs": {}}]})
    with pytest.raises(RunError, match=r"'overlap' reads: .*\. To score it:\ntamis score .*bare --signals image_hash"):
        tamis.overlap(bare, scored.path)
    with pytest.raises(RecipeError, match=r"no hashes: tamis score .*pool --run .*bare --signals image_hash"):
        tamis.overlap(tamis.score(scored.pool.spec, run=tmp_path / "h", signals=["image_hash"], quiet=True), bare)


def test_crowded_regions_are_thinned_out_after_copies(scored: Run) -> None:
    semdedup = {"semdedup": {"epsilon": 1e-5, "clusters": 1, "missing": "drop"}}
    thin = [
        {"density": {"fraction": 0.5, "of": "pool", "clusters": 1}},
        {"d2": {"score": "clip", "n": 5, "clusters": 1}},
    ]
    subset = tamis.select(scored, {"select": [semdedup, *thin]})
    assert [line["kept"] for line in subset.funnel][1:] == [12, 5]
    for name in ("density", "d2"):
        settings = f"select.{name}.clusters=1"
        assert len(tamis.select(scored, name, settings=[settings], any_model=True)) == round(
            0.277 * 23 if name == "density" else 0.3 * 23
        )


def test_a_run_gets_clusters_as_columns(scored: Run) -> None:
    done = tamis.cluster(scored, clusters=4)
    label = [name for name in done.scores if name.startswith("cluster")]
    assert label == ["cluster"]
    values = done.to_numpy("cluster")
    assert np.isnan(values).sum() == 1
    assert set(values[~np.isnan(values)].tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert (np.nan_to_num(done.to_numpy("centroid_cosine"), nan=1) > 0).all()
    stamp = (done.scores["cluster"].folder / "00000.parquet").stat().st_mtime_ns
    (done.scores["cluster"].folder / "signal.json").unlink()
    assert tamis.cluster(done.path, clusters=4).to_numpy("cluster")[:3].tolist() == values[:3].tolist()
    assert (done.scores["cluster"].folder / "00000.parquet").stat().st_mtime_ns == stamp
    subset = tamis.select(done, {"select": [{"top_n": {"score": "clip", "n": 1, "per": "cluster", "missing": "drop"}}]})
    assert len(subset) == 4
    assert sorted(values[subset.keep].tolist()) == [0.0, 1.0, 2.0, 3.0]
    other = tamis.cluster(done, clusters=2)
    assert len([name for name in other.scores if name.startswith("cluster")]) == 2
    before = set(other.scores)
    with pytest.raises(RecipeError, match="99 clusters of 22 rows"):
        tamis.cluster(done, clusters=99)
    assert set(Run(done.path).scores) == before  # the run has no columns without values
    with pytest.raises(RecipeError, match="'clip' holds numbers, expected vectors"):
        tamis.cluster(done, embedding="clip")


def test_the_check_refuses_what_select_refuses(scored: Any) -> None:
    chosen = recipe.load({"select": [{"all_of": [[{"at_least": {"score": "status*2", "value": 1}}]]}]})
    for refuses in (lambda: choosing.find_columns(chosen, scored), lambda: tamis.select(scored, chosen)):
        with pytest.raises(RecipeError, match="at_least: the column 'status' holds words, expected numbers"):
            refuses()


def test_clusters_are_not_written_for_rows_that_changed_meanwhile(
    scored: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not locked while clusters are computed, so another command may read a shard again."""
    run = Run(shutil.copytree(scored.path, tmp_path / "run"))
    before = set(run.scores)
    real = cluster_columns.assign

    def assign(*arguments: Any) -> Any:
        found = real(*arguments)
        with lock_run(run.path, patience=0), claim_shard(run.path, "00001") as mine:
            assert mine
            manifest.forget(run.path, ["00001"])
        return found

    monkeypatch.setattr(cluster_columns, "assign", assign)
    with pytest.raises(RunError, match="shard 00001 has other rows"):
        tamis.cluster(run, clusters=1)
    assert set(Run(run.path, partial=True).scores) == before


def test_the_report_shows_what_the_steps_found(scored: Run, tmp_path: Path) -> None:
    clipcov = tamis.select(scored, {"name": "cover", "select": [{"clipcov": {"n": 9, "missing": "drop"}}]})
    distinct = tamis.select(scored, {"name": "one-of-each", "select": [{"distinct": {"missing": "drop"}}]})
    distinct.save(tmp_path / "one.parquet")
    distinct = Subset.load(tmp_path / "one.parquet", scored)
    page = tamis.report(scored, [clipcov, distinct], out=tmp_path / "report.html").read_text()
    assert "covariance error" in page
    assert "groups of repeated images" in page
    assert "2 pairs, one stays" in page
    assert "Step 1: adds less" in page


def test_missing_embeddings_are_reported_before_any_work(scored: Run, tmp_path: Path, clip_model: str) -> None:
    bare = tmp_path / "bare"
    tamis.score(write_pool(tmp_path / "pool", shards=1, rows=2), run=bare, signals=["image_size"], quiet=True)
    with pytest.raises(RunError, match=r"(?s)unknown stored embedding 'image_embedding'.*--keep embeddings"):
        tamis.select(bare, {"select": [{"semdedup": {"epsilon": 0.1}}]})
    with pytest.raises(RunError, match="--keep embeddings"):
        tamis.cluster(bare)
    scores: list[Any] = [{"clip": {"model": clip_model}}]
    steps = [{"semdedup": {"epsilon": 0.1}}]
    choosing.check_reads(recipe.load({"signals": scores, "keep": ["embeddings"], "select": steps}))
    with pytest.raises(RecipeError, match=r"add 'keep: \[embeddings\]' and a signal that makes them"):
        choosing.check_reads(recipe.load({"signals": scores, "select": steps}))


def test_a_run_is_a_reference_unless_another_model_made_its_embeddings(
    scored: Run, tmp_path: Path, siglip_model: str
) -> None:
    pool = write_pool(tmp_path / "pool", shards=1, rows=2)
    other = score(pool, tmp_path / "run", {"clip": {"model": siglip_model}}, keep=["embeddings"])

    def steps(reference: Path) -> dict[str, Any]:
        step = {"image_based": {"reference": str(reference), "clusters": 1, "missing": "drop"}}
        return {"select": [{"all_of": [[step]]}]}

    with pytest.raises(RecipeError, match=r"made the embeddings of .* the pool's. Embed them with one model"):
        tamis.select(scored, steps(other.path))
    assert len(tamis.select(scored, steps(scored.path))) == 22
    check_files(recipe.load(steps(scored.path)).steps)
    with pytest.raises(RecipeError, match=r"lost\.npy"):  # before any work
        check_files(recipe.load(steps(tmp_path / "lost.npy")).steps)
