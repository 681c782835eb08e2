"""First lessons of a vision tower: which object, colour, word and letter is under each patch.

With a contrastive or captioning loss alone, a small transformer needs millions of images before it tells a cat from a
teapot. The lab knows what it drew where, so each patch has a label. Lessons are windows of a few patches, several times
cheaper than whole images. The heads are thrown away afterwards.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tamis_lab.samples import LabSample
from tamis_lab.world import COLOURS, OBJECTS
from tools.lab_models.examples import SIDE, Examples

if TYPE_CHECKING:
    import torch

_OBJECTS = {name: number for number, name in enumerate(OBJECTS)}
_COLOURS = {name: number for number, name in enumerate(COLOURS)}
_WORDS = _OBJECTS | {noun.many: _OBJECTS[noun.one] for noun in OBJECTS.values()}
_WORDS |= {name: len(OBJECTS) + number for name, number in _COLOURS.items()}
_LETTERS = string.ascii_lowercase

#: How many answers a patch gives: an object or none, a colour or none, then for each word and each letter yes or no.
N_OBJECTS = len(OBJECTS) + 1
N_COLOURS = len(COLOURS) + 1
N_WRITTEN = len(OBJECTS) + len(COLOURS) + len(_LETTERS)


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A batch of square windows."""

    numbers: NDArray[np.int64]  # (b,) which example each is a window of
    pixels: torch.Tensor  # (b, 3, window, window), normalised
    rows: torch.Tensor  # (b, t) of each patch in the whole image's grid, for its position embedding
    objects: torch.Tensor  # (b, t), the last number for none
    colours: torch.Tensor
    written: torch.Tensor  # (b, t, N_WRITTEN), 1 for each word and letter that is under the patch


