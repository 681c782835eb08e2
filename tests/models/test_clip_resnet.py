"""CLIP's residual network: its layout as published, its arithmetic, its initial weights, and `tamis convert`."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_layouts import PlainOpenClip, gelu, plain_resnet, quick_gelu, resnet_shapes
from safetensors.torch import save_file

from tamis.core.errors import ModelError
from tamis.core.types import Device
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.clip_resnet import ClipResNet, ClipResNetConfig
from tamis.models.convert import clip_tokenizer, convert
from tamis.models.preprocess import load_preprocess
from tamis.models.reference import cleaning_of
from tamis.train.scales import ARCHITECTURES

WORDS, HEADS, STAGES = 520, 4, (1, 2, 1, 1)
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.25]


@pytest.fixture
def merges(tmp_path: Path) -> str:
    path = tmp_path / "bpe_simple_vocab_16e6.txt.gz"
    path.write_bytes(gzip.compress(b"#version: 0.2\nd o\ndo g</w>\nc a\nca t</w>\nr e\nre d</w>\n"))
    return str(path)


def random_weights(side: int = 64) -> dict[str, torch.Tensor]:
    """A small tower: 8 channels in the stem, 256 at the end."""
    draw = torch.Generator().manual_seed(3)
    weights = {}
    for name, shape in resnet_shapes(8, STAGES, side, 16).items():
        inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 100
        weights[name] = torch.randn(shape, generator=draw) * (2 / inputs) ** 0.5
        if name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight")):
            weights[name] = 0.5 + torch.rand(shape, generator=draw)
        if name.endswith("num_batches_tracked"):
            weights[name] = torch.tensor(7)
    return weights


def whole_state(weights: dict[str, torch.Tensor], plain: PlainOpenClip) -> dict[str, torch.Tensor]:
    """The published layout: the text tower of the plain CLIP, with that image tower."""
    text = {name: one for name, one in plain.state_dict().items() if not name.startswith("visual.")}
    return text | {f"visual.{name}": one for name, one in weights.items()}


def settings(**changes: Any) -> dict[str, Any]:
    model: dict[str, Any] = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 64, "layers": list(STAGES), "width": 8, "patch_size": None},
        "text_cfg": {"context_length": 12, "vocab_size": WORDS, "width": 32, "heads": 4, "layers": 3},
    }
    for name, value in changes.items():
        part, _, key = name.rpartition("__")
        (model[f"{part}_cfg"] if part else model)[key] = value
    return {"model_cfg": model, "preprocess_cfg": {"mean": MEAN, "std": STD, "interpolation": "bicubic"}}


def folder_of(path: Path, state: dict[str, torch.Tensor], merges: str, config: dict[str, Any]) -> Path:
    path.mkdir()
    save_file({name: one.clone().contiguous() for name, one in state.items()}, path / "open_clip_model.safetensors")
    (path / "open_clip_config.json").write_text(json.dumps(config))
    clip_tokenizer(merges, path, own=False).save_pretrained(path)
    return path


def check(weights: dict[str, torch.Tensor], plain: PlainOpenClip, out: str) -> None:
    """Compares the embeddings of a converted folder with those of the plain towers."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (64, 64, 3), np.uint8) // (seed + 1) for seed in range(3)]
    pixels = torch.tensor((np.stack(images) / 255 - MEAN) / STD).permute(0, 3, 1, 2).float()
    model, tokens = load_clip(out, Device()), load_tokenizer(out)(["a dog", "red cat, dog!", "cat"])
    with torch.inference_mode():
        expected = plain_resnet(weights, pixels, HEADS).numpy()
        texts = plain.texts(torch.tensor([row + [0] * (12 - len(row)) for row in tokens])).numpy()
    assert np.ptp(expected) > 0.5
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    np.testing.assert_allclose(model.images(images), expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(model.texts(tokens), texts, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_a_converted_resnet_embeds_as_the_published_layout_does(activation: str, merges: str, tmp_path: Path) -> None:
    plain = PlainOpenClip(WORDS, activation={"gelu": gelu, "quick_gelu": quick_gelu}[activation]).eval()
    weights = random_weights()
    quick = settings(quick_gelu=activation == "quick_gelu")
    source = folder_of(tmp_path / "source", whole_state(weights, plain), merges, quick)
    made = convert(str(source), tmp_path / "out")
    assert made.kind == "open_clip"
    assert "images cropped to 64 x 64" in made.notes
    check(weights, plain, str(tmp_path / "out"))
    preprocess = load_preprocess(str(tmp_path / "out"))
    assert (preprocess.shorter, preprocess.crop, list(preprocess.mean)) == (64, (64, 64), MEAN)


def test_a_converted_folder_is_a_folder_of_open_clip_again(merges: str, tmp_path: Path) -> None:
    """Without config.json, what is left is open_clip's own layout: the same names, weights and settings."""
    plain, weights = PlainOpenClip(WORDS).eval(), random_weights()
    state = whole_state(weights, plain)
    convert(str(folder_of(tmp_path / "source", state, merges, settings())), tmp_path / "out")
    again = json.loads((tmp_path / "out" / "open_clip_config.json").read_text())
    assert again["model_cfg"]["vision_cfg"] == settings()["model_cfg"]["vision_cfg"] | {"head_width": 64}
    assert again["preprocess_cfg"] == settings()["preprocess_cfg"] | {"resize_mode": "shortest"}
    assert cleaning_of(str(tmp_path / "out")) == "openai"
    (tmp_path / "out" / "config.json").rename(tmp_path / "config.json")
    convert(str(tmp_path / "out"), tmp_path / "twice")
    check(weights, plain, str(tmp_path / "twice"))
    assert json.loads((tmp_path / "twice" / "open_clip_config.json").read_text()) == again


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vision__layers": [1, 1, 1, 1]}, "the weights have layers = [1, 2, 1, 1], and the configuration says"),
        ({"vision__width": 16}, "the weights have width = 8"),
        ({"vision__image_size": 224}, "2 x 2 patches of 32 pixels do not go with image_size = 224"),
        ({"vision__image_size": 95}, "2 x 2 patches of 32 pixels do not go with image_size = 95"),
        ({"vision__head_width": 48}, "256 wide, which head_width = 48 does not divide"),
        ({"vision__head_width": -64}, "256 wide, which head_width = -64 does not divide"),
        ({"text__heads": 5}, "32 wide, which heads = 5 does not divide"),
        ({"embed_dim": 8}, "the weights have embed_dim = 16"),
        ({"vision__timm_model_name": "resnet50"}, "timm_model_name"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    changes: dict[str, Any], says: str, merges: str, tmp_path: Path
) -> None:
    state = whole_state(random_weights(), PlainOpenClip(WORDS))
    source = folder_of(tmp_path / "source", state, merges, settings(**changes))
    with pytest.raises(ModelError) as refused:
        convert(str(source), tmp_path / "out")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "name",
    ["visual.layer2.1.bn2.running_mean", "visual.attnpool.k_proj.bias", "visual.attnpool.positional_embedding"],
)
def test_a_missing_weight_is_named(name: str, merges: str, tmp_path: Path) -> None:
    state = whole_state(random_weights(), PlainOpenClip(WORDS))
    del state[name]
    source = folder_of(tmp_path / "source", state, merges, settings())
    with pytest.raises(ModelError, match=f"lacks the weight {name}"):
        convert(str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("positional_embedding", ()),
        ("logit_scale", (0,)),
        ("transformer.resblocks.0.attn.in_proj_bias", ()),
        ("visual.conv1.weight", ()),
        ("visual.attnpool.positional_embedding", (0,)),
        ("visual.layer1.0.conv3.weight", (8, 32, 1, 1)),
    ],
)
def test_a_weight_of_another_shape_is_refused(name: str, shape: tuple[int, ...], merges: str, tmp_path: Path) -> None:
    state = whole_state(random_weights(), PlainOpenClip(WORDS)) | {name: torch.zeros(shape)}
    source = folder_of(tmp_path / "source", state, merges, settings())
    with pytest.raises(ModelError, match="cannot be converted: "):
        convert(str(source), tmp_path / "out")


