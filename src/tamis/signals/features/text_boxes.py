"""Written text in images: where it is (by PP-OCR, or by FAST as in T-MARS), what it says, and images without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.core.arrays import Floats, Pixels
from tamis.core.errors import at_least_one, check_effect, check_words, require, unknown_message
from tamis.core.machine import cores
from tamis.core.math.regions import fill_around, fill_inside, inpaint
from tamis.core.types import Device, ModelRef, Node, OptionalModelRef
from tamis.models.ocr import (
    Regions,
    TextDetector,
    load_fast_detector,
    load_legible,
    load_text_detector,
    load_text_recogniser,
    network_arithmetic,
)
from tamis.signals.features.embeddings import ImageEmbedding, ModelPixels
from tamis.signals.features.sources import DecodedImages, each_present


@dataclass(frozen=True, kw_only=True)
class TextBoxes(Node):
    """Quadrilaterals around written text: n `Regions`; None if an image does not decode.

    FAST is `FastBoxes`. For another detector, derive a frozen dataclass with its own `name` and override `detector`.

    Attributes:
        model: "ppocr": the PP-OCR detector in the rapidocr package.
        side: small images are searched a second time, enlarged to a shorter side of this many pixels (at most 2.25
            times), but only in the part where a first look, at 224 to 400 pixels, finds small text or traces of it.
            A larger number finds smaller text, and takes longer. Other images are searched as they are, if their longer
            side exceeds 2,048 pixels shrunk to that.
        threshold: lowest mean probability of a region. Printed text scores above 0.8, a street sign 0.5 to 0.9.
        tallest: a region whose shorter side exceeds this share of the image's shorter side counts only if it can be
            read, or has thin strokes of one colour and width (`is_drawn`). Titles and logos are that high, but the
            detector also takes a dog on a lawn for a huge letter.
        reader: the recogniser that reads such regions; None drops them all, even titles, and needs no recogniser.
        legible: lowest mean probability of the characters in such a region. A single character is read in three crops
            of different size, and must be the same each time, with at least (1 + legible) / 2.
    """

    name: ClassVar[str] = "text_boxes"
    version: ClassVar[int] = 5
    model: ModelRef = "ppocr"
    side: int = 736
    threshold: float = 0.5
    tallest: float = 0.2
    reader: OptionalModelRef = "ppocr-rec"
    legible: float = 0.9

    def __post_init__(self) -> None:
        at_least_one(side=self.side)
        for name, value in (("threshold", self.threshold), ("legible", self.legible)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is a probability, from 0 to 1, got {value}")
        if not self.tallest > 0:
            raise ValueError(f"tallest is a share of the image's side, above 0, got {self.tallest}")
        if self.reader is None:
            check_effect(self, "legible", because="with reader: null no region is read")

    def arithmetic(self, device: Device) -> str:
        return network_arithmetic(device)

    @staticmethod
    def class_of(settings: Mapping[str, Any]) -> type[TextBoxes]:
        """Returns the class for these settings: `detects: fast` means FAST. ValueError for an unknown detector."""
        kind = settings.get("detects")
        if kind not in (None, "fast"):
            raise ValueError(f"{unknown_message('detector', str(kind), ['fast'])}; without `detects` it is PP-OCR's")
        return FastBoxes if kind else TextBoxes

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages()}

    def detector(self, device: Device) -> TextDetector:
        legible = None if self.reader is None else load_legible(self.reader, confidence=self.legible, device=device)
        return load_text_detector(
            self.model, side=self.side, threshold=self.threshold, tallest=self.tallest, legible=legible, device=device
        )

    def load(self, device: Device) -> Callable[..., Any]:
        detect = self.detector(device)

        return lambda *, images: each_present(images, detect)


#: FAST's settings; the other fields of `TextBoxes` belong to PP-OCR.
_FAST_SETTINGS = ("detects", "model", "side", "threshold", "area", "pooling", "tallest")


@dataclass(frozen=True, kw_only=True)
class FastBoxes(TextBoxes):
    """Quadrilaterals around written text by FAST, with the settings of T-MARS's released code.

    In a recipe: `boxes: {detects: fast, model: fast_tiny.onnx}`. Export the authors' weights (github.com/czczup/FAST:
    fast_tiny_tt_512_finetune_ic17mlt.pth) to ONNX, the network alone.

    Attributes:
        detects: "fast", the name of this detector in recipes.
        model: the ONNX file: 3 x side x side in, FAST's maps out (only the first channel is used).
        side: images are padded with white to a square, then resized to this many pixels.
        threshold: lowest mean probability of a region.
        area: lowest number of pixels of a region, in the resized image.
        pooling: 7 for the Total-Text weights, 9 for the ICDAR 2017 weights.
        tallest: regions whose shorter side exceeds this share of the image's longer side are dropped; by default 1, no
            limit, because FAST has none.
        reader: always None; no region is read.
    """

    name: ClassVar[str] = "fast_boxes"
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
            if setting.name not in _FAST_SETTINGS and getattr(self, setting.name) != setting.default:
                raise ValueError(f"{setting.name} is a setting of PP-OCR's boxes; FAST has {', '.join(_FAST_SETTINGS)}")

    def detector(self, device: Device) -> TextDetector:
        settings = {name: getattr(self, name) for name in _FAST_SETTINGS if name not in ("detects", "model")}
        return load_fast_detector(self.model, **settings, device=device)


@dataclass(frozen=True, kw_only=True)
class RecognisedText(Node):
    """The lines of text in each image, in reading order: n lists of texts; None if an image does not decode.

    Attributes:
        boxes: finds the text; shared with every signal that uses the same boxes.
        model: "ppocr-rec": the PP-OCR recogniser in the rapidocr package, for Latin and Chinese letters.
        confidence: lowest mean probability of a line's characters; lines below it are dropped.
    """

    name: ClassVar[str] = "recognised_text"
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
        read = load_text_recogniser(self.model, device=device)

        def read_all(*, images: Sequence[Pixels | None], boxes: Sequence[Regions | None]) -> list[list[str] | None]:
            present = [image for image in images if image is not None]
            regions = [some for some in boxes if some is not None]
            texts = iter(
                [
                    lines[k].text
                    for k in reading_order(some)
                    if lines[k].confidence >= self.confidence and lines[k].text.strip()
                ]
                for some, lines in zip(regions, read(present, regions), strict=True)
            )
            return [None if image is None else next(texts) for image in images]

        return read_all


def reading_order(regions: Regions) -> list[int]:
    """Returns the regions' indices, row by row from the top, each row from the left.

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


