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
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.uid import uniforms

if TYPE_CHECKING:
    import torch

_BLOCK = 128  # tokens per first step of the search
_ROWS = 32  # looked at together on a CPU, so that they stay in the caches
_ROUNDING = 1e-12  # more than sums in float64 are wrong by, relative
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
    found = np.full(len(rows), -1, np.int64)
    at_once = _ROWS if scores.device.type == "cpu" else len(scores)
    for start in range(0, len(scores), at_once):
        some = np.flatnonzero((rows >= start) & (rows < start + at_once))
        if len(some):
            numbers = partial(_of_some, uniforms, some)
            found[some] = _drawn(_Masses(scores[start : start + at_once]), rows[some] - start, numbers, top_p)
    return found


def _of_some(
    uniforms: Uniforms, some: NDArray[np.int64], which: NDArray[np.int64], attempt: int
) -> NDArray[np.float64]:
    return uniforms(some[which], attempt)


class _Masses:
    """What the tokens of m rows weigh, V tokens in B blocks.

    Attributes:
        masses: (m, B * 128) float32 in [0, 1], of a row about 1 together; the last block is filled with zeros.
        sums: (m, B) float64 of the blocks, each summed in float32.
        steps: (m, B) float64, the sums up to each block and with it.
        peaks: (m, B) float32, the largest of each block.
        vocabulary: V.
    """

    def __init__(self, scores: torch.Tensor) -> None:
        import torch

        self.vocabulary = scores.shape[1]
        blocks = -(-self.vocabulary // _BLOCK)
        filling = (0, blocks * _BLOCK - self.vocabulary)
        self.masses = torch.nn.functional.pad(scores, filling, value=-torch.inf).softmax(-1)
        self.blocks = self.masses.view(len(scores), blocks, _BLOCK)
        self.sums = self.blocks.sum(-1).double()
        self.steps = self.sums.cumsum(-1)
        self.peaks = self.blocks.amax(-1)

    def above(self, of: torch.Tensor, token: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
        """Returns what weighs in the nucleus before each token: what is likelier, and equals with higher ids.

        Args:
            of, token, limit: (k,) rows, tokens, and the weights that it will be compared with.

        Returns:
            (k,) float64, each on the right side of its limit: a bound from above may stand for what is below it, and
            equals are left out where the likelier alone reach it.
        """
        import torch

        own = self.masses[of, token]
        # Whatever is likelier or as likely lies in a block whose largest is: where those blocks weigh too little, no
        # token has to be looked at.
        above = torch.where(self.peaks[of] >= own[:, None], self.sums[of], 0.0).sum(-1)
        unsure = torch.nonzero(above >= (1 - _ROUNDING) * limit)[:, 0]
        if not len(unsure):
            return above
        of, token, own, limit = of[unsure], token[unsure], own[unsure], limit[unsure]
        exact = self._likelier(of, own)
        # Enough equals to matter have at most 1 - p each, and few draws do.
        tied = torch.nonzero((exact < limit) & (own <= self.steps[of, -1] - limit))[:, 0]
        if len(tied):
            equal = self.masses[of[tied]] == own[tied, None]
            others = equal.sum(-1) - 1
            matter = (others > 0) & (exact[tied] + others * own[tied] >= limit[tied])
            tied, equal = tied[matter], equal[matter]
            later = torch.arange(equal.shape[1], device=of.device) > token[tied, None]
            exact[tied] += (equal & later).sum(-1) * own[tied].double()
        above[unsure] = exact
        return above

    def _likelier(self, of: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Returns (k,) float64: what the tokens of rows `of` weigh that weigh more than `own` (k,)."""
        import torch

        if of.device.type != "cpu":
            mine = self.blocks[of]
            return torch.where(mine > own[:, None, None], mine, 0.0).sum(-1).double().sum(-1)
        # A pass with one number for the whole row takes a tenth of one in which each row has its own.
        left = torch.nn.functional.threshold
        sums = [
            left(self.blocks[row], least, 0.0).sum(-1) for row, least in zip(of.tolist(), own.tolist(), strict=True)
        ]
        return torch.stack(sums).double().sum(-1)


def _drawn(of_rows: _Masses, rows: NDArray[np.int64], uniforms: Uniforms, top_p: float) -> NDArray[np.int64]:
    """Draws from some rows: see `draw`."""
    import torch

    masses, steps = of_rows.masses, of_rows.steps
    found = np.full(len(rows), -1, np.int64)
    open_draws = np.arange(len(rows))
    for attempt in range(_PATIENCE):
        of = torch.from_numpy(rows[open_draws]).to(masses.device)
        totals = steps[of, -1]
        wanted = torch.from_numpy(uniforms(open_draws, attempt)).to(masses.device) * totals  # (k,)
        block = torch.searchsorted(steps[of], wanted[:, None], right=True)[:, 0].clamp_(max=steps.shape[1] - 1)
        before = torch.where(block > 0, steps[of, (block - 1).clamp(min=0)], 0.0)
        inside = of_rows.blocks[of, block].double().cumsum(-1)  # (k, 128)
        place = torch.searchsorted(inside, (wanted - before)[:, None], right=True)[:, 0].clamp_(max=_BLOCK - 1)
        token = (block * _BLOCK + place).clamp_(max=of_rows.vocabulary - 1)
        limit = top_p * totals
        # A mass of zero is drawn where rounding puts the number between two blocks.
        accepted = _numpy((of_rows.above(of, token, limit) < limit) & (masses[of, token] > 0))
        found[open_draws[accepted]] = _numpy(token)[accepted]
        open_draws = open_draws[~accepted]
        if not len(open_draws):
            return found
    last = uniforms(open_draws, _PATIENCE)
    for position, number in zip(open_draws, last, strict=True):
        weights = _numpy(masses[rows[position], : of_rows.vocabulary]).astype(np.float64)
        found[position] = _sorted_draw(weights, number, top_p)
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
