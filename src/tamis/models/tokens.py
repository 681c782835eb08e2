"""Tokenizers of CLIP-like models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tamis.errors import ModelError
from tamis.models.folder import object_in
from tamis.models.loading import load_tokenizer_in
from tamis.models.reference import resolve


def context_length(model: str) -> int:
    """Returns how many tokens a checkpoint's text tower takes."""
    path = resolve(model).path / "config.json"
    config = object_in(path)
    text = config.get("text_config") or {}
    default = 64 if config.get("model_type") == "siglip" else 77
    most = text.get("max_position_embeddings", default) if isinstance(text, dict) else None
    if type(most) is not int or most < 1:
        raise ModelError(f"{path} is damaged: text_config.max_position_embeddings is no number of tokens")
    return most


def load_tokenizer(model: str) -> Callable[[Sequence[str]], list[list[int]]]:
    """Returns a function of n texts to n lists of token ids, special tokens included, cut at the context length."""
    tokenizer = load_tokenizer_in(resolve(model).path)
    # A text tower taken from another model has room for more than it was trained on next to its image tower.
    length = min(context_length(model), tokenizer.model_max_length)

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
        return ids

    return tokenize
