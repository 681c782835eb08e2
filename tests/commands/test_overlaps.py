"""`tamis overlap`: copies of another run's images, the pairs to judge, and the recall on one's own images."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import Tamis
from factories import score, write_tar
from PIL import Image

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.core.ids import SUBSET_DTYPE
from tamis.runs import Run
from tamis_lab.pool import make_pool


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A pool of 60 drawn pairs, and a test set: ten of its images, smaller, beside five others."""
    folder = tmp_path_factory.mktemp("overlap")
    make_pool(folder / "pool", pairs=60, seed=1, shard_size=20)
    run = score(folder / "pool", folder / "run", "image_hash")
    samples = []
    for number, sample in enumerate(tamis.samples_of(run, fields={"pixels", "caption"}, errors="mark")):
        if sample.pixels is None or sample.caption is None or len(samples) == 10:
            continue
        image = Image.fromarray(sample.pixels).resize((200, 200))
        image.save(folder / "one.jpg", quality=80)
        caption = sample.caption.upper() if number % 2 else "something else"
        samples.append((f"{number:03d}", {"jpg": (folder / "one.jpg").read_bytes(), "txt": caption.encode()}))
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "one.png")
        samples.append((f"{number + 900}", {"png": (folder / "one.png").read_bytes(), "txt": b"noise"}))
    write_tar(folder / "test" / "00000.tar", samples)
    return run, score(folder / "test", folder / "reference", "image_hash")


def test_copies_of_a_test_set_are_found_and_dropped(runs: tuple[Run, Run]) -> None:
    run, reference = runs
    found = tamis.overlap(run, reference.path)
    assert (found.rows, found.references, found.found) == (60, 15, 10)
    subset = tamis.select(run, {"select": [{"not_in": {"reference": str(reference.path), "missing": "drop"}}]})
    assert found.copies == subset.funnel[0]["dropped"][f"copy of {reference.path.name}"]
    copies = found.pairs.filter(np.array(found.pairs["verdict"].to_pylist()) == "copy")
    assert set(copies["by"].to_pylist()) == {"bits"}
    kept = {f"{high:016x}{low:016x}" for high, low in subset.to_numpy().tolist()}
    assert not kept & set(copies["uid"].to_pylist())
    same = tamis.overlap(run, reference.path, caption="same", planted=0)
    assert 0 < same.copies < found.copies
    assert same.recall == {}


def test_the_recall_is_that_of_ones_own_images(runs: tuple[Run, Run]) -> None:
    run, reference = runs
    recall = tamis.overlap(run, reference.path, planted=40).recall
    assert len(recall) == 6
    assert recall["JPEG, quality 50"].value > 0.9
    assert recall["half the size"].value > 0.9
    assert recall["mirrored"].value < 0.5  # no hash finds these
    assert all(0 <= one.low <= one.value <= one.high <= 1 and one.n <= 40 for one in recall.values())


def test_the_command_prints_counts_and_writes_pairs(runs: tuple[Run, Run], tmp_path: Path, tamis: Tamis) -> None:
    run, reference = runs
    out = tmp_path / "copies.parquet"
    done = tamis.ok("overlap", str(run.path), str(reference.path), "--planted", "20", "--out", str(out))
    assert "are copies of 10 of 15 references" in done.err
    assert "mirrored" in done.out
    assert pq.read_table(out).column_names == ["uid", "reference", "verdict", "by", "value"]
    assert "not reference" in tamis.refused("overlap", str(run.path), str(reference.path), "--set", "reference=x")
    assert "--overwrite" in tamis.refused("overlap", str(run.path), str(reference.path), "--out", str(out))
    list_of_hashes = tmp_path / "list.txt"
    list_of_hashes.write_text(run["image_hash"][0].split()[0] + "\n")
    command = ("overlap", str(run.path), str(list_of_hashes), "--planted", "0", "--overwrite", "--out")
    tamis.ok(*command, str(out))
    for file, reason in (
        (list_of_hashes, "which this command reads"),
        (tmp_path / "other.txt", "not written by tamis"),
    ):
        before = list_of_hashes.read_bytes()
        file.write_bytes(before)
        refused = tamis(*command, str(file))
        assert (refused.code, reason in refused.err.replace("\n", " "), file.read_bytes()) == (2, True, before)


def test_what_cannot_be_compared_is_said(runs: tuple[Run, Run], tmp_path: Path) -> None:
    run, reference = runs
    with pytest.raises(RecipeError, match="did you mean 'distance'"):
        tamis.overlap(run, reference.path, distanse=3)
    with pytest.raises(RecipeError, match="nowhere cannot be read"):
        tamis.overlap(run, tmp_path / "nowhere")
    with pytest.raises(RunError, match="image_embedding"):
        tamis.overlap(run, reference.path, embedding="image_embedding")
    (tmp_path / "list.txt").write_text(run["image_hash"][0].split()[0] + "\n")
    assert tamis.overlap(run, tmp_path / "list.txt", planted=0).found == 1


def test_copies_are_found_by_embeddings_of_images_that_were_made_elsewhere(pool: Path, tmp_path: Path) -> None:
    """As docs/recipes.md does it for SSCD: one side, and another model's embeddings in the same run."""
    index = tamis.score(pool, run=tmp_path / "run", signals=["image_hash"], quiet=True)
    high, low = index.table().uids(np.arange(len(index)))
    vectors = np.random.default_rng(0).normal(size=(len(index), 32)).astype(np.float32)
    for name, dims in (("sscd", 32), ("other", 8)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "uid.npy", np.rec.fromarrays([high, low], SUBSET_DTYPE))
        np.save(tmp_path / name / "image.npy", vectors[:, :dims])
    np.save(tmp_path / "tests.npy", vectors[[3, 9]] + 0.05)
    made = [{"clip": {"embeddings_from": str(tmp_path / name), "label": name}} for name in ("other", "sscd")]
    settings: dict[str, Any] = {"hashes": False, "cosine": 0.9}
    one = tamis.score(pool, run=tmp_path / "one", signals=made[1:], keep=["embeddings"], quiet=True)
    found = tamis.overlap(one, tmp_path / "tests.npy", embedding="image_embedding", **settings)
    assert (found.copies, found.found) == (2, 2)
    both = tamis.score(pool, run=tmp_path / "one", signals=made, keep=["embeddings"], quiet=True)
    (folder,) = (name for name in one.embeddings if name.startswith("image"))
    with pytest.raises(RunError, match=f"several 'image_embedding': write .*{folder}"):
        tamis.overlap(both, tmp_path / "tests.npy", embedding="image_embedding", **settings)
    step = {"not_in": {"reference": str(tmp_path / "tests.npy"), "embedding": folder, **settings}}
    assert np.flatnonzero(~tamis.select(both, {"select": [step]}).keep).tolist() == [3, 9]
