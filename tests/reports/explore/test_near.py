"""Search and map by stored embeddings."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import caption, pair

from tamis.core.errors import RecipeError
from tamis.reports.explore import near as near_module
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.explore.layout import principal_components
from tamis.reports.explore.near import Near, inside_polygon
from tamis.runs.manifest import sign_description


def test_the_nearest_are_those_of_the_largest_products(run_folder: Path) -> None:
    near = Near(CachedRun(run_folder))
    table = CachedRun(run_folder).table()
    every = np.arange(60)
    vectors = table.vectors("image_embedding", every).astype(np.float32)
    cosines = np.nan_to_num(vectors @ vectors[7], nan=-2)
    rows, found = near.neighbours(7, 10)
    assert rows.tolist() == np.argsort(-cosines)[:10].tolist()
    assert found.tolist() == pytest.approx(np.sort(cosines)[::-1][:10].tolist())
    assert near.neighbours(7)[0][0] == 7
    assert 13 not in near.neighbours(7)[0]  # its image does not decode: it has no embedding
    assert near.neighbours(13)[0].tolist() == [13]


def test_a_run_without_embeddings_says_what_to_do(run_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "embeddings")
    with pytest.raises(RecipeError, match="--keep embeddings"):
        Near(CachedRun(tmp_path / "run")).neighbours(3)


def test_embeddings_that_a_shard_lacks_are_not_offered_as_a_map(run_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    next((tmp_path / "run" / "embeddings").glob("*/00001.npy")).unlink()
    assert Near(CachedRun(run_folder)).maps() == {"image_embedding": ("PCA", ["image_embedding"])}
    assert Near(CachedRun(tmp_path / "run")).maps() == {}


def test_words_find_what_the_captions_own_embedding_finds(clip_run: Path) -> None:
    run = CachedRun(clip_run)
    every, table = np.arange(12), run.table()
    images = table.vectors("image_embedding", every).astype(np.float32)
    texts = table.vectors("text_embedding", every).astype(np.float32)
    found = Near(run).to_text(caption(3))
    cosines = images @ texts[3]
    assert cosines[found].tolist() == pytest.approx(np.sort(cosines)[::-1].tolist(), abs=1e-6)


def test_the_encoder_is_loaded_ahead_only_if_this_machine_has_it(
    clip_run: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Counted(near_module.Executor):
        def __init__(self, *settings: Any) -> None:
            made.append("one")
            super().__init__(*settings)

    monkeypatch.setattr(near_module, "Executor", Counted)
    for folder, here in [(clip_run, False), (run_folder, False), (clip_run, True)]:
        near = Near(CachedRun(folder))
        with monkeypatch.context() as patch:
            if not here:
                patch.setattr(near_module, "is_here", lambda model: False)
            near.warm()
        assert made == ["one"] * here
    near.to_text("a boat")
    assert made == ["one"]


def test_an_image_finds_itself_first_and_the_order_of_its_row(clip_run: Path) -> None:
    near = Near(CachedRun(clip_run))
    key = near.add_image(pair(7)["jpg"])
    assert near.to_image(key).tolist() == near.neighbours(7)[0].tolist()
    assert near.to_image(key)[0] == 7
    with pytest.raises(RecipeError, match="choose it again"):
        near.to_image("of another server")


def test_a_model_that_has_changed_since_is_not_searched_with(clip_run: Path, tmp_path: Path) -> None:
    shutil.copytree(clip_run, tmp_path / "run")
    (facts,) = (tmp_path / "run" / "embeddings").glob("image_embedding-*/*.json")
    said = json.loads(facts.read_text())
    said["models"]["lab/clip"] = "0" * len(said["models"]["lab/clip"])
    facts.write_text(json.dumps(sign_description(facts.parent, said)))
    with pytest.raises(RecipeError, match="lab/clip did not make the run's"):
        Near(CachedRun(tmp_path / "run")).to_text("a red square")


def test_the_map_is_the_plane_of_the_singular_value_decomposition() -> None:
    random = np.random.default_rng(1)
    vectors = (random.normal(size=(200, 6)) * [5, 3, 1, 1, 1, 0.5]).astype(np.float32)
    points, project, shares = principal_components(lambda rows: vectors[rows], np.arange(200), 2)
    assert project(np.array([7]))[0].tolist() == pytest.approx(points[7].tolist(), rel=1e-4)
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    expected = left[:, :2] * values[:2]
    for axis in range(2):
        assert abs(np.dot(points[:, axis], expected[:, axis])) == pytest.approx(
            np.dot(expected[:, axis], expected[:, axis]), rel=1e-3
        )
    assert shares[0] == pytest.approx(values[0] ** 2 / (values**2).sum(), rel=1e-4)


def test_a_lasso_holds_what_is_inside() -> None:
    notch = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 0.2), (0.0, 1.0)]
    points = np.array([[0.5, 0.5], [0.1, 0.5], [1.5, 0.5], [0.5, -0.1]])
    assert inside_polygon(points, notch).tolist() == [False, True, False, False]
    assert not inside_polygon(points, []).any()


def test_a_lasso_gives_rows_of_the_run(run_folder: Path) -> None:
    near = Near(CachedRun(run_folder))
    whole = [(-2.0, -2.0), (2.0, -2.0), (2.0, 2.0), (-2.0, 2.0)]
    assert near.inside("image_embedding", whole).tolist() == [row for row in range(60) if row != 13]
    with pytest.raises(RecipeError, match="unknown map 'words'"):
        near.inside("words", whole)
