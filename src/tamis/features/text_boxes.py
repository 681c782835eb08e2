"""Where written text stands in an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tamis.arrays import Pixels
from tamis.data import Device, ModelRef, Node, OptionalModelRef
from tamis.errors import unknown, without_effect
from tamis.features.sources import DecodedImages
from tamis.models.ocr.detector import Regions, TextDetector
from tamis.models.ocr.onnx_network import network_arithmetic


@dataclass(frozen=True, kw_only=True)
class TextBoxes(Node):
    """Quadrilaterals around written text: n `Regions`; None where an image does not decode.

    FAST is `FastBoxes`. Another detector: derive a frozen dataclass with a `name` of its own and override `detector`.

    Attributes:
        model: "ppocr": the PP-OCR detector that the rapidocr package carries.
        side: images are enlarged until their shorter side has this many pixels; only longer sides
            above 2,048 are shrunk. Larger finds smaller text, and takes longer.
        threshold: the lowest mean probability of a region that counts as text. Painted text scores above 0.8, a sign
            in a street between 0.5 and 0.9.
        tallest: a region whose shorter side is longer than this share of the image's longer side is text only where it
            can be read. The detector takes a dog on a lawn for a huge letter; titles and logos are as high.
        reader: the recogniser that reads such regions; None drops them all, titles too, and needs no recogniser.
        legible: the mean probability of its characters from which such a region is text. A single character is read
            three times, in crops of different size, and has to be the same with half the doubt (0.95) each time.
    """

    name: ClassVar[str] = "text_boxes"
    version: ClassVar[int] = 3
    model: ModelRef = "ppocr"
    side: int = 384
    threshold: float = 0.5
    tallest: float = 0.35
    reader: OptionalModelRef = "ppocr-rec"
    legible: float = 0.9

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ValueError(f"side must be at least 1 pixel, got {self.side}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is a probability, from 0 to 1, got {self.threshold}")
        if not self.tallest > 0:
            raise ValueError(f"tallest is a share of the image's longer side, above 0, got {self.tallest}")
        if not 0 <= self.legible <= 1:
            raise ValueError(f"legible is a probability, from 0 to 1, got {self.legible}")
        if self.reader is None:
            without_effect(self, "legible", because="with reader: null no region is read")

    def arithmetic(self, device: Device) -> str:
        return network_arithmetic(device)

    @staticmethod
    def kind_of(settings: Mapping[str, Any]) -> type[TextBoxes]:
        """Returns the class whose settings these are: `detects: fast` means FAST.

        Raises:
            ValueError: there is no such detector.
        """
        from tamis.features.fast_boxes import FastBoxes

        kind = settings.get("detects")
        if kind not in (None, "fast"):
            raise ValueError(f"{unknown('detector', str(kind), ['fast'])}; without `detects` it is PP-OCR's")
        return FastBoxes if kind else TextBoxes

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages()}

    def detector(self, device: Device) -> TextDetector:
        """Loads the detector."""
        from tamis.models.ocr.detector import load_text_detector
        from tamis.models.ocr.legible import load_legible

        legible = None if self.reader is None else load_legible(self.reader, confidence=self.legible, device=device)
        return load_text_detector(
            self.model, side=self.side, threshold=self.threshold, tallest=self.tallest, legible=legible, device=device
        )

    def load(self, device: Device) -> Callable[..., Any]:
        detect = self.detector(device)

        def boxes(*, images: Sequence[Pixels | None]) -> list[Regions | None]:
            found = iter(detect([image for image in images if image is not None]))
            return [None if image is None else next(found) for image in images]

        return boxes
