"""Every kind of model folder: a fixture that makes a tiny one, and what loads it and uses it once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tamis.core.types import Device

IMAGE = np.zeros((32, 32, 3), np.uint8)


def load_clip(folder: str) -> Any:
    from tamis.models.clip import load_clip, load_tokenizer
    from tamis.models.preprocess import load_preprocess

    clip = load_clip(folder, Device())
    images = clip.images([load_preprocess(folder).resize(IMAGE)])
    return images @ clip.texts(load_tokenizer(folder)(["a dog"])).T


def load_matcher(folder: str) -> Any:
    from tamis.models.match import load_matcher

    matcher = load_matcher(folder, Device())
    return matcher([matcher.preprocess.resize(IMAGE)], ["a dog"])


def load_captioner(folder: str) -> Any:
    from tamis.models.captioner import Captioner

    captioner = Captioner(folder, Device())
    pixels = captioner.pixels([captioner.preprocess.resize(IMAGE)])
    rows = captioner.model.generate(pixel_values=pixels, max_new_tokens=2, do_sample=False)
    return captioner.texts(rows.tolist())


def decoder_logits(captioner: Any, images: Any, tokens: Any) -> Any:
    """The logits (n, length, V) that our decoder gives after each of the tokens (n, length), one at a time."""
    import torch

    from tamis.models.decoder import _Batch

    with torch.inference_mode():
        batch = _Batch(captioner.decoder, captioner.encode(images), 1, tokens.shape[1])
        steps = [captioner.decoder.head(batch.step(row, place)).float() for place, row in enumerate(tokens.T.numpy())]
        return torch.stack(steps, dim=1)


def load_chat(folder: str) -> Any:
    from tamis.models.chat import ChatModel

    return ChatModel(folder, Device()).answer([IMAGE], ["a dog"], 2)


def load_sentences(folder: str) -> Any:
    from tamis.models.texts.sentence import load_sentence_encoder

    return load_sentence_encoder(folder, Device())(["a dog"])


def load_regression(folder: str) -> Any:
    from tamis.models.texts.regression import load_text_regression

    return load_text_regression(folder, Device())(["a dog"])


def load_tokens(folder: str) -> Any:
    from tamis.models.texts.sentence import load_token_encoder

    return load_token_encoder(folder, None, Device())(["a dog"])


def load_reader(folder: str) -> Any:
    from tamis.models.texts.soft_token import Reader

    return Reader(folder, Device(), "eos").tokens(["a dog"])


def load_drawing(folder: str) -> Any:
    from tamis.models.text_to_image import Drawing, load_text_to_image

    return load_text_to_image(folder, Device())(["a dog"], Drawing(steps=1))


def load_head(folder: str) -> Any:
    from tamis.models.heads import load_head

    return load_head(folder, "auto", Device())[0](np.zeros((2, 24), np.float32))


def go_on(folder: str) -> Any:
    """What `tamis train clip --model` begins with."""
    from tamis.train.scales import ClipTraining
    from tamis.train.towers import build

    return build(ClipTraining(model=folder, samples=8, batch=4))


KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "clip": ("clip_model", load_clip),
    "siglip": ("siglip_model", load_clip),
    "dual encoder": ("dual_model", load_clip),
    "naflex": ("naflex_model", load_clip),
    "match": ("itm_model", load_matcher),
    "clip to go on from": ("clip_model", go_on),
    "dual encoder to go on from": ("dual_model", go_on),
    "blip": ("blip_model", load_captioner),
    "git": ("git_model", load_captioner),
    "blip-2": ("blip2_model", load_captioner),
    "vision-encoder-decoder": ("vit_gpt2_model", load_captioner),
    "llava": ("llava_model", load_chat),
    "qwen-vl": ("qwen_vl_model", load_chat),
    "sentence encoder": ("sentence_model", load_sentences),
    "sentence encoder of the library": ("sentence_t5_model", load_sentences),
    "head": ("head_model", load_head),
    "icc student": ("regression_model", load_regression),
    "bertscore": ("regression_model", load_tokens),
    "teacher's language model": ("llama_model", load_reader),
    "pipeline": ("diffusion_model", load_drawing),
}
