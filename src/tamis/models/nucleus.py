"""Nucleus sampling without sorting: which token comes next.

The nucleus of a distribution is the smallest set of its likeliest tokens that together have probability p. Drawing
from it needs no sorted vocabulary: draw from the whole distribution, and draw again if the token is outside the
nucleus, that is, if the likelier tokens already sum to p. Accepted draws follow the nucleus's own distribution
exactly, and at p = 0.9 nine of ten draws are accepted.

A nucleus that ends among equally likely tokens takes only as many of them as it needs, as in transformers' `generate`.
There an unstable sort decides which; here higher ids win. In bf16 many tokens are equally likely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tamis.core.errors import at_least_one, check_fraction
from tamis.core.ids import uniforms

if TYPE_CHECKING:
    import torch

_BLOCK = 128  # tokens per block of the search
_ROWS = 32  # rows at a time on a CPU, so that they stay in the caches
_ATTEMPTS = 24  # draws before we sort after all, which a nucleus of low probability needs

#: (indices of draws, number of the attempt) -> random numbers in [0, 1).
RandomNumbers = Callable[[NDArray[np.int64], int], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Nucleus sampling of captions: the settings that recipes nest as `sampling`.

    Attributes:
        captions: number of captions per image.
        top_p: probability of the nucleus, in [0, 1]. 0 always takes the likeliest token; recipes need more, because
            all captions of an image would be the same.
        top_k: draw only from the k likeliest tokens; 0 for no limit.
        min_tokens, max_tokens: length in tokens, including the start token and the prompt, as in `generate`.
        repetition_penalty: above 1 makes words that the caption already has less likely (Keskar et al. 2019).
        prompt: what every caption begins with ("a photo of"); it is removed afterwards. For a vision-language model
            (docs/models.md): the instruction, which has no part in the length; "" for the default of its type.
        seed: another seed gives other captions.

    Raises:
        ValueError: a number is outside its range.
    """

    captions: int = 8
    top_p: float = 0.9
    top_k: int = 0
    min_tokens: int = 5
    max_tokens: int = 20
    repetition_penalty: float = 1.0
    prompt: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one(captions=self.captions)
        check_fraction(self.top_p, "top_p")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (no limit) or more, got {self.top_k}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"min_tokens must be at most max_tokens, got {self.min_tokens} and {self.max_tokens}")
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty must be above 0, got {self.repetition_penalty}")


def random_numbers(
    high: NDArray[np.uint64], low: NDArray[np.uint64], which: NDArray[np.int64], *, step: int, seed: int
) -> RandomNumbers:
    """Returns the random numbers for token `step` of c captions: number `which` of the pair (high, low), each (c,)."""

    def numbers(draws: NDArray[np.int64], attempt: int) -> NDArray[np.float64]:
        counters = (which[draws], np.full(len(draws), step), np.full(len(draws), attempt))
        return uniforms(high[draws], low[draws], seed=seed, counters=counters)

    return numbers


