"""Texts as token ids: the tokenizers of CLIP-like models, and padded batches of texts of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tamis.errors import ModelError
from tamis.models.folder import object_in
from tamis.models.loading import load_tokenizer_in
from tamis.models.reference import resolve

if TYPE_CHECKING:
    import torch

#: Models that count positions from the one after the id of their padding token.
_SHIFTED = ("roberta", "xlm-roberta", "camembert")


def context_length(model: str) -> int:
    """Returns how many tokens a checkpoint's text tower takes."""
    path = resolve(model).path / "config.json"
    config = object_in(path)
    text = config.get("text_config") or {}
    default = 64 if config.get("model_type") == "siglip" else 77
    most = text.get("max_position_embeddings", default) if isinstance(text, dict) else None
    if type(most) is not int or most < 1:
        raise ModelError(f"{path} is damaged: text_config.max_position_embeddings is not a number of tokens")
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


def by_length(texts: Sequence[tuple[int, ...]], batch: int) -> Iterator[list[tuple[int, ...]]]:
    """Cuts texts, sorted by length, into chunks whose padding costs less than another call of the network.

    A chunk ends at `batch` texts, or where the next text is longer than the first by more than a quarter; but it holds
    at least an eighth of a batch, since small chunks use the hardware badly.
    """
    chunk: list[tuple[int, ...]] = []
    for ids in texts:
        longer = chunk and len(ids) > 1.25 * len(chunk[0]) and len(chunk) >= batch // 8
        if chunk and (longer or len(chunk) == batch):
            yield chunk
            chunk = []
        chunk.append(ids)
    if chunk:
        yield chunk


def padded(
    rows: Sequence[Sequence[int]], pad: int | None, device: torch.device | str, *, length: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns n lists of token ids as one batch on a device: ids and mask, both (n, length) int64.

    Rows are padded on the right with `pad` (None: 0, which the mask hides) to `length`, None: to the longest.
    """
    import torch

    longest = length or max(map(len, rows))
    ids = torch.tensor([[*row, *([pad or 0] * (longest - len(row)))] for row in rows], dtype=torch.long)
    mask = (torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]).long()
    return ids.to(device), mask.to(device)


def longest_text(config: Any, tokenizer: Any) -> int:
    """Returns the limit of an encoder in tokens, special ones included; 512 where nothing states one."""
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    if positions and config.model_type in _SHIFTED:  # RoBERTa cannot use two of its 514 positions
        positions -= int(config.pad_token_id) + 1
    # A tokenizer without a limit says 10**30.
    return min((most for most in (positions, int(tokenizer.model_max_length)) if 0 < most < 10**9), default=512)
