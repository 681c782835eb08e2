"""PP-OCR's text detector (differentiable binarisation, Liao et al. 2020), on OpenVINO or ONNX Runtime.

For every pixel the network gives the probability that it is in the shrunken core of a text region. Cores are
connected regions; each is boxed by its smallest rotated rectangle, scored by its mean probability, and grown back to
the size of the text. The weights come with the rapidocr package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import require
from tamis.math.regions import quad_mask
from tamis.models.ocr.onnx_network import load_network


@dataclass(frozen=True, eq=False)
class Regions:
    """The text regions of one image.

    Attributes:
        quads: (k, 4, 2) float32 corners (x, y) in pixels, clockwise from the top left of the text, inside the image.
        confidence: (k,) float32 in [0, 1].
    """

    quads: NDArray[np.float32]
    confidence: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.quads)

    def those(self, which: NDArray[np.bool_]) -> Regions:
        """Returns the regions that a (k,) mask selects."""
        return Regions(self.quads[which], self.confidence[which])


#: From n images and their regions to which regions can be read: (k,) bool for each image.
Legible = Callable[[Sequence[Pixels], Sequence[Regions]], list[NDArray[np.bool_]]]

#: From n images (height, width, 3) of uint8 RGB to their regions; those of one image depend on no other.
TextDetector = Callable[[Sequence[Pixels]], list[Regions]]

_CORE = 0.3  # lowest probability of a pixel in a core (PP-OCR's setting)
_GROW = 1.6  # cores grow by area * _GROW / perimeter on every side (PP-OCR's unclip ratio)
_SMALLEST = 3  # pixels; cores with a shorter side are noise
_LONGEST = 2048  # pixels; longer images are shrunk to bound the memory
_SMALL_SIDE = 224  # pixels of the shorter side in the second pass, which costs at most a quarter of the first
_STRIDE = 32  # the network halves its input five times
_BATCH = 8  # images of one size at a time


def load_text_detector(
    model: str, *, side: int, threshold: float, tallest: float, legible: Legible | None, device: Device
) -> TextDetector:
    """Loads PP-OCR's detector ("ppocr" or an ONNX file); see `TextBoxes` for the settings.

    `legible` decides about regions higher than `tallest`; None drops them.
    """
    require("cv2", extra="text")
    network = load_network(model, device)

    def look(images: Sequence[Pixels], sizes: Sequence[tuple[int, int]]) -> list[tuple[Regions, NDArray[np.float32]]]:
        results: dict[int, tuple[Regions, NDArray[np.float32]]] = {}
        by_size: dict[tuple[int, int], list[int]] = {}
        for place, size in enumerate(sizes):
            by_size.setdefault(size, []).append(place)
        for size, places in by_size.items():
            for start in range(0, len(places), _BATCH):
                some = places[start : start + _BATCH]
                stack = np.stack([_resized(images[place], size) for place in some])
                # PP-OCR reads BGR, scaled to [-1, 1].
                batch = (stack[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1).copy()  # (b, 3, h, w)
                for place, probability in zip(some, network(batch)[:, 0], strict=True):
                    height, width = images[place].shape[:2]
                    results[place] = regions_of(probability, width, height, threshold)
        return [results[place] for place in range(len(images))]

    def detect(images: Sequence[Pixels]) -> list[Regions]:
        sizes = [input_size(image.shape[1], image.shape[0], side) for image in images]
        results = look(images, sizes)
        limits = [tallest * max(image.shape[:2]) for image in images]
        lines = [some.those(heights <= limit) for (some, heights), limit in zip(results, limits, strict=True)]
        if legible is None:
            return lines
        titles = [some.those(heights > limit) for (some, heights), limit in zip(results, limits, strict=True)]
        # Letters of many hundred pixels are larger than the network's receptive field, so look at a smaller image too.
        large = [place for place, size in enumerate(sizes) if min(size) >= 2 * _SMALL_SIDE]
        again = look([images[place] for place in large], [small_size(*sizes[place]) for place in large])
        for place, (some, heights) in zip(large, again, strict=True):
            titles[place] = _together(titles[place], some.those(heights > limits[place] / 2))
        which = [place for place, some in enumerate(titles) if len(some)]
        readable = legible([images[place] for place in which], [titles[place] for place in which])
        for place, mask in zip(which, readable, strict=True):
            lines[place] = _with_new(lines[place], titles[place].those(mask), images[place])
        return lines

    return detect


def _resized(image: Pixels, size: tuple[int, int]) -> Pixels:
    import cv2

    # Bilinear sampling skips pixels of an image that is shrunk by more than two.
    averaged = size[0] * 2 <= image.shape[1] and size[1] * 2 <= image.shape[0]
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA if averaged else cv2.INTER_LINEAR))


def _together(some: Regions, others: Regions) -> Regions:
    return Regions(np.concatenate([some.quads, others.quads]), np.concatenate([some.confidence, others.confidence]))


def _with_new(regions: Regions, others: Regions, image: Pixels) -> Regions:
    """Adds those of the others that the regions so far cover by less than half."""
    height, width = image.shape[:2]
    covered = quad_mask(list(regions.quads), width, height)
    new = np.zeros(len(others), bool)
    for k, quad in enumerate(others.quads):
        own = quad_mask([quad], width, height)
        if (own & covered).sum() * 2 < own.sum():
            new[k] = True
            covered |= own
    return _together(regions, others.those(new))


def input_size(width: int, height: int, side: int) -> tuple[int, int]:
    """The network's input size: shorter side at least `side`, longer at most 2048, both multiples of 32."""
    return _scaled(width, height, min(max(1.0, side / min(width, height)), _LONGEST / max(width, height)))


