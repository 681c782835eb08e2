"""DataComp metadata: published scores become columns, published embeddings stored features, and no model runs."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import caption, index_rows, safetensors_bytes, write_metadata

import tamis
from tamis.core.errors import PoolError, RecipeError
from tamis.pools import PoolSpec, open_pool
from tamis.pools.datacomp import PUBLISHED
from tamis.runs import Run


def score(path: Path, run: Path, *signals: Any) -> Run:
    return tamis.score(path, run=run, quiet=True, **({"signals": list(signals)} if signals else {}))


def test_published_scores_become_columns_and_embeddings_are_stored(tmp_path: Path) -> None:
    first = write_metadata(tmp_path / "pool" / "aa.parquet", seed=1)
    second = write_metadata(tmp_path / "pool" / "bb.parquet", rows=3, seed=2)
    run = score(tmp_path / "pool", tmp_path / "run", "caption_length", "image_size")
    assert (run.facts["pool"]["kind"], run.sizes, run.statuses) == ("datacomp", (5, 3), {"ok": 8})
    assert set(run.scores) == {"datacomp", "caption_length", "image_size"}
    assert run.to_numpy("words")[:5].tolist() == [len(caption(100 + row).split()) for row in range(5)]
    assert run.to_numpy("shorter_side").tolist() == [480.0] * 8
    table = pq.read_table(tmp_path / "pool" / "aa.parquet")
    b32, l14 = run.to_numpy("clip_b32_similarity_score"), run.to_numpy("clip_l14_similarity_score")
    np.testing.assert_array_equal(b32[:5], table["clip_b32_similarity_score"].to_numpy())
    assert np.isnan(l14).tolist() == [True, False, False, False, False, True, False, False]
    assert run.to_arrow()["uid"].to_pylist()[:5] == table["uid"].to_pylist()
    rows = index_rows(run, "aa")
    sizes = [(row["width"], row["original_width"], row["height"]) for row in rows]
    assert sizes == [(640 + n, 640 + n, 480) for n in range(5)]
    assert [row["caption"] for row in rows] == [caption(100 + n) for n in range(5)]
    for path in (tmp_path / "pool").iterdir():  # nothing of it is read again
        path.unlink()
    for name in PUBLISHED:
        for shard, arrays in (("aa", first), ("bb", second)):
            stored = Run(run.path).embedding(name, shard)
            assert stored.dtype == np.float16
            np.testing.assert_array_equal(stored, arrays[name])


@pytest.mark.parametrize("signal", ["clip", "text_area"])
def test_signals_of_pixels_are_refused_before_any_work(signal: str, tmp_path: Path) -> None:
    write_metadata(tmp_path / "aa.parquet")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(safetensors_bytes())
    entry: Any = {"clip": {"model": str(tmp_path / "model")}} if signal == "clip" else signal
    with pytest.raises(RecipeError, match=rf"{signal} needs images, .*aa\.parquet holds none"):
        score(tmp_path / "aa.parquet", tmp_path / "run", entry)
    assert not (tmp_path / "run" / "run.json").exists()


def test_without_an_npz_there_are_scores_alone_and_rows_of_nan(tmp_path: Path) -> None:
    arrays = write_metadata(tmp_path / "pool" / "aa.parquet")
    write_metadata(tmp_path / "pool" / "bb.parquet", rows=3)
    (tmp_path / "pool" / "bb.npz").unlink()
    run = score(tmp_path / "pool", tmp_path / "run")
    np.testing.assert_array_equal(run.embedding("b32_img", "aa"), arrays["b32_img"])
    assert run.embedding("b32_img", "bb").shape == (3, 512)
    assert np.isnan(run.embedding("b32_img", "bb")).all()
    alone = score(tmp_path / "pool" / "bb.parquet", tmp_path / "alone")
    assert (alone.embeddings, len(alone.to_numpy("clip_b32_similarity_score"))) == ({}, 3)


def archive(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


BAD = {
    "too short": (lambda content: archive(b32_img=np.ones((4, 512), np.float16)), "b32_img has 4 rows"),
    "too long": (lambda content: archive(b32_img=np.ones((6, 512), np.float16)), "b32_img has 6 rows"),
    "cut": (lambda content: content[:-100], "the embeddings cannot be read"),
    "a flipped bit": (lambda content: content[:3000] + bytes([content[3000] ^ 1]) + content[3001:], "Bad CRC-32"),
    "another width": (
        lambda content: archive(b32_img=np.ones((5, 256), np.float16)),
        "b32_img has 256 dimensions here, and 512 in the pool's first file",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_npz_costs_its_shard_until_it_is_mended(name: str, tmp_path: Path) -> None:
    change, reason = BAD[name]
    for stem in ("aa", "bb"):
        arrays = write_metadata(tmp_path / "pool" / f"{stem}.parquet")
    bad = tmp_path / "pool" / "bb.npz"
    good = bad.read_bytes()
    bad.write_bytes(change(good))
    run = score(tmp_path / "pool", tmp_path / "run", "caption_length")
    assert (run.shards[0], list(run.failures)) == ("aa", ["bb"])
    assert reason in run.failures["bb"]
    bad.write_bytes(good)
    mended = score(tmp_path / "pool", tmp_path / "run", "caption_length")
    assert (mended.failures, mended.sizes) == ({}, (5, 5))
    np.testing.assert_array_equal(mended.embedding("b32_img", "bb"), arrays["b32_img"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (archive(b32_img=np.array([{"a": 1}] * 5, object)), "b32_img holds pickled Python objects of shape (5,)"),
        (archive(b32_img=np.ones(5, np.float16)), "b32_img holds float16 of shape (5,), expected"),
        (archive(b32_img=np.array([["a", "b"]] * 5)), "b32_img holds <U1 of shape (5, 2), expected"),
        (pickle.dumps({"b32_img": [1.0]}), "is a pickle, or damaged"),
        (archive(b32_img=np.ones((5, 512)))[:-100], "the embeddings cannot be read"),
        (None, "is one array (float16, shape (5, 512)), not an npz of several"),
    ],
    ids=["objects", "one dimension", "words", "pickle", "cut", "npy"],
)
def test_a_first_npz_of_another_kind_stops_before_any_work(content: bytes | None, reason: str, tmp_path: Path) -> None:
    write_metadata(tmp_path / "aa.parquet")
    if content is None:
        out = io.BytesIO()
        np.save(out, np.ones((5, 512), np.float16))
        content = out.getvalue()
    (tmp_path / "aa.npz").write_bytes(content)
    with pytest.raises(PoolError) as caught:
        open_pool(str(tmp_path / "aa.parquet"))
    assert reason in str(caught.value)


def test_another_column_can_be_the_caption_and_uids_may_be_missing(tmp_path: Path) -> None:
    uids = ["", None, "xyz", f"{1:032x}", f"{1:032x}"]
    write_metadata(tmp_path / "aa.parquet", re_caption=[f"text {row}" for row in range(5)], uid=uids)
    spec = PoolSpec(path=str(tmp_path / "aa.parquet"), caption="re_caption", fields=("url",))
    run = tamis.score(spec, run=tmp_path / "run", quiet=True)
    rows = index_rows(run)
    assert [row["caption"] for row in rows] == [f"text {row}" for row in range(5)]
    assert [row["url"] for row in rows] == [f"https://x.org/{row}.jpg" for row in range(5)]
    found = run.to_arrow()["uid"].to_pylist()
    assert found[3:] == [f"{1:032x}"] * 2
    assert len(set(found)) == 4
    with pytest.raises(PoolError, match=r"has no column 'texts' \(did you mean 'text'\?\)"):
        open_pool(PoolSpec(path=str(tmp_path / "aa.parquet"), caption="texts"))
