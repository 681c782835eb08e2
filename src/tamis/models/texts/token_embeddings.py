"""Contextual embeddings of a text's tokens, as BERTScore compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device, ModelRef
from tamis.errors import ModelError, require
from tamis.models.device import dtype_of
from tamis.models.linear import for_inference
from tamis.models.loading import is_pooler, load_tokenizer_in, load_whole, loaded_once, transformer_folder
from tamis.models.texts.token_batches import by_length, longest_text, padded

#: The layers that agreed best with people, by architecture and number of layers, as the `bert-score` package chooses
#: them for models of these shapes. Not by name: a model is its weights, whatever its folder is called.
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
    """The tokens of one text.

    Attributes:
        vectors: (t, d) float32, not normalised.
        counts: (t,) False for the special tokens at the ends.
    """

    vectors: NDArray[np.float32]
    counts: NDArray[np.bool_]


class TokenEncoder:
    """One layer of a BERT-like encoder."""

    def __init__(self, model: str, layer: int | None, device: Device) -> None:
        """Loads a checkpoint.

        Raises:
            ModelError: it is not here, or has not so many layers.
        """
        import torch
        from transformers import AutoModel

        path = transformer_folder(model)
        self._torch = torch
        self._device = torch.device(device.kind)
        self._batch = device.batch_size
        expected = "a BERT-like encoder of texts"
        found = load_whole(
            AutoModel,
            path,
            model,
            expected=expected,
            unneeded=is_pooler,
            dtype=dtype_of(device),
        )
        body = getattr(found, "encoder", getattr(found, "transformer", None))
        if body is None or not hasattr(found.config, "num_hidden_layers") or found.config.is_encoder_decoder:
            raise ModelError(f"{model} is a {found.config.model_type!r} model and not {expected}: name one")
        deepest = int(found.config.num_hidden_layers)
        if deepest < 1:
            raise ModelError(f"{path}: its config.json asks for {deepest} layers (num_hidden_layers): it is damaged")
        self.layer = layer if layer is not None else BEST_LAYERS.get((found.config.model_type, deepest), deepest)
        if not 0 <= self.layer <= deepest:
            raise ModelError(f"{model} has the layers 0 (its input) to {deepest}, got {self.layer}")
        stack = getattr(body, "layer", None)
        if stack is not None:
            del stack[max(1, self.layer) :]  # what lies above is not looked at
        self._model = for_inference(found.to(self._device), device)
        self._tokenizer = load_tokenizer_in(path, network=found)
        # RoBERTa's tokens hold the space before a word: with one in front the first word is one that it knows. So does
        # `bert-score`, by a setting (add_prefix_space) that transformers 5 no longer minds: there its numbers of a
        # RoBERTa are those of first words cut in pieces, some thousandths away from these and from published ones.
        self._before = " " if found.config.model_type == "roberta" else ""
        self._length = longest_text(found.config, self._tokenizer)

    def __call__(self, texts: Sequence[str]) -> dict[str, TokenVectors]:
        """Returns the token vectors of each distinct text."""
        torch = self._torch
        distinct = sorted(set(texts))
        if not distinct:
            return {}
        stripped = [text.strip() for text in distinct]
        given = self._tokenizer(
            [self._before + text if text else "" for text in stripped],
            truncation=True,
            max_length=self._length,
            return_special_tokens_mask=True,
        )
        rows = {text: tuple(ids) for text, ids in zip(distinct, given["input_ids"], strict=True)}
        special = dict(zip(rows.values(), given["special_tokens_mask"], strict=True))
        found: dict[tuple[int, ...], TokenVectors] = {}
        with torch.inference_mode():
            for chunk in by_length(sorted(special, key=lambda ids: (len(ids), ids)), self._batch):
                ids, mask = padded(chunk, self._tokenizer.pad_token_id, self._device)
                states = self._model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[
                    self.layer
                ]
                for row, vectors in zip(chunk, states.float().cpu().numpy(), strict=True):
                    found[row] = TokenVectors(vectors[: len(row)], ~np.array(special[row], bool))
        return {text: found[row] for text, row in rows.items()}


@loaded_once(keep=2)
def load_token_encoder(model: ModelRef, layer: int | None, device: Device) -> TokenEncoder:
    """Returns a loaded encoder.

    Args:
        model: a BERT-like checkpoint or a sentence-transformers folder: Hugging Face id, folder or built-in name.
        layer: whose output to take, 0 for the input embeddings; None: `BEST_LAYERS`, else the last.
        device: where and in which precision.

    Raises:
        ModelError: it is not here, or has not so many layers.
        DependencyError: torch or transformers is not installed.
    """
    require("torch", "transformers", extra="clip")
    return TokenEncoder(model, layer, device)
