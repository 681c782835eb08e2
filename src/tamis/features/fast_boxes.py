"""Where written text stands, by FAST: the detector of the T-MARS paper."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from tamis.data import Device, ModelRef, OptionalModelRef
from tamis.errors import check_words
from tamis.features.text_boxes import TextBoxes
from tamis.models.ocr.detector import TextDetector

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