def draw(
    scores: torch.Tensor, rows: NDArray[np.int64], uniforms: RandomNumbers, *, top_p: float = 0.9, top_k: int = 0
) -> NDArray[np.int64]:
    """Draws c tokens; draw k is from row `rows[k]` of the logits `scores`, (m, V), -inf for forbidden tokens.

    First the `top_k` likeliest tokens remain (0: all) and are rescaled to sum to 1, then the nucleus of `top_p` (0:
    the likeliest token), as in `generate`. Each token depends only on its row and its random numbers.

    Source: Holtzman et al. 2020, "The curious case of neural text degeneration", section 3.1.
    """
    import torch

    if top_p <= 0:
        return np.asarray(scores.argmax(-1).cpu())[rows]
    if top_k and top_k < scores.shape[1]:
        least = scores.topk(top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    tokens = np.full(len(rows), -1, np.int64)
    at_once = _ROWS if scores.device.type == "cpu" else len(scores)
    for start in range(0, len(scores), at_once):
        draws = np.flatnonzero((rows >= start) & (rows < start + at_once))
        if len(draws):
            tokens[draws] = _draw(
                _Masses(scores[start : start + at_once].float()), rows - start, draws, uniforms, top_p
            )
    return tokens


class _Masses:
    """The probabilities of V tokens in m rows, in B blocks: `masses` is (m, B * 128) float32, padded with zeros;
    `steps` (m, B) are the cumulative sums of the blocks.
    """

    def __init__(self, scores: torch.Tensor) -> None:
        import torch

        self.vocabulary = scores.shape[1]
        blocks = -(-self.vocabulary // _BLOCK)
        padding = (0, blocks * _BLOCK - self.vocabulary)
        self.masses = torch.nn.functional.pad(scores, padding, value=-torch.inf).softmax(-1)
        self.blocks = self.masses.view(len(scores), blocks, _BLOCK)
        self.steps = self.blocks.sum(-1).double().cumsum(-1)

    def above(self, row: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """Returns (k,) float64: the total mass of the tokens before each: likelier, or equal with a higher id."""
        return (self.above_one_by_one if row.device.type == "cpu" else self.above_together)(row, token)

    def above_together(self, row: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        import torch

        masses, own = self.masses[row], self.masses[row, token][:, None]
        later = torch.arange(masses.shape[1], device=row.device) > token[:, None]
        return torch.where((masses > own) | ((masses == own) & later), masses, 0.0).sum(-1, dtype=torch.float64)

    def above_one_by_one(self, row: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """Keeps the masses of a row in a core's own cache: a fifth of the time of all rows together."""
        import torch

        sums = []
        for masses, own in zip((self.masses[one].numpy() for one in row), token.tolist(), strict=True):
            counts = np.empty_like(masses)  # 0 or 1
            np.greater(masses, masses[own], out=counts)
            np.greater_equal(masses[own + 1 :], masses[own], out=counts[own + 1 :])
            sums.append(float(np.multiply(masses, counts, out=counts).sum()))
        return torch.tensor(sums, dtype=torch.float64)


def _draw(
    of_rows: _Masses, rows: NDArray[np.int64], draws: NDArray[np.int64], uniforms: RandomNumbers, top_p: float
) -> NDArray[np.int64]:
    """Returns the tokens of some `draws`; `rows` has the row of every draw, counted from the first of `of_rows`."""
    import torch

    masses, steps = of_rows.masses, of_rows.steps
    tokens = np.full(len(draws), -1, np.int64)
    pending = np.arange(len(draws))
    for attempt in range(_ATTEMPTS):
        row = torch.from_numpy(rows[draws[pending]]).to(masses.device)
        totals = steps[row, -1]
        wanted = torch.from_numpy(uniforms(draws[pending], attempt)).to(masses.device) * totals  # (k,)
        block = torch.searchsorted(steps[row], wanted[:, None], right=True)[:, 0].clamp_(max=steps.shape[1] - 1)
        before = torch.where(block > 0, steps[row, (block - 1).clamp(min=0)], 0.0)
        inside = of_rows.blocks[row, block].double().cumsum(-1)  # (k, 128)
        offset = torch.searchsorted(inside, (wanted - before)[:, None], right=True)[:, 0].clamp_(max=_BLOCK - 1)
        token = (block * _BLOCK + offset).clamp_(max=of_rows.vocabulary - 1)
        # By rounding, a number can fall between two blocks and select a token of mass zero.
        accepted = np.asarray(((of_rows.above(row, token) < top_p * totals) & (masses[row, token] > 0)).cpu())
        tokens[pending[accepted]] = np.asarray(token.cpu())[accepted]
        pending = pending[~accepted]
        if not len(pending):
            return tokens
    numbers = uniforms(draws[pending], _ATTEMPTS)
    for position, number in zip(pending, numbers, strict=True):
        weights = np.asarray(masses[rows[draws[position]], : of_rows.vocabulary].cpu(), np.float64)
        tokens[position] = _draw_sorted(weights, number, top_p)
    return tokens


def _draw_sorted(masses: NDArray[np.float64], number: float, top_p: float) -> int:
    """Draws from the nucleus the plain way: sort, cut, invert the cumulative distribution."""
    order = np.argsort(masses, kind="stable")[::-1]  # equal masses: the higher id first
    sums = np.cumsum(masses[order])
    size = int(np.searchsorted(sums, top_p * sums[-1])) + 1
    return int(order[min(np.searchsorted(sums[:size], number * sums[size - 1], side="right"), size - 1)])


def token_drawer(
    uids: NDArray[np.uint64], sampling: Sampling, skip: int = 0, *, penalty: float = 1.0
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Returns a logits processor that draws a token and rules out all others, for the `generate` of transformers.

    `skip` tokens stand before the caption: they have no part in the numbers of the draw, nor in the `penalty` of words
    already said. Rows are `sampling.captions` of each pair.
    """
    import torch

    high, low = np.repeat(uids, sampling.captions, axis=0).T
    rows = np.arange(len(high))

    def process(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        numbers = random_numbers(high, low, rows % sampling.captions, step=tokens.shape[1] - skip, seed=sampling.seed)
        scores = scores.float()
        penalise(scores, tokens[:, skip:], penalty)
        chosen = draw(scores, rows, numbers, top_p=sampling.top_p, top_k=sampling.top_k)
        place = torch.from_numpy(chosen).to(scores.device)[:, None]
        return torch.full_like(scores, -torch.inf).scatter_(1, place, 0.0)

    return process


def penalise(logits: torch.Tensor, before: torch.Tensor, factor: float) -> None:
    """Makes the tokens that a row already has, (m, length), less likely, as `generate` does."""
    import torch

    if factor != 1.0:
        values = logits.gather(1, before)
        logits.scatter_(1, before, torch.where(values < 0, values * factor, values / factor))
