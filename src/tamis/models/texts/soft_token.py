"""Captions through a bottleneck: CLIP's vector of a caption becomes one soft token of a language model.

Both networks are frozen; only the linear layer between them is trained. The language model reads [start, soft token]
and writes the caption and its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tamis.core.errors import ModelError, require
from tamis.core.types import Device, ModelRef, OptionalModelRef
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.device import dtype_of, use_threads
from tamis.models.loading import load_once, load_tokenizer_in, load_whole, pad_tokens
from tamis.models.reference import arrays_in, object_in, resolve

if TYPE_CHECKING:
    import torch

#: `model_type` of a folder with a trained linear layer.
KIND = "tamis-soft-token"

#: The keys of its config.json.
_NAMES = ("clip", "language_model", "clip_digest", "language_model_digest", "end")

#: How a caption ends: with a line break, as in the released code, or with the language model's own end of text.
End = Literal["newline", "eos"]


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """The trained linear layer: `weight` (width of the language model, d of CLIP) and `bias` (width,), float32.

    `clip` and `language_model` are the references that training used.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    clip: str
    language_model: str
    clip_digest: str
    language_model_digest: str
    end: End

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Writes config.json, with facts about the training, and model.safetensors."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        config = {"model_type": KIND, **{name: getattr(self, name) for name in _NAMES}, "training": dict(facts)}
        save_file({"weight": self.weight, "bias": self.bias}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, model: str) -> Bridge:
        """Reads a folder that `tamis train sba` wrote; ModelError if it is something else, or damaged."""
        path = resolve(model).path
        config = path / "config.json"
        facts = object_in(config) if config.is_file() else {}
        if facts.get("model_type") != KIND:
            raise ModelError(f"{model} is no bridge of CLIP and a language model: `tamis train sba` makes one")
        tensors = arrays_in(path / "model.safetensors", {"weight": 2, "bias": 1})
        words: dict[str, Any] = {name: facts.get(name) for name in _NAMES}
        if not all(isinstance(word, str) for word in words.values()) or words["end"] not in get_args(End):
            raise ModelError(f"{config} is damaged: it does not name the models that the layer was trained with")
        if tensors["weight"].shape[:1] != tensors["bias"].shape:
            raise ModelError(f"{path / 'model.safetensors'} holds a weight and a bias of different layers")
        return cls(weight=tensors["weight"], bias=tensors["bias"], **words)


