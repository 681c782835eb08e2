"""From a pool to subsets that cover it: scores with kept embeddings, clusters, recipes, the report."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from factories import pair, write_pool, write_tar

import tamis
from tamis import choosing, recipe
from tamis.data import Device
from tamis.errors import RecipeError, RunError
from tamis.models.class_names import class_vectors, templates_of
from tamis.selectors import ClipCov, clusters
from tamis.selectors.vectors import present
from tamis.store import Run, manifest
from tamis.store.claims import claimed, locked
from tamis.store.subset import Subset

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
    return tamis.score(
        folder / "pool",
        run=folder / "run",
        signals=[
            {"clip": {"model": clip_model}},
            {"zero_shot_class": {"model": clip_model, "classes_from": names, "templates": "name"}},
            "image_hash",
            "class_mentions",
            "image_size",
        ],
        keep=["embeddings"],
        quiet=True,
    )


def test_embeddings_and_classes_are_columns_of_recipes(scored: Run) -> None:
    chosen = {"select": [{"clipcov": {"fraction": 0.5, "of": "pool", "missing": "drop"}}]}
    subset = tamis.select(scored, chosen)
    line = subset.funnel[0]
    assert line["before"] == 23
    assert line["dropped"]["missing"] == 1
    assert line["kept"] == 12 - line["facts"]["dropped_by_double_greedy"]
    assert sum(each["kept"] for each in line["facts"]["classes"]) == len(subset)
    assert sum(each["pairs"] for each in line["facts"]["classes"]) == 22
    # A smaller budget is a beginning.
    fewer = tamis.select(scored, chosen, settings=["select.clipcov.fraction=0.2", "select.clipcov.double_greedy=false"])
    more = tamis.select(scored, chosen, settings=["select.clipcov.double_greedy=false"])
    assert (more.keep | ~fewer.keep).all()


class Before(ClipCov):
    """ClipCov as it was: the step itself embeds the class names and classifies the stored embeddings."""

    classes: ClassVar[tuple[str, ...]] = ("dog", "cat", "boat", "tree")
    model: ClassVar[str]

    def _latent_classes(self, table: Any) -> Any:
        vectors = class_vectors(self.model, self.classes, templates_of("name"), Device())
        labels = np.full(len(table), -1, np.int32)
        rows = np.flatnonzero(table.living())
        images, texts = (table.vectors(name, rows).astype(np.float32) for name in (self.image, self.text))
        there = present(images) & present(texts)
        labels[rows[there]] = (images[there] @ vectors.T).argmax(1)
        return labels, self.classes, vectors


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 7},
        {"fraction": 0.6, "of": "pool"},
        {"n": 12, "terms": ("cov", "inter"), "inter": "sum"},
        {"n": 9, "alpha": 2.0},
    ],
    ids=str,
)
def test_clipcov_takes_what_it_took_when_it_embedded_the_names_itself(
    scored: Run, clip_model: str, settings: dict[str, Any]
) -> None:
    now = ClipCov(**settings, missing="drop").rank(scored.table())
    Before.model = clip_model
    before = Before(**settings, missing="drop").rank(scored.table())
    assert now.rows.tolist() == before.rows.tolist()
    assert now.stays.tolist() == before.stays.tolist()
    assert now.gains == pytest.approx(before.gains, rel=1e-5)
    assert now.facts["classes"] == before.facts["classes"]
    assert len(now.facts["classes"]) > 1
    assert now.facts["objective"] == pytest.approx(before.facts["objective"], rel=1e-5)


def test_select_runs_no_model(scored: Run) -> None:
    code = (
        "import sys, tamis\n"
        "steps = [{'clipcov': {'n': 9, 'missing': 'drop'}}, {'semdedup': {'epsilon': 0.5, 'clusters': 1}},\n"
        "         {'top_n': {'score': 'class_cosine', 'n': 1, 'per': 'zero_shot_class'}}]\n"
        f"print(len(tamis.select({str(scored.path)!r}, {{'select': steps}})) > 0)\n"
        "heavy = {'torch', 'transformers', 'onnxruntime', 'openvino', 'tokenizers', 'cv2'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "[]"]


def test_classes_that_a_run_lacks_say_which_signal_makes_them(tmp_path: Path, scored: Run) -> None:
    bare = tmp_path / "bare"
    tamis.score(write_pool(tmp_path / "pool", shards=1, rows=2), run=bare, signals=["image_size"], quiet=True)
    with pytest.raises(
        RunError,
        match=r"unknown score column 'zero_shot_class'.*\n.* To score it:\ntamis score .*pool --run .*bare --signals "
        r"zero_shot_class --set signals\.zero_shot_class\.model=openai/clip-vit-base-patch32\nBuilt-in .*=lab/clip$",
    ):
        tamis.select(bare, {"columns": {"image_embedding": "width", "text_embedding": "height"}, **CLIPCOV})
    with pytest.raises(RecipeError, match=r"the signal zero_shot_class makes it"):
        choosing.check_columns(recipe.load({"signals": [{"clip": {"model": "x"}}], "keep": ["embeddings"], **CLIPCOV}))
    with pytest.raises(RunError, match=r"--set signals\.zero_shot_class\.label=birds\n"):
        tamis.select(scored, {"select": [{"clipcov": {"n": 1, "per": "birds.zero_shot_class"}}]})


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
    assert set(Run(done.path).scores) == before  # no columns without values stand in the run
    with pytest.raises(RecipeError, match="'clip' holds numbers, expected vectors"):
        tamis.cluster(done, embedding="clip")


def test_the_check_refuses_what_select_refuses(scored: Any) -> None:
    chosen = recipe.load({"select": [{"all_of": [[{"at_least": {"score": "status*2", "value": 1}}]]}]})
    for refuses in (lambda: choosing.check_run(chosen, scored), lambda: tamis.select(scored, chosen)):
        with pytest.raises(RecipeError, match="at_least: the column 'status' holds words, expected numbers"):
            refuses()


def test_clusters_are_not_written_for_rows_that_changed_meanwhile(
    scored: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's lock is free while centres are sought, so that a shard may be read anew."""
    run = Run(shutil.copytree(scored.path, tmp_path / "run"))
    before = set(run.scores)
    real = clusters.assign

    def assign(*arguments: Any) -> Any:
        found = real(*arguments)
        with locked(run.path, patience=0), claimed(run.path, "00001") as mine:
            assert mine
            manifest.forget(run.path, ["00001"])
        return found

    monkeypatch.setattr(clusters, "assign", assign)
    with pytest.raises(RunError, match="shard 00001 has other rows now"):
        tamis.cluster(run, clusters=1)
    assert set(Run(run.path, partial=True).scores) == before


