"""The step not_in: copies of reference images are found by the rules of distinct, or by embeddings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copies import hash_columns, recompressed
from factories import write_run
from PIL import Image

from tamis.core.errors import RecipeError
from tamis.core.math.copies import NearTo
from tamis.recipes.steps.not_in import NotIn, References, normalise, thumbnails
from tamis.runs.table import MemoryTable
from tamis.signals.image_hash import hashes_of

Array = np.ndarray[Any, Any]


def image(seed: int) -> Array:
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((240, 240), Image.Resampling.BICUBIC))


def references(images: list[Array], captions: list[str | None] | None = None) -> References:
    import pyarrow as pa

    columns = {
        name: values if isinstance(values, np.ndarray) else pa.array(values)
        for name, values in hash_columns(images).items()
    }
    hashes = np.array([[int(one, 16) for one in hashes_of(each).split()] for each in images], np.uint64)
    return References(range(len(images)), hashes, thumbnails(columns), captions=captions)


FLAT, RED = np.full((64, 64, 3), 200, np.uint8), np.full((64, 64, 3), (200, 0, 0), np.uint8)


def test_near_pairs_are_those_of_a_slow_search() -> None:
    rng = np.random.default_rng(0)
    hashes, others = (rng.integers(0, 2**63, (n, 3), np.uint64) for n in (3000, 200))
    for row in range(0, 3000, 7):  # some hash of a row is some bits from one of the others'
        flips = sum(1 << int(bit) for bit in rng.choice(64, rng.integers(0, 12), replace=False))
        hashes[row, rng.integers(3)] = others[row % 200, rng.integers(3)] ^ np.uint64(flips)
    found = {
        (int(a), int(b)): int(n) for part in NearTo(others, 8).pairs(hashes) for a, b, n in zip(*part, strict=True)
    }
    first = np.bitwise_count(hashes[:, None, :1] ^ others[None]).min(2)
    bits = np.minimum(first, np.bitwise_count(hashes[:, None] ^ others[None, :, :1]).min(2))
    assert found == {(int(a), int(b)): int(bits[a, b]) for a, b in np.argwhere(bits <= 8)}
    assert len(found) > 50
    assert not next(iter(NearTo(np.empty((0, 3), np.uint64), 8).pairs(hashes[:1])))[0].size


@pytest.mark.parametrize("block", [2, 100])
def test_copies_are_dropped_and_flat_images_only_if_they_are_identical(block: int) -> None:
    pool = [image(1), recompressed(image(2)), image(3)[8:-8, 8:-8], image(4), FLAT, RED]
    table = MemoryTable(hash_columns(pool), block=block)
    pairs, missing = NotIn(reference="r").find(table, references([image(3), image(2), FLAT]))
    assert [(row, reference) for row, reference, copy, *_ in pairs.tolist() if copy] == [(1, 1), (2, 0), (4, 2)]
    assert not missing.any()
    among = table.with_candidates(np.array([True, False, True, True, False, False]))
    assert NotIn(reference="r").find(among, references([image(3), image(2), FLAT]))[0]["row"].tolist() == [2]


def test_with_the_same_caption_image_and_text_must_be_those_of_one_reference() -> None:
    pool = {**hash_columns([image(1)] * 4), "caption": ["A  dog!", "a cat", "ＡDOG", None]}
    refs = references([image(1), image(1), image(9)], ["a dog", "Two.", "a cat"])
    pairs, _ = NotIn(reference="r", caption="same").find(MemoryTable(pool), refs)
    assert pairs[["row", "reference"]].tolist() == [(0, 0)]
    assert normalise("  Ａ Dog, ") == "a dog"


def test_a_pair_just_below_the_limit_is_borderline_and_stays(tmp_path: Path) -> None:
    angles = np.arccos([1, 0.96, 0.94, 0.9, 0.5])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32) * 3
    vectors[4] = np.nan
    np.save(tmp_path / "r.npy", np.array([[2, 0]], np.float32))
    step = NotIn(reference=str(tmp_path / "r.npy"), hashes=False, embedding="e", missing="drop")
    found = step.select(MemoryTable({"e": vectors}))
    assert found.keep.tolist() == [False, False, True, True, False]
    assert found.counts == {"kept": 2, "copy of r.npy": 2, "missing": 1}
    assert found.facts == {"references": 1, "references_found": 1, "borderline": 1}
    with pytest.raises(RecipeError, match=r"the references \(2\) and e \(3\)\. Embed"):
        step.select(MemoryTable({"e": np.ones((2, 3), np.float32)}))


def test_references_are_numbered_as_the_file_has_them(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", np.array([[1e200, 0], [np.nan, 1], [1, 0]]))
    found = NotIn(reference=str(tmp_path / "r.npy"), hashes=False, embedding="e").references()
    assert (list(found.names), found.vectors.tolist() if found.vectors is not None else None) == ([2], [[1, 0]])


def test_only_references_that_can_be_compared_count(tmp_path: Path) -> None:
    words = hash_columns([image(1), image(2), image(3)])
    blank: dict[str, Any] = {n: [*v[:2], None] if n.startswith("image") else v for n, v in words.items()}
    write_run(tmp_path / "run", blank)
    found = NotIn(reference=str(tmp_path / "run")).select(MemoryTable(words))
    assert found.facts == {"references": 2, "references_found": 2, "borderline": 0}


def test_a_hash_of_a_list_must_be_within_half_the_distance(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# ours\r\nF0F0f0f0f0f0f0f0\n\n", "utf-8-sig")
    words = hash_columns([image(1)] * 3) | {"image_hash": ["f0f0f0f0f0f0f0ff", "f0f0f0f0f0f0ffff", "00ff00ff00ff00ff"]}
    found = NotIn(reference=str(tmp_path / "list.txt")).select(MemoryTable(words))
    assert found.keep.tolist() == [False, True, True]
    assert found.facts["borderline"] == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.txt", "f0f0\n", "line 1: 'f0f0' is not a hash of 16 hex digits"),
        ("none.txt", None, "cannot be read"),
        ("f.npy", np.ones((2, 3), np.float32), "needs embedding: image_embedding"),
        ("i.npy", np.ones(2, np.int16), "uint64"),
        ("empty.txt", "# none yet\n", "empty.txt holds no references"),
        ("k.npy", np.ones((4, 0), np.uint64), "k.npy holds no references"),
        ("folder", "", "Score its images first: tamis score"),
    ],
)
def test_what_is_no_reference_is_refused_before_work(tmp_path: Path, name: str, content: Any, message: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    elif isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(RecipeError, match=message):
        NotIn(reference=str(path)).check_files()
    with pytest.raises(ValueError, match="name stored embeddings"):
        NotIn(reference="x", hashes=False)
    with pytest.raises(ValueError, match="cosine must be between 0 and 1"):
        NotIn(reference="x", cosine=95)
