"""What the reader already holds: captions, pixels, sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device, Node, Sample, Samples
from tamis.errors import check_words


@dataclass(frozen=True, kw_only=True)
class Captions(Node):
    """The captions of a batch: n texts, None where there is none that can be judged."""

    name: ClassVar[str] = "captions"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    in_index: ClassVar[bool] = True

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        def captions(*, samples: Sequence[Sample]) -> list[str | None]:
            return [sample.caption for sample in samples]

        return captions


@dataclass(frozen=True, kw_only=True)
class DecodedImages(Node):
    """The images of a batch: n arrays (height, width, 3) of uint8 RGB, upright; None where one does not decode."""

    name: ClassVar[str] = "decoded_images"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        def images(*, samples: Sequence[Sample]) -> list[Pixels | None]:
            return [sample.pixels for sample in samples]

        return images


@dataclass(frozen=True, kw_only=True)
class HiddenContents(Node):
    """The opacity of images that are of one colour without their transparency, (height, width); None for others."""

    name: ClassVar[str] = "hidden_contents"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        def hidden(*, samples: Sequence[Sample]) -> list[Pixels | None]:
            return [sample.hidden for sample in samples]

        return hidden


@dataclass(frozen=True, kw_only=True)
class Dimensions(Node):
    """Width and height of a batch's images in pixels: (n, 2) int64, 0 where unknown.

    Attributes:
        of: "original": as the json of the sample tells of the image on the web, where it does, else as stored (what
            DataComp's rules look at); "stored": of the file at hand.
    """

    name: ClassVar[str] = "dimensions"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    in_index: ClassVar[bool] = True
    of: Literal["original", "stored"] = "original"

    def __post_init__(self) -> None:
        check_words(self)

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        def sizes(*, samples: Sequence[Sample]) -> NDArray[np.int64]:
            rows = [
                (sample.original_width, sample.original_height)
                if self.of == "original" and sample.original_width and sample.original_height
                else (sample.width, sample.height)
                for sample in samples
            ]
            return np.array(rows, np.int64).reshape(-1, 2)

        return sizes
