"""The class of an image, by the names of a list alone, and what a run keeps of the list."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import pair, write_metadata, write_pool, write_tar
from tiny_models import clip_folder

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.core.types import Device
from tamis.recipes.steps.clipcov import classes_of
from tamis.runs import Run
from tamis.signals import ZeroShotClass
from tamis.signals.classes import class_names, class_vectors

NAMES = "dog\ncat, kitten\nboat\ndog, hound\n"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A list of classes, two of which have one name."""
    file = tmp_path_factory.mktemp("names") / "names.txt"
    file.write_text(NAMES)
    return str(file)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, clip_model: str, names: str) -> Run:
    folder = tmp_path_factory.mktemp("classes")
    write_pool(folder / "pool", shards=2, rows=6)
    write_tar(
        folder / "pool" / "00002.tar", [("broken", pair(1) | {"jpg": b"none"}), ("silent", {"jpg": pair(9)["jpg"]})]
    )
    scores: list[Any] = [
        {"clip": {"model": clip_model}},
        {"zero_shot_class": {"model": clip_model, "classes_from": names, "templates": "name"}},
    ]
    return tamis.score(folder / "pool", run=folder / "run", signals=scores, keep=["embeddings"], quiet=True)


def words(run: Run, column: str = "zero_shot_class") -> list[str | None]:
    table = run.table()
    return [word for block in range(len(table.sizes)) for word in table.read(block, [column])[column].to_pylist()]


def embeddings(run: Run) -> np.ndarray[Any, Any]:
    return np.concatenate([run.embedding("image_embedding", shard) for shard in run.shards]).astype(np.float64)


def test_every_image_gets_the_class_whose_name_is_nearest(run: Run, clip_model: str) -> None:
    vectors = class_vectors(clip_model, ("dog", "cat", "boat"), ("{}",), Device()).astype(np.float64)
    cosine, margin = run.to_numpy("class_cosine"), run.to_numpy("class_margin")
    found = words(run)
    assert found[12] is None  # the broken image; the one without a caption has a class
    assert np.isnan([cosine[12], margin[12]]).all()
    for row, image in enumerate(embeddings(run)):
        if row != 12:
            cosines = [float(image @ vector) / float(np.linalg.norm(image)) for vector in vectors]
            highest, second = sorted(cosines, reverse=True)[:2]
            assert found[row] == ("dog", "cat", "boat")[cosines.index(highest)]
            assert cosine[row] == pytest.approx(highest, abs=1e-5)
            assert margin[row] == pytest.approx(highest - second, abs=1e-5)
    assert len(set(found)) > 2


def test_the_run_keeps_the_names_and_their_embeddings(run: Run, clip_model: str) -> None:
    group = run.scores["zero_shot_class"]
    assert group.side_file("class_names.json") == ["dog", "cat", "boat"]
    vectors = group.side_file("class_vectors.npy")
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, class_vectors(clip_model, ("dog", "cat", "boat"), ("{}",), Device()))
    assert group.side_file("other.json") is None
    table = run.table({"kind": "zero_shot_class"})
    assert table.with_candidates(None).side_file("kind", "class_names.json") == ["dog", "cat", "boat"]
    assert table.side_file("width", "class_names.json") is None
    assert table.about("kind")["settings"]["templates"] == "name"


def test_datacomps_embeddings_need_no_image(tmp_path: Path, names: str) -> None:
    write_metadata(tmp_path / "pool" / "aa.parquet", seed=3)
    model = str(clip_folder(tmp_path / "model", size=512))

    def scored(embedding: str) -> Run:
        settings = {"model": model, "classes_from": names, "templates": "name", "embedding": embedding}
        return tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=[{"zero_shot_class": settings}], quiet=True)

    run = scored("b32_img")
    vectors = class_vectors(model, ("dog", "cat", "boat"), ("{}",), Device())
    images = run.embedding("b32_img", "aa").astype(np.float32)
    assert words(run) == [("dog", "cat", "boat")[place] for place in (images @ vectors.T).argmax(1)]
    # The same, chosen from: classes, their names' embeddings and the captions' all come from the run.
    step = {"clipcov": {"n": 3, "image": "b32_img", "text": "b32_txt", "alpha": 0.5, "double_greedy": False}}
    assert len(tamis.select(run, {"select": [step]})) == 3
    with pytest.raises(RecipeError, match=r"l14_img has 768 numbers, .* 512"):
        scored("l14_img")


def test_bad_lists_are_errors(tmp_path: Path, clip_model: str) -> None:
    with pytest.raises(ValueError, match=r"'names\.txt'.*classes_from"):
        ZeroShotClass(model="x", classes="names.txt")
    with pytest.raises(ValueError, match="did you mean 'photo'"):
        ZeroShotClass(model="x", templates="foto")
    one = tmp_path / "one.txt"
    one.write_text("dog, cat, boat\n")
    with pytest.raises(RecipeError, match="has one class: expected several"):
        ZeroShotClass(model=clip_model, classes_from=str(one)).load(Device())
    write_pool(tmp_path / "pool", shards=1, rows=1)
    lost = {"zero_shot_class": {"model": clip_model, "classes_from": str(tmp_path / "lost.txt")}}
    with pytest.raises(RecipeError, match=r"zero_shot_class: classes_from: .*lost\.txt"):
        tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=[lost], quiet=True)
    assert not (tmp_path / "run").exists()
    assert len(class_names("imagenet")) == 1000
    assert class_names("imagenet")[:2] == ("tench", "goldfish")


def test_side_files_that_are_damaged_or_gone_are_written_again_and_the_rest_stays(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    place = folder / "scores" / run.scores["zero_shot_class"].folder.name
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    assert json.loads(before["signal.json"])["side_files"]["class_vectors.npy"] == {"shape": [3, 24]}
    (place / "class_names.json").write_bytes(before["class_names.json"].replace(b"dog", b"dig"))
    with pytest.raises(RunError, match=r"class_names\.json is damaged"):
        Run(folder).scores["zero_shot_class"].side_file("class_names.json")
    (place / "class_vectors.npy").unlink()
    checked = tamis.check(folder)
    found = {Path(one.path).name: one.kind for one in checked.findings}
    assert found == {"class_names.json": "damaged", "class_vectors.npy": "missing"}
    assert checked.to_delete == (place / "class_names.json",)
    (place / "class_names.json").unlink()
    (place / "signal.json").unlink()
    signal = {"zero_shot_class": dict(run.scores["zero_shot_class"].facts["settings"])}
    tamis.score(run.path.parent / "pool", run=folder, signals=[signal], quiet=True)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_a_class_that_is_not_among_the_names_is_an_error(run: Run) -> None:
    with pytest.raises(RunError, match="'boat', which is not among the 2 class names"):
        classes_of(run.table(), "zero_shot_class", (), ["dog", "cat"])
