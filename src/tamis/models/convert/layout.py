"""The weights of a checkpoint in its own layout, each to be taken once, under a name and in a shape."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamis.errors import ModelError

if TYPE_CHECKING:
    import torch

#: What wrappers of training put before the names of all weights.
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")

#: The width of an attention head in nearly every published transformer.
HEAD_WIDTH = 64


@dataclass(frozen=True)
class Conversion:
    """A checkpoint in the layout of transformers.

    Attributes:
        cls: the class of transformers that holds it.
        config: its configuration.
        tensors: its weights, by the names of the class.
        preprocessing: what its preprocessor_config.json says.
        length: the most tokens of a text.
        told: what a person should know of it, for the card.
    """

    cls: Any
    config: Any
    tensors: Mapping[str, torch.Tensor]
    preprocessing: Mapping[str, Any]
    length: int
    told: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Weights:
    """The tensors of one file.

    Attributes:
        file: what the user called it, for messages.
        shapes: of each tensor, by its name without the wrappers of training.
        read: returns the tensor of a name.
        taken: the names of those that were used.
    """

    file: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], torch.Tensor]
    taken: set[str] = field(default_factory=set)

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Returns the shape of a tensor from which sizes of the model are read.

        Raises:
            ModelError: it is not there, or has another number of dimensions.
        """
        if name not in self.shapes:
            raise ModelError(f"{self.file} lacks the weight {name}")
        if len(self.shapes[name]) != dimensions:
            raise ModelError(f"{self.file}: {name} has the shape {self.shapes[name]}, not {dimensions} dimensions")
        return self.shapes[name]

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Returns a tensor.

        Raises:
            ModelError: it is not there, or of another shape.
        """
        if name not in self.shapes:
            raise ModelError(f"{self.file} lacks the weight {name}")
        if self.shapes[name] != shape:
            raise ModelError(
                f"{self.file}: the weight {name} has the shape {self.shapes[name]}; {shape} goes with the others"
            )
        self.taken.add(name)
        return self.read(name)

    def affine(self, source: str, target: str, *shape: int) -> dict[str, torch.Tensor]:
        """Returns weight and bias of a layer under another name; `shape` is the weight's, the bias has its first."""
        return {
            f"{target}.weight": self.take(f"{source}.weight", *shape),
            f"{target}.bias": self.take(f"{source}.bias", shape[0]),
        }

    def count(self, pattern: str) -> int:
        """Returns how many layers there are: the numbers that the one group of a pattern finds are 0, 1, 2, ...

        Raises:
            ModelError: there is none, or one is missing between others.
        """
        found = {int(match[1]) for name in self.shapes if (match := re.match(pattern, name))}
        if not found or found != set(range(len(found))):
            lacking = next(number for number in range(len(found) + 1) if number not in found)
            layer = pattern.replace("\\", "").replace("(d+)", str(lacking))
            raise ModelError(f"{self.file} lacks the weights of layer {layer}")
        return len(found)

    def nothing_left(self, ignored: str) -> None:
        """Checks that every tensor was taken, but for those whose names a pattern matches.

        Raises:
            ModelError: there are others: it is another architecture, and what they do would be lost.
        """
        foreign = sorted(name for name in self.shapes if name not in self.taken and not re.match(ignored, name))
        if foreign:
            more = f" and {len(foreign) - 3} others" if len(foreign) > 3 else ""
            raise ModelError(
                f"{self.file} holds weights that are not of this architecture: {', '.join(foreign[:3])}{more}. "
                "Without them the converted model would be another one"
            )


@contextmanager
def opened(path: Path, file: str) -> Iterator[Weights]:
    """Opens a safetensors file, of which nothing is read before it is taken.

    Raises:
        ModelError: it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        source = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ModelError(f"{file} is no whole safetensors file: {error}") from error
    with source as tensors:
        names = {_WRAPPERS.sub("", name): name for name in tensors.keys()}  # noqa: SIM118  # it is no dictionary
        shapes = {name: tuple(tensors.get_slice(own).get_shape()) for name, own in names.items()}
        yield Weights(file, shapes, lambda name: tensors.get_tensor(names[name]))


def heads(file: str, tower: str, width: int, head_width: int) -> int:
    """Returns how many heads a tower has, which no weight tells.

    Raises:
        ModelError: heads of that width do not fill it.
    """
    if type(head_width) is not int or head_width < 1:
        raise ModelError(
            f"{file}: the {tower} tower has head_width = {head_width!r}, and it must be a whole number of at least 1"
        )
    if width % head_width:
        raise ModelError(
            f"{file}: the {tower} tower is {width} wide, which heads of {head_width} do not fill: say how wide they "
            "are with --head-width"
        )
    return width // head_width


def side_of(file: str, positions: int) -> int:
    """Returns how many patches a side has, of so many positions: one for the class, the others a square.

    Raises:
        ModelError: the others are none.
    """
    side = math.isqrt(max(positions - 1, 0))
    if side < 1 or side * side != positions - 1:
        raise ModelError(f"{file}: {positions} positions are not one and a square of patches; only square images go")
    return side