def test_the_report_tells_what_the_steps_found(scored: Run, tmp_path: Path) -> None:
    clipcov = tamis.select(scored, {"name": "cover", "select": [{"clipcov": {"n": 9, "missing": "drop"}}]})
    distinct = tamis.select(scored, {"name": "one-of-each", "select": [{"distinct": {"missing": "drop"}}]})
    distinct.save(tmp_path / "one.parquet")
    distinct = Subset.load(tmp_path / "one.parquet", scored)
    page = tamis.report(scored, [clipcov, distinct], out=tmp_path / "report.html").read_text()
    assert "covariance error" in page
    assert "Repeated images" in page
    assert "2 pairs, one stays" in page
    assert "Step 1: adds less" in page


def test_embeddings_that_are_not_there_are_told_before_any_work(scored: Run, tmp_path: Path, clip_model: str) -> None:
    bare = tmp_path / "bare"
    tamis.score(write_pool(tmp_path / "pool", shards=1, rows=2), run=bare, signals=["image_size"], quiet=True)
    with pytest.raises(RunError, match=r"unknown stored embedding 'image_embedding'.*--keep embeddings"):
        tamis.select(bare, {"select": [{"semdedup": {"epsilon": 0.1}}]})
    with pytest.raises(RunError, match="--keep embeddings"):
        tamis.cluster(bare)
    scores: list[Any] = [{"clip": {"model": clip_model}}]
    steps = [{"semdedup": {"epsilon": 0.1}}]
    choosing.check_columns(recipe.load({"signals": scores, "keep": ["embeddings"], "select": steps}))
    with pytest.raises(RecipeError, match=r"add 'keep: \[embeddings\]' and a signal that makes them"):
        choosing.check_columns(recipe.load({"signals": scores, "select": steps}))


def test_files_of_the_steps_that_are_not_there_are_told_before_any_work(
    scored: Run, tmp_path: Path, clip_model: str
) -> None:
    lost = str(tmp_path / "lost.npy")
    for steps in ([{"image_based": {"reference": lost}}], [{"all_of": [[{"image_based": {"reference": lost}}]]}]):
        with pytest.raises(RecipeError, match="neither a run folder nor"):
            choosing.check_files(recipe.load({"select": steps}))
    good = [{"clipcov": {"n": 3}}, {"image_based": {"reference": str(scored.path)}}, {"top_n": {"score": "a", "n": 1}}]
    choosing.check_files(recipe.load({"select": good}))


def test_references_of_another_model_are_refused(scored: Run, tmp_path: Path, siglip_model: str) -> None:
    other = tamis.score(
        write_pool(tmp_path / "pool", shards=1, rows=2),
        run=tmp_path / "run",
        signals=[{"clip": {"model": siglip_model}}],
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
    loaded = recipe.load({"select": [{"clipcov": {"n": 3, "terms": ["cov", "inter"], "per": "cluster"}}]})
    assert loaded.steps[0].terms == ("cov", "inter")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["clipcov", "semdedup", "image-based", "image∩clip", "text-based", "cit", "distinct"])
def test_the_recipes_that_cover_a_pool_ship(name: str) -> None:
    choosing.check_columns(recipe.load(name))


def test_the_reference_of_the_intersection_can_be_set() -> None:
    loaded = recipe.load("image∩clip", ["select.all_of.1.image_based.reference=elsewhere"])
    assert loaded.steps[1].parts[1][-1].reference == "elsewhere"  # type: ignore[attr-defined]
