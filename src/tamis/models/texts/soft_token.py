"""Captions through the eye of a needle: CLIP's one vector of a caption, made one soft token of a language model.

Two frozen networks and a linear layer between them, the only part that is trained. What the language model reads is
[start, soft token]; what it is to write is the caption and the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device, ModelRef, OptionalModelRef
from tamis.errors import ModelError, require
from tamis.models.clip import load_clip
from tamis.models.device import dtype_of, use_threads
from tamis.models.folder import arrays_in, object_in
from tamis.models.loading import load_tokenizer_in, load_whole, loaded_once
from tamis.models.reference import resolve
from tamis.models.tokens import load_tokenizer

if TYPE_CHECKING:
    import torch

#: `model_type` of a folder that holds the linear layer.
KIND = "tamis-soft-token"

#: How a caption ends: with a line break, as the released code has it, or with the language model's own end of text.
End = Literal["newline", "eos"]


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """The trained linear layer and what it lies between.

    Attributes:
        weight, bias: (width of the language model, d of CLIP) and (width,), float32.
        clip, language_model: references, as they were when it was trained.
        clip_digest, language_model_digest: of those checkpoints; it fits no others.
        end: how captions end.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    clip: str
    language_model: str
    clip_digest: str
    language_model_digest: str
    end: End

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Writes config.json and model.safetensors; `facts` of the training go into the former."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "model_type": KIND,
            "clip": self.clip,
            "language_model": self.language_model,
            "clip_digest": self.clip_digest,
            "language_model_digest": self.language_model_digest,
            "end": self.end,
            "training": dict(facts),
        }
        save_file({"weight": self.weight, "bias": self.bias}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, model: str) -> Bridge:
        """Reads a folder that `tamis train sba` wrote.

        Raises:
            ModelError: it is not one.
        """
        path = resolve(model).path
        config = path / "config.json"
        facts = object_in(config) if config.is_file() else {}
        if facts.get("model_type") != KIND:
            raise ModelError(
                f"{model} holds no layer between CLIP and a language model: name a folder that `tamis train sba` wrote"
            )
        tensors = arrays_in(path / "model.safetensors", {"weight": 2, "bias": 1})
        words = {name: facts.get(name) for name in ("clip", "language_model", "clip_digest", "language_model_digest")}
        if not all(isinstance(word, str) for word in words.values()) or facts.get("end") not in get_args(End):
            raise ModelError(f"{config} is damaged: it does not say between which models the layer was trained")
        if tensors["weight"].shape[:1] != tensors["bias"].shape:
            raise ModelError(f"{path / 'model.safetensors'} holds a weight and a bias of different layers")
        return cls(weight=tensors["weight"], bias=tensors["bias"], end=facts["end"], **cast(dict[str, str], words))