def windows(
    examples: Examples,
    *,
    batch: int,
    patch: int,
    side: int,
    text_share: float,
    among: Sequence[int] | None = None,
    rng: np.random.Generator,
    normalise: Callable[[NDArray[np.uint8]], torch.Tensor],
    device: str = "cpu",
) -> Iterator[Windows]:
    """Yields batches for ever: windows around an object or, where there is one, a letter."""
    import torch

    boxes = [_boxes(sample) for sample in examples.samples]
    letters = [_letters(sample) for sample in examples.samples]
    extent, grid = side * patch, SIDE // patch
    centres = (np.arange(side) + 0.5) * patch
    while True:
        pixels = np.empty((batch, extent, extent, 3), np.uint8)
        rows = np.empty((batch, side, side), np.int64)
        objects = np.full((batch, side, side), N_OBJECTS - 1)
        colours = np.full((batch, side, side), N_COLOURS - 1)
        written = np.zeros((batch, side, side, N_WRITTEN), np.float32)
        numbers = rng.choice(len(examples) if among is None else np.asarray(among), batch)
        for k, number in enumerate(numbers):
            if len(letters[number]) and rng.random() < text_share:
                x, y = letters[number][rng.integers(len(letters[number])), :2]
            else:
                _, _, x0, y0, x1, y1 = boxes[number][rng.integers(len(boxes[number]))]
                x, y = (x0 + x1) / 2, (y0 + y1) / 2
            jitter = rng.uniform(-0.22, 0.22, 2) * extent
            left, top = (int(np.clip(at - extent / 2, 0, SIDE - extent)) for at in (x + jitter[0], y + jitter[1]))
            pixels[k] = examples.images[number, top : top + extent, left : left + extent]
            down, across = (min(grid - side, round(start / patch)) for start in (top, left))
            rows[k] = (np.arange(side)[:, None] + down) * grid + np.arange(side) + across
            for kind, colour, x0, y0, x1, y1 in boxes[number]:
                inside = ((centres + top > y0) & (centres + top < y1))[:, None] & (
                    (centres + left > x0) & (centres + left < x1)
                )
                objects[k][inside], colours[k][inside] = int(kind), int(colour)
            for x, y, word, letter in letters[number]:
                i, j = int((y - top) // patch), int((x - left) // patch)
                if 0 <= i < side and 0 <= j < side:
                    if word >= 0:
                        written[k, i, j, int(word)] = 1
                    if letter >= 0:
                        written[k, i, j, int(letter)] = 1
        yield Windows(
            numbers=numbers,
            pixels=normalise(pixels).to(device),
            rows=torch.from_numpy(rows.reshape(batch, -1)).to(device),
            objects=torch.from_numpy(objects.reshape(batch, -1)).to(device),
            colours=torch.from_numpy(colours.reshape(batch, -1)).to(device),
            written=torch.from_numpy(written.reshape(batch, side * side, -1)).to(device),
        )


def _boxes(sample: LabSample) -> list[tuple[float, ...]]:
    """(object, colour, left, top, right, bottom) of each object, from the back to the front."""
    return [(_OBJECTS[drawn.name], _COLOURS[drawn.colour], *drawn.box) for drawn in sample.objects]


def _letters(sample: LabSample) -> NDArray[np.float64]:
    """(x, y, word, letter) of each painted sign, with -1 for a word or a sign that has no class."""
    found = []
    for line, quad in zip(sample.lines, sample.quads, strict=True):
        corners = np.array(quad)
        start, end = (corners[0] + corners[3]) / 2, (corners[1] + corners[2]) / 2
        at = 0
        for word in line.split(" "):
            known = _WORDS.get(word.lower().strip(".,"), -1)
            for number, sign in enumerate(word.lower()):
                x, y = start + (end - start) * (at + number + 0.5) / len(line)
                letter = _LETTERS.find(sign)
                found.append((x, y, known, len(OBJECTS) + len(COLOURS) + letter if letter >= 0 else -1))
            at += len(word) + 1
    return np.array(found).reshape(-1, 4)


def lessons(size: int) -> torch.nn.Module:
    """Returns the heads that are trained together with a tower."""
    import torch
    from torch.nn import functional as F

    class Lessons(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = torch.nn.Linear(size, N_OBJECTS + N_COLOURS + N_WRITTEN)
            self.whole = torch.nn.Linear(size, N_OBJECTS - 1 + N_WRITTEN)
            with torch.no_grad():  # nearly everything is not there
                self.patches.bias[N_OBJECTS + N_COLOURS :] = -4
                self.whole.bias.fill_(-3)

        def forward(self, states: torch.Tensor, batch: Windows, reading: bool = False) -> torch.Tensor:
            yes_no = F.binary_cross_entropy_with_logits
            answers = self.patches(states[:, 1:]).float()
            objects, colours, written = answers.split((N_OBJECTS, N_COLOURS, N_WRITTEN), dim=-1)
            read: torch.Tensor = yes_no(written, batch.written, reduction="none").sum(-1).mean()
            if reading:
                return read
            # The class token says what the patches together show: an object under at least two of them, any word.
            shown = F.one_hot(batch.objects, N_OBJECTS).sum(1)[:, :-1].ge(2).float()
            whole = torch.cat([shown, batch.written.amax(1)], dim=1)
            loss: torch.Tensor = (
                F.cross_entropy(objects.flatten(0, 1), batch.objects.flatten())
                + 0.5 * F.cross_entropy(colours.flatten(0, 1), batch.colours.flatten())
                + 2 * read
                + 0.3 * yes_no(self.whole(states[:, 0]).float(), whole, reduction="none").sum(-1).mean()
            )
            return loss

    return Lessons()


def whiten(
    weight: torch.Tensor,
    examples: Examples,
    normalise: Callable[[NDArray[np.uint8]], torch.Tensor],
    *,
    gain: float = 0.7,
) -> None:
    """Sets a patch embedding so that its outputs are uncorrelated and of one size on the first 1,000 examples.

    Drawn at random it passes on little but a patch's mean colour; the strokes of letters are lost in it.
    """
    import torch

    size, _, patch, _ = weight.shape
    pieces = torch.nn.functional.unfold(normalise(examples.images[:1000]), patch, stride=patch)  # (n, 3 p p, t)
    pieces = pieces.transpose(1, 2).flatten(0, 1)
    pieces = pieces - pieces.mean(0)
    variances, directions = torch.linalg.eigh(pieces.T @ pieces / len(pieces))  # smallest first
    kept = min(size, len(variances))
    filters = torch.zeros(size, len(variances))
    filters[:kept] = (directions[:, -kept:] / (variances[-kept:] + 0.1).sqrt()).T
    mixed = torch.linalg.qr(torch.randn(size, size))[0] @ filters
    with torch.no_grad():
        weight.copy_(mixed.view_as(weight) * gain)
