"""Decoding captions: many captions of each image at once, with every distinct beginning computed once.

The weights come from transformers' BLIP and GIT; the order of the work is ours:

- The keys and values of an image are computed once per layer, and all its captions attend to that copy.
- A row of the batch is a distinct beginning of a caption: the prompt is computed once per image, and captions that
  start with the same words share a row until they differ.
- Keys and values of a row's own words are cached; captions that have ended leave the batch.

A caption's random numbers depend only on (uid, seed, caption, step), so nothing else changes its words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.models.nucleus import Sampling, draw, penalise, random_numbers
from tamis.models.packed import Linear

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Parts:
    """The parts of a loaded model that we decode with; `text` is the decoder, laid out like transformers' BERT.

    Its layers attend to the image in `crossattention`; without one, `project` makes the image the start of the text.
    """

    tower: torch.nn.Module  # `pixel_values` -> image states, `last_hidden_state` (n, t, d)
    text: Any
    config: Any
    end: int
    head: Callable[[torch.Tensor], torch.Tensor]  # states (m, d) -> logits (m, V)
    project: Callable[[torch.Tensor], torch.Tensor] | None = None


def blip_parts(model: Any) -> Parts:
    """The parts of a `BlipForConditionalGeneration`."""
    config, predictions = model.config.text_config, model.text_decoder.cls.predictions
    dense, norm = Linear(predictions.transform.dense), predictions.transform.LayerNorm
    activation, vocabulary = predictions.transform.transform_act_fn, Linear(predictions.decoder)
    return Parts(
        model.vision_model,
        model.text_decoder.bert,
        config,
        end=int(config.sep_token_id),
        head=lambda x: vocabulary(norm(activation(dense(x)))),
    )


def git_parts(model: Any) -> Parts:
    """The parts of a `GitForCausalLM`."""
    git, config = model.git, model.config
    return Parts(git.image_encoder, git, config, int(config.eos_token_id), Linear(model.output), git.visual_projection)


class _Layer:
    """The weights of one decoder layer; BLIP and GIT use the same names in transformers."""

    def __init__(self, layer: Any) -> None:
        attention = layer.attention
        self.query_key_value = Linear(attention.self.query, attention.self.key, attention.self.value)
        self.output, self.norm = Linear(attention.output.dense), attention.output.LayerNorm
        self._up, self._activation = Linear(layer.intermediate.dense), layer.intermediate.intermediate_act_fn
        self._down, self._down_norm = Linear(layer.output.dense), layer.output.LayerNorm
        cross = getattr(layer, "crossattention", None)
        self.has_cross = cross is not None
        if cross is not None:
            self.cross_query, self.cross_key_value = Linear(cross.self.query), Linear(cross.self.key, cross.self.value)
            self.cross_output, self.cross_norm = Linear(cross.output.dense), cross.output.LayerNorm

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self._down_norm(self._down(self._activation(self._up(x))) + x)
        return down


class CaptionDecoder:
    """Decodes captions with the parts of a loaded model; `start` and `end` are the tokens around a caption."""

    def __init__(self, parts: Parts) -> None:
        embeddings, config = parts.text.embeddings, parts.config
        self.words = embeddings.word_embeddings.weight.detach()
        self.position_embeddings = embeddings.position_embeddings.weight.detach()
        self.embedding_norm = embeddings.LayerNorm
        self.layers = [_Layer(layer) for layer in parts.text.encoder.layer]
        self.project, self.head = parts.project, parts.head
        self.start, self.end = int(config.bos_token_id), parts.end
        self.heads, self.positions = int(config.num_attention_heads), int(config.max_position_embeddings)

    def captions(
        self, states: torch.Tensor, uids: NDArray[np.uint64], prompt: Sequence[int], sampling: Sampling
    ) -> list[list[list[int]]]:
        """Draws the tokens of `sampling.captions` captions per image, without prompt and end token.

        `states` is (n, t, d), `uids` (n, 2) halves of uids; `prompt` begins with the start token.
        """
        import torch

        images, count, vocabulary = len(states), sampling.captions, len(self.words)
        tokens = np.zeros((images * count, sampling.max_tokens), np.int64)
        tokens[:, : len(prompt)] = prompt
        lengths = np.full(images * count, sampling.max_tokens)
        alive = np.arange(images * count)  # captions that have not ended
        rows = alive // count  # the row of the batch with each caption's beginning
        with torch.inference_mode():
            batch = _Batch(self, states, count, len(prompt) + count * (sampling.max_tokens - len(prompt)))
            for position, token in enumerate(prompt):
                hidden = batch.step(np.full(images, token), position)
            for length in range(len(prompt), sampling.max_tokens):
                logits = self.head(hidden)
                if sampling.repetition_penalty != 1.0:
                    logits = logits.float()
                    firsts = np.unique(rows, return_index=True)[1]
                    said = torch.from_numpy(tokens[alive[firsts], :length]).to(logits.device)
                    penalise(logits, said, sampling.repetition_penalty)
                if length < sampling.min_tokens:
                    logits[:, self.end] = -math.inf
                high, low = uids[alive // count].T
                numbers = random_numbers(high, low, alive % count, step=length, seed=sampling.seed)
                chosen = draw(logits, rows, numbers, top_p=sampling.top_p, top_k=sampling.top_k)
                tokens[alive, length] = chosen
                ended = chosen == self.end
                lengths[alive[ended]] = length
                alive, rows, chosen = alive[~ended], rows[~ended], chosen[~ended]
                if not len(alive) or length + 1 == sampling.max_tokens:
                    break
                # Captions with the same words so far stay one row.
                keys, rows = np.unique(rows * vocabulary + chosen, return_inverse=True)
                batch.branch(keys // vocabulary)
                hidden = batch.step(keys % vocabulary, length)
        captions = [tokens[n, len(prompt) : lengths[n]].tolist() for n in range(images * count)]
        return [captions[n * count : (n + 1) * count] for n in range(images)]


class _Batch:
    """Keys and values of a batch of images, and of the words of the rows that are being decoded.

    Words are only ever added: a mask says which of its image's words belong to a row, so rows share their beginning.
    Every image has room for `count` rows, ended or not: the shapes, and with them the rounding, depend on no other.
    """

    def __init__(self, decoder: CaptionDecoder, states: torch.Tensor, count: int, room: int) -> None:
        """`room` is the largest number of words that the rows of one image can have."""
        import torch

        self._decoder, self._count, self._length, self._width = decoder, count, 0, 1
        self._shape = (decoder.heads, decoder.words.shape[1] // decoder.heads)
        self._images = self._image_keys_values(states)
        self._image = torch.arange(len(states), device=states.device)  # each row's image
        self._slot = torch.zeros(len(states), dtype=torch.long, device=states.device)  # each row's number in its image
        dtype = decoder.words.dtype
        # (layers, key and value, images, heads, words, size)
        self._words = states.new_empty(
            (len(decoder.layers), 2, len(states), decoder.heads, room, self._shape[1]), dtype=dtype
        )
        # Which words a row attends to, (images, 1, count, words): 0, or -inf. All attend to the first.
        self._mask = states.new_full((len(states), 1, count, room), -math.inf, dtype=dtype)
        self._mask[..., 0] = 0

    def _image_keys_values(self, states: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the images' keys and values (n, heads, t, size) for each layer."""
        decoder, shape = self._decoder, self._shape
        pairs = []
        if decoder.project is None:
            for layer in decoder.layers:
                key_value = layer.cross_key_value(states).view(len(states), -1, 2, *shape)
                key, value = key_value.permute(2, 0, 3, 1, 4).contiguous()
                pairs.append((key, value))
            return pairs
        # GIT reads an image as the beginning of the text: patches attend to one another in every layer.
        x = decoder.project(states)
        for layer in decoder.layers:
            query, key, value = layer.query_key_value(x).view(len(x), -1, 3, *shape).permute(2, 0, 3, 1, 4).contiguous()
            pairs.append((key, value))
            attended = _attend_to_all(query, key, value).transpose(1, 2).flatten(2)
            x = layer.feed_forward(layer.norm(layer.output(attended) + x))
        return pairs

    def branch(self, parents: NDArray[np.int64]) -> None:
        """Replaces the rows; `parents` has the row that each new row continues, in rising order."""
        import torch

        self._width = self._count
        if len(parents) == len(self._image) and (parents == np.arange(len(parents))).all():
            return
        kept = torch.from_numpy(parents).to(self._image.device)
        masks = self._mask[self._image[kept], 0, self._slot[kept]]
        alive, image = torch.unique_consecutive(self._image[kept], return_inverse=True)
        if 2 * len(alive) <= len(self._mask):  # half of the images are done: drop their keys and values
            self._images = [(key[alive], value[alive]) for key, value in self._images]
            self._words, self._mask = self._words[:, :, alive], self._mask[alive]
        else:
            image = alive[image]
        self._image = image
        # Rows of one image are next to each other.
        self._slot = torch.arange(len(parents), device=kept.device) - torch.searchsorted(image, image)
        self._mask[image, 0, self._slot] = masks

    def step(self, tokens: NDArray[np.int64], position: int) -> torch.Tensor:
        """Adds one token (m,) to each row and returns the last layer's states (m, d)."""
        import torch

        decoder, rows = self._decoder, len(tokens)
        before, self._length = self._length, self._length + self._width
        self._mask[self._image, 0, self._slot, before + self._slot] = 0
        mask = self._mask[..., : self._length]
        ids = torch.from_numpy(tokens).to(self._image.device)
        x: torch.Tensor = decoder.embedding_norm(decoder.words[ids] + decoder.position_embeddings[position])
        for number, layer in enumerate(decoder.layers):
            query, *new = layer.query_key_value(x).view(rows, 3, *self._shape).unbind(1)
            for cache, one in zip(self._words[number], new, strict=True):
                cache[:, :, before : self._length] = self._by_image(one)[:, :, : self._width]
            key, value = self._words[number, :, :, :, : self._length]
            image = self._images[number]
            query = self._by_image(query)
            if not layer.has_cross:
                x = layer.norm(layer.output(self._by_row(_attend(query, image, (key, value), mask=mask))) + x)
            else:
                x = layer.norm(layer.output(self._by_row(_attend(query, (key, value), mask=mask))) + x)
                query = self._by_image(layer.cross_query(x).view(rows, *self._shape))
                attended = _attend(query, image) if query.device.type == "cpu" else _attend_to_all(query, *image)
                x = layer.cross_norm(layer.cross_output(self._by_row(attended)) + x)
            x = layer.feed_forward(x)
        return x

    def _by_image(self, rows: torch.Tensor) -> torch.Tensor:
        """Groups rows (m, heads, size) by image: (n, heads, count, size)."""
        images, count = len(self._mask), self._count
        if len(rows) == images * count:
            return rows.view(images, count, *self._shape).transpose(1, 2)
        grouped = rows.new_zeros(images, count, *self._shape)
        grouped[self._image, self._slot] = rows
        return grouped.transpose(1, 2)

    def _by_row(self, grouped: torch.Tensor) -> torch.Tensor:
        """Returns the rows (m, d) of (n, heads, count, size)."""
        grouped = grouped.transpose(1, 2)
        if len(self._image) == grouped.shape[0] * grouped.shape[1]:
            return grouped.reshape(len(self._image), -1)
        return grouped[self._image, self._slot].reshape(len(self._image), -1)


def _attend(
    query: torch.Tensor, *pairs: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention of a few queries to all keys of the pairs; `mask` is added to the scores of the last pair.

    Three steps one by one: on a CPU, torch's fused attention takes a third longer. Keys must be contiguous to be fast.
    """
    import torch

    query = query * query.shape[-1] ** -0.5
    scores = [query @ key.contiguous().transpose(-1, -2) for key, _ in pairs]
    if mask is not None:
        scores[-1] += mask
    weights = (scores[0] if len(scores) == 1 else torch.cat(scores, -1)).softmax(-1)
    attended: torch.Tensor = weights[..., -pairs[-1][1].shape[2] :] @ pairs[-1][1]
    for _, value in pairs[:-1]:
        attended = attended + weights[..., : value.shape[2]] @ value
    return attended


def _attend_to_all(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional as F

    return F.scaled_dot_product_attention(query, key, value)
