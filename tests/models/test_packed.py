"""Linear layers for inference: packed in oneDNN's layout, and rounded to int8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import caption, image_bytes
from model_kinds import decoder_logits

torch = pytest.importorskip("torch")

import tamis  # noqa: E402
from tamis.data import Device  # noqa: E402
from tamis.errors import StopError  # noqa: E402
from tamis.models import packed  # noqa: E402
from tamis.models.captioner import load_captioner  # noqa: E402
from tamis.models.clip import load_clip, load_tokenizer  # noqa: E402
from tamis.models.device import device_for  # noqa: E402
from tamis.models.loading import forget_loaded  # noqa: E402
from tamis.models.packed import INPUT_LEVELS, WEIGHT_LEVELS, Linear, for_inference, multiplies_int8  # noqa: E402
from tamis.models.preprocess import load_preprocess  # noqa: E402
from tamis.models.texts.regression import load_text_regression  # noqa: E402
from tamis.models.texts.sentence import load_token_encoder  # noqa: E402
from tamis.pool.images import decode  # noqa: E402
from tamis.signals import ClipScore  # noqa: E402

ROUNDED = Device(precision="int8")
TEXTS = [caption(seed) for seed in range(9)]


def layer(inputs: int, outputs: int, *, bias: bool = True, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(inputs, outputs, bias=bias)


def slow(x: Any, weight: Any, bias: Any) -> Any:
    """The definition, with sums in int64."""
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    weight_scales = np.abs(weight).max(1) / np.float32(WEIGHT_LEVELS)
    largest = np.abs(x).max(1, keepdims=True)
    q = np.round(weight / weight_scales[:, None]).astype(np.int64)
    p = np.floor(x * (np.float32(INPUT_LEVELS) / largest) + np.float32(128.5)).astype(np.int64) - 128
    assert np.abs(q).max() <= WEIGHT_LEVELS
    assert np.abs(p).max() <= INPUT_LEVELS
    return (p @ q.T) * weight_scales.astype(np.float64) * (largest.astype(np.float64) / INPUT_LEVELS) + bias


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "multiplies_int8", lambda: False)


@pytest.fixture
def packs_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs float32 as if it were bf16 on a processor that multiplies it: the same code, on every processor."""
    monkeypatch.setattr(packed, "_packs", lambda weight, many_rows: weight.dtype == torch.float32)


def test_a_rounded_layer_by_hand() -> None:
    """Scales are 6.3 / 63 = 0.1 and 12.7 / 127 = 0.1: weights 63, -31, 10 and inputs 127, 50, -20 (of -2.01)."""
    one = torch.nn.Linear(3, 1)
    one.weight.data[:] = torch.tensor([[6.3, -3.12, 0.96]])
    one.bias.data[:] = 2
    with torch.inference_mode():
        found = Linear(one, int8=True)(torch.tensor([[12.7, 4.98, -2.01]]))
    assert found.item() == pytest.approx((63 * 127 - 31 * 50 - 10 * 20) * 0.01 + 2, rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "bias"), [(1, 1, 1, True), (7, 13, 5, False), (3, 769, 64, True), (200, 64, 7, False)]
)
@pytest.mark.parametrize("way", ["int8", "float64"])
def test_rounded_layers_are_the_slow_sums(
    rows: int, inputs: int, outputs: int, bias: bool, way: str, request: pytest.FixtureRequest
) -> None:
    if way == "float64":
        request.getfixturevalue("in_float64")
    one = layer(inputs, outputs, bias=bias)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(1)) ** 3  # with outliers
    wanted = slow(x.numpy(), one.weight.detach().numpy(), one.bias.detach().numpy() if bias else 0)
    with torch.inference_mode():
        found = Linear(one, int8=True)(x)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-6, atol=2e-6 * np.abs(wanted).max())


def test_the_largest_sums_are_exact() -> None:
    """The largest products: processors without VNNI would saturate, were weights not limited to 63."""
    assert multiplies_int8()
    one = torch.nn.Linear(3072, 3, bias=False)
    one.weight.data[:] = torch.tensor([1.0, -1.0, 1.0])[:, None]
    with torch.inference_mode():
        found = Linear(one, int8=True)(torch.ones(2, 3072) * torch.tensor([[1.0], [-1.0]]))
    np.testing.assert_allclose(found.numpy(), [[3072, -3072, 3072], [-3072, 3072, -3072]], rtol=1e-6)


