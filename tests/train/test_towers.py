"""Trainings of CLIP's ResNet, of folders in open_clip's layout, and of a pretrained image tower with a text encoder."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories import WORDS
from plain_layouts import PlainOpenClip
from tiny_models import SIZE
from trainings import CPU, assert_same_model, trained, weights
from transformers import AutoModel, AutoTokenizer

import tamis
from tamis.core.errors import ModelError, StopError
from tamis.core.types import Device
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.clip_resnet import ClipResNet
from tamis.models.convert import convert
from tamis.models.preprocess import image_processor
from tamis.runs import Run
from tamis.signals import CSsft
from tamis.train.clip import fine_tuning, train_c_ssft
from tamis.train.scales import ARCHITECTURES, ClipTraining, at_scale, open_clip_command
from tamis.train.towers import build, clip_tokenizer

IMAGE = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)


@pytest.fixture
def resnet(monkeypatch: pytest.MonkeyPatch) -> ClipTraining:
    """Six steps of a small RN50: 8 channels in the stem, 64 pixels."""
    text = {**(ARCHITECTURES["RN50"].text or {}), "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "max_position_embeddings": 12}
    vision = {"hidden_size": 8, "stages": [1, 1, 1, 1], "image_size": 64, "num_attention_heads": 4}
    small = replace(ARCHITECTURES["RN50"], side=64, vision=vision, text=text, size=16)
    monkeypatch.setitem(ARCHITECTURES, "RN50", small)  # type: ignore[arg-type]
    return ClipTraining(model="RN50", samples=48, batch=8, learning_rate=1e-3, warmup=2)


def without_config(folder: Path, to: Path) -> Path:
    """Copies a model's folder as open_clip has it: no config.json, and the weights under open_clip's name."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("training", "config.json", "preprocessor_config.json"))
    (to / "model.safetensors").rename(to / "open_clip_model.safetensors")
    return to


def test_a_resnet_learns_scores_and_resumes_to_the_bit(
    run: Run, tmp_path: Path, resnet: ClipTraining, kill: Any
) -> None:
    long = replace(resnet, samples=160)
    whole = trained(run, tmp_path / "whole", long)
    assert np.mean(whole.losses[-4:]) < np.mean(whole.losses[:4]) - 0.2
    with kill(11):
        trained(run, tmp_path / "killed", long)
    trained(run, tmp_path / "killed", long)
    assert_same_model(tmp_path / "whole", tmp_path / "killed")
    # The folder is a model for signals, and open_clip's own layout.
    network = AutoModel.from_pretrained(tmp_path / "whole").eval()
    assert isinstance(network, ClipResNet)
    norms = {name: one for name, one in weights(tmp_path / "whole").items() if name.endswith("bn3.weight")}
    assert len(norms) == 5
    assert all(one.abs().max() > 0 for one in norms.values())  # they began as zeros
    clip = load_clip(str(tmp_path / "whole"), Device())
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    pixels = torch.tensor(((IMAGE / 255 - mean) / std).transpose(2, 0, 1)[None]).float()
    found = clip.images([IMAGE])
    np.testing.assert_allclose(found, network.get_image_features(pixels).pooler_output.detach().numpy(), atol=1e-5)
    # One text at a time, without padding.
    texts = ["a red dog", "the old house by the sea"]
    rows = load_tokenizer(str(tmp_path / "whole"))(texts)
    alone = [network.get_text_features(torch.tensor([row])).pooler_output.detach().numpy()[0] for row in rows]
    np.testing.assert_allclose(clip.texts(rows), alone, atol=1e-5)
    convert(str(without_config(tmp_path / "whole", tmp_path / "open_clip")), tmp_path / "converted")
    np.testing.assert_array_equal(load_clip(str(tmp_path / "converted"), Device()).images([IMAGE]), found)
    assert load_tokenizer(str(tmp_path / "converted"))(texts) == rows


