"""Images with their written text painted over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.arrays import Floats, Pixels
from tamis.data import Device, ModelRef, Node
from tamis.errors import check_words, require, without_effect
from tamis.features.embeddings import ImageEmbedding, ModelPixels
from tamis.features.sources import DecodedImages
from tamis.features.text import TextBoxes
from tamis.math.regions import fill_around, fill_inside, inpaint

#: How text is painted over.
Fill = Literal["surroundings", "inside_mean", "inpaint"]


@dataclass(frozen=True, kw_only=True)
class MaskedImages(Node):
    """Images with every text region painted over: n arrays, None where one does not decode.

    An image without text is the same array object as the decoded one.

    Attributes:
        boxes: finds the text; shared with every signal that uses the same boxes.
        fill: "surroundings": the mean colour of the pixels around each region (T-MARS, section 4.1); "inside_mean":
            that of its own pixels, as in the authors' code; "inpaint": from the rim inwards (Telea).
        ring: width in pixels of the surroundings of a region, or radius of inpainting; an error with "inside_mean",
            which uses neither.
    """

    name: ClassVar[str] = "masked_images"
    version: ClassVar[int] = 2
    boxes: TextBoxes = TextBoxes()
    fill: Fill = "surroundings"
    ring: int = 4

    def __post_init__(self) -> None:
        check_words(self)
        if self.ring < 1:
            raise ValueError(f"ring must be at least 1 pixel, got {self.ring}")
        if self.fill == "inside_mean":
            without_effect(self, "ring", because="fill: inside_mean uses no pixel around a region")

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages(), "boxes": self.boxes}

    def load(self, device: Device) -> Callable[..., Any]:
        if self.fill == "inpaint":
            require("cv2", extra="text")
        fills: Mapping[Fill, Callable[[Pixels, list[Any]], Pixels]] = {
            "surroundings": lambda image, quads: fill_around(image, quads, ring=self.ring),
            "inside_mean": fill_inside,
            "inpaint": lambda image, quads: inpaint(image, quads, radius=self.ring),
        }
        paint = fills[self.fill]

        return lambda *, images, boxes: [
            image if image is None or regions is None else paint(image, list(regions.quads))
            for image, regions in zip(images, boxes, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class ChangedImages(Node):
    """The masked images that masking has changed: n arrays, None for all others."""

    name: ClassVar[str] = "changed_images"
    version: ClassVar[int] = 1
    masked: MaskedImages = MaskedImages()

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages(), "masked": self.masked}

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, images, masked: [
            None if after is before else after for before, after in zip(images, masked, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class MaskedEmbedding(Node):
    """Masked images in a model's joint space: (n, d) float16 unit rows, NaN where one does not decode.

    An image without text keeps the embedding of the decoded image, and is not embedded again.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
        masked: the masked images.
    """

    name: ClassVar[str] = "masked_embedding"
    version: ClassVar[int] = 1
    stored_as: ClassVar[str] = "embeddings"
    model: ModelRef
    masked: MaskedImages = MaskedImages()

    def needs(self) -> Mapping[str, Node]:
        return {
            "plain": ImageEmbedding(model=self.model),
            "changed": ModelPixels(model=self.model, of=ChangedImages(masked=self.masked)),
        }

    def load(self, device: Device) -> Callable[..., Any]:
        embed = ImageEmbedding(model=self.model).load(device)

        def embedding(*, plain: Floats, changed: Sequence[Pixels | None]) -> Floats:
            rows = np.array(plain)
            which = [n for n, image in enumerate(changed) if image is not None]
            if which:
                rows[which] = embed(pixels=[changed[n] for n in which])
            return rows

        return embedding