def test_a_rounded_row_does_not_depend_on_the_others() -> None:
    multiply = Linear(layer(96, 40), layer(96, 17, seed=1), int8=True)
    x = torch.randn(37, 96)
    x[5] *= 1e4
    x[6] = torch.nan
    x[7] = 0
    with torch.inference_mode():
        together = multiply(x)
        alone = torch.cat([multiply(row[None]) for row in x])
        folded = multiply(x[:36].view(4, 9, 96)).view(36, 57)
        assert multiply(x[:0]).shape == (0, 57)
    np.testing.assert_allclose(together.numpy(), alone.numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(together[:36].numpy(), folded.numpy(), rtol=1e-6, atol=1e-7)
    assert np.flatnonzero(torch.isnan(together).all(1).numpy()).tolist() == [6]
    assert torch.equal(together[7], torch.cat([layer(96, 40).bias, layer(96, 17, seed=1).bias]).detach())


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
    forget_loaded()
    packed = of(model, Device(batch_size=3))
    forget_loaded()
    for one, other in zip(plain, packed, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "of"), LOADED)
def test_rounded_networks_give_about_the_same_numbers(
    kind: str, of: Callable[[str, Device], Any], request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    exact, rounded, in_ones = (of(model, one) for one in (Device(), ROUNDED, Device(precision="int8", batch_size=1)))
    request.getfixturevalue("in_float64")
    forget_loaded()
    slowly = of(model, ROUNDED)
    forget_loaded()
    for one, other, alone, slow in zip(exact, rounded, in_ones, slowly, strict=True):
        assert not np.array_equal(one, other)  # it was rounded
        # Few weights, drawn at random and wide: an error grows from layer to layer as in no trained network.
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.9
        for same in (alone, slow):
            np.testing.assert_allclose(same, other, rtol=1e-3, atol=1e-3 * np.abs(one).max())


def test_layers_at_the_ends_are_not_rounded(clip_model: str) -> None:
    from transformers import AutoModel

    network = AutoModel.from_pretrained(clip_model).eval()
    for_inference(network, ROUNDED)
    rounded = {name for name, one in network.named_modules() if isinstance(getattr(one, "forward", None), Linear)}
    of_layers = {name for name, one in network.named_modules() if type(one) is torch.nn.Linear and ".layers." in name}
    assert rounded == of_layers
    assert len(rounded) == 6 * sum(
        config.num_hidden_layers for config in (network.config.text_config, network.config.vision_config)
    )
    assert network.visual_projection.weight.numel() > 0
    assert all(network.get_submodule(name).weight.numel() == 0 for name in rounded)


def test_int8_is_for_scoring_on_cpus() -> None:
    network = torch.nn.ModuleList([layer(4, 4)])
    assert for_inference(network, Device(kind="cuda", precision="bf16")) is network
    assert network[0].weight.shape == (4, 4)  # not packed
    assert device_for("cpu", "int8", None, None).precision == "int8"
    with pytest.raises(StopError, match=r"'cuda'.*--device cpu"):
        device_for("cuda", "int8", None, None, away=True)
    with pytest.raises(StopError, match="--precision float32 or bf16"):
        device_for("cpu", "int8", None, None, training=True)


def test_a_run_in_int8_is_near_one_in_float32_and_stored_with_it(clip_model: str, pool: Path, tmp_path: Path) -> None:
    signal = ClipScore(model=clip_model)
    tamis.score(pool, run=tmp_path / "run", signals=[signal], precision="float32", quiet=True)
    both = tamis.score(pool, run=tmp_path / "run", signals=[signal], precision="int8", batch_size=5, quiet=True)
    labels = {group.facts["precision"]: label for label, group in both.scores.items()}
    assert set(labels) == {"float32", "int8"}
    exact, rounded = (both.to_numpy(f"{labels[name]}.clip") for name in ("float32", "int8"))
    again = tamis.score(pool, run=tmp_path / "other", signals=[signal], precision="int8", batch_size=2, quiet=True)
    assert 0 < np.abs(rounded - exact).max() < 0.15
    np.testing.assert_allclose(again.to_numpy("clip"), rounded, atol=2e-4)
