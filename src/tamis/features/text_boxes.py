"""Where written text stands in an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device, ModelRef, Node, Pixels
from tamis.features.sources import DecodedImages

#: The quadrilaterals of one image: (boxes, 4, 2) float32 corners (x, y) in its pixels, clockwise from top left.
Quads = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class TextBoxes:
    """Quadrilaterals around written text: n arrays (boxes, 4, 2); None where an image does not decode.

    Attributes:
        model: "ppocr": the PP-OCR detector that the rapidocr package carries.
        side: images are enlarged until their shorter side has this many pixels (and never shrunk below
            it). Larger finds smaller text, and mistakes more texture for text.
        threshold: the lowest mean probability of a region that counts as text. At 0.5 (PP-OCR's own setting, for
            documents) a quarter of plain photographs show "text" in their textures; painted text scores above 0.8.
    """

    name: ClassVar[str] = "text_boxes"
    version: ClassVar[int] = 1
    model: ModelRef = "ppocr"
    side: int = 320
    threshold: float = 0.75

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.text_detector import load_text_detector

        detect = load_text_detector(self.model, side=self.side, threshold=self.threshold, device=device)

        def boxes(*, images: Sequence[Pixels | None]) -> list[Quads | None]:
            found = iter(detect([image for image in images if image is not None]))
            return [None if image is None else next(found) for image in images]

        return boxes
