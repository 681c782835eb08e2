"""Texts of many lengths in batches: lists of token ids, padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Models that count positions from the one after the id of their padding token.
_SHIFTED = ("roberta", "xlm-roberta", "camembert")


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
    """Returns n lists of token ids as one batch: ids and mask, both (n, length) int64.

    Args:
        rows: n lists of token ids.
        pad: fills rows up on the right; None (no padding token) counts as 0, which the mask hides.
        device: of the batch.
        length: of every row; None: of the longest.
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