def rn50() -> ClipResNet:
    architecture = ARCHITECTURES["RN50"]
    marks = {"vocab_size": 49_408, "bos_token_id": 49_406, "eos_token_id": 49_407, "pad_token_id": 49_407}
    config = ClipResNetConfig(
        text_config={**(architecture.text or {}), **marks},
        vision_config=dict(architecture.vision),
        projection_dim=architecture.size,
    )
    return ClipResNet(config)


def test_rn50_has_the_weights_of_the_published_checkpoint() -> None:
    with torch.device("meta"):
        model = rn50()
    assert sum(one.numel() for one in model.parameters()) == 102_007_137  # as OpenAI's RN50.pt
    found = {name: tuple(one.shape) for name, one in model.state_dict().items()}
    expected = {f"visual.{name}": shape for name, shape in resnet_shapes(64, (3, 4, 6, 3), 224, 1024).items()}
    text = {"positional_embedding": (77, 512), "text_projection": (512, 1024), "logit_scale": ()}
    text |= {"token_embedding.weight": (49_408, 512), "ln_final.weight": (512,), "ln_final.bias": (512,)}
    for layer in range(12):
        at = f"transformer.resblocks.{layer}"
        for name, made, read in (("attn.out_proj", 512, 512), ("mlp.c_fc", 2048, 512), ("mlp.c_proj", 512, 2048)):
            text |= {f"{at}.{name}.weight": (made, read), f"{at}.{name}.bias": (made,)}
        text |= {f"{at}.attn.in_proj_weight": (1536, 512), f"{at}.attn.in_proj_bias": (1536,)}
        text |= {f"{at}.{name}.{part}": (512,) for name in ("ln_1", "ln_2") for part in ("weight", "bias")}
    assert found == expected | text


