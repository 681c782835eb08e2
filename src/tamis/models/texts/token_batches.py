"""Lists of token ids of many lengths, put together in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Models that count positions from the one after the number of their padding token.
_SHIFTED = ("roberta", "xlm-roberta", "camembert")


def by_length(texts: Sequence[tuple[int, ...]], batch: int) -> Iterator[list[tuple[int, ...]]]:
    """Cuts texts, sorted by length, into chunks whose padding is worth less than another call of the network.

    A chunk ends where the next text would lengthen it by more than a quarter (and at `batch` texts), but holds at
    least an eighth of a batch: small chunks use the hardware badly.
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
    """Returns n texts as one batch, and which places of it hold a token.

    Args:
        rows: n lists of token ids.
        pad: what fills a row to its right; None, of tokenizers without a padding token, counts as 0: with the mask it
            is looked at by nobody.
        device: where the batch goes.
        length: of every row; None: of the longest.

    Returns:
        ids and mask, both (n, length) int64; the mask is 1 where a token stands, else 0.
    """
    import torch

    longest = length or max(map(len, rows))
    fill = 0 if pad is None else pad
    ids = torch.tensor([[*row, *([fill] * (longest - len(row)))] for row in rows], dtype=torch.long)
    mask = (torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]).long()
    return ids.to(device), mask.to(device)


def longest_text(config: Any, tokenizer: Any) -> int:
    """Returns how many tokens of a text an encoder takes, special ones included: 512 where nothing tells.

    Of RoBERTa's 514 positions two are not used: it counts from the one after its padding token's number.
    """
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    if positions and config.model_type in _SHIFTED:
        positions -= int(config.pad_token_id) + 1
    # A tokenizer without a limit says 10**30.
    return min((most for most in (positions, int(tokenizer.model_max_length)) if 0 < most < 10**9), default=512)
