"""Decoding captions: many captions of each image at once, every distinct beginning computed once.

The weights are those of `transformers`' BLIP and GIT (`Parts`); the order of the work is ours:

- An image's keys and values are projected once per layer, and all its captions attend to that one copy.
- A row of the batch is a distinct beginning of a caption, not a caption: the prompt is computed once per image, and
  captions that start with the same words share a row until they part.
- What a row attends to of its own words is kept; captions that have ended leave the batch.

The random numbers of a caption are a function of (uid, seed, caption, step), so nothing else changes what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.models.captioners.nucleus import draw, numbers_of
from tamis.models.captioners.sampling import Sampling
from tamis.models.linear import Linear

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is taken over of a loaded model: a decoder as transformers' BERT is written, and what stands around it.

    Attributes:
        tower: from `pixel_values` to what is seen of n images, `last_hidden_state` (n, t, d).
        embeddings, layers: of the decoder. Layers with a `crossattention` attend to the image there; where they have
            none, the image is read as the beginning of the text.
        head: from states (m, d) to the scores of the vocabulary (m, V).
        project: from what is seen to the decoder's width, where the image is the beginning of the text.
        start, end: the tokens.
        heads, longest: attention heads, and positions.
    """

    tower: torch.nn.Module
    embeddings: Any
    layers: Any
    head: Callable[[torch.Tensor], torch.Tensor]
    project: Callable[[torch.Tensor], torch.Tensor] | None
    start: int
    end: int
    heads: int
    longest: int


#: So many rows that ask together are few.
_FEW = 32


