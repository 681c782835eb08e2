"""Captioning: our decoding says what transformers' own says, and says it again in every batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from factories import WORDS, image_bytes

torch = pytest.importorskip("torch")

from tamis.data import Device  # noqa: E402
from tamis.errors import ModelError  # noqa: E402
from tamis.models.captioners import ARCHITECTURES, architecture_of  # noqa: E402
from tamis.models.captioners.architecture import words  # noqa: E402
from tamis.models.captioners.beams import load_beam_captioner  # noqa: E402
from tamis.models.captioners.decoder import _attend  # noqa: E402
from tamis.models.captioners.nucleus import draw, numbers_of  # noqa: E402
from tamis.models.captioners.sampled import FastCaptioner, PlainCaptioner, load_captioner  # noqa: E402
from tamis.models.captioners.sampling import Sampling  # noqa: E402
from tamis.pool.images import decode  # noqa: E402

FAST = ["blip_model", "git_model"]

#: A tiny checkpoint of each architecture: a new one needs one here.
EXAMPLES = {
    "blip": "blip_model",
    "blip-2": "blip2_model",
    "git": "git_model",
    "vision-encoder-decoder": "vit_gpt2_model",
}


def images(count: int) -> list[Any]:
    return [decode(image_bytes(seed, (32, 32)), max_pixels=10**6) for seed in range(count)]


def uids(count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.arange(2 * count, dtype=np.uint64).reshape(count, 2)


@pytest.fixture
def captioner(request: pytest.FixtureRequest) -> FastCaptioner:
    found = load_captioner(request.getfixturevalue(request.param), Device())
    assert isinstance(found, FastCaptioner)
    return found


fast = pytest.mark.parametrize("captioner", FAST, indirect=True)


def is_git(captioner: FastCaptioner) -> bool:
    return bool(captioner.model.config.model_type == "git")


def full_logits(captioner: FastCaptioner, pixels: Any, tokens: Any) -> Any:
    """What transformers' own forward gives, nothing cached: (n, length, V)."""
    with torch.no_grad():
        if is_git(captioner):
            return captioner.model(input_ids=tokens, pixel_values=pixels).logits[:, -tokens.shape[1] :]
        states = captioner.model.vision_model(pixel_values=pixels).last_hidden_state
        return captioner.model.text_decoder(input_ids=tokens, encoder_hidden_states=states).logits


def generate(captioner: FastCaptioner, pixels: Any, **settings: Any) -> Any:
    start = torch.full((len(pixels), 1), 1)
    given = {"input_ids": start} if is_git(captioner) else {}
    return captioner.model.generate(pixel_values=pixels, **given, **settings)


@fast
def test_teacher_forced_logits_equal_those_of_transformers_at_every_step(captioner: FastCaptioner) -> None:
    pictures = images(5)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(3, len(WORDS) + 4, (5, 12)))
    tokens[:, 0] = 1
    ours = captioner.decoder.logits(captioner.see(pictures), tokens)
    theirs = full_logits(captioner, captioner.pixels(pictures), tokens)
    assert (ours - theirs).abs().max() <= 1e-4
    assert theirs.std() > 0.5  # there is something to compare


@fast
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_captions_are_identical(captioner: FastCaptioner, penalty: float) -> None:
    pictures = images(6)
    sampling = Sampling(captions=2, top_p=0, min_tokens=4, max_tokens=14, repetition_penalty=penalty)
    ours = captioner(pictures, uids(6), sampling)
    rows = generate(
        captioner, captioner.pixels(pictures), min_length=4, max_length=14, do_sample=False, repetition_penalty=penalty
    )
    assert ours == [[text] * 2 for text in captioner.texts(rows)]


@fast
def test_captions_are_those_of_a_loop_over_full_forwards(captioner: FastCaptioner) -> None:
    pictures, ids = images(3), uids(3)
    sampling = Sampling(captions=4, max_tokens=10, repetition_penalty=1.2, seed=5)
    beginning = [1, *words(" ".join(WORDS[:2]), captioner.tokenizer)]
    ours = captioner.decoder.captions(captioner.see(pictures), ids, beginning, sampling)
    for n, picture in enumerate(pictures):
        for which in range(4):
            said = list(beginning)
            while len(said) < 10:
                scores = full_logits(captioner, captioner.pixels([picture]), torch.tensor([said]))[:, -1].float()
                for token in set(said):
                    scores[0, token] *= 1.2 if scores[0, token] < 0 else 1 / 1.2
                if len(said) < 5:
                    scores[0, 2] = -torch.inf

                high, low = ids[n : n + 1].T
                numbers = numbers_of(high, low, np.array([which]), step=len(said), seed=5)
                token = int(draw(scores, np.array([0]), numbers, top_p=0.9)[0])
                if token == 2:
                    break
                said.append(token)
            assert ours[n][which] == said[len(beginning) :]


@fast
def test_a_caption_depends_on_no_other_image_and_no_order(captioner: FastCaptioner) -> None:
    pictures, ids = images(7), uids(7)
    sampling = Sampling(captions=3)
    together = captioner(pictures, ids, sampling)
    assert [captioner([picture], ids[n : n + 1], sampling)[0] for n, picture in enumerate(pictures)] == together
    order = [4, 0, 6, 2, 1, 5, 3]
    assert captioner([pictures[n] for n in order], ids[order], sampling) == [together[n] for n in order]
    # More captions: the first stay what they were.
    more = captioner(pictures, ids, Sampling(captions=5))
    assert [said[:3] for said in more] == together
    assert captioner(pictures, ids, Sampling(captions=3, seed=1)) != together
    assert captioner(pictures, ids[::-1], sampling) != together


