"""The written text of an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tamis.arrays import Pixels
from tamis.data import Device, ModelRef, Node
from tamis.features.sources import DecodedImages
from tamis.features.text_boxes import TextBoxes
from tamis.models.ocr.detector import Regions
from tamis.models.ocr.onnx_network import network_arithmetic

if TYPE_CHECKING:
    from tamis.models.ocr.recogniser import Line


@dataclass(frozen=True, kw_only=True)
class RecognisedText(Node):
    """The lines of text in each image, in reading order: n lists of texts; None where an image does not decode.

    Attributes:
        boxes: finds the text; shared with every signal that uses the same boxes.
        model: "ppocr-rec": the PP-OCR recogniser of the rapidocr package, for Latin and Chinese letters.
        confidence: lowest mean probability of a line's characters; lines below it are dropped.
    """

    name: ClassVar[str] = "recognised_text"
    version: ClassVar[int] = 1
    stored_as: ClassVar[str] = "texts"
    boxes: TextBoxes = TextBoxes()
    model: ModelRef = "ppocr-rec"
    confidence: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence is a probability, from 0 to 1, got {self.confidence}")

    def arithmetic(self, device: Device) -> str:
        return network_arithmetic(device)

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages(), "boxes": self.boxes}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.ocr.recogniser import load_text_recogniser

        read = load_text_recogniser(self.model, device=device)

        def read_all(*, images: Sequence[Pixels | None], boxes: Sequence[Regions | None]) -> list[list[str] | None]:
            present = [image for image in images if image is not None]
            regions = [some for some in boxes if some is not None]
            texts = iter(
                [lines[k].text for k in reading_order(some) if _counts(lines[k], self.confidence)]
                for some, lines in zip(regions, read(present, regions), strict=True)
            )
            return [None if image is None else next(texts) for image in images]

        return read_all


def _counts(line: Line, confidence: float) -> bool:
    return line.confidence >= confidence and bool(line.text.strip())


def reading_order(regions: Regions) -> list[int]:
    """Returns the regions' positions row by row from the top, each row from the left.

    A region belongs to the row above it if its middle is above the bottom of that row's first region.
    """
    if not len(regions):
        return []
    middle = regions.quads.mean(axis=1)  # (k, 2)
    bottom = regions.quads[:, :, 1].max(axis=1)
    order: list[int] = []
    row: list[int] = []
    for k in np.argsort(middle[:, 1], kind="stable").tolist():
        if row and middle[k, 1] > bottom[row[0]]:
            order += sorted(row, key=lambda n: float(middle[n, 0]))
            row = []
        row.append(k)
    return order + sorted(row, key=lambda n: float(middle[n, 0]))
