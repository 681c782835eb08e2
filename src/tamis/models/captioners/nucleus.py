"""Nucleus sampling without sorting: which token comes next.

The nucleus of a distribution is the smallest set of its likeliest tokens that together have probability p. Drawing
from it needs no sorted vocabulary: draw from the whole distribution, and draw again if the token turns out to lie
outside, that is, if the tokens likelier than it have p already. What is accepted follows the nucleus' own
distribution exactly, and at p = 0.9 nine of ten draws are.

Where a nucleus ends among tokens that are equally likely, it holds no more of them than it needs, as in transformers'
`generate`; which of them is up to an unstable sort there, and here those with higher ids. In bf16 many are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.uid import uniforms

if TYPE_CHECKING:
    import torch

_BLOCK = 128  # tokens per first step of the search
_PATIENCE = 24  # draws until the distribution is sorted after all: a nucleus of little mass is found that way

#: Gives the numbers in [0, 1) of attempt k for some of the draws, by their positions.
Uniforms = Callable[[NDArray[np.int64], int], NDArray[np.float64]]


def numbers_of(
    high: NDArray[np.uint64], low: NDArray[np.uint64], which: NDArray[np.int64], *, step: int, seed: int
) -> Uniforms:
    """Returns the random numbers of captions at one step.

    Args:
        high, low: (c,) halves of the uids of their pairs.
        which: (c,) the number of each caption among those of its image.
        step: the position of the token.
        seed: other captions for another one.
    """

    def numbers(some: NDArray[np.int64], attempt: int) -> NDArray[np.float64]:
        counters = (which[some], np.full(len(some), step), np.full(len(some), attempt))
        return uniforms(high[some], low[some], seed=seed, counters=counters)

    return numbers


def draw(
    scores: torch.Tensor,
    rows: NDArray[np.int64],
    uniforms: Uniforms,
    *,
    top_p: float = 0.9,
    top_k: int = 0,
) -> NDArray[np.int64]:
    """Draws tokens.

    Args:
        scores: (m, V) float32 logits, -inf for what may not come.
        rows: (c,) the row that each draw is from.
        uniforms: the random numbers.
        top_p: probability of the nucleus, in (0, 1]; 0 takes the likeliest token.
        top_k: draw only from the k likeliest, whose probabilities are first made to add up to 1; 0 for no limit.

    Returns:
        (c,) tokens. Which one a draw gives depends on its row and its random numbers alone.

    Source: Holtzman et al. 2020, "The curious case of neural text degeneration", section 3.1; limits and their order
        as in transformers' `generate` (first top-k, then top-p).
    """
    import torch

    if top_p <= 0:
        return _numpy(scores.argmax(-1))[rows]
    if top_k and top_k < scores.shape[1]:
        least = scores.topk(top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    masses = (scores - scores.amax(-1, keepdim=True)).exp()  # (m, V)
    blocks = torch.nn.functional.pad(masses, (0, -masses.shape[1] % _BLOCK)).view(len(masses), -1, _BLOCK)
    steps = blocks.sum(-1, dtype=torch.float64).cumsum(-1)  # (m, blocks)
    totals = steps[:, -1]
    found = np.full(len(rows), -1, np.int64)
    open_draws = np.arange(len(rows))
    for attempt in range(_PATIENCE):
        of = torch.from_numpy(rows[open_draws]).to(scores.device)
        wanted = torch.from_numpy(uniforms(open_draws, attempt)).to(scores.device) * totals[of]  # (k,)
        block = torch.searchsorted(steps[of], wanted[:, None], right=True)[:, 0].clamp_(max=steps.shape[1] - 1)
        before = torch.where(block > 0, steps[of, (block - 1).clamp(min=0)], 0.0)
        inside = blocks[of, block].double().cumsum(-1)  # (k, 128)
        place = torch.searchsorted(inside, (wanted - before)[:, None], right=True)[:, 0].clamp_(max=_BLOCK - 1)
        token = (block * _BLOCK + place).clamp_(max=scores.shape[1] - 1)
        own = masses[of, token]
        mine = masses if len(of) == len(masses) and bool((of == torch.arange(len(of))).all()) else masses[of]
        above = torch.where(mine > own[:, None], mine, 0.0).sum(-1, dtype=torch.float64)
        limit = top_p * totals[of]
        # Equals with a higher id count as likelier. Enough of them to matter have at most 1 - p each, and few draws do.
        tied = torch.nonzero((above < limit) & (own <= totals[of] - limit))[:, 0]
        if len(tied):
            others = (mine[tied] == own[tied, None]).sum(-1) - 1
            tied = tied[(others > 0) & (above[tied] + others * own[tied] >= limit[tied])]
        if len(tied):
            later = torch.arange(masses.shape[1], device=masses.device) > token[tied, None]
            above[tied] += ((mine[tied] == own[tied, None]) & later).sum(-1) * own[tied].double()
        # A mass of zero is drawn where rounding puts the number between two blocks.
        accepted = _numpy((above < limit) & (own > 0))
        found[open_draws[accepted]] = _numpy(token)[accepted]
        open_draws = open_draws[~accepted]
        if not len(open_draws):
            return found
    last = uniforms(open_draws, _PATIENCE)
    for position, number in zip(open_draws, last, strict=True):
        found[position] = _sorted_draw(_numpy(masses[rows[position]]).astype(np.float64), number, top_p)
    return found


def _sorted_draw(masses: NDArray[np.float64], number: float, top_p: float) -> int:
    """Draws from the nucleus the plain way: sort, cut, invert the cumulative distribution."""
    order = np.argsort(masses, kind="stable")[::-1]  # of equals the higher id first
    sums = np.cumsum(masses[order])
    size = int(np.searchsorted(sums, top_p * sums[-1])) + 1
    return int(order[min(np.searchsorted(sums[:size], number * sums[size - 1], side="right"), size - 1)])


def _numpy(tensor: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.cpu().numpy()
    return array