#: How text is painted over.
Fill = Literal["surroundings", "inside_mean", "inpaint"]


@dataclass(frozen=True, kw_only=True)
class MaskedImages(Node):
    """Images with every text region painted over: n arrays, None if one does not decode.

    An image without text is the decoded array itself, not a copy.

    Attributes:
        boxes: finds the text; shared with every signal that uses the same boxes.
        fill: "surroundings": the mean colour of the pixels around each region (T-MARS, section 4.1); "inside_mean":
            the region's own mean colour; "inpaint": from the rim inwards (Telea).
        ring: width in pixels of a region's surroundings, or radius of inpainting; an error with "inside_mean", which
            uses neither.
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
            check_effect(self, "ring", because="fill: inside_mean uses no pixel around a region")

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

        def masked(image: Pixels | None, regions: Regions | None) -> Pixels | None:
            return image if image is None or regions is None else paint(image, list(regions.quads))

        threads = ThreadPoolExecutor(device.threads or cores(), "tamis-mask")
        return lambda *, images, boxes: list(threads.map(masked, images, boxes))


@dataclass(frozen=True, kw_only=True)
class ChangedImages(Node):
    """The images that masking changed: n arrays, None for all others."""

    name: ClassVar[str] = "changed_images"
    masked: MaskedImages = MaskedImages()

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages(), "masked": self.masked}

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, images, masked: [
            None if after is before else after for before, after in zip(images, masked, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class MaskedEmbedding(Node):
    """Masked images in a model's joint space: (n, d) float16 unit rows, NaN if one does not decode.

    An image without text keeps the embedding of the decoded image and is not embedded again.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
        masked: the masked images.
    """

    name: ClassVar[str] = "masked_embedding"
    reads_texts: ClassVar[bool] = False
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