def small_size(width: int, height: int) -> tuple[int, int]:
    """The size of the second pass, for large letters, after a first pass in a given size."""
    return _scaled(width, height, _SMALL_SIDE / min(width, height))


def _scaled(width: int, height: int, ratio: float) -> tuple[int, int]:
    wide, high = (max(_STRIDE, round(side * ratio / _STRIDE) * _STRIDE) for side in (width, height))
    return wide, high


def regions_of(
    probability: NDArray[np.float32], width: int, height: int, threshold: float
) -> tuple[Regions, NDArray[np.float32]]:
    """Returns the regions of one probability map (h, w), in pixels of an image of the given width and height.

    Also their heights, (k,) float32: the shorter side, before the edge of the image cuts it. A region's confidence is
    its mean probability, at least `threshold`.
    """
    import cv2

    contours, _ = cv2.findContours((probability > _CORE).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    scale = np.array([width / probability.shape[1], height / probability.shape[0]])
    quads, confidence, heights = [], [], []
    for contour in contours:
        if len(contour) < 3:  # a speck or a line, of which a noisy map has many
            continue
        centre, sides, angle = cv2.minAreaRect(contour)
        if min(sides) < _SMALLEST:
            continue
        core = cv2.boxPoints((centre, sides, angle))
        mean = _mean_inside(probability, core)
        if mean < threshold:
            continue
        # To grow a rectangle, move each side outwards: no polygon clipper is needed.
        offset = sides[0] * sides[1] * _GROW / (2 * (sides[0] + sides[1]))
        grown = (sides[0] + 2 * offset, sides[1] + 2 * offset)
        corners = cv2.boxPoints((centre, grown, angle)) * scale
        heights.append(min(np.linalg.norm(corners[0] - corners[1]), np.linalg.norm(corners[1] - corners[2])))
        quads.append(np.clip(clockwise(corners), 0, [width, height]))
        confidence.append(mean)
    regions = Regions(np.array(quads, np.float32).reshape(-1, 4, 2), np.array(confidence, np.float32))
    return regions, np.array(heights, np.float32)


def _mean_inside(probability: NDArray[np.float32], corners: NDArray[Any]) -> float:
    import cv2

    height, width = probability.shape
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, [width - 1, height - 1])
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, [width - 1, height - 1])
    mask = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(mask, [np.round(corners - [left, top]).astype(np.int32)], 1)
    return float(cv2.mean(probability[top : bottom + 1, left : right + 1], mask)[0])


def clockwise(corners: NDArray[Any]) -> NDArray[Any]:
    """Sorts four corners clockwise (y points down), from the one nearest to the top left."""
    centre = corners.mean(axis=0)
    angles = np.arctan2(corners[:, 1] - centre[1], corners[:, 0] - centre[0])
    ordered = corners[np.argsort(angles)]
    return np.roll(ordered, -int(np.argmin(ordered.sum(axis=1))), axis=0)
