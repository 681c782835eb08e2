"""The file that Embedding Atlas opens: its columns, its pictures, its map."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import write_pool
from PIL import Image

import tamis
from tamis.errors import RunError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, clip_model: str) -> tamis.Run:
    folder = tmp_path_factory.mktemp("atlas")
    pool = write_pool(folder / "pool", shards=2, rows=5)
    scores = ["caption_length", {"clip": {"model": clip_model}}]
    return tamis.score(pool, run=folder / "run", scores=scores, keep=["embeddings"], quiet=True)


def test_it_has_captions_pictures_scores_and_a_map(run: tamis.Run, tmp_path: Path) -> None:
    subset = tamis.select(run, {"select": [{"top_n": {"score": "words", "n": 6}}]})
    assert tamis.export(subset, "embedding-atlas", tmp_path / "a.parquet", vectors=True) == 6
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["caption"].to_pylist() == run["caption"][subset.keep].tolist()
    assert table["clip"].to_pylist() == pytest.approx(run["clip"][subset.keep].tolist())
    pictures = [Image.open(io.BytesIO(one["bytes"])) for one in table["image"].to_pylist()]
    assert {max(picture.size) for picture in pictures} == {48}  # smaller than asked for: not enlarged
    vectors = np.array(table["embedding"].to_pylist())
    assert np.allclose(vectors, run["image_embedding"][subset.keep])
    centred = vectors - vectors.mean(0)
    places = np.stack([table["projection_x"].to_numpy(), table["projection_y"].to_numpy()], axis=1)
    scale = np.linalg.svd(centred, compute_uv=False)[:2]
    assert np.allclose(np.linalg.norm(places, axis=0), scale)  # principal components
    assert abs(places[:, 0] @ places[:, 1]) < 1e-9


def test_without_embeddings_it_is_a_table_with_pictures(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1, rows=2)
    bare = tamis.score(pool, run=tmp_path / "run", scores=["caption_length"], quiet=True)
    subset = tamis.select(bare, "no-filter")
    assert tamis.export(subset, "embedding_atlas", tmp_path / "a.parquet", thumbnails=16) == 2
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["uid", "shard", "key", "caption", "image", "words", "characters"]
    assert max(Image.open(io.BytesIO(table["image"][0].as_py()["bytes"])).size) == 16
    with pytest.raises(RunError, match="unknown stored embedding 'text_embedding'"):
        tamis.export(subset, "embedding-atlas", tmp_path / "b.parquet", embedding="text_embedding")
    with pytest.raises(RunError, match="--keep embeddings"):
        tamis.export(subset, "embedding-atlas", tmp_path / "b.parquet", vectors=True)


def test_a_pool_that_is_gone_stops_it(run: tamis.Run, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1, rows=2)
    bare = tamis.score(pool, run=tmp_path / "run", scores=["caption_length"], quiet=True)
    (pool / "00000.tar").write_bytes(b"another")
    with pytest.raises(RunError, match="the shard '00000'"):
        tamis.export(tamis.select(bare, "no-filter"), "embedding-atlas", tmp_path / "b.parquet")
    assert not (tmp_path / "b.parquet").exists()