def test_initial_weights_are_those_of_the_published_code() -> None:
    """Standard deviations as in openai/CLIP (`initialize_parameters`); what it leaves to torch is uniform."""
    torch.manual_seed(0)
    state = rn50().state_dict()
    deviations = {
        "token_embedding.weight": 0.02,
        "positional_embedding": 0.01,
        "text_projection": 512**-0.5,
        "transformer.resblocks.3.attn.in_proj_weight": 512**-0.5,
        "transformer.resblocks.3.attn.out_proj.weight": 512**-0.5 * 24**-0.5,
        "transformer.resblocks.3.mlp.c_fc.weight": 1024**-0.5,
        "transformer.resblocks.3.mlp.c_proj.weight": 512**-0.5 * 24**-0.5,
        "visual.attnpool.positional_embedding": 2048**-0.5,
        **{f"visual.attnpool.{name}_proj.weight": 2048**-0.5 for name in "qkvc"},
        "visual.layer3.2.conv2.weight": (3 * 256 * 9) ** -0.5,  # torch's: uniform within 1 / sqrt(inputs)
    }
    for name, deviation in deviations.items():
        assert float(state[name].std()) == pytest.approx(deviation, rel=0.02), name
    zero = {name for name, one in state.items() if name.endswith(".weight") and not one.any()}
    blocks = [(stage, block) for stage, count in ((1, 3), (2, 4), (3, 6), (4, 3)) for block in range(count)]
    assert zero == {f"visual.layer{stage}.{block}.bn3.weight" for stage, block in blocks}
    assert float(state["logit_scale"]) == pytest.approx(np.log(1 / 0.07), abs=1e-4)
