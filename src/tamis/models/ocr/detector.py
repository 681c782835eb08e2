"""PP-OCR's text detector (differentiable binarisation, Liao et al. 2020), on OpenVINO or ONNX Runtime.

The network gives, for every pixel, the probability that it lies in the shrunken core of a text region. Cores are
found as connected regions, boxed by the smallest rotated rectangle, judged by their mean probability, and grown back
to the size of the text. The weights are those that the rapidocr package carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import needs_extra
from tamis.models.ocr.onnx_network import load_network
from tamis.models.reference import resolve


@dataclass(frozen=True, eq=False)
class Regions:
    """Where text stands in one image.

    Attributes:
        quads: (k, 4, 2) float32 corners (x, y) in the image's pixels, clockwise from the top left of the text, inside
            the image.
        confidence: (k,) float32 in [0, 1].
    """

    quads: NDArray[np.float32]
    confidence: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.quads)


class TextDetector(Protocol):
    """What finds written text: any detector can stand in for ours."""

    def __call__(self, images: Sequence[Pixels]) -> list[Regions]:
        """Returns the regions of n images (height, width, 3) of uint8 RGB; those of one depend on no other."""
        ...


_CORE = 0.3  # probability from which a pixel belongs to a core (PP-OCR's setting)
_GROW = 1.6  # how far cores grow: area * _GROW / perimeter on every side (PP-OCR's unclip ratio)
_SMALLEST = 3  # pixels; cores whose smaller side is shorter are noise
_MOST = 1000  # regions per image
_LONGEST = 2048  # pixels; longer sides are shrunk to it, so that a banner cannot take all memory
_STRIDE = 32  # the network halves its input five times


def load_text_detector(model: str, *, side: int, threshold: float, tallest: float, device: Device) -> TextDetector:
    """Returns PP-OCR's detector.

    Args:
        model: an ONNX detector of PP-OCR's kind ("ppocr" or a file).
        side: as in `TextBoxes`.
        threshold, tallest: as in `TextBoxes`.
        device: its threads and precision are passed on to the runtime.
    """
    try:
        import cv2
    except ImportError as error:
        raise needs_extra("opencv-python-headless", "text") from error
    found_model = resolve(model)
    network = load_network(found_model.path, found_model.digest, device)

    def detect(images: Sequence[Pixels]) -> list[Regions]:
        found: list[Regions | None] = [None] * len(images)
        by_size: dict[tuple[int, int], list[int]] = {}
        for place, image in enumerate(images):
            by_size.setdefault(input_size(image.shape[1], image.shape[0], side), []).append(place)
        for size, places in by_size.items():
            for start in range(0, len(places), 8):
                some = places[start : start + 8]
                stack = np.stack([cv2.resize(images[place], size) for place in some])
                # PP-OCR is fed BGR, scaled to [-1, 1].
                batch = (stack[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1).copy()  # (b, 3, h, w)
                for place, probability in zip(some, network(batch)[:, 0], strict=True):
                    height, width = images[place].shape[:2]
                    found[place] = regions_of(probability, width, height, threshold, tallest)
        return [regions for regions in found if regions is not None]

    return detect


def input_size(width: int, height: int, side: int) -> tuple[int, int]:
    """Returns the size that the network sees: shorter side at least `side`, longer at most 2048, multiples of 32."""
    ratio = max(1.0, side / min(width, height))
    ratio = min(ratio, _LONGEST / max(width, height))
    return (
        max(_STRIDE, round(width * ratio / _STRIDE) * _STRIDE),
        max(_STRIDE, round(height * ratio / _STRIDE) * _STRIDE),
    )


def regions_of(probability: NDArray[np.float32], width: int, height: int, threshold: float, tallest: float) -> Regions:
    """Returns the regions of one probability map, in the pixels of a (width, height) image.

    Args:
        probability: (h, w) in [0, 1].
        width, height: of the image.
        threshold: lowest mean probability of a region, which is its confidence.
        tallest: highest region, as a share of the image's longer side.
    """
    import cv2

    cores = (probability > _CORE).astype(np.uint8)
    contours, _ = cv2.findContours(cores, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    scale = np.array([width / probability.shape[1], height / probability.shape[0]])
    most = tallest * max(width, height)
    quads, confidence = [], []
    for contour in list(contours)[:_MOST]:
        centre, sides, angle = cv2.minAreaRect(contour)
        if min(sides) < _SMALLEST:
            continue
        core = cv2.boxPoints((centre, sides, angle))
        sure = _mean_inside(probability, core)
        if sure < threshold:
            continue
        # Growing a rectangle by an offset moves each side outwards by it: no polygon clipper is needed.
        offset = sides[0] * sides[1] * _GROW / (2 * (sides[0] + sides[1]))
        grown = (sides[0] + 2 * offset, sides[1] + 2 * offset)
        corners = cv2.boxPoints((centre, grown, angle)) * scale
        if min(np.linalg.norm(corners[0] - corners[1]), np.linalg.norm(corners[1] - corners[2])) > most:
            continue
        quads.append(np.clip(_clockwise(corners), 0, [width, height]))
        confidence.append(sure)
    return Regions(np.array(quads, np.float32).reshape(-1, 4, 2), np.array(confidence, np.float32))


def _mean_inside(probability: NDArray[np.float32], corners: NDArray[Any]) -> float:
    import cv2

    height, width = probability.shape
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, [width - 1, height - 1])
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, [width - 1, height - 1])
    mask = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(mask, [np.round(corners - [left, top]).astype(np.int32)], 1)
    return float(cv2.mean(probability[top : bottom + 1, left : right + 1], mask)[0])


def _clockwise(corners: NDArray[Any]) -> NDArray[Any]:
    """Returns four corners clockwise (y points down), beginning with the one nearest to the top left."""
    centre = corners.mean(axis=0)
    angles = np.arctan2(corners[:, 1] - centre[1], corners[:, 0] - centre[0])
    ordered = corners[np.argsort(angles)]
    return np.roll(ordered, -int(np.argmin(ordered.sum(axis=1))), axis=0)
