"""The derived signals `concepts` and `concept_weight`: the concepts nearest to an image's embedding."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.core.errors import RecipeError
from tamis.recipes.derived import Concepts, ConceptWeight
from tamis.recipes.steps import Balance
from tamis.runs.table import MemoryTable


def make(name: str, made: Any) -> Any:
    """Keeps nothing."""
    return made()


def written(folder: Path, vectors: Any, name: str = "concepts.npy") -> str:
    np.save(folder / name, np.asarray(vectors, np.float32))
    return str(folder / name)


def named(found: Any) -> list[str | None]:
    words: list[str | None] = found["concepts"].to_pylist()
    return words


def test_concept_weights_are_those_of_a_plain_count(tmp_path: Path) -> None:
    """Three images near the first concept and one near the second, k 1: weights 1/3 and 1, of mean 1: 2/3 and 2."""
    np.save(tmp_path / "concepts.npy", np.eye(3, dtype=np.float32))
    images = np.array([[2, 1, 0], [3, 0, 1], [1, 0, 0], [0.1, 9, 0], [np.nan] * 3], np.float16)
    made = ConceptWeight(concepts=str(tmp_path / "concepts.npy"), k=1)
    found = made.compute(MemoryTable({"image_embedding": images}, block=2), make)["concept_weight"]
    np.testing.assert_allclose(found, [2 / 3, 2 / 3, 2 / 3, 2, np.nan], rtol=1e-6)
    rng = np.random.default_rng(0)
    images, concepts = (rng.normal(size=(n, 8)).astype(np.float32) for n in (300, 20))
    np.save(tmp_path / "concepts.npy", concepts)
    unit = concepts / np.linalg.norm(concepts, axis=1, keepdims=True)
    near = [set(np.argsort(-(unit @ image))[:4].tolist()) for image in images]
    counts = [sum(concept in some for some in near) for concept in range(20)]
    plain = np.array([sum(1 / counts[concept] for concept in some) for some in near])
    made = ConceptWeight(concepts=str(tmp_path / "concepts.npy"), k=4)
    found = made.compute(MemoryTable({"image_embedding": images}, block=77), make)["concept_weight"]
    np.testing.assert_allclose(found, plain / plain.mean(), rtol=1e-5)
    np.save(tmp_path / "concepts.npy", np.eye(3, dtype=np.float32))
    with pytest.raises(RecipeError, match=r"the concepts \(3\) and image_embedding \(8\)"):
        made.compute(MemoryTable({"image_embedding": images}), make)


def test_an_image_has_the_nearest_concepts_above_the_cut_the_nearest_first(tmp_path: Path) -> None:
    """Cosines: (2, 1, 0) / sqrt(5) = .894, .447, 0; the third image is as near to two concepts; the last has none."""
    images = np.array([[2, 1, 0], [0.1, 9, 0], [1, 0, 1], [-1, -1, -1], [np.nan] * 3], np.float16)
    (tmp_path / "names.txt").write_text("dog\nhot dog\ncat\n")
    made = Concepts(concepts=written(tmp_path, 5 * np.eye(3)), names=str(tmp_path / "names.txt"), k=2, at_least=0.4)
    for block in (1, 2, 5):
        found = made.compute(MemoryTable({"image_embedding": images}, block=block), make)
        assert named(found) == ["dog\thot dog", "hot dog", "dog\tcat", "", None]
        np.testing.assert_array_equal(found["n_concepts"], [2, 1, 2, 0, np.nan])
    one = Concepts(concepts=made.concepts, names=made.names, k=1, at_least=0.4)
    assert named(one.compute(MemoryTable({"image_embedding": images}), make)) == ["dog", "hot dog", "dog", "", None]
    every = Concepts(concepts=made.concepts, names=made.names, k=9, at_least=-1)
    assert named(every.compute(MemoryTable({"image_embedding": images[3:4]}), make)) == ["dog\thot dog\tcat"]


def test_concepts_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, concepts = (rng.normal(size=(n, 8)).astype(np.float32) for n in (300, 20))
    made = Concepts(concepts=written(tmp_path, concepts), k=4, at_least=0.3)
    found = named(made.compute(MemoryTable({"image_embedding": images}, block=77), make))
    for image, words in zip(images, found, strict=True):
        cosine = [float(one @ image / np.linalg.norm(one) / np.linalg.norm(image)) for one in concepts]
        best = sorted(range(20), key=lambda number: -cosine[number])[:4]
        assert words == "\t".join(str(number) for number in best if cosine[number] >= 0.3)


def test_of_equally_near_concepts_the_first_are_taken_however_the_pool_is_cut(tmp_path: Path) -> None:
    """Two names with one embedding, such as dog and Dog: a matrix product of another shape rounds them differently."""
    rng = np.random.default_rng(0)
    images, concepts = rng.normal(size=(300, 64)).astype(np.float16), rng.normal(size=(200, 64)).astype(np.float32)
    path = written(tmp_path, np.concatenate([concepts, concepts]))
    unit = concepts / np.linalg.norm(concepts, axis=1, keepdims=True)
    best = np.argsort(-(images.astype(np.float32) @ unit.T), axis=1)[:, :2].tolist()
    weights = []
    for block in (1, 7, 300):
        table = MemoryTable({"image_embedding": images}, block=block)
        found = named(Concepts(concepts=path, k=3, at_least=-1).compute(table, make))
        assert [{*map(int, str(words).split("\t"))} for words in found] == [{a, a + 200, b} for a, b in best]
        weights.append(ConceptWeight(concepts=path, k=3).compute(table, make)["concept_weight"].tolist())
    assert weights == [weights[0]] * 3


def test_a_list_of_one_concept_weights_all_images_the_same(tmp_path: Path) -> None:
    images = np.array([[1, 0], [0, 1], [np.nan] * 2], np.float16)
    made = ConceptWeight(concepts=written(tmp_path, [[1, 0]]))
    found = made.compute(MemoryTable({"image_embedding": images}), make)["concept_weight"]
    np.testing.assert_array_equal(found, [1, 1, np.nan])


def test_names_come_from_the_file_beside_the_vectors_and_balance_reads_the_column(tmp_path: Path) -> None:
    (tmp_path / "class_names.json").write_text(json.dumps(["dog", "cat"]))
    made = Concepts(concepts=written(tmp_path, np.eye(2), "class_vectors.npy"), k=1, at_least=0.5)
    images = np.array([[1, 0]] * 30 + [[0, 1]] * 2, np.float32)
    words = named(made.compute(MemoryTable({"image_embedding": images}), make))
    assert words == ["dog"] * 30 + ["cat"] * 2
    kept = Balance(t=2, entries="concepts").select(MemoryTable({"concepts": words})).keep
    assert kept[30:].all()
    assert kept[:30].sum() < 10


def test_wrong_names_and_cuts_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, np.eye(3))
    table = MemoryTable({"image_embedding": np.eye(3, dtype=np.float32)})
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "tab.json").write_text(json.dumps(["a", "b\tc", "d"]))
    (tmp_path / "list").write_text("a\n[odd]\nc\n")  # cabs would read it as JSON
    for names, why in (
        ("two", "3 concepts, .*two 2 names"), ("tab.json", "has a tab"), ("list", "begins as a list does"),
        ("none", "one name per line"),
    ):  # fmt: skip
        with pytest.raises(RecipeError, match=why):
            Concepts(concepts=path, names=str(tmp_path / names), at_least=0.2).compute(table, make)
    for wrong in (1.5, float("nan")):
        with pytest.raises(ValueError, match="at_least is a cosine"):
            Concepts(concepts=path, at_least=wrong)
    with pytest.raises(RecipeError, match=r"the concepts \(3\) and image_embedding \(2\)"):
        Concepts(concepts=path, at_least=0).compute(MemoryTable({"image_embedding": np.eye(2, dtype="f4")}), make)
