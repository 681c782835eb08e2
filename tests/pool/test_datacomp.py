"""DataComp metadata: published scores become columns, published embeddings stored features, and no model runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import caption, index_rows, safetensors_bytes, write_metadata
from processes import command

import tamis
from tamis.errors import PoolError, RecipeError
from tamis.pool import PoolSpec, open_pool
from tamis.pool.npz import EMBEDDINGS


def test_published_scores_become_columns_and_embeddings_are_stored(tmp_path: Path) -> None:
    first = write_metadata(tmp_path / "pool" / "aa.parquet", seed=1)
    second = write_metadata(tmp_path / "pool" / "bb.parquet", rows=3, seed=2)
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", quiet=True)
    assert run.facts["pool"]["kind"] == "datacomp"
    assert run.sizes == (5, 3)
    assert run.statuses == {"ok": 8}
    table = pq.read_table(tmp_path / "pool" / "aa.parquet")
    b32, l14 = run.to_numpy("clip_b32_similarity_score"), run.to_numpy("clip_l14_similarity_score")
    np.testing.assert_array_equal(b32[:5], table["clip_b32_similarity_score"].to_numpy())
    assert np.isnan(l14).tolist() == [True, False, False, False, False, True, False, False]
    assert run.to_arrow()["uid"].to_pylist()[:5] == table["uid"].to_pylist()
    for name in EMBEDDINGS:
        for shard, arrays in (("aa", first), ("bb", second)):
            stored = run.embedding(name, shard)
            assert stored.dtype == np.float16
            np.testing.assert_array_equal(stored, arrays[name])
    rows = index_rows(run, "aa")
    assert [(row["width"], row["original_width"], row["height"]) for row in rows] == [
        (640 + n, 640 + n, 480) for n in range(5)
    ]
    assert [row["caption"] for row in rows] == [caption(100 + n) for n in range(5)]


def test_scorers_of_captions_and_sizes_work_on_metadata(tmp_path: Path) -> None:
    write_metadata(tmp_path / "aa.parquet")
    run = tamis.score(
        tmp_path / "aa.parquet", run=tmp_path / "run", scores=["caption_length", "image_size"], quiet=True
    )
    assert run.to_numpy("words").tolist() == [len(caption(row).split()) for row in range(5)]
    assert run.to_numpy("shorter_side").tolist() == [480.0] * 5
    assert set(run.scores) == {"datacomp", "caption_length", "image_size"}


@pytest.mark.parametrize("scorer", ["clip", "text_area"])
def test_scorers_of_pixels_are_refused_before_any_work(scorer: str, tmp_path: Path) -> None:
    write_metadata(tmp_path / "aa.parquet")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(safetensors_bytes())
    entry: Any = {"clip": {"model": str(tmp_path / "model")}} if scorer == "clip" else scorer
    with pytest.raises(
        RecipeError, match=f"{scorer} looks at images, and .*aa.parquet is metadata without any: take its"
    ):
        tamis.score(tmp_path / "aa.parquet", run=tmp_path / "run", scores=[entry], quiet=True)
    assert not (tmp_path / "run" / "run.json").exists()


def test_metadata_without_an_npz_has_scores_alone(tmp_path: Path) -> None:
    write_metadata(tmp_path / "aa.parquet")
    (tmp_path / "aa.npz").unlink()
    run = tamis.score(tmp_path / "aa.parquet", run=tmp_path / "run", quiet=True)
    assert run.embeddings == {}
    assert len(run.to_numpy("clip_b32_similarity_score")) == 5


def test_a_shard_without_its_npz_has_rows_of_nan(tmp_path: Path) -> None:
    arrays = write_metadata(tmp_path / "pool" / "aa.parquet")
    write_metadata(tmp_path / "pool" / "bb.parquet", rows=3)
    (tmp_path / "pool" / "bb.npz").unlink()
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", quiet=True)
    np.testing.assert_array_equal(run.embedding("b32_img", "aa"), arrays["b32_img"])
    assert run.embedding("b32_img", "bb").shape == (3, 512)
    assert np.isnan(run.embedding("b32_img", "bb")).all()


@pytest.mark.parametrize("rows", [4, 6])
def test_an_npz_of_another_length_is_a_bad_shard(rows: int, tmp_path: Path) -> None:
    write_metadata(tmp_path / "pool" / "aa.parquet")
    write_metadata(tmp_path / "pool" / "bb.parquet")
    np.savez(tmp_path / "pool" / "bb.npz", b32_img=np.ones((rows, 512), np.float16))
    done = command("score", tmp_path / "pool", "--run", tmp_path / "run", "--signals", "caption_length", "-q")
    assert done.returncode == 1, done.stderr
    failures = tamis.open_run(tmp_path / "run").failures
    assert list(failures) == ["bb"]
    assert f"bb.npz: b32_img has {rows} rows" in failures["bb"]
    assert tamis.open_run(tmp_path / "run").embedding("b32_img", "aa").shape == (5, 512)
    arrays = write_metadata(tmp_path / "bb.parquet")
    (tmp_path / "bb.npz").rename(tmp_path / "pool" / "bb.npz")  # the npz alone was bad
    mended = tamis.score(tmp_path / "pool", run=tmp_path / "run", scores=["caption_length"], quiet=True)
    assert (mended.failures, mended.sizes) == ({}, (5, 5))
    np.testing.assert_array_equal(mended.embedding("b32_img", "bb"), arrays["b32_img"])


def test_a_damaged_npz_stops_before_any_work_or_costs_its_shard(tmp_path: Path) -> None:
    write_metadata(tmp_path / "pool" / "aa.parquet")
    write_metadata(tmp_path / "pool" / "bb.parquet")
    content = (tmp_path / "pool" / "bb.npz").read_bytes()
    (tmp_path / "pool" / "bb.npz").write_bytes(content[:-100])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", quiet=True)
    assert run.shards == ("aa",)
    assert "bb.npz: the embeddings cannot be read" in run.failures["bb"]
    (tmp_path / "pool" / "aa.npz").write_bytes(content[:-100])
    with pytest.raises(PoolError, match=r"aa\.npz: the embeddings cannot be read"):
        tamis.score(tmp_path / "pool", run=tmp_path / "other", quiet=True)


def test_another_column_can_be_the_caption(tmp_path: Path) -> None:
    write_metadata(tmp_path / "aa.parquet", re_caption=[f"text {row}" for row in range(5)])
    spec = PoolSpec(path=str(tmp_path / "aa.parquet"), caption="re_caption", fields=("url",))
    rows = index_rows(tamis.score(spec, run=tmp_path / "run", quiet=True))
    assert [row["caption"] for row in rows] == [f"text {row}" for row in range(5)]
    assert [row["url"] for row in rows] == [f"https://x.org/{row}.jpg" for row in range(5)]


def test_a_caption_column_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    write_metadata(tmp_path / "aa.parquet")
    with pytest.raises(
        PoolError, match=r"has no column 'texts' \(did you mean 'text'\?\); its columns: uid, url, text"
    ):
        open_pool(PoolSpec(path=str(tmp_path / "aa.parquet"), caption="texts"))


def test_rows_without_uid_are_named_by_url_and_text(tmp_path: Path) -> None:
    write_metadata(tmp_path / "aa.parquet", uid=["", None, "xyz", f"{1:032x}", f"{1:032x}"])
    uids = tamis.score(tmp_path / "aa.parquet", run=tmp_path / "run", quiet=True).to_arrow()["uid"].to_pylist()
    assert uids[3:] == [f"{1:032x}"] * 2
    assert len(set(uids)) == 4


def test_embeddings_need_no_model_and_no_pool_to_be_read_again(tmp_path: Path) -> None:
    arrays = write_metadata(tmp_path / "aa.parquet")
    tamis.score(tmp_path / "aa.parquet", run=tmp_path / "run", quiet=True)
    (tmp_path / "aa.npz").unlink()
    (tmp_path / "aa.parquet").unlink()
    np.testing.assert_array_equal(tamis.open_run(tmp_path / "run").embedding("l14_txt", "aa"), arrays["l14_txt"])


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array([{"a": 1}] * 5, object), "b32_img holds pickled Python objects (shape (5,)), which could run code"),
        (np.ones(5, np.float16), "b32_img is float16 of the shape (5,); embeddings are numbers (rows, dimensions)"),
        (np.ones((5, 2, 2), np.float16), "b32_img is float16 of the shape (5, 2, 2); embeddings are numbers"),
        (np.array([["a", "b"]] * 5), "b32_img is <U1 of the shape (5, 2); embeddings are numbers"),
    ],
)
def test_an_npz_of_something_else_says_what_was_found(array: Any, says: str, tmp_path: Path) -> None:
    write_metadata(tmp_path / "pool" / "aa.parquet")
    np.savez(tmp_path / "pool" / "aa.npz", b32_img=array)
    with pytest.raises(PoolError) as caught:
        tamis.score(tmp_path / "pool", run=tmp_path / "run", quiet=True)
    assert f"aa.npz: {says}" in str(caught.value)


def test_a_pickle_and_a_single_array_are_no_npz(tmp_path: Path) -> None:
    import pickle

    write_metadata(tmp_path / "pool" / "aa.parquet")
    (tmp_path / "pool" / "aa.npz").write_bytes(pickle.dumps({"b32_img": [1.0]}))
    with pytest.raises(PoolError, match=r"aa\.npz is neither an npz nor an array: it is a pickle"):
        tamis.score(tmp_path / "pool", run=tmp_path / "run", quiet=True)
    with open(tmp_path / "pool" / "aa.npz", "wb") as file:
        np.save(file, np.ones((5, 512), np.float16))
    with pytest.raises(PoolError, match=r"aa\.npz is one array \(float16, shape \(5, 512\)\) and no npz of several"):
        tamis.score(tmp_path / "pool", run=tmp_path / "run", quiet=True)


def test_embeddings_of_another_width_than_the_first_files_cost_their_shard(tmp_path: Path) -> None:
    for name, width in (("aa", 512), ("bb", 256)):
        write_metadata(tmp_path / "pool" / f"{name}.parquet")
        np.savez(tmp_path / "pool" / f"{name}.npz", b32_img=np.ones((5, width), np.float16))
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", quiet=True)
    assert list(run.failures) == ["bb"]
    assert "b32_img has 256 dimensions here, and 512 in the pool's first file" in run.failures["bb"]