class Reader:
    """The frozen language model: from soft tokens to the loss of captions, or to captions."""

    def __init__(self, model: str, device: Device, end: End) -> None:
        """Loads a causal language model.

        Raises:
            ModelError: it is not here, is no causal language model, or its tokenizer has no such end.
        """
        import torch
        from transformers import AutoModelForCausalLM

        path = resolve(model).path
        self.device = torch.device(device.kind)
        self.batch = device.batch_size
        use_threads(device)
        found = load_whole(
            AutoModelForCausalLM,
            path,
            model,
            expected="a causal language model",
            dtype=dtype_of(device),
        )
        self.model = found.requires_grad_(False).to(self.device)
        if self._looks_ahead():
            raise ModelError(
                f"{model} is a {found.config.model_type!r} model and not a causal language model: it reads texts in "
                "both directions. Name a checkpoint of one"
            )
        self.tokenizer: Any = load_tokenizer_in(path, network=found)
        self.width = int(found.get_input_embeddings().weight.shape[1])
        start = self.tokenizer.bos_token_id
        if start is None:  # as of GPT-NeoX and Qwen, which begin a text after the end of another
            start = self.tokenizer.eos_token_id
        if start is None:
            raise ModelError(f"the tokenizer of {model} has neither a start nor an end of text to begin captions with")
        self.start = int(start)
        self._one_line = end == "newline"
        if end == "newline":
            ids = self.tokenizer("\n", add_special_tokens=False)["input_ids"]
            if not ids or ids[-1] == self.tokenizer.unk_token_id:
                raise ModelError(f"the tokenizer of {model} has no line break: train with --end eos")
            self.end = int(ids[-1])
        elif self.tokenizer.eos_token_id is None:
            raise ModelError(f"the tokenizer of {model} has no end of text: train with --end newline")
        else:
            self.end = int(self.tokenizer.eos_token_id)
        # Of the start and the soft token there are two.
        self.longest = int(getattr(found.config, "max_position_embeddings", 0) or 10**9) - 2

    def _looks_ahead(self) -> bool:
        """Tells whether a token's output changes with what follows it.

        Encoders (BERT, RoBERTa) load as causal language models too, and no setting of their configs tells reliably.
        """
        import torch

        with torch.inference_mode():
            alone, followed = (
                self.model(input_ids=torch.tensor([ids], device=self.device)).logits[0, 0].float()
                for ids in ([1], [1, 2])
            )
        return float((alone - followed).abs().max()) > 0.1 * float(alone.abs().max())

    def tokens(self, captions: Sequence[str]) -> list[list[int]]:
        """Returns n captions as the tokens that are to be written, the end among them, cut at the context's length.

        Where a line break is the end, those within a caption become spaces.
        """
        if not captions:
            return []
        texts = [" ".join(caption.splitlines()) if self._one_line else caption for caption in captions]
        ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [[*row[: self.longest - 1], self.end] for row in ids]

    def loss(self, soft: torch.Tensor, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Returns the mean cross-entropy of the tokens of n captions, each after the start and its soft token.

        Args:
            soft: (n, width).
            tokens: n lists of ids, as `tokens` makes them.
        """
        import torch
        from torch.nn import functional as F

        longest = max(map(len, tokens))
        ids = torch.full((len(tokens), longest), self.end)
        wanted = torch.full((len(tokens), longest), -100)  # what cross_entropy passes over
        for n, row in enumerate(tokens):
            ids[n, : len(row)] = wanted[n, : len(row)] = torch.tensor(row)
        ids, wanted = ids.to(self.device), wanted.to(self.device)
        words = self.model.get_input_embeddings()(ids[:, :-1])  # the last is read by nobody
        given = torch.cat([self._beginning(soft), words], dim=1)  # (n, 2 + longest - 1, width)
        # Padding lies right of everything that counts, and a causal model does not look there.
        logits = self.model(inputs_embeds=given).logits[:, 1:]  # (n, longest, words)
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), ignore_index=-100)

    def write(self, soft: torch.Tensor, *, beams: int, max_tokens: int, no_repeat: int) -> list[list[str]]:
        """Returns for each of n soft tokens the `beams` likeliest captions, the likeliest first.

        Every caption stops at its own end, whatever the others of its batch do.
        """
        import torch

        found: list[list[str]] = []
        at_once = max(1, self.batch // beams)
        for start in range(0, len(soft), at_once):
            given = self._beginning(soft[start : start + at_once])
            with torch.inference_mode():
                rows = self.model.generate(
                    inputs_embeds=given,
                    attention_mask=torch.ones(given.shape[:2], dtype=torch.long, device=self.device),
                    do_sample=False,
                    num_beams=beams,
                    num_return_sequences=beams,
                    max_new_tokens=min(max_tokens, self.longest),
                    no_repeat_ngram_size=no_repeat,
                    eos_token_id=self.end,
                    pad_token_id=self.end,
                )
            texts = [self._text(row) for row in rows.tolist()]
            found += [texts[n : n + beams] for n in range(0, len(texts), beams)]
        return found

    def _text(self, row: list[int]) -> str:
        cut = row[: row.index(self.end)] if self.end in row else row
        text: str = self.tokenizer.decode(cut, skip_special_tokens=True)
        return text.strip()

    def _beginning(self, soft: torch.Tensor) -> torch.Tensor:
        """Returns (n, 2, width): the start and the soft token of each row."""
        import torch

        words = self.model.get_input_embeddings()
        start = words(torch.full((len(soft), 1), self.start, device=self.device))
        return torch.cat([start, soft.to(self.device, start.dtype)[:, None]], dim=1)


class SemanticAutoencoder:
    """Captions to what is left of them: CLIP's text tower, the linear layer, the language model."""

    def __init__(self, bridge: str, clip: str | None, language_model: str | None, device: Device) -> None:
        """Loads all three.

        Args:
            bridge: a folder that `tamis train sba` wrote.
            clip, language_model: where the two checkpoints lie now; None: where they lay in training.
            device: where and in which precision.

        Raises:
            ModelError: one is not here, or is another than the layer was trained between.
        """
        import torch

        of = Bridge.load(bridge)
        for what, reference, digest in (
            ("CLIP", clip or of.clip, of.clip_digest),
            ("language model", language_model or of.language_model, of.language_model_digest),
        ):
            if resolve(reference).digest != digest:
                raise ModelError(
                    f"{bridge} was trained with another {what} than {reference}: name the one it was trained with, "
                    "or run `tamis train sba` with this one"
                )
        self._clip, self._tokenize = load_clip(clip or of.clip, device), load_tokenizer(clip or of.clip)
        self._reader = Reader(language_model or of.language_model, device, of.end)
        self._weight, self._bias = torch.from_numpy(of.weight), torch.from_numpy(of.bias)

    def __call__(self, captions: Sequence[str], *, beams: int, max_tokens: int, no_repeat: int) -> list[list[str]]:
        """Returns the `beams` likeliest reconstructions of each of n captions, the likeliest first.

        One depends on its caption alone; each distinct caption is reconstructed once.
        """
        import torch

        distinct = sorted(set(captions), key=lambda caption: (len(caption), caption))
        if not distinct:
            return []
        seen = torch.from_numpy(self._clip.texts(self._tokenize(distinct)))  # (n, d)
        soft = seen @ self._weight.T + self._bias
        said = self._reader.write(soft, beams=beams, max_tokens=max_tokens, no_repeat=no_repeat)
        place = dict(zip(distinct, said, strict=True))
        return [place[caption] for caption in captions]


@loaded_once(keep=1)
def load_semantic_autoencoder(
    bridge: ModelRef, clip: OptionalModelRef, language_model: OptionalModelRef, device: Device
) -> SemanticAutoencoder:
    """Returns a loaded auto-encoder; arguments and errors as of `SemanticAutoencoder`.

    Raises:
        DependencyError: torch or transformers is not installed.
    """
    require("torch", "transformers", extra="clip")
    return SemanticAutoencoder(bridge, clip, language_model, device)