def test_the_open_clip_configuration_names_what_was_trained(run: Run, tmp_path: Path, resnet: ClipTraining) -> None:
    trained(run, tmp_path, replace(resnet, samples=8))
    config = json.loads((tmp_path / "open_clip_config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert config["model_cfg"] == {
        "embed_dim": 16,
        "quick_gelu": False,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None, "head_width": 64},
        "text_cfg": {
            "context_length": 12,
            "vocab_size": len(tokenizer),
            "width": 32,
            "heads": 4,
            "layers": 2,
            # A tokenizer learned from captions: its end token is not the largest.
            "hf_tokenizer_name": ".",
            "pool_type": "eos",
            "eos_id": tokenizer.eos_token_id,
        },
    }
    assert config["preprocess_cfg"]["resize_mode"] == "shortest"
    assert config["preprocess_cfg"]["interpolation"] == "bicubic"


def test_what_a_resnet_cannot_do_is_refused(run: Run, tmp_path: Path, resnet: ClipTraining) -> None:
    for change, says in (
        ({"text": "minilm"}, "RN50 has a text tower of its own: leave --text out"),
        ({"freeze_text": True}, "the text tower of a ResNet cannot be frozen"),
    ):
        with pytest.raises(ModelError, match=says):
            trained(run, tmp_path / "out", replace(resnet, **change))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    with pytest.raises(StopError, match="RN50 normalises over the whole batch: train it in one process and one piece"):
        trained(run, tmp_path / "cut", resnet, replace(CPU, pieces=2))
    with pytest.raises(StopError, match="cannot recompute its layers: use a smaller --train-batch, not"):
        trained(run, tmp_path / "again", resnet, replace(CPU, checkpointing=True))


def test_the_open_clip_command_normalises_over_the_whole_batch() -> None:
    training = at_scale("small", model="RN50", batch=1024)
    assert at_scale("lab", model="RN50").text == ""
    command = open_clip_command(training, "0.tar", precision="bf16", processes=8)
    assert "--model RN50" in command
    assert "--use-bn-sync" in command
    assert "--use-bn-sync" not in open_clip_command(training, "0.tar", precision="bf16")
    with pytest.raises(ValueError, match="RN50 normalises over the batch"):
        open_clip_command(training, "0.tar", precision="bf16", pieces=2)


@pytest.fixture
def open_clips(run: Run, tmp_path: Path, resnet: ClipTraining) -> Mapping[str, Path]:
    """Folders in open_clip's layout: a ResNet, and a ViT with a vocabulary of its own."""
    from safetensors.torch import save_file

    trained(run, tmp_path / "rn50", replace(resnet, samples=8))
    vit = tmp_path / "vit-open"
    vit.mkdir()
    tokenizer = clip_tokenizer(WORDS, 12)
    plain = PlainOpenClip(len(tokenizer))
    save_file({name: one.clone() for name, one in plain.state_dict().items()}, vit / "open_clip_model.safetensors")
    tokenizer.save_pretrained(vit)
    text = {"context_length": 12, "vocab_size": len(tokenizer), "width": 32, "heads": 4, "layers": 3}
    text |= {"hf_tokenizer_name": ".", "pool_type": "eos", "eos_id": tokenizer.eos_token_id}
    vision = {"image_size": 32, "layers": 2, "width": 40, "head_width": 8, "patch_size": 8}
    config = {"model_cfg": {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}}
    config["preprocess_cfg"] = {"resize_mode": "shortest"}
    (vit / "open_clip_config.json").write_text(json.dumps(config))
    return {"clip_resnet": without_config(tmp_path / "rn50", tmp_path / "rn50-open"), "clip": vit}


@pytest.mark.parametrize("kind", ["clip", "clip_resnet"])
def test_c_ssft_starts_from_a_folder_of_open_clip(
    kind: str, run: Run, tmp_path: Path, open_clips: Mapping[str, Path], kill: Any
) -> None:
    """The same models as from the converted folder; the signal reads them; it resumes."""
    source = open_clips[kind]
    convert(str(source), tmp_path / "converted")
    outs = {}
    for name, start in (("direct", source), ("by hand", tmp_path / "converted")):
        outs[name] = tmp_path / name
        training = fine_tuning(str(start), learning_rate=1e-3, batch=8)
        if name == "direct":
            with kill(3):
                train_c_ssft(run, out=outs[name], training=training, how=CPU, epochs=2)
        done = train_c_ssft(run, out=outs[name], training=training, how=CPU, epochs=2)
        assert done.steps == 4
    for epoch in ("epoch-1", "epoch-2"):
        assert_same_model(outs["direct"] / epoch, outs["by hand"] / epoch)
    assert json.loads((outs["direct"] / "epoch-1" / "config.json").read_text())["model_type"] == kind
    signal = CSsft(folder=str(outs["direct"]), epochs=2)
    scored = tamis.score(run.pool.spec, run=tmp_path / "scored", signals=[signal], quiet=True)
    assert np.isfinite(scored.to_numpy("c_ssft")).all()