class Norm:
    """A layer's norm of a sum."""

    def __init__(self, layer: Any) -> None:
        self.weight, self.bias, self.eps = layer.weight.detach(), layer.bias.detach(), layer.eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional as F

        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class _Layer:
    """The weights of one layer of a BERT-like decoder; `transformers`' BLIP and GIT call them alike."""

    def __init__(self, layer: Any, rounded: bool) -> None:
        linear, own = partial(Linear, rounded=rounded), layer.attention
        self.own = linear(own.self.query, own.self.key, own.self.value)
        self.own_out, self.own_norm = linear(own.output.dense), Norm(own.output.LayerNorm)
        self.up, self.activation = linear(layer.intermediate.dense), layer.intermediate.intermediate_act_fn
        self.down, self.down_norm = linear(layer.output.dense), Norm(layer.output.LayerNorm)
        self.ask: Linear | None = None
        across = getattr(layer, "crossattention", None)
        if across is not None:
            self.ask = linear(across.self.query)
            self.told = linear(across.self.key, across.self.value)
            self.ask_out, self.ask_norm = linear(across.output.dense), Norm(across.output.LayerNorm)

    def think(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the feed-forward part makes of its input."""
        return self.down_norm(self.down(self.activation(self.up(x))) + x)


class CaptionDecoder:
    """A decoder of captions, from the parts of a loaded model on its device."""

    def __init__(self, parts: Parts, *, rounded: bool = False) -> None:
        """Takes over the parts; `rounded` to int8 the layers are, not the head, which says what comes next."""
        self._words = parts.embeddings.word_embeddings.weight.detach()
        self._places = parts.embeddings.position_embeddings.weight.detach()
        self._start_norm = Norm(parts.embeddings.LayerNorm)
        self._layers = [_Layer(layer, rounded) for layer in parts.layers]
        self._project = parts.project
        self._head = parts.head
        self.end = parts.end
        self.heads = parts.heads
        self.longest = parts.longest

    def captions(
        self,
        states: torch.Tensor,
        uids: NDArray[np.uint64],
        prompt: Sequence[int],
        sampling: Sampling,
    ) -> list[list[list[int]]]:
        """Draws captions.

        Args:
            states: (n, t, d) what the image encoder sees in n images.
            uids: (n, 2) halves of the images' pairs' uids.
            prompt: the tokens that every caption begins with, the start token first.
            sampling: how.

        Returns:
            For each image `sampling.captions` lists of tokens, without the prompt and the end token.

        Raises:
            ValueError: the prompt leaves no room for a token, or captions are longer than the model's positions.
        """
        import torch

        if not len(prompt) < sampling.max_tokens <= self.longest:
            raise ValueError(
                f"max_tokens must be above the prompt's {len(prompt)} tokens and at most {self.longest}, "
                f"got {sampling.max_tokens}"
            )
        with torch.inference_mode():
            return self._captions(states, uids, prompt, sampling)

    def _captions(
        self, states: torch.Tensor, uids: NDArray[np.uint64], prompt: Sequence[int], sampling: Sampling
    ) -> list[list[list[int]]]:

        images, count = len(states), sampling.captions
        tokens = np.zeros((images * count, sampling.max_tokens), np.int64)
        tokens[:, : len(prompt)] = prompt
        lengths = np.full(images * count, sampling.max_tokens)
        pass_on = _Pass(self, states, count, sampling.max_tokens)
        for place, token in enumerate(prompt):
            hidden = pass_on.step(np.full(images, token), place)
        alive = np.arange(images * count)  # captions that have not ended
        rows = alive // count  # the row of the batch that holds each one's beginning
        for length in range(len(prompt), sampling.max_tokens):
            scores = self._head(hidden).float()
            _limit(
                scores,
                tokens[alive[_firsts(rows)], :length],
                sampling,
                self.end if length < sampling.min_tokens else None,
            )
            high, low = uids[alive // count].T
            numbers = numbers_of(high, low, alive % count, step=length, seed=sampling.seed)
            chosen = draw(scores, rows, numbers, top_p=sampling.top_p, top_k=sampling.top_k)
            tokens[alive, length] = chosen
            ended = chosen == self.end
            lengths[alive[ended]] = length
            alive, rows, chosen = alive[~ended], rows[~ended], chosen[~ended]
            if not len(alive) or length + 1 == sampling.max_tokens:
                break
            # Captions that have said the same so far stay one row.
            keys, rows = np.unique(rows * len(self._words) + chosen, return_inverse=True)
            pass_on.part(keys // len(self._words))
            hidden = pass_on.step(keys % len(self._words), length)
        said = [tokens[n, len(prompt) : lengths[n]].tolist() for n in range(images * count)]
        return [said[n * count : (n + 1) * count] for n in range(images)]

    def logits(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Returns (n, length, V) float32: the scores of the token after each position, for n images with one text each.

        Args:
            states: (n, t, d) what the image encoder sees.
            tokens: (n, length) tokens, the start token first.
        """
        import torch

        with torch.inference_mode():
            pass_on = _Pass(self, states, 1, tokens.shape[1])
            steps = [
                self._head(pass_on.step(tokens[:, place].cpu().numpy(), place)).float()
                for place in range(tokens.shape[1])
            ]
            return torch.stack(steps, dim=1)


class _Pass:
    """One batch of images on its way through the decoder: what it has seen, and the rows that are still written."""

    def __init__(self, decoder: CaptionDecoder, states: torch.Tensor, count: int, longest: int) -> None:
        import torch

        self._of = decoder
        self._count = count
        width = decoder._words.shape[1]
        self._shape = (decoder.heads, width // decoder.heads)
        self._seen = self._look(states)
        images = len(states)
        self._image = torch.arange(images, device=states.device)  # of each row
        self._slot = torch.zeros(images, dtype=torch.long, device=states.device)  # of each row among its image's
        # (layers, keys and values, rows, heads, tokens, size)
        self._kept = states.new_empty(
            (len(decoder._layers), 2, images * count, decoder.heads, longest, self._shape[1]),
            dtype=decoder._words.dtype,
        )
        self._rows = images

    def _look(self, states: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns each layer's keys and values (n, heads, t, size) of the images."""
        decoder, (heads, size) = self._of, self._shape
        seen = []
        if decoder._project is None:
            for layer in decoder._layers:
                both = layer.told(states).view(len(states), -1, 2, heads, size).permute(2, 0, 3, 1, 4).contiguous()
                seen.append((both[0], both[1]))
            return seen
        # GIT reads an image as the beginning of the text: its patches attend to one another in every layer.
        x = decoder._project(states)
        for layer in decoder._layers:
            all_three = layer.own(x).view(len(x), -1, 3, heads, size).permute(2, 0, 3, 1, 4).contiguous()
            asked, keys, values = all_three
            seen.append((keys, values))
            found = _attend(asked, keys, values).transpose(1, 2).flatten(2)
            x = layer.think(layer.own_norm(layer.own_out(found) + x))
        return seen

    def part(self, parents: NDArray[np.int64]) -> None:
        """Makes new rows out of the present ones.

        Args:
            parents: the row that each new one continues, in rising order.
        """
        import torch

        if len(parents) == self._rows and (parents == np.arange(self._rows)).all():
            return
        of = torch.from_numpy(parents).to(self._image.device)
        self._kept[:, :, : len(parents), :, : self._place] = self._kept[:, :, of, :, : self._place]
        self._image = self._image[of]
        self._rows = len(parents)
        alive, self._image = torch.unique_consecutive(self._image, return_inverse=True)
        if 2 * len(alive) <= len(self._seen[0][0]):  # half of the images are done: what they showed is not needed
            self._seen = [(keys[alive], values[alive]) for keys, values in self._seen]
        else:
            self._image = alive[self._image]
        starts = torch.searchsorted(self._image, self._image)  # rows of one image stand together
        self._slot = torch.arange(self._rows, device=of.device) - starts

    def step(self, tokens: NDArray[np.int64], place: int) -> torch.Tensor:
        """Returns the last layer's states (m, d) after one more token of each row.

        Args:
            tokens: (m,) one for each row.
            place: its position, counted from 0.
        """
        import torch

        decoder, (heads, size) = self._of, self._shape
        rows = len(tokens)
        self._place = place + 1
        ids = torch.from_numpy(np.asarray(tokens)).to(self._image.device)
        x = decoder._start_norm(decoder._words[ids] + decoder._places[place])
        for number, layer in enumerate(decoder._layers):
            asked, key, value = layer.own(x).view(rows, 3, heads, size).unbind(1)
            self._kept[number, 0, :rows, :, place] = key
            self._kept[number, 1, :rows, :, place] = value
            own = self._kept[number, :, :rows, :, : place + 1]  # (2, m, heads, length, size)
            if layer.ask is None:
                found = self._attend_to_both(asked, own, *self._seen[number])
                x = layer.own_norm(layer.own_out(found) + x)
            else:
                found = _attend(asked[:, :, None], own[0], own[1]).reshape(rows, -1)
                x = layer.own_norm(layer.own_out(found) + x)
                asked = layer.ask(x).view(rows, heads, size)
                found = self._gathered(_attend(self._scattered(asked), *self._seen[number]))
                x = layer.ask_norm(layer.ask_out(found) + x)
            x = layer.think(x)
        return x

    def _scattered(self, asked: torch.Tensor) -> torch.Tensor:
        """Returns the rows (m, heads, size) beside those of their image: (n, heads, count, size)."""
        images, count = len(self._seen[0][0]), self._count
        if len(asked) == images * count:
            return asked.view(images, count, *self._shape).transpose(1, 2)
        # Always room for all captions: the shape, and with it the rounding, does not depend on who has ended.
        spread = asked.new_zeros(images, count, *self._shape)
        spread[self._image, self._slot] = asked
        return spread.transpose(1, 2)

    def _gathered(self, found: torch.Tensor) -> torch.Tensor:
        """Returns (m, d): the rows of (n, heads, count, size)."""
        spread = found.transpose(1, 2)
        if self._rows == spread.shape[0] * spread.shape[1]:
            return spread.reshape(self._rows, -1)
        return spread[self._image, self._slot].reshape(self._rows, -1)

    def _attend_to_both(
        self, asked: torch.Tensor, own: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Returns what rows (m, heads, size) find in their image and their own words together: (m, d)."""
        import torch

        scale = 1 / math.sqrt(self._shape[1])
        spread = self._scattered(asked)
        seen = (spread @ keys.transpose(-1, -2)).float() * scale  # (n, heads, count, t)
        said = (asked[:, :, None] @ own[0].transpose(-1, -2))[:, :, 0].float() * scale  # (m, heads, length)
        rows_seen = seen.transpose(1, 2)[self._image, self._slot]  # (m, heads, t)
        weights = torch.cat([rows_seen, said], dim=-1).softmax(-1).to(asked.dtype)
        length = said.shape[-1]
        of_words = (weights[:, :, None, -length:] @ own[1])[:, :, 0]  # (m, heads, size)
        of_image = seen.new_zeros(seen.shape[0], seen.shape[2], *seen.shape[1::2], dtype=asked.dtype)
        of_image[self._image, self._slot] = weights[:, :, :-length]
        found = self._gathered(of_image.transpose(1, 2) @ values)
        return found + of_words.reshape(len(asked), -1)


def _attend(asked: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional as F

    if asked.shape[-2] > _FEW or asked.device.type != "cpu":
        return F.scaled_dot_product_attention(asked, keys, values)
    # For a few rows torch's fused attention takes twice as long on CPUs as the three steps that it fuses.
    weights: torch.Tensor = (asked * asked.shape[-1] ** -0.5 @ keys.transpose(-1, -2)).softmax(-1)
    return weights @ values


def _firsts(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the position of the first caption of each row."""
    return np.unique(rows, return_index=True)[1]


def _limit(scores: torch.Tensor, said: NDArray[np.int64], sampling: Sampling, forbidden: int | None) -> None:
    """Changes scores (m, V) as `generate` does: what was said (m, length) weighs less, and no end comes too early."""
    import torch

    if sampling.repetition_penalty != 1.0:
        before = torch.from_numpy(said).to(scores.device)
        found = scores.gather(1, before)
        factor = sampling.repetition_penalty
        scores.scatter_(1, before, torch.where(found < 0, found * factor, found / factor))
    if forbidden is not None:
        scores[:, forbidden] = -torch.inf
