"""The share of an image that written text covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.arrays import Floats, Pixels
from tamis.data import Column, Device, Node, Signal
from tamis.features.sources import DecodedImages
from tamis.features.text import TextBoxes
from tamis.math.regions import covered_share
from tamis.models.ocr.detector import Regions


@dataclass(frozen=True, kw_only=True)
class TextArea(Signal):
    """Scores an image by the share of its pixels that written text covers.

    Book covers and banners score near 1, photographs near 0. Whether the text matches the caption is another question:
    `text_match`.

    Attributes:
        boxes: finds the text; shared with every signal that uses the same boxes.

    Emits:
        text_area: share of pixels, in [0, 1]. NaN where the image does not decode.

    Cost: about 20 ms per image for the detector, two CPU cores, plus 0.1 ms for the area.
    """

    name: ClassVar[str] = "text_area"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="text_area", unit="share", better="low", about="share of the image that written text covers"),
    )
    boxes: TextBoxes = TextBoxes()

    def needs(self) -> Mapping[str, Node]:
        return {"boxes": self.boxes, "images": DecodedImages()}

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, boxes, images: {"text_area": text_shares(boxes, images)}


def text_shares(boxes: Sequence[Regions | None], images: Sequence[Pixels | None]) -> Floats:
    """Returns the share of each image that its regions cover: (n,) float32, NaN where one does not decode."""
    shares = np.full(len(images), np.nan, np.float32)
    for n, (regions, image) in enumerate(zip(boxes, images, strict=True)):
        if image is not None and regions is not None:
            shares[n] = covered_share(list(regions.quads), image.shape[1], image.shape[0])
    return shares