class Reader:
    """The frozen language model. It computes the loss of captions after soft tokens, or writes captions."""

    def __init__(self, model: str, device: Device, end: End) -> None:
        """Loads a causal language model; ModelError if it is not one, or its tokenizer lacks the token `end`."""
        from transformers import AutoModelForCausalLM

        path, expected = resolve(model).path, "a causal language model"
        self.device, self.batch = device.kind, device.batch_size
        use_threads(device)
        network = load_whole(AutoModelForCausalLM, path, model, expected=expected, dtype=dtype_of(device))
        self.model = network.requires_grad_(False).to(self.device)
        if self._looks_ahead():
            raise ModelError(f"{model}, a {network.config.model_type!r} model, reads both ways: not {expected}")
        self.tokenizer: Any = load_tokenizer_in(path, network=network)
        self.width = int(network.get_input_embeddings().weight.shape[1])
        self._one_line = end == "newline"
        eos, bos = self.tokenizer.eos_token_id, self.tokenizer.bos_token_id
        line = self.tokenizer("\n", add_special_tokens=False)["input_ids"][-1:]
        if bos is None and eos is None:
            raise ModelError(f"the tokenizer of {model} has no token to begin captions with (bos or eos)")
        if self._one_line and line in ([], [self.tokenizer.unk_token_id]):
            raise ModelError(f"the tokenizer of {model} has no line break: train with --end eos")
        if eos is None and not self._one_line:
            raise ModelError(f"the tokenizer of {model} has no end of text: train with --end newline")
        self.end = int(line[0] if self._one_line else eos)
        self.start = int(eos if bos is None else bos)  # GPT-NeoX and Qwen begin a text after the end of another
        # Minus the positions of the start and the soft token.
        self.longest = int(getattr(network.config, "max_position_embeddings", 0) or 10**9) - 2

    def _looks_ahead(self) -> bool:
        """Whether later tokens change the output at a token. Encoders (BERT, RoBERTa) also load as causal language
        models, and their configs are no reliable sign.
        """
        import torch

        with torch.inference_mode():
            alone, followed = (
                self.model(input_ids=torch.tensor([ids], device=self.device)).logits[0, 0].float()
                for ids in ([1], [1, 2])
            )
        return float((alone - followed).abs().max()) > 0.1 * float(alone.abs().max())

    def tokens(self, captions: Sequence[str]) -> list[list[int]]:
        """Returns n captions as tokens with their end, cut to the context length.

        If captions end with a line break, line breaks inside them become spaces.
        """
        if not captions:
            return []
        texts = [" ".join(caption.splitlines()) if self._one_line else caption for caption in captions]
        ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [[*row[: self.longest - 1], self.end] for row in ids]

    def loss(self, soft: torch.Tensor, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Returns the mean cross-entropy of n captions' `tokens` after the start and their `soft` tokens (n, width)."""
        import torch
        from torch.nn import functional as F

        ids, mask = pad_tokens(tokens, self.end, self.device)
        targets = ids.masked_fill(mask == 0, -100)  # cross_entropy ignores these
        words = self.model.get_input_embeddings()(ids[:, :-1])  # the last token predicts nothing
        inputs = torch.cat([self._beginning(soft), words], dim=1)  # (n, 2 + longest - 1, width)
        # Padding is on the right, where a causal model does not look.
        logits = self.model(inputs_embeds=inputs).logits[:, 1:]  # (n, longest, words)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100)

    def write(self, soft: torch.Tensor, *, beams: int, max_tokens: int, no_repeat: int) -> list[list[str]]:
        """Returns the `beams` likeliest captions, best first, for each of n soft tokens."""
        import torch

        captions: list[list[str]] = []
        at_once = max(1, self.batch // beams)
        for start in range(0, len(soft), at_once):
            inputs = self._beginning(soft[start : start + at_once])
            with torch.inference_mode():
                rows = self.model.generate(
                    inputs_embeds=inputs,
                    attention_mask=torch.ones(inputs.shape[:2], dtype=torch.long, device=self.device),
                    do_sample=False,
                    num_beams=beams,
                    num_return_sequences=beams,
                    max_new_tokens=min(max_tokens, self.longest),
                    no_repeat_ngram_size=no_repeat,
                    eos_token_id=self.end,
                    pad_token_id=self.end,
                )
            cut = [row[: row.index(self.end)] if self.end in row else row for row in rows.tolist()]
            texts = [self.tokenizer.decode(row, skip_special_tokens=True).strip() for row in cut]
            captions += [texts[n : n + beams] for n in range(0, len(texts), beams)]
        return captions

    def _beginning(self, soft: torch.Tensor) -> torch.Tensor:
        """Returns (n, 2, width): the start and the soft token of each row."""
        import torch

        words = self.model.get_input_embeddings()
        start = words(torch.full((len(soft), 1), self.start, device=self.device))
        return torch.cat([start, soft.to(self.device, start.dtype)[:, None]], dim=1)


class SemanticAutoencoder:
    """Reconstructs captions through CLIP's text tower, the linear layer and the language model."""

    def __init__(
        self, bridge: ModelRef, clip: OptionalModelRef, language_model: OptionalModelRef, device: Device
    ) -> None:
        """Loads a `bridge` that `tamis train sba` wrote and both checkpoints, by default from where training had them;
        ModelError if one is not the one in training.
        """
        require("torch", "transformers", extra="clip")
        import torch

        layer = Bridge.load(bridge)
        clip, language_model = clip or layer.clip, language_model or layer.language_model
        for what, reference, digest in (
            ("CLIP", clip, layer.clip_digest),
            ("language model", language_model, layer.language_model_digest),
        ):
            if resolve(reference).digest != digest:
                raise ModelError(f"{bridge} was trained with another {what} than {reference}: name that one")
        self._clip, self._tokenize = load_clip(clip, device), load_tokenizer(clip)
        self._reader = Reader(language_model, device, layer.end)
        self._weight, self._bias = torch.from_numpy(layer.weight), torch.from_numpy(layer.bias)

    def __call__(self, captions: Sequence[str], *, beams: int, max_tokens: int, no_repeat: int) -> list[list[str]]:
        """Returns the `beams` likeliest reconstructions, best first, for each of n captions."""
        import torch

        distinct = sorted(set(captions), key=lambda caption: (len(caption), caption))
        if not distinct:
            return []
        vectors = torch.from_numpy(self._clip.texts(self._tokenize(distinct)))  # (n, d)
        soft = vectors @ self._weight.T + self._bias
        texts = self._reader.write(soft, beams=beams, max_tokens=max_tokens, no_repeat=no_repeat)
        reconstructions = dict(zip(distinct, texts, strict=True))
        return [reconstructions[caption] for caption in captions]


load_semantic_autoencoder = load_once(keep=1)(SemanticAutoencoder)
