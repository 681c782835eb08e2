"""Linear layers for inference: packed in oneDNN's layout."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from factories import caption, image_bytes
from model_kinds import decoder_logits
from transformers import CLIPVisionConfig
from transformers.models.clip.modeling_clip import CLIPMLP

from tamis.core.types import Device
from tamis.models import packed
from tamis.models.captioner import load_captioner
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.loading import forget_models
from tamis.models.packed import for_inference
from tamis.models.preprocess import load_preprocess
from tamis.models.texts.regression import load_text_regression
from tamis.models.texts.sentence import load_token_encoder
from tamis.pools.images import decode

TEXTS = [caption(seed) for seed in range(9)]


@pytest.fixture
def packs_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs float32 as if it were bf16 on a processor that multiplies it: the same code, on every processor."""
    monkeypatch.setattr(packed, "_packs", lambda weight, many_rows: weight.dtype == torch.float32)


def _clip(model: str, device: Device) -> Any:
    clip, preprocess = load_clip(model, device), load_preprocess(model)
    images = [preprocess.resize(decode(image_bytes(seed), max_pixels=10**6)) for seed in range(6)]
    texts = clip.texts(load_tokenizer(model)(TEXTS))
    return [clip.images(images), texts]


def _captioner(model: str, device: Device) -> Any:
    captioner = load_captioner(model, device)
    images = [captioner.preprocess.resize(decode(image_bytes(seed), max_pixels=10**6)) for seed in range(3)]
    states = captioner.encode(images)
    tokens = torch.tensor([[captioner.decoder.start, 5, 6, 7]] * 3)
    return [states.numpy(), decoder_logits(captioner, images, tokens).numpy()]


def _regression(model: str, device: Device) -> Any:
    return [load_text_regression(model, device)(TEXTS)]


def _tokens(model: str, device: Device) -> Any:
    return [one.vectors for one in load_token_encoder(model, None, device)(TEXTS).values()]


LOADED: list[tuple[str, Callable[[str, Device], Any]]] = [
    ("clip_model", _clip),
    ("blip_model", _captioner),
    ("git_model", _captioner),
    ("regression_model", _regression),
    ("regression_model", _tokens),
]


@pytest.mark.parametrize(("kind", "of"), LOADED)
def test_networks_in_onednns_layout_give_the_same_numbers(
    kind: str, of: Callable[[str, Device], Any], request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    plain = of(model, Device(batch_size=3))
    request.getfixturevalue("packs_float32")
    forget_models()
    packed = of(model, Device(batch_size=3))
    forget_models()
    for one, other in zip(plain, packed, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gelu", "gelu_pytorch_tanh", "quick_gelu", "relu"])
def test_an_activation_is_computed_with_the_product(name: str, packs_float32: None) -> None:
    torch.manual_seed(0)
    block = CLIPMLP(CLIPVisionConfig(hidden_size=12, intermediate_size=16, hidden_act=name))
    rows = 3 * torch.randn(70, 12)
    with torch.inference_mode():
        plain = block(rows)
        fused = for_inference(block, Device())(rows)
    assert isinstance(block.activation_fn, torch.nn.Identity) == (name != "relu")
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{"stride": (4, 2)}, {"stride": (4, 2), "bias": False}, {"stride": 2}])
def test_patches_are_multiplied_as_they_are_convolved(settings: dict[str, Any], packs_float32: None) -> None:
    torch.manual_seed(0)
    layer, images = torch.nn.Conv2d(3, 5, (4, 2), **settings), torch.randn(2, 3, 9, 7)
    with torch.inference_mode():
        plain = layer(images)
        torch.testing.assert_close(for_inference(layer, Device())(images), plain, rtol=1e-4, atol=1e-5)


def test_networks_on_a_gpu_are_not_packed() -> None:
    network = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
    assert for_inference(network, Device(kind="cuda", precision="bf16")) is network
    assert network[0].weight.shape == (4, 4)
