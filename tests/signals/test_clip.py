"""CLIP and SigLIP scores against transformers' own outputs, through the real loading code."""

import math
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from factories import image_bytes, pair, write_tar
from safetensors.torch import save_file

import tamis
from tamis.models.clip import temperature_of
from tamis.signals import ClipScore


def test_a_score_from_stored_embeddings_is_the_same_number(clip_model: str, pool: Path, tmp_path: Path) -> None:
    signal = ClipScore(model=clip_model)
    together = tamis.score(pool, run=tmp_path / "a", signals=[signal], quiet=True)
    kept = tamis.score(pool, run=tmp_path / "b", signals=[signal], keep=["embeddings"], quiet=True)
    assert len(kept.embeddings) == 2
    image = np.concatenate([kept.embedding("image_embedding", shard) for shard in kept.shards])
    text = np.concatenate([kept.embedding("text_embedding", shard) for shard in kept.shards])
    assert image.dtype == np.float16
    np.testing.assert_array_equal(
        np.einsum("nd,nd->n", image.astype(np.float32), text.astype(np.float32)), together.to_numpy("clip")
    )
    # Delete the scores: they come back from the embeddings, without the pool's files.
    for part in kept.scores["clip"].folder.glob("*.parquet"):
        part.unlink()
    for shard in pool.glob("*.tar"):
        shard.write_bytes(b"")
    again = tamis.score(pool, run=tmp_path / "b", signals=[signal], quiet=True)
    np.testing.assert_array_equal(again.to_numpy("clip"), together.to_numpy("clip"))


def test_pairs_without_image_or_caption_have_no_score_and_a_reason(clip_model: str, tmp_path: Path) -> None:
    broken = pair(1) | {"jpg": image_bytes(1)[:200]}
    silent = pair(2) | {"txt": b"  "}
    write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0)), ("b", broken), ("c", silent)])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=[ClipScore(model=clip_model)], quiet=True)
    assert np.isnan(run.to_numpy("clip")).tolist() == [False, True, True]
    part = tamis.runs.run.parts.read_columns(run.scores["clip"].folder / "0.parquet", None)
    reasons = part.column("reason").to_pylist()
    assert reasons[0] is None
    assert "cannot be decoded" in reasons[1]
    assert "white space" in reasons[2]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_the_temperature_is_read_in_every_precision(kind: torch.dtype, clip_model: str, tmp_path: Path) -> None:
    folder = Path(copytree(clip_model, tmp_path / "model"))
    save_file({"logit_scale": torch.tensor(4.5, dtype=kind)}, folder / "model.safetensors")
    assert temperature_of(str(folder)) == pytest.approx(math.exp(-4.5))
