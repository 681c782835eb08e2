"""Where written text stands in an image: by PP-OCR, or by FAST, the detector of the T-MARS paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tamis.arrays import Pixels
from tamis.data import Device, ModelRef, Node, OptionalModelRef
from tamis.errors import check_words, unknown, without_effect
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


#: The settings that FAST has; what `TextBoxes` has besides belongs to PP-OCR.
_ITS_OWN = ("detects", "model", "side", "threshold", "area", "pooling", "tallest")


@dataclass(frozen=True, kw_only=True)
class FastBoxes(TextBoxes):
    """Quadrilaterals around written text by FAST, with the settings of T-MARS's released code.

    In a recipe: `boxes: {detects: fast, model: fast_tiny.onnx}`. The weights are its authors' (github.com/czczup/FAST:
    fast_tiny_tt_512_finetune_ic17mlt.pth); export the network without what follows it to ONNX.

    Attributes:
        detects: "fast", by which recipes name this detector.
        model: the ONNX file: 3 x side x side in, FAST's maps out (the first channel is read).
        side: images are padded with white to a square and resized to this, up or down.
        threshold: the lowest mean probability of a region that counts as text.
        area: the fewest pixels of a region, of side x side.
        pooling: 7 of the weights for Total-Text, 9 of those for ICDAR 2017.
        tallest: as of `TextBoxes`; 1 for no limit, as FAST has none.
        reader: None; nothing is read here.
    """

    name: ClassVar[str] = "fast_boxes"
    version: ClassVar[int] = 1
    detects: Literal["fast"] = "fast"
    model: ModelRef = "fast_tiny_tt_512_finetune_ic17mlt.onnx"
    side: int = 512
    threshold: float = 0.85
    area: int = 200
    pooling: int = 7
    tallest: float = 1.0
    reader: OptionalModelRef = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_words(self)
        if self.area < 0 or self.pooling < 1:
            raise ValueError(f"area must be 0 or more and pooling at least 1, got {self.area} and {self.pooling}")
        if self.side < 8:
            raise ValueError(f"side must be at least 8 pixels, got {self.side}")
        for setting in dataclasses.fields(self):
            if setting.name not in _ITS_OWN and getattr(self, setting.name) != setting.default:
                raise ValueError(f"{setting.name} is a setting of PP-OCR's boxes; FAST has {', '.join(_ITS_OWN)}")

    def detector(self, device: Device) -> TextDetector:
        from tamis.models.ocr.fast import load_fast_detector

        return load_fast_detector(
            self.model,
            side=self.side,
            threshold=self.threshold,
            area=self.area,
            pooling=self.pooling,
            tallest=self.tallest,
            device=device,
        )
