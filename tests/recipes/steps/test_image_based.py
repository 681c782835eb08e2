"""The step image_based compared with its rule, and how references are read."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.core.errors import RecipeError
from tamis.core.math.similarity import unit_rows
from tamis.recipes.steps import ImageBased
from tamis.recipes.steps import clusters as clustering
from tamis.recipes.steps.clusters import reference_vectors
from tamis.runs.table import MemoryTable

Array = np.ndarray[Any, Any]


def heaps(n: int, which: tuple[int, ...], seed: int) -> tuple[Array, Array]:
    """Vectors around a few of six axes, far apart."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(which, n)
    return unit_rows(np.eye(6)[kind] + 0.05 * rng.normal(size=(n, 6))).astype(np.float16), kind


def test_rows_stay_whose_cluster_holds_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr("tamis.recipes.steps.clusters.BLOCK", 8)
    vectors, kind = heaps(300, (0, 1, 2, 3, 4, 5), 1)
    reference, _ = heaps(40, (1, 4), 2)
    np.save(tmp_path / "reference.npy", reference)
    table = MemoryTable({"image_embedding": vectors}, block=70)
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


def test_given_centroids_are_taken_by_inner_product_as_datacomp_takes_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vectors, _ = heaps(300, (0, 1, 2, 3, 4, 5), 1)
    reference, _ = heaps(40, (1, 4), 2)
    given = (np.random.default_rng(3).normal(size=(40, 6)) * np.linspace(0.1, 3, 40)[:, None]).astype(np.float32)
    for name, values in {
        "r": reference,
        "c": given,
        "flat": given[0],
        "nan": given * np.nan,
        "narrow": given[:, :5],
    }.items():
        np.save(tmp_path / f"{name}.npy", values)

    def step(centroids: str, **settings: Any) -> ImageBased:
        return ImageBased(reference=str(tmp_path / "r.npy"), centroids=str(tmp_path / centroids), **settings)

    table = MemoryTable({"image_embedding": vectors}, block=70)
    found = step("c.npy").select(table)
    held = {max(range(40), key=lambda k: float(row @ given[k])) for row in reference.astype(np.float64)}
    plain = [max(range(40), key=lambda k: float(row @ given[k])) in held for row in vectors.astype(np.float64)]
    assert found.keep.tolist() == plain
    assert 0 < sum(plain) < 300
    assert found.facts == {"clusters": 40, "clusters_with_reference": len(held)}
    assert "single" not in caplog.text
    few = MemoryTable({"image_embedding": vectors[:20]})
    ImageBased(reference=str(tmp_path / "r.npy"), clusters=18).select(few)
    assert "image_based, clusters: half of the" in caplog.text
    with zipfile.ZipFile(tmp_path / "small.pt", "w") as file:
        file.writestr("small/data.pkl", b"")
    for name, said in {
        "flat.npy": "expected a .npy file of finite floats",
        "nan.npy": "expected a .npy file of finite floats",
        "narrow.npy": "number of dimensions differs",
        "none.npy": "is no file",
        "small.pt": r"load\('small.pt', weights_only=False\)\) makes one of a pickle you trust",  # as DataComp's are
    }.items():
        with pytest.raises(RecipeError, match=said):
            step(name).select(table)
    with pytest.raises(ValueError, match="centroids are given: leave out clusters=6"):
        step("c.npy", clusters=6)


def test_references_are_read_in_blocks_and_those_that_are_missing_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = heaps(50, (0, 2), 5)[0]
    rows = rows.astype(np.float64)
    rows[7], rows[8] = np.nan, 1e200
    np.save(tmp_path / "reference.npy", rows)
    monkeypatch.setattr("tamis.recipes.steps.clusters.BLOCK", 8)
    blocks = list(reference_vectors(str(tmp_path / "reference.npy"), "image_embedding"))
    assert [len(block) for block in blocks] == [7, 7, *[8] * 4, 2]
    assert np.concatenate(blocks).tolist() == unit_rows(np.delete(rows, [7, 8], axis=0)).tolist()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.ones(3), r"an array of \(3,\) float64, expected rows of embeddings"),
        (np.array([["a", "b"]]), r"an array of \(1, 2\) <U1, expected rows of embeddings, floats"),
        (np.ones((2, 3)), r"the references \(3\) and image_embedding \(6\)\. Embed them with"),
        *((nothing, "holds no embedding") for nothing in (np.empty((0, 6)), np.full((2, 6), np.nan))),
    ],
)
def test_a_reference_that_cannot_be_used_is_an_error_that_says_what_it_should_be(
    values: Array, said: str, tmp_path: Path
) -> None:
    table = MemoryTable({"image_embedding": heaps(9, (0, 1), 1)[0]})
    np.save(tmp_path / "r.npy", values)
    np.savez(tmp_path / "several.npz", a=np.ones((2, 6)), b=np.ones(2))
    for name, expected in {
        "r.npy": said,
        "none.npy": r"neither a run folder nor a \.npy file",
        "several.npz": "several arrays: save the one you need",
        ".": "is not a run folder",
    }.items():
        with pytest.raises(RecipeError, match=expected):
            ImageBased(reference=str(tmp_path / name), clusters=1).select(table)


def test_clusters_have_a_thousand_rows_and_more_than_that_in_large_pools() -> None:
    rows = [10, 5_000, 1_000_000, 128_000_000]
    assert [clustering.usual_count(number) for number in rows] == [1, 5, 1000, 11_313]
