"""Tokenizers of CLIP-like models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tamis.errors import needs_extra
from tamis.models.loading import from_folder
from tamis.models.reference import resolve


def context_length(model: str) -> int:
    """Returns how many tokens a checkpoint's text tower takes."""
    config = json.loads((resolve(model).path / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config") or {}
    return int(text.get("max_position_embeddings", 64 if config.get("model_type") == "siglip" else 77))


def load_tokenizer(model: str) -> Callable[[Sequence[str]], list[list[int]]]:
    """Returns a function of n texts to n lists of token ids, special tokens included, cut at the context length."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise needs_extra("transformers", "clip") from error
    tokenizer = from_folder(AutoTokenizer, resolve(model).path)
    # A text tower that was taken from elsewhere has room for more than it was trained on beside its image tower.
    length = min(context_length(model), tokenizer.model_max_length)

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
        return ids

    return tokenize
