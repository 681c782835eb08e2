"""Text regression: one number per text, by a transformers checkpoint with one logit, or by the built-in `norms`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device, ModelRef
from tamis.errors import ModelError
from tamis.models.device import use_threads
from tamis.models.loading import load_tokenizer_in, loaded_once, model_type
from tamis.models.packed import load_for_inference
from tamis.models.reference import resolve
from tamis.models.texts.norms import KIND, load_norms
from tamis.models.tokens import by_length, longest_text, padded

#: Texts are small compared with images: the network takes this many times the device's batch size at once.
_TEXTS_PER_SAMPLE = 4

#: From n texts to (n,) float32 numbers; each depends on its text alone.
TextRegression = Callable[[Sequence[str]], NDArray[np.float32]]


class SequenceRegression:
    """A checkpoint of `AutoModelForSequenceClassification` with one logit, which is the number.

    Each distinct text is scored once, in batches of similar length: web captions repeat, and a batch of mixed lengths
    is mostly padding.
    """

    def __init__(self, model: str, device: Device) -> None:
        from transformers import AutoModelForSequenceClassification as Kind

        path = resolve(model).path
        self._device, self._batch = device.kind, device.batch_size * _TEXTS_PER_SAMPLE
        use_threads(device)
        expected = "a text regression (sequence classification with one logit)"
        self._model = load_for_inference(Kind, path, model, device, expected=expected)
        config = self._model.config
        if config.num_labels != 1:
            raise ModelError(
                f"{model} has {config.num_labels} logits: it is a classifier, and not {expected}, as moranyanuka/icc is"
            )
        self._tokenizer = load_tokenizer_in(path, network=self._model)
        self._length = longest_text(config, self._tokenizer)

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import torch

        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return np.empty(0, np.float32)
        rows = self._tokenizer(distinct, truncation=True, max_length=self._length)["input_ids"]
        # Texts that differ only beyond the limit, or in their white space, are one row.
        tokens = sorted({tuple(row) for row in rows}, key=lambda row: (len(row), row))
        scores: dict[tuple[int, ...], float] = {}
        with torch.inference_mode():
            for chunk in by_length(tokens, self._batch):
                ids, mask = padded(chunk, self._tokenizer.pad_token_id, self._device)
                logits = self._model(input_ids=ids, attention_mask=mask).logits
                scores.update(zip(chunk, logits[:, 0].float().tolist(), strict=True))
        numbers = {text: scores[tuple(row)] for text, row in zip(distinct, rows, strict=True)}
        return np.array([numbers[text] for text in texts], np.float32)


@loaded_once(keep=4)
def load_text_regression(model: ModelRef, device: Device) -> TextRegression:
    """Loads `norms`, or a checkpoint with one logit; ModelError if it is missing or gives no single number."""
    return load_norms(model, device) if model_type(model) == KIND else SequenceRegression(model, device)
