"""CLIP and SigLIP scores against transformers' own outputs, through the real loading code."""

from __future__ import annotations

import math
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from factories import caption, image_bytes, pair, siglip2_folder, write_tar
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer

import tamis
from tamis.data import Device
from tamis.features.embeddings import ImageEmbedding, ModelPixels, TextEmbedding, Tokens
from tamis.math.similarity import rowwise_dot, unit_rows
from tamis.models.clip import temperature_of
from tamis.models.preprocess import load_preprocess
from tamis.pool.images import decode
from tamis.signals import ClipScore


def plain_embeddings(model: str, images: list[bytes], captions: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """transformers as its documentation uses it: padded to full length, one batch, float32."""
    network = AutoModel.from_pretrained(model).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    preprocess = load_preprocess(model)
    pixels = np.stack([preprocess.normalise(preprocess.resize(decode(i, max_pixels=10**6))) for i in images])
    tokens = tokenizer(captions, padding="max_length", max_length=16, truncation=True, return_tensors="pt")
    with torch.no_grad():
        image = network.get_image_features(pixel_values=torch.from_numpy(pixels))
        text = network.get_text_features(input_ids=tokens["input_ids"])
    image, text = (found if hasattr(found, "numpy") else found.pooler_output for found in (image, text))
    return (torch.nn.functional.normalize(image).numpy(), torch.nn.functional.normalize(text).numpy())


@pytest.mark.parametrize("kind", ["clip_model", "siglip_model"])
def test_embeddings_equal_those_of_transformers(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    images = [image_bytes(seed, (40 + 9 * seed, 70 - 5 * seed)) for seed in range(7)]
    captions = [caption(seed) for seed in range(6)] + [caption(0)]
    plain_images, plain_texts = plain_embeddings(model, images, captions)
    device = Device(batch_size=3)
    decoded = [decode(data, max_pixels=10**6) for data in images]
    pixels = ModelPixels(model=model).load(device)(images=[*decoded, None])
    ours = ImageEmbedding(model=model).load(device)(pixels=pixels)
    tokens = Tokens(model=model).load(device)(captions=[*captions, None])
    texts = TextEmbedding(model=model).load(device)(tokens=tokens)
    assert np.isnan(ours[-1]).all()
    assert np.isnan(texts[-1]).all()
    assert (rowwise_dot(unit_rows(ours[:-1]), plain_images) >= 0.9999).all()
    assert (rowwise_dot(unit_rows(texts[:-1]), plain_texts) >= 0.9999).all()
    # Other images and captions must not pass for the right ones.
    assert np.sum(ours[0].astype(np.float32) * plain_images[1]) < 0.999


def test_siglip_2_reads_captions_in_lower_case_as_it_was_trained(tmp_path: Path) -> None:
    """Its configuration says `siglip` and its tokenizer is Gemma's, which keeps capitals."""
    from transformers import Siglip2Tokenizer

    model = str(siglip2_folder(tmp_path / "siglip2"))
    captions = ["A DOG", "a dog", "A good God"]
    tokens = Tokens(model=model).load(Device())(captions=captions)
    reference = Siglip2Tokenizer.from_pretrained(model)  # of the same vocabulary; it lower-cases
    assert tokens == reference(captions)["input_ids"]
    assert tokens[0] == tokens[1]
    padded = reference(captions, padding="max_length", max_length=16, padding_side="right", return_tensors="pt")
    with torch.no_grad():
        plain = AutoModel.from_pretrained(model).eval().get_text_features(input_ids=padded["input_ids"])
    plain = plain if hasattr(plain, "numpy") else plain.pooler_output
    ours = TextEmbedding(model=model).load(Device())(tokens=tokens)
    assert (rowwise_dot(unit_rows(ours), unit_rows(plain.numpy())) >= 0.9999).all()


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
    part = tamis.store.run.parts.read_columns(run.scores["clip"].folder / "0.parquet", None)
    reasons = part.column("reason").to_pylist()
    assert reasons[0] is None
    assert "cannot be decoded" in reasons[1]
    assert "white space" in reasons[2]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_the_temperature_is_read_in_every_precision(kind: torch.dtype, clip_model: str, tmp_path: Path) -> None:
    folder = Path(copytree(clip_model, tmp_path / "model"))
    save_file({"logit_scale": torch.tensor(4.5, dtype=kind)}, folder / "model.safetensors")
    assert temperature_of(str(folder)) == pytest.approx(math.exp(-4.5))