def image_tower(kind: str, folder: Path) -> Path:
    """A tiny pretrained image tower; ViT's without its pooler, as google/vit-base-patch16-224."""
    import transformers as hf

    torch.manual_seed(1)
    if kind == "vit":
        model: Any = hf.ViTForImageClassification(hf.ViTConfig(**SIZE, image_size=32, patch_size=8))
    elif kind == "swin":
        model = hf.SwinModel(
            hf.SwinConfig(image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4)
        )
    else:
        model = hf.Dinov2Model(hf.Dinov2Config(**SIZE, image_size=32, patch_size=8))
    model.save_pretrained(folder)
    looks = image_processor("ViTImageProcessor", 32, crop=kind == "dinov2", mean=(0.5,) * 3, std=(0.5,) * 3, resample=2)
    if kind == "dinov2":
        looks["image_processor_type"] = "BitImageProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(looks))
    return folder


@pytest.mark.parametrize("kind", ["vit", "swin", "dinov2"])
def test_a_pretrained_image_tower_is_joined_with_a_text_encoder(
    kind: str, run: Run, tmp_path: Path, sentences: str
) -> None:
    image = image_tower(kind, tmp_path / "image")
    training = at_scale("lab", model=str(image), text=sentences, samples=64, batch=8, learning_rate=1e-3, warmup=2)
    assert not training.freeze_text
    start = build(training)
    before = AutoModel.from_pretrained(image).state_dict()
    joined = start.model.vision_model.state_dict()
    kept = [name for name in before if "pooler" not in name]
    assert kept
    assert all(torch.equal(before[name], joined[name]) for name in kept)
    assert (start.side, start.steps.mean) == (32, (0.5, 0.5, 0.5))
    done = trained(run, tmp_path / "out", training)
    assert done.steps == 8
    after = AutoModel.from_pretrained(tmp_path / "out")
    assert after.config.model_type == "vision-text-dual-encoder"
    assert not torch.equal(after.vision_model.state_dict()[kept[-1]], before[kept[-1]])  # both towers learn
    assert load_clip(str(tmp_path / "out"), Device()).images([IMAGE[:32, :32]]).shape == (1, 512)
    # The same request again finds the training, and another start from it is a checkpoint like any other.
    assert trained(run, tmp_path / "out", training).steps == 8
    trained(run, tmp_path / "on", ClipTraining(model=str(tmp_path / "out"), samples=8, batch=8))


def test_a_tower_stored_in_half_precision_is_trained_in_float32(tmp_path: Path, sentences: str) -> None:
    image = image_tower("swin", tmp_path / "image")
    AutoModel.from_pretrained(image).half().save_pretrained(image)
    joined = build(at_scale("lab", model=str(image), text=sentences))
    assert {weight.dtype for weight in joined.model.parameters()} == {torch.float32}


def test_towers_that_do_not_join_are_refused(run: Run, tmp_path: Path, sentences: str, clip_model: str) -> None:
    image = image_tower("vit", tmp_path / "image")
    for model, text, says in (
        (str(image), "", r"has no text tower: name a pretrained text encoder \(--text minilm\)"),
        (clip_model, sentences, "has a text tower of its own: leave --text out"),
        (sentences, sentences, "is a 'bert' model"),
        ("ViT-B-33", sentences, "did you mean 'ViT-B-32'"),
    ):
        with pytest.raises(ModelError, match=says):
            trained(run, tmp_path / "out", ClipTraining(model=model, text=text, samples=8, batch=8))
    assert not (tmp_path / "out").exists()
