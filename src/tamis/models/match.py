"""Heads that decide whether image and caption match: the retrieval checkpoints of BLIP and BLIP-2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError
from tamis.core.types import Device, ModelRef
from tamis.models.device import dtype_of
from tamis.models.loading import check_tokens, load_once, load_tokenizer_in, model_type, pad_tokens
from tamis.models.packed import load_for_inference
from tamis.models.preprocess import check_side, load_preprocess
from tamis.models.reference import resolve

#: `model_type` -> class of transformers, configuration of its text side, tokens of a caption in training.
KINDS = {
    "blip": ("BlipForImageTextRetrieval", "text_config", 35),
    "blip-2": ("Blip2ForImageTextRetrieval", "qformer_config", 32),
}


class Matcher:
    """A network that reads image and caption together, on a device."""

    def __init__(self, model: ModelRef, device: Device) -> None:
        """Loads a checkpoint; ModelError if it is missing or has no such head, as captioners have none."""
        kind = model_type(model) or ""
        if kind not in KINDS:
            raise ModelError(f"{model} is a {kind!r} model; itm takes retrieval checkpoints of {' and '.join(KINDS)}")
        import transformers

        name, text, longest = KINDS[kind]
        path, expected = resolve(model).path, "a retrieval checkpoint, which has a head (itm_head) for matches"
        self._model = load_for_inference(getattr(transformers, name), path, model, device, expected=expected)
        config, self.preprocess = self._model.config, load_preprocess(model)
        check_side(self.preprocess, config.vision_config, model)
        self._tokenizer = load_tokenizer_in(path)
        check_tokens(self._tokenizer, self._model, path, getattr(config, text))
        self._longest = min(longest, getattr(config, text).max_position_embeddings, self._tokenizer.model_max_length)
        # BLIP-2's network cuts as many tokens off the front of a caption as there are queries.
        two = kind == "blip-2"
        self._before = [config.image_token_index] * config.num_query_tokens if two and config.image_token_index else []
        self._head = {"use_image_text_matching_head" if two else "use_itm_head": True}
        self._output = "logits_per_image" if two else "itm_score"
        self._device, self._batch, self._dtype = device.kind, device.batch_size, dtype_of(device)

    def __call__(self, images: Sequence[Pixels], captions: Sequence[str]) -> NDArray[np.float32]:
        """Returns the probabilities (n,) that images, resized as the checkpoint says, match their captions."""
        import torch

        if not len(images):
            return np.empty(0, np.float32)
        tokens = self._tokenizer(list(captions), truncation=True, max_length=self._longest)["input_ids"]
        order = sorted(range(len(tokens)), key=lambda n: len(tokens[n]))  # less padding
        result = np.empty(len(tokens), np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), self._batch):
                rows = order[start : start + self._batch]
                texts = [[*self._before, *tokens[n]] for n in rows]
                ids, mask = pad_tokens(texts, self._tokenizer.pad_token_id, self._device)
                pixels = torch.from_numpy(np.stack([self.preprocess.normalise(images[n]) for n in rows]))
                inputs: dict[str, Any] = {"pixel_values": pixels.to(self._device, self._dtype), "input_ids": ids}
                scores = getattr(self._model(**inputs, attention_mask=mask, **self._head), self._output)  # (b, 2)
                result[rows] = scores.float().softmax(-1)[:, 1].cpu().numpy()
        return result


load_matcher = load_once(keep=2)(Matcher)
