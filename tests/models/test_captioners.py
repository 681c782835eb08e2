"""Captioning: our decoding gives the captions of transformers' own, and the same ones in every batch."""

from typing import Any

import numpy as np
import pytest
import torch
from factories import WORDS, image_bytes
from pretended_gpu import on_gpu

from tamis.core.errors import ModelError
from tamis.core.types import Device
from tamis.models import decoder
from tamis.models.captioner import (
    ARCHITECTURES,
    FastCaptioner,
    load_beam_captioner,
    load_captioner,
    word_tokens,
)
from tamis.models.nucleus import Sampling, draw, random_numbers
from tamis.pools.images import decode

#: A tiny checkpoint of each architecture: a new one needs one here.
EXAMPLES = {
    "blip": "blip_model",
    "blip-2": "blip2_model",
    "git": "git_model",
    "vision-encoder-decoder": "vit_gpt2_model",
}
IMAGES = [decode(image_bytes(seed, (32, 32)), max_pixels=10**6) for seed in range(7)]
UIDS = np.arange(2 * 500, dtype=np.uint64).reshape(-1, 2)


@pytest.fixture(params=["blip_model", "git_model"])
def captioner(request: pytest.FixtureRequest) -> FastCaptioner:
    loaded = load_captioner(request.getfixturevalue(request.param), Device())
    assert isinstance(loaded, FastCaptioner)
    return loaded


def is_git(captioner: FastCaptioner) -> bool:
    return bool(captioner.model.config.model_type == "git")


def full_logits(captioner: FastCaptioner, pixels: Any, tokens: Any) -> Any:
    """What transformers' own forward gives, nothing cached: (n, length, V)."""
    with torch.no_grad():
        if is_git(captioner):
            return captioner.model(input_ids=tokens, pixel_values=pixels).logits[:, -tokens.shape[1] :]
        states = captioner.model.vision_model(pixel_values=pixels).last_hidden_state
        return captioner.model.text_decoder(input_ids=tokens, encoder_hidden_states=states).logits


def generate(captioner: FastCaptioner, images: list[Any], **settings: Any) -> Any:
    inputs = {"input_ids": torch.full((len(images), 1), 1)} if is_git(captioner) else {}
    return captioner.model.generate(pixel_values=captioner.pixels(images), **inputs, **settings)


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_captions_are_identical(captioner: FastCaptioner, penalty: float) -> None:
    sampling = Sampling(captions=2, top_p=0, min_tokens=4, max_tokens=14, repetition_penalty=penalty)
    rows = generate(captioner, IMAGES, min_length=4, max_length=14, do_sample=False, repetition_penalty=penalty)
    assert captioner(IMAGES, UIDS[:7], sampling) == [[text] * 2 for text in captioner.texts(rows)]


