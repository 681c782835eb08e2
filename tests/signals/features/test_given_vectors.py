"""Embeddings made elsewhere: every form of file, through the real command, and what reads embeddings."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Tamis
from factories import index_rows, score

import tamis as library
from tamis.core.errors import RecipeError
from tamis.core.ids import SUBSET_DTYPE, format_uid
from tamis.core.math.similarity import rowwise_dot, unit_rows
from tamis.core.types import Device
from tamis.pools import PoolSpec, vectors
from tamis.reports.explore.near import Near
from tamis.runs import Run
from tamis.runs.manifest import SIGNAL, read_description
from tamis.runs.parts import read_columns
from tamis.signals import ClipScore
from tamis.signals.clip import NO_VECTOR
from tamis.signals.graph import Identities

FORMS = ("uid.parquet", "key.parquet", "uid.npy")

Pairs = list[dict[str, Any]]


def pairs_of(pool: Path, folder: Path) -> Pairs:
    """The pairs of a pool in another order, and one that it lacks."""
    rows = index_rows(score(pool, folder, "caption_length"))
    found = [{"uid": format_uid(row["uid_hi"], row["uid_lo"]), "key": row["key"]} for row in rows]
    return [*found[::-1], {"uid": "f" * 32, "key": "of no pair"}]


def write(folder: Path, form: str, pairs: Pairs, image: Any, text: Any) -> Path:
    """Writes vectors, (n, d) each, in one of the forms."""
    folder.mkdir(parents=True, exist_ok=True)
    by = "key" if form.startswith("key") else "uid"
    ids = [pair[by] for pair in pairs]
    if form.endswith(".parquet"):
        kind = pa.list_(pa.float32(), 8) if by == "uid" else pa.list_(pa.float64())
        columns = {  # a null is a vector that is missing
            side: pa.array([row if row.any() else None for row in rows], kind)
            for side, rows in (("image", image), ("text", text))
        }
        table = pa.table({by: ids, **columns})
        pq.write_table(table, folder / form, row_group_size=3)
        return folder / form
    np.save(folder / "image.npy", image)
    np.save(folder / "text.npy", text)
    halves = [(int(uid[:16], 16), int(uid[16:], 16)) for uid in ids]
    np.save(folder / form, np.array(halves, SUBSET_DTYPE))
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_vectors_of_others_are_scored_and_read_as_our_own(form: str, pool: Path, tamis: Tamis, tmp_path: Path) -> None:
    pairs = pairs_of(pool, tmp_path / "first")
    image, text = np.random.default_rng(0).normal(0, 3, (2, len(pairs), 8)).astype(np.float32)
    image[2], text[3], image[4, 1] = 0, 0, np.nan  # no direction
    kept = [*range(8), *range(9, len(pairs))]  # the file lacks a pair
    chosen = [pairs[n] for n in kept]
    file = write(tmp_path / "vectors", form, chosen, image[kept], text[kept])
    recipe = tmp_path / "recipe.yaml"
    steps = [{"semdedup": {"epsilon": 0.1, "clusters": 2, "missing": "drop"}}]
    signals = [{"clip": {"embeddings_from": str(file)}}]
    recipe.write_text(
        json.dumps({"name": "mine", "about": "", "signals": signals, "keep": ["embeddings"], "select": steps})
    )
    tamis.ok("check", recipe)
    tamis.ok("score", pool, "--run", tmp_path / "run", "--recipe", recipe, "--workers", 1, "--batch-size", 4)
    run = Run(tmp_path / "run")
    expected = {side: unit_rows(rows).astype(np.float16) for side, rows in (("image", image), ("text", text))}
    for rows in expected.values():
        rows[8] = np.nan
    ours = {side: rows[-2::-1] for side, rows in expected.items()}  # in the order of the pool
    for side, rows in ours.items():
        stored = np.concatenate([run.embedding(f"{side}_embedding", shard) for shard in run.shards])
        np.testing.assert_array_equal(stored, rows)
    np.testing.assert_array_equal(run.to_numpy("clip"), rowwise_dot(ours["image"], ours["text"]))
    parts = [read_columns(part, ["reason"]) for part in sorted(run.scores["clip"].folder.glob("*.parquet"))]
    reasons = [reason for part in parts for reason in part["reason"].to_pylist()][::-1]
    assert {n: reason for n, reason in enumerate(reasons) if reason} == dict.fromkeys((2, 3, 4, 8), NO_VECTOR)
    subset = library.select(run, recipe)
    assert len(subset) == len(pairs) - 1 - 3  # random vectors are far apart; three have no image
    near = Near(run)
    assert near.neighbours(0)[0][0] == 0
    with pytest.raises(RecipeError, match="made elsewhere"):
        near.to_text("a dog")


def bad(pairs: Pairs, image: Any, text: Any, folder: Path, fault: str) -> Path:
    """Writes a file with a fault."""
    if fault == "twice":
        return write(folder, "uid.parquet", [*pairs[:-1], pairs[0]], image, text)
    if fault == "widths":
        return write(folder, "uid.npy", pairs, image, text[:, :5])
    if fault == "rows":
        return write(folder, "uid.npy", pairs, image[1:], text)
    if fault == "uid":
        return write(folder, "uid.parquet", [{"uid": "birds"}, *pairs[1:]], image, text)
    if fault == "damaged":
        (folder := write(folder, "uid.parquet", pairs, image, text)).write_bytes(b"PAR1 and no more")
        return folder
    if fault == "array":
        write(folder, "uid.npy", pairs, image, text)
        return folder / "image.npy"
    table = {
        "lists": {"uid": [pair["uid"] for pair in pairs], "image": [[0.5] * (4 - (n == 6)) for n in range(len(pairs))]},
        "texts": {"uid": [pair["uid"] for pair in pairs], "image": [["a"]] * len(pairs)},
        "columns": {"uid": [pair["uid"] for pair in pairs], "vector": [[0.5]] * len(pairs)},
        "empty": {"uid": pa.array([], pa.string()), "image": pa.array([], pa.list_(pa.float32()))},
    }[fault]
    folder.mkdir()
    pq.write_table(pa.table(table), folder / "vectors.parquet")
    return folder / "vectors.parquet"


FAULTS = {
    "twice": "rows 1 and 22 have the same uid",
    "widths": "image has 8 dimensions and text 5",
    "rows": r"image.npy holds float32 of shape \(21, 8\), expected floats of shape \(22, d\)",
    "uid": "row 1: its uid is not 32 hex digits",
    "damaged": "it cannot be read",
    "array": "it must be a Parquet file",
    "lists": "row 7 has 3 numbers in 'image', others have 4",
    "texts": "the column 'image' holds list<.*: string>, not lists of floats",
    "columns": "it must be a Parquet file",
    "empty": "the column 'image' has no vector",
}


def test_a_bad_file_stops_the_command_before_any_work(pool: Path, tamis: Tamis, tmp_path: Path) -> None:
    pairs = pairs_of(pool, tmp_path / "first")
    image, text = np.random.default_rng(0).normal(0, 3, (2, len(pairs), 8)).astype(np.float32)
    for fault, words in FAULTS.items():
        file, run = bad(pairs, image, text, tmp_path / fault, fault), tmp_path / "run"
        done = tamis("score", pool, "--run", run, "--signals", "clip", "--set", f"signals.clip.embeddings_from={file}")
        assert done.code == 2, fault
        assert re.search(f"embeddings_from: {file}: {words}", done.err), (fault, done.err)
        assert not list(run.glob("scores/*/*.parquet"))
    for settings, words in (
        ({"model": "lab/clip", "embeddings_from": "x"}, "one of the two"),
        ({}, "'model' is missing"),
    ):
        with pytest.raises(RecipeError, match=words):
            score(pool, tmp_path / "run", {"clip": settings})


def test_parquet_beyond_the_memory_names_the_way_out(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = pairs_of(pool, tmp_path / "first")
    file = write(tmp_path / "vectors", "uid.parquet", pairs, *np.ones((2, len(pairs), 8), np.float32))
    monkeypatch.setattr(vectors, "_MOST_BYTES", 500)
    with pytest.raises(RecipeError, match=r"write a folder of \.npy files"):
        vectors.load_vectors(file)


def test_vectors_need_no_images_and_no_text_side(pool: Path, tmp_path: Path, clip_model: str) -> None:
    """As DINO's, with which copies are found; and a pool of captions alone."""
    pairs = pairs_of(pool, tmp_path / "first")
    (tmp_path / "captions.csv").write_text("caption,uid\n" + "".join(f"a dog,{pair['uid']}\n" for pair in pairs))
    image = np.random.default_rng(0).normal(0, 3, (len(pairs), 24))
    table = {"uid": [pair["uid"].upper() for pair in pairs], "image": list(image)}
    pq.write_table(pa.table(table), tmp_path / "image.parquet")
    captions = PoolSpec(path=str(tmp_path / "captions.csv"), image="none")
    signals = [{"clip": {"embeddings_from": str(tmp_path / "image.parquet")}}]
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    classes = {"model": clip_model, "classes_from": str(tmp_path / "classes.txt")}
    signals.append({"zero_shot_class": classes | {"embeddings_from": str(tmp_path / "image.parquet")}})
    np.savez(tmp_path / "head.npz", coef_=np.ones((1, 24), np.float32), intercept_=np.zeros(1, np.float32))
    head = {"weights": str(tmp_path / "head.npz"), "embeddings_from": str(tmp_path / "image.parquet")}
    run = score(captions, tmp_path / "run", *signals, {"head": head}, keep=["embeddings"])
    stored = np.concatenate([run.embedding("image_embedding", shard) for shard in run.shards])
    np.testing.assert_array_equal(stored, unit_rows(image).astype(np.float16))
    assert np.isnan(run.to_numpy("clip")).all()
    assert not np.isnan(run.to_numpy("class_cosine")).any()
    np.testing.assert_allclose(run.to_numpy("head"), stored.astype(np.float32).sum(1), atol=1e-5)


def test_scores_by_a_model_keep_their_fingerprints(clip_model: str) -> None:
    facts = Identities(Device()).facts(ClipScore(model=clip_model))
    assert facts["settings"] == {}
    assert "files" not in facts


def test_a_run_from_before_the_setting_has_what_a_recipe_asks_for(
    clip_model: str, pool: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = score(pool, tmp_path / "run", ClipScore(model=clip_model), ClipScore(model="lab/clip"))
    for group in run.scores.values():  # as such a run records it
        assert read_description(group.folder / SIGNAL)["settings"].keys() == {"model"}
    step = {"top_n": {"score": "clip", "n": 3}}
    recipe = {"name": "mine", "about": "", "signals": [{"clip": {"model": "lab/clip"}}], "select": [step]}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    assert len(library.select(Run(run.path), tmp_path / "recipe.yaml")) == 3