@fast
def test_sampled_captions_are_as_frequent_as_those_of_generate(captioner: FastCaptioner) -> None:
    picture, count = images(1), 4000
    states = captioner.see(picture).expand(count // 8, -1, -1).contiguous()
    ours = captioner.decoder.captions(states, uids(count // 8), [1], Sampling(min_tokens=0, max_tokens=3))
    torch.manual_seed(0)
    pixels = captioner.pixels(picture)
    rows = generate(
        captioner, pixels, do_sample=True, top_p=0.9, top_k=0, max_length=3, num_return_sequences=count
    ).tolist()
    mine = Counter(tuple(said) for some in ours for said in some)
    theirs = Counter(tuple(t for t in row[1:] if t not in (0, 2)) for row in rows)
    assert sum(mine.values()) == sum(theirs.values()) == count
    common = [said for said in mine | theirs if mine[said] + theirs[said] >= 10]
    assert len(common) >= 5
    chi_square = sum((mine[said] - theirs[said]) ** 2 / (mine[said] + theirs[said]) for said in common)
    assert chi_square <= len(common) + 5 * (2 * len(common)) ** 0.5


@fast
def test_the_prompt_is_not_in_the_captions_and_counts_as_length(captioner: FastCaptioner) -> None:
    prompt = " ".join(WORDS[:3])
    found = captioner.decoder.captions(
        captioner.see(images(2)), uids(2), [1, *words(prompt, captioner.tokenizer)], Sampling(captions=3, max_tokens=9)
    )
    assert {len(said) for some in found for said in some} <= set(range(6))
    with pytest.raises(ValueError, match="above the prompt's 4 tokens and at most"):
        captioner.decoder.captions(
            captioner.see(images(1)),
            uids(1),
            [1, *words(prompt, captioner.tokenizer)],
            Sampling(min_tokens=0, max_tokens=4),
        )


def test_other_models_go_through_generate_and_repeat_themselves_too(vit_gpt2_model: str) -> None:
    captioner = load_captioner(vit_gpt2_model, Device())
    assert isinstance(captioner, PlainCaptioner)
    pictures, ids = images(5), uids(5)
    together = captioner(pictures, ids, Sampling(captions=3))
    assert all(len(said) == 3 for said in together)
    assert len({text for said in together for text in said}) > 5
    alone = [captioner([picture], ids[n : n + 1], Sampling(captions=3))[0] for n, picture in enumerate(pictures)]
    assert alone == together


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_is_sampled_and_searched(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(EXAMPLES[kind])
    architecture = architecture_of(folder)
    assert architecture is ARCHITECTURES[kind]
    sampled, searched = load_captioner(folder, Device()), load_beam_captioner(folder, Device())
    assert isinstance(sampled, FastCaptioner) == architecture.fast
    pictures, ids = images(3), uids(3)
    sampling = Sampling(captions=2, min_tokens=3, max_tokens=8)
    sampled.check(sampling)
    said = sampled(pictures, ids, sampling)
    assert [len(some) for some in said] == [2, 2, 2]
    assert sampled(pictures[1:2], ids[1:2], sampling) == said[1:2]
    for prompt in ("", *(["a red"] if architecture.takes_prompt else [])):
        searched.check(prompt, 4)
        likely = searched(pictures, prompt=prompt, beams=2, max_tokens=4)
        assert [len(some) for some in likely] == [2, 2, 2]
        assert searched(pictures[1:2], prompt=prompt, beams=2, max_tokens=4) == likely[1:2]


def test_a_model_that_captions_nothing_is_an_error(clip_model: str) -> None:
    with pytest.raises(ModelError, match="is a 'clip' model and not a captioner of images"):
        load_captioner(clip_model, Device())


def test_attention_of_few_rows_is_that_of_many() -> None:
    torch.manual_seed(0)
    asked, keys, values = torch.randn(2, 4, 40, 8), torch.randn(2, 4, 30, 8), torch.randn(2, 4, 30, 8)
    many = _attend(asked, keys, values)
    few = torch.cat([_attend(asked[:, :, k : k + 8], keys, values) for k in range(0, 40, 8)], dim=2)
    assert torch.allclose(many, few, atol=1e-6)


def test_what_cannot_be_drawn_is_said_before_any_work(blip_model: str, vit_gpt2_model: str) -> None:
    fast, plain = load_captioner(blip_model, Device()), load_captioner(vit_gpt2_model, Device())
    fast.check(Sampling())
    with pytest.raises(ModelError, match=r"max_tokens must be above the 3 tokens .* at most 24, got 3"):
        fast.check(Sampling(prompt=" ".join(WORDS[:2]), min_tokens=0, max_tokens=3))
    with pytest.raises(ModelError, match="at most 24, got 99"):
        fast.check(Sampling(max_tokens=99))
    with pytest.raises(ModelError, match="takes no prompt here: only blip and git models do"):
        plain.check(Sampling(prompt="a"))
