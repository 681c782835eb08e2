"""Training a captioner: its loss, how it resumes, what loads it, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories import WORDS, caption, score, write_pool
from tiny_models import captioner_folder, clip_folder, language_model_folder, tokenizer_folder
from trainings import CPU, assert_same_model, metrics, trained
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetModel, VisionEncoderDecoderModel

from tamis.core.errors import ModelError, RunError
from tamis.core.types import Device
from tamis.models.captioner import load_beam_captioner
from tamis.runs import Run
from tamis.runs.subset import Subset
from tamis.train.batches import Batches
from tamis.train.captioner import build
from tamis.train.clip import Trained, training_rows
from tamis.train.loop import autocast
from tamis.train.scales import CaptionTraining, captioner_at_scale


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random GPT-2 of the words of the captions."""
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    none = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)  # dropout would differ with the pieces
    config = GPT2Config(
        vocab_size=len(WORDS) + 4,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=2,
        **none,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return str(tokenizer_folder(folder))


@pytest.fixture(scope="module")
def tiny(language: str, tmp_path_factory: pytest.TempPathFactory) -> CaptionTraining:
    """Six steps of 8 pairs with the image tower of a tiny CLIP."""
    folder = clip_folder(tmp_path_factory.mktemp("tiny") / "clip")
    return CaptionTraining(vision=str(folder), language=language, samples=48, batch=8, learning_rate=3e-3)


@pytest.fixture(scope="module")
def whole(run: Run, tiny: CaptionTraining, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    """The six steps, and the folder that they left."""
    out = tmp_path_factory.mktemp("whole")
    return trained(run, out, tiny), out


def test_the_loss_is_that_of_transformers_and_does_not_see_unusable_pairs(tiny: CaptionTraining) -> None:
    network = build(tiny)
    captions = [caption(seed) for seed in range(4)]
    ids, mask = network.tokens(captions)
    words = network.tokenizer(captions, add_special_tokens=False)["input_ids"]
    assert [row[row_mask.bool()].tolist() for row, row_mask in zip(ids, mask, strict=True)] == [
        [1, *one, 2] for one in words
    ]
    pixels = torch.randint(0, 255, (4, 32, 32, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    kept = torch.tensor([True, False, True, True])
    labels = ids[kept, 1:].masked_fill(mask[kept, 1:] == 0, -100)
    with torch.no_grad():
        theirs = network.model(pixel_values=network.pixels(pixels[kept]), labels=labels).loss
    cast: Any = lambda: autocast("float32", "cpu")  # noqa: E731
    pieces = [(pixels[:1], ids[:1], mask[:1]), (pixels[1:], ids[1:], mask[1:])]
    with torch.no_grad():
        assert torch.allclose(network.loss(pieces, kept, cast), theirs, atol=1e-6)
    assert torch.allclose(network.gradients(pieces, kept, cast), theirs, atol=1e-6)
    found = {name: one.grad.clone() for name, one in network.model.named_parameters() if one.grad is not None}
    network.model.zero_grad()
    network.model(pixel_values=network.pixels(pixels[kept]), labels=labels).loss.backward()
    for name, one in network.model.named_parameters():
        assert name not in found or torch.allclose(one.grad, found[name], atol=1e-6), name


def test_it_learns_and_transformers_and_our_captioner_load_it(run: Run, tmp_path: Path, tiny: CaptionTraining) -> None:
    few = Subset(run=run, keep=np.arange(16) < 2)
    done = trained(run, tmp_path / "out", replace(tiny, samples=640, learning_rate=1e-2), source=few)
    assert (done.pairs, done.samples, done.unreadable) == (2, 640, 0)
    assert np.mean(done.losses[-4:]) < 0.1 < 2 < done.losses[0]  # it knows two captions by heart
    assert "scale" not in metrics(tmp_path / "out")[-1]
    model = VisionEncoderDecoderModel.from_pretrained(tmp_path / "out").eval()
    assert model.config.decoder_start_token_id == 1
    (batch,) = Batches(run=run, rows=training_rows(few)[0], batch=2, side=32, smallest=1.0)(0, 1, lambda one: one)
    captioner = load_beam_captioner(str(tmp_path / "out"), Device())
    images = [one.numpy() for one in batch.pixels]
    texts = [best for best, *_ in captioner(images, prompt="", beams=2, max_tokens=14)]
    ids = captioner.tokenizer  # a word that the tokenizer lacks is the same token in both
    assert [ids(text)["input_ids"] for text in texts] == [ids(text)["input_ids"] for text in batch.captions]


def test_a_killed_training_resumes_to_the_same_losses_and_weights(
    run: Run, tmp_path: Path, tiny: CaptionTraining, whole: tuple[Trained, Path], kill: Any
) -> None:
    with kill(6):
        trained(run, tmp_path, tiny)
    rest = trained(run, tmp_path, tiny)
    assert list(rest.losses) == list(whole[0].losses)[4:]
    assert_same_model(whole[1], tmp_path)
    with pytest.raises(RunError, match="other learning_rate"):
        trained(run, tmp_path, replace(tiny, learning_rate=1.0))


def test_pieces_and_recomputed_layers_change_losses_by_rounding_only(
    run: Run, tmp_path: Path, tiny: CaptionTraining, whole: tuple[Trained, Path]
) -> None:
    for name, how in {"two": replace(CPU, pieces=2), "again": replace(CPU, checkpointing=True)}.items():
        assert trained(run, tmp_path / name, tiny, how).losses == pytest.approx(whole[0].losses, abs=1e-4)


def test_repeats_and_held_out_pairs(tmp_path: Path, tiny: CaptionTraining) -> None:
    run = score(write_pool(tmp_path / "pool", 2, 8), tmp_path / "run", "caption_length")
    many = Subset(run=run, keep=np.arange(16) < 3, times=np.array([5, 2, 1] + [0] * 13, np.uint16))
    done = trained(run, tmp_path / "many", tiny, source=many)
    assert (done.pairs, done.samples / 8) == (3, 6)  # an epoch is one batch of eight
    held = trained(run, tmp_path / "held", replace(tiny, hold_out=0.3))
    assert held.pairs < 16
    assert metrics(tmp_path / "held")[-1]["held_out_loss"] > 0


def test_models_that_cannot_be_joined_are_refused(tmp_path: Path, tiny: CaptionTraining) -> None:
    with pytest.raises(ModelError, match="a 'llama' model, which cannot attend to an image"):
        build(replace(tiny, language=str(language_model_folder(tmp_path / "llama"))))
    maps = tmp_path / "maps"
    ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])).save_pretrained(maps)
    (maps / "preprocessor_config.json").write_bytes((Path(tiny.vision) / "preprocessor_config.json").read_bytes())
    with pytest.raises(ModelError, match="no sequence of states for an image"):
        build(replace(tiny, vision=str(maps)))
    with pytest.raises(ModelError, match="not a language model"):
        build(replace(tiny, language=str(captioner_folder(tmp_path / "blip"))))
    with pytest.raises(ValueError, match="did you mean 'lab'"):
        captioner_at_scale("lap")


def test_the_papers_settings_are_the_default() -> None:
    paper = captioner_at_scale("icc")
    assert (paper.batch, paper.learning_rate, paper.language) == (100, 2e-5, "openai-community/gpt2")
    assert "swin-base-patch4-window7-224-in22k" in paper.vision
    assert (paper.loop.floor, paper.loop.warmup, paper.loop.steps) == (0.0, 0, 5000)
    assert captioner_at_scale("lab", samples=100, vision=None).vision == "lab/clip"
