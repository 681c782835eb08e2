"""Search and map by stored embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tamis.errors import RecipeError
from tamis.explore.columns import HeldRun
from tamis.explore.near import Near, components, inside_polygon


def test_the_nearest_are_those_of_the_largest_products(run_folder: Path) -> None:
    near = Near(HeldRun(run_folder))
    table = HeldRun(run_folder).table()
    every = np.arange(60)
    vectors = table.vectors("image_embedding", every).astype(np.float32)
    cosines = np.nan_to_num(vectors @ vectors[7], nan=-2)
    rows, found = near.neighbours(7, 10)
    assert rows.tolist() == np.argsort(-cosines)[:10].tolist()
    assert found.tolist() == pytest.approx(np.sort(cosines)[::-1][:10].tolist())
    assert near.to_row(7)[0] == 7
    assert 13 not in near.to_row(7)  # its image does not decode: it has no embedding
    assert near.to_row(13).tolist() == [13]


def test_a_run_without_embeddings_says_what_to_do(run_folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run_folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "embeddings")
    with pytest.raises(RecipeError, match="--keep embeddings"):
        Near(HeldRun(tmp_path / "run")).to_row(3)


def test_the_map_is_the_plane_of_the_singular_value_decomposition() -> None:
    random = np.random.default_rng(1)
    vectors = (random.normal(size=(200, 6)) * [5, 3, 1, 1, 1, 0.5]).astype(np.float32)
    points, shares = components(lambda rows: vectors[rows], np.arange(200))
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    expected = left[:, :2] * values[:2]
    expected /= np.abs(expected).max(axis=0)
    for axis in range(2):
        assert abs(np.dot(points[:, axis], expected[:, axis])) == pytest.approx(
            np.dot(expected[:, axis], expected[:, axis]), rel=1e-3
        )
    assert shares[0] == pytest.approx(values[0] ** 2 / (values**2).sum(), rel=1e-4)
    assert np.abs(points).max() == pytest.approx(1)


def test_vectors_that_are_all_the_same_have_a_map_too() -> None:
    points, shares = components(lambda rows: np.ones((rows.size, 4), np.float32), np.arange(5))
    assert np.isfinite(points).all()
    assert shares[0] <= 1


def test_a_lasso_holds_what_is_inside() -> None:
    square = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    notch = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 0.2), (0.0, 1.0)]
    points = np.array([[0.5, 0.5], [0.1, 0.5], [1.5, 0.5], [0.5, -0.1]])
    assert inside_polygon(points, square).tolist() == [True, True, False, False]
    assert inside_polygon(points, notch).tolist() == [False, True, False, False]
    assert not inside_polygon(points, []).any()


def test_a_lasso_gives_rows_of_the_run(run_folder: Path) -> None:
    near = Near(HeldRun(run_folder))
    whole = [(-2.0, -2.0), (2.0, -2.0), (2.0, 2.0), (-2.0, 2.0)]
    assert near.inside("image_embedding", whole).tolist() == [row for row in range(60) if row != 13]
    with pytest.raises(RecipeError, match="a map is drawn of embeddings"):
        near.inside("words", whole)