def test_captions_are_those_of_a_loop_over_full_forwards(captioner: FastCaptioner) -> None:
    sampling = Sampling(captions=4, max_tokens=10, repetition_penalty=1.2, seed=5)
    prompt = [1, *word_tokens(" ".join(WORDS[:2]), captioner.tokenizer)]
    ours = captioner.decoder.captions(captioner.encode(IMAGES[:3]), UIDS[:3], prompt, sampling)
    for n, image in enumerate(IMAGES[:3]):
        for which in range(4):
            tokens = list(prompt)
            while len(tokens) < 10:
                scores = full_logits(captioner, captioner.pixels([image]), torch.tensor([tokens]))[:, -1].float()
                for token in set(tokens):
                    scores[0, token] *= 1.2 if scores[0, token] < 0 else 1 / 1.2
                if len(tokens) < 5:
                    scores[0, 2] = -torch.inf
                numbers = random_numbers(*UIDS[n : n + 1].T, np.array([which]), step=len(tokens), seed=5)
                token = int(draw(scores, np.array([0]), numbers, top_p=0.9)[0])
                if token == 2:
                    break
                tokens.append(token)
            assert ours[n][which] == tokens[len(prompt) :]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_caption_depends_on_no_other_image_and_no_order(kind: str, request: pytest.FixtureRequest) -> None:
    captioner = load_captioner(request.getfixturevalue(EXAMPLES[kind]), Device())
    assert captioner.architecture is ARCHITECTURES[kind]
    assert isinstance(captioner, FastCaptioner) == bool(captioner.architecture.parts)
    uids, settings = UIDS[:7], {"captions": 3, "min_tokens": 3, "max_tokens": 8}
    sampling = Sampling(**settings)
    captioner.check(sampling)
    together = captioner(IMAGES, uids, sampling)
    assert [len(some) for some in together] == [3] * 7
    assert len({text for some in together for text in some}) > 3
    assert [captioner([image], uids[n : n + 1], sampling)[0] for n, image in enumerate(IMAGES)] == together
    order = [4, 0, 6, 2, 1, 5, 3]
    assert captioner([IMAGES[n] for n in order], uids[order], sampling) == [together[n] for n in order]
    # More captions: the first stay the same.
    assert [texts[:3] for texts in captioner(IMAGES, uids, Sampling(**settings | {"captions": 5}))] == together
    assert captioner(IMAGES, uids, Sampling(**settings, seed=1)) != together
    assert captioner(IMAGES, uids[::-1], sampling) != together


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_searched_captions_are_the_beams_of_transformers_generate(kind: str, request: pytest.FixtureRequest) -> None:
    """One image at a time, with and without a prompt, given as the processor of each model gives it."""
    import transformers

    folder = request.getfixturevalue(EXAMPLES[kind])
    captioner = load_beam_captioner(folder, Device(batch_size=4))
    cls = {"blip-2": "Blip2ForConditionalGeneration"}.get(kind, ARCHITECTURES[kind].loader)
    model = getattr(transformers, cls).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = tokenizer("a red", add_special_tokens=False)["input_ids"]
    prompts = {
        "blip": [1, *words, 2],
        "blip-2": [len(WORDS) + 4] * 4 + [1, *words, 2],  # its queries, then the prompt's own tokens
        "git": [1, *words],
    }
    assert bool(captioner.architecture.prompt) == (kind in prompts)
    for prompt in ["", *(["a red"] if kind in prompts else [])]:
        captioner.check(prompt, 5)
        captions = captioner(IMAGES[:3], prompt=prompt, beams=2, max_tokens=5)
        inputs = {"input_ids": torch.tensor([prompts[kind]])} if prompt else {}
        if prompt:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        for image, found in zip(IMAGES[:3], captions, strict=True):
            pixels = captioner.pixels([captioner.preprocess.resize(image)])
            with torch.inference_mode():
                rows = model.generate(
                    pixel_values=pixels, **inputs,
                    num_beams=2, num_return_sequences=2, max_new_tokens=5, do_sample=False,
                )  # fmt: skip
            texts = [text.strip() for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]
            assert found == [text.removeprefix(prompt).strip() for text in texts]
            assert all(text.startswith(prompt) for text in texts)


def test_what_cannot_be_captioned_is_an_early_error(blip_model: str, vit_gpt2_model: str, clip_model: str) -> None:
    fast, plain = load_captioner(blip_model, Device()), load_captioner(vit_gpt2_model, Device())
    fast.check(Sampling())
    for captioner, sampling, message in (
        (fast, Sampling(prompt=" ".join(WORDS[:2]), min_tokens=0, max_tokens=3), r"must be 4 to 24, got 3"),
        (fast, Sampling(max_tokens=99), "24, got 99"),
        (plain, Sampling(prompt="a"), "only blip, blip-2, git do"),
        (plain, Sampling(min_tokens=1, max_tokens=1), "at least 2"),
    ):
        with pytest.raises(ModelError, match=message):
            captioner.check(sampling)
    with pytest.raises(ModelError, match="only blip, blip-2, git do"):
        load_beam_captioner(vit_gpt2_model, Device()).check("a red", 5)
    with pytest.raises(ModelError, match=r"at most 23, got 30"):
        load_beam_captioner(blip_model, Device()).check("", 30)
    with pytest.raises(ModelError, match="'clip' model"):
        load_captioner(clip_model, Device())


def test_on_a_gpu_torchs_fused_attention_looks_at_the_image(blip_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it takes twice as long as its steps one by one, which round their scores in between."""
    fused, calls = decoder._attend_to_all, list[int]()
    monkeypatch.setattr(decoder, "_attend_to_all", lambda *some: calls.append(1) or fused(*some))
    sampling, made = Sampling(captions=2, max_tokens=8), []
    for kind in ("cpu", "cuda:0"):
        with on_gpu():
            made.append(load_captioner(blip_model, Device(kind=kind))(IMAGES[:2], UIDS[:2], sampling))
        assert bool(calls) == (kind != "cpu")
    assert made[0] == made[1]
