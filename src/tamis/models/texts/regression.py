"""Text regression: one number per text, by any `transformers` checkpoint with one logit, or by the built-in `norms`.

Each distinct text is scored once, in batches of like length: web captions repeat, and a batch of mixed lengths is
mostly padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device, ModelRef
from tamis.errors import ModelError
from tamis.models.device import dtype_of, use_threads
from tamis.models.linear import for_inference
from tamis.models.loading import load_tokenizer_in, load_whole, loaded_once, model_type
from tamis.models.reference import resolve
from tamis.models.texts.norms import KIND, load_norms
from tamis.models.texts.token_batches import by_length, longest_text, padded

#: Texts are short beside pictures: so many times the device's batch size go through the network at once.
_TEXTS_PER_SAMPLE = 4


class TextRegression(Protocol):
    """What gives a number to each text."""

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns (n,) float32 numbers of n texts; one of a text depends on that text alone."""
        ...


class SequenceRegression:
    """A checkpoint of `AutoModelForSequenceClassification` with one logit, which is the number."""

    def __init__(self, model: str, device: Device) -> None:
        """Loads a checkpoint.

        Raises:
            ModelError: it is not here, is of another kind, or has more than one logit.
        """
        import torch
        from transformers import AutoModelForSequenceClassification

        path = resolve(model).path
        self._torch = torch
        self._device = torch.device(device.kind)
        self._batch = device.batch_size * _TEXTS_PER_SAMPLE
        use_threads(device)
        found = load_whole(
            AutoModelForSequenceClassification,
            path,
            model,
            expected="a text regression (sequence classification with one logit)",
            dtype=dtype_of(device),
        )
        if found.config.num_labels != 1:
            raise ModelError(
                f"{model} has {found.config.num_labels} logits, it sorts texts into classes; a text regression has one "
                "(num_labels=1, as moranyanuka/icc)"
            )
        self._model = for_inference(found.to(self._device), device)
        self._tokenizer = load_tokenizer_in(path, network=found)
        self._length = longest_text(found.config, self._tokenizer)

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        torch = self._torch
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return np.empty(0, np.float32)
        rows = self._tokenizer(distinct, truncation=True, max_length=self._length)["input_ids"]
        # Texts that differ only where they are cut, or in their white space, are one row.
        tokens = sorted({tuple(row) for row in rows}, key=lambda row: (len(row), row))
        found: dict[tuple[int, ...], float] = {}
        with torch.inference_mode():
            for chunk in by_length(tokens, self._batch):
                ids, mask = padded(chunk, self._tokenizer.pad_token_id, self._device)
                logits = self._model(input_ids=ids, attention_mask=mask).logits
                found.update(zip(chunk, logits[:, 0].float().tolist(), strict=True))
        numbers = {text: found[tuple(row)] for text, row in zip(distinct, rows, strict=True)}
        return np.array([numbers[text] for text in texts], np.float32)


@loaded_once(keep=4)
def load_text_regression(model: ModelRef, device: Device) -> TextRegression:
    """Returns a loaded checkpoint.

    Args:
        model: a sequence classification checkpoint with one logit, or `norms`: Hugging Face id, folder or built-in.
        device: where and in which precision.

    Raises:
        ModelError: it is not here, or gives no number to a text.
        DependencyError: torch or transformers is not installed.
    """
    if model_type(model) == KIND:
        return load_norms(model, device)
    return SequenceRegression(model, device)
