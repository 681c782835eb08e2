"""Contextual embeddings of a text's tokens, as BERTScore compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device, ModelRef
from tamis.errors import ModelError, require
from tamis.models.loading import is_pooler, load_tokenizer_in, loaded_once, transformer_folder
from tamis.models.packed import load_for_inference
from tamis.models.tokens import by_length, longest_text, padded

#: The layers that agree best with people, by architecture and number of layers: the `bert-score` package's choice for
#: models of these shapes. Not by name, since a folder may be called anything.
BEST_LAYERS: Mapping[tuple[str, int], int] = {
    ("bert", 12): 9,
    ("bert", 24): 18,
    ("roberta", 6): 5,
    ("roberta", 12): 10,
    ("roberta", 24): 17,
    ("distilbert", 6): 5,
    ("deberta", 48): 40,
}


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of one text: vectors (t, d) float32, not normalised; counts (t,) False for the special tokens."""

    vectors: NDArray[np.float32]
    counts: NDArray[np.bool_]


class TokenEncoder:
    """One layer of a BERT-like encoder."""

    def __init__(self, model: str, layer: int | None, device: Device) -> None:
        from transformers import AutoModel

        path, expected = transformer_folder(model), "a BERT-like encoder of texts"
        self._device, self._batch = device.kind, device.batch_size
        self._model = load_for_inference(AutoModel, path, model, device, expected=expected, unneeded=is_pooler)
        config = self._model.config
        body = getattr(self._model, "encoder", getattr(self._model, "transformer", None))
        if body is None or not hasattr(config, "num_hidden_layers") or config.is_encoder_decoder:
            raise ModelError(f"{model} is a {config.model_type!r} model and not {expected}: name one")
        deepest = int(config.num_hidden_layers)
        if deepest < 1:
            raise ModelError(f"{path}: its config.json is damaged: num_hidden_layers is {deepest}")
        self.layer = layer if layer is not None else BEST_LAYERS.get((config.model_type, deepest), deepest)
        if not 0 <= self.layer <= deepest:
            raise ModelError(f"{model} has the layers 0 (its input) to {deepest}, got {self.layer}")
        if hasattr(body, "layer"):
            del body.layer[max(1, self.layer) :]  # the layers above are not used
        self._tokenizer = load_tokenizer_in(path, network=self._model)
        # A token of RoBERTa includes the space before a word: with a space in front, the first word is one that it
        # knows. `bert-score` does so by a setting (add_prefix_space) that transformers 5 ignores; there RoBERTa's
        # first words are cut into pieces, and its numbers differ by some thousandths from these and published ones.
        self._prefix = " " if config.model_type == "roberta" else ""
        self._length = longest_text(config, self._tokenizer)

    def __call__(self, texts: Sequence[str]) -> dict[str, TokenVectors]:
        """Returns the token vectors of each distinct text."""
        import torch

        distinct = sorted(set(texts))
        if not distinct:
            return {}
        tokens = self._tokenizer(
            [self._prefix + text.strip() if text.strip() else "" for text in distinct],
            truncation=True,
            max_length=self._length,
            return_special_tokens_mask=True,
        )
        rows = {text: tuple(ids) for text, ids in zip(distinct, tokens["input_ids"], strict=True)}
        special = dict(zip(rows.values(), tokens["special_tokens_mask"], strict=True))
        vectors: dict[tuple[int, ...], TokenVectors] = {}
        with torch.inference_mode():
            for chunk in by_length(sorted(special, key=lambda ids: (len(ids), ids)), self._batch):
                ids, mask = padded(chunk, self._tokenizer.pad_token_id, self._device)
                states = self._model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
                for row, values in zip(chunk, states[self.layer].float().cpu().numpy(), strict=True):
                    vectors[row] = TokenVectors(values[: len(row)], ~np.array(special[row], bool))
        return {text: vectors[row] for text, row in rows.items()}


@loaded_once(keep=2)
def load_token_encoder(model: ModelRef, layer: int | None, device: Device) -> TokenEncoder:
    """Loads one layer of a BERT-like checkpoint or a sentence-transformers folder; 0 is its input embeddings.

    Without `layer` it is that of `BEST_LAYERS`, else the last. Raises ModelError if there is no such layer.
    """
    require("torch", "transformers", extra="clip")
    return TokenEncoder(model, layer, device)
