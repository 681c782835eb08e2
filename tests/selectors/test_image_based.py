"""The step image_based beside its rule, and how references are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import RecipeError
from tamis.math.similarity import unit_rows
from tamis.selectors import ImageBased
from tamis.selectors import clusters as clustering
from tamis.selectors.clusters import reference_vectors
from tamis.store.table import Table

Array = np.ndarray[Any, Any]


def heaps(n: int, which: tuple[int, ...], seed: int) -> tuple[Array, Array]:
    """Vectors around a few of six axes, far apart."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(which, n)
    return unit_rows(np.eye(6)[kind] + 0.05 * rng.normal(size=(n, 6))).astype(np.float16), kind


def test_rows_stay_whose_cluster_holds_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr("tamis.selectors.clusters.BLOCK", 8)
    vectors, kind = heaps(300, (0, 1, 2, 3, 4, 5), 1)
    reference, _ = heaps(40, (1, 4), 2)
    np.save(tmp_path / "reference.npy", reference)
    table = Table.of({"image_embedding": vectors}, block=70)
    step = ImageBased(reference=str(tmp_path / "reference.npy"), clusters=6)
    found = step.select(table)
    labels = clustering.assign(
        table, "image_embedding", np.ones(300, bool), clustering.fit(table, "image_embedding", np.ones(300, bool), 6)
    )
    held = set((reference.astype(np.float32) @ labels.centroids.T).argmax(1).tolist())
    assert found.keep.tolist() == [label in held for label in labels.label.tolist()]
    assert found.keep[np.isin(kind, (1, 4))].all()
    assert found.counts["no reference image in its cluster"] > 0
    assert found.facts == {"clusters": 6, "clusters_with_reference": len(held)}


def test_references_are_read_in_blocks_and_those_that_are_missing_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = heaps(50, (0, 2), 5)[0]
    rows[7] = np.nan
    np.save(tmp_path / "reference.npy", rows)
    monkeypatch.setattr("tamis.selectors.clusters.BLOCK", 8)
    blocks = list(reference_vectors(str(tmp_path / "reference.npy"), "image_embedding"))
    assert [len(block) for block in blocks] == [7, *[8] * 5, 2]
    assert np.concatenate(blocks).tolist() == unit_rows(np.delete(rows, 7, axis=0)).tolist()


def test_a_reference_that_is_none_says_what_it_should_be(tmp_path: Path) -> None:
    table = Table.of({"image_embedding": heaps(9, (0, 1), 1)[0]})
    with pytest.raises(RecipeError, match=r"neither a run folder nor a \.npy file"):
        ImageBased(reference=str(tmp_path / "none.npy"), clusters=1).select(table)
    np.save(tmp_path / "flat.npy", np.ones(3))
    with pytest.raises(RecipeError, match=r"an array of \(3,\) float64, expected rows of embeddings"):
        ImageBased(reference=str(tmp_path / "flat.npy"), clusters=1).select(table)
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    with pytest.raises(RecipeError, match=r"an array of \(1, 2\) <U1, expected rows of embeddings, floats"):
        ImageBased(reference=str(tmp_path / "words.npy"), clusters=1).select(table)
    np.savez(tmp_path / "several.npz", a=np.ones((2, 6)), b=np.ones(2))
    with pytest.raises(RecipeError, match="several arrays: save the one you need"):
        ImageBased(reference=str(tmp_path / "several.npz"), clusters=1).select(table)
    np.save(tmp_path / "other.npy", np.ones((2, 3)))
    with pytest.raises(RecipeError, match="have 3 dimensions, the pool's 6: embed both with one model"):
        ImageBased(reference=str(tmp_path / "other.npy"), clusters=1).select(table)
    for nothing in (np.empty((0, 6)), np.full((2, 6), np.nan), np.zeros((2, 6))):
        np.save(tmp_path / "nothing.npy", nothing)
        with pytest.raises(RecipeError, match="holds no embedding: no cluster of the pool could be kept"):
            ImageBased(reference=str(tmp_path / "nothing.npy"), clusters=1).select(table)
    with pytest.raises(RecipeError, match="is not a run folder"):
        ImageBased(reference=str(tmp_path), clusters=1).select(table)
    with pytest.raises(ValueError, match="clusters must be at least 1"):
        ImageBased(reference="x", clusters=0)
