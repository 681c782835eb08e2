"""PP-OCR's text detector (differentiable binarisation, Liao et al. 2020), on OpenVINO or ONNX Runtime.

The network gives, for every pixel, the probability that it lies in the shrunken core of a text region. Cores are
found as connected regions, boxed by the smallest rotated rectangle, judged by their mean probability, and grown back
to the size of the text. The weights are those that the rapidocr package carries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import needs_extra
from tamis.math.area import quad_mask
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

    def those(self, which: NDArray[np.bool_]) -> Regions:
        """Returns some of them, in the same order: (k,) bool."""
        return Regions(self.quads[which], self.confidence[which])


#: Says which regions of n images hold text that can be read: for each image (k,) bool.
Legible = Callable[[Sequence[Pixels], Sequence[Regions]], list[NDArray[np.bool_]]]


class TextDetector(Protocol):
    """What finds written text: any detector can stand in for ours."""

    def __call__(self, images: Sequence[Pixels]) -> list[Regions]:
        """Returns the regions of n images (height, width, 3) of uint8 RGB; those of one depend on no other."""
        ...


_CORE = 0.3  # probability from which a pixel belongs to a core (PP-OCR's setting)
_GROW = 1.6  # how far cores grow: area * _GROW / perimeter on every side (PP-OCR's unclip ratio)
_SMALLEST = 3  # pixels; cores whose smaller side is shorter are noise
_LONGEST = 2048  # pixels; longer sides are shrunk to it, so that a banner cannot take all memory
_SMALL_SIDE = 224  # pixels of the shorter side at the second look; no more than a quarter of the first look's cost
_STRIDE = 32  # the network halves its input five times


def load_text_detector(
    model: str, *, side: int, threshold: float, tallest: float, legible: Legible | None, device: Device
) -> TextDetector:
    """Returns PP-OCR's detector.

    Args:
        model: an ONNX detector of PP-OCR's kind ("ppocr" or a file).
        side: as in `TextBoxes`.
        threshold, tallest: as in `TextBoxes`.
        legible: judges the regions that are higher than `tallest`; without it they are dropped.
        device: its threads and precision are passed on to the runtime.
    """
    try:
        import cv2  # noqa: F401
    except ImportError as error:
        raise needs_extra("opencv-python-headless", "text") from error
    found_model = resolve(model)
    network = load_network(found_model.path, found_model.digest, device)

    def look(images: Sequence[Pixels], sizes: Sequence[tuple[int, int]]) -> list[tuple[Regions, NDArray[np.float32]]]:
        found: dict[int, tuple[Regions, NDArray[np.float32]]] = {}
        by_size: dict[tuple[int, int], list[int]] = {}
        for place, size in enumerate(sizes):
            by_size.setdefault(size, []).append(place)
        for size, places in by_size.items():
            for start in range(0, len(places), 8):
                some = places[start : start + 8]
                stack = np.stack([_resized(images[place], size) for place in some])
                # PP-OCR is fed BGR, scaled to [-1, 1].
                batch = (stack[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1).copy()  # (b, 3, h, w)
                for place, probability in zip(some, network(batch)[:, 0], strict=True):
                    height, width = images[place].shape[:2]
                    found[place] = regions_of(probability, width, height, threshold)
        return [found[place] for place in range(len(images))]

    def detect(images: Sequence[Pixels]) -> list[Regions]:
        sizes = [input_size(image.shape[1], image.shape[0], side) for image in images]
        found = look(images, sizes)
        most = [tallest * max(image.shape[:2]) for image in images]
        lines = [some.those(heights <= limit) for (some, heights), limit in zip(found, most, strict=True)]
        if legible is None:
            return lines
        titles = [some.those(heights > limit) for (some, heights), limit in zip(found, most, strict=True)]
        # Letters of many hundred pixels are larger than what the network sees at once: it sees them made small.
        large = [place for place, size in enumerate(sizes) if min(size) >= 2 * _SMALL_SIDE]
        again = look([images[place] for place in large], [small_size(*sizes[place]) for place in large])
        for place, (some, heights) in zip(large, again, strict=True):
            high = some.those(heights > most[place] / 2)
            titles[place] = _together(titles[place], high)
        which = [place for place, some in enumerate(titles) if len(some)]
        judged = legible([images[place] for place in which], [titles[place] for place in which])
        for place, readable in zip(which, judged, strict=True):
            height, width = images[place].shape[:2]
            lines[place] = _with_new(lines[place], titles[place].those(readable), width, height)
        return lines

    return detect


def _resized(image: Pixels, size: tuple[int, int]) -> Pixels:
    import cv2

    # Made much smaller, an image loses what falls between the samples unless it is averaged.
    averaged = size[0] * 2 <= image.shape[1] and size[1] * 2 <= image.shape[0]
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA if averaged else cv2.INTER_LINEAR))


def _together(some: Regions, others: Regions) -> Regions:
    return Regions(np.concatenate([some.quads, others.quads]), np.concatenate([some.confidence, others.confidence]))


def _with_new(found: Regions, others: Regions, width: int, height: int) -> Regions:
    """Returns the regions and those of the others that they, and the ones before, cover by less than half."""
    for k in range(len(others)):
        own = quad_mask([others.quads[k]], width, height)
        covered = quad_mask(list(found.quads), width, height)
        if (own & covered).sum() * 2 < own.sum():
            found = _together(found, others.those(np.arange(len(others)) == k))
    return found


def input_size(width: int, height: int, side: int) -> tuple[int, int]:
    """Returns the size that the network sees: shorter side at least `side`, longer at most 2048, multiples of 32."""
    ratio = max(1.0, side / min(width, height))
    ratio = min(ratio, _LONGEST / max(width, height))
    return (
        max(_STRIDE, round(width * ratio / _STRIDE) * _STRIDE),
        max(_STRIDE, round(height * ratio / _STRIDE) * _STRIDE),
    )


def small_size(width: int, height: int) -> tuple[int, int]:
    """Returns the size of the second look, for large letters, at an image that was seen in a given size."""
    ratio = _SMALL_SIDE / min(width, height)
    return (
        max(_STRIDE, round(width * ratio / _STRIDE) * _STRIDE),
        max(_STRIDE, round(height * ratio / _STRIDE) * _STRIDE),
    )


def regions_of(
    probability: NDArray[np.float32], width: int, height: int, threshold: float
) -> tuple[Regions, NDArray[np.float32]]:
    """Returns the regions of one probability map, in the pixels of a (width, height) image, and how high they are.

    Args:
        probability: (h, w) in [0, 1].
        width, height: of the image.
        threshold: lowest mean probability of a region, which is its confidence.

    Returns:
        The regions, and of each the shorter side in pixels before the image's edge cuts it: (k,) float32. There are
        as many as the map holds: specks go before anything is kept for each core, which bounds the memory.
    """
    import cv2

    cores = _without_specks((probability > _CORE).astype(np.uint8))
    contours, _ = cv2.findContours(cores, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    scale = np.array([width / probability.shape[1], height / probability.shape[0]])
    quads, confidence, heights = [], [], []
    for contour in contours:
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
        heights.append(min(np.linalg.norm(corners[0] - corners[1]), np.linalg.norm(corners[1] - corners[2])))
        quads.append(np.clip(clockwise(corners), 0, [width, height]))
        confidence.append(sure)
    regions = Regions(np.array(quads, np.float32).reshape(-1, 4, 2), np.array(confidence, np.float32))
    return regions, np.array(heights, np.float32)


def _without_specks(cores: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns a map of cores (1) without those, and without the holes in them, that are too small for a region.

    The smallest rotated rectangle is no larger than the upright one, so what spans less than `_SMALLEST` squared there
    cannot be kept; in a noisy map that is nearly everything, up to a million contours.
    """
    import cv2

    kept = cores
    # Cores touch at corners (8 neighbours), the ground between them does not (4); a hole's contour lies outside of it.
    for value, neighbours, beside in ((1, 8, 0), (0, 4, 2)):
        _, labels, stats, _ = cv2.connectedComponentsWithStats(
            (kept == value).astype(np.uint8), connectivity=neighbours
        )
        spans = stats[:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]].astype(np.int64) + beside - 1
        small = spans.prod(axis=1) < _SMALLEST**2
        small[0] = False  # the label of all that has the other value
        if value == 0:  # ground that the edge of the map cuts is no hole
            low, high = stats[:, :2], stats[:, :2] + stats[:, 2:4]
            small &= (low > 0).all(axis=1) & (high < kept.shape[::-1]).all(axis=1)
        if small.any():
            kept = np.where(small[labels], 1 - value, kept).astype(np.uint8)
    return kept


def _mean_inside(probability: NDArray[np.float32], corners: NDArray[Any]) -> float:
    import cv2

    height, width = probability.shape
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, [width - 1, height - 1])
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, [width - 1, height - 1])
    mask = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(mask, [np.round(corners - [left, top]).astype(np.int32)], 1)
    return float(cv2.mean(probability[top : bottom + 1, left : right + 1], mask)[0])


def clockwise(corners: NDArray[Any]) -> NDArray[Any]:
    """Returns four corners clockwise (y points down), beginning with the one nearest to the top left."""
    centre = corners.mean(axis=0)
    angles = np.arctan2(corners[:, 1] - centre[1], corners[:, 0] - centre[0])
    ordered = corners[np.argsort(angles)]
    return np.roll(ordered, -int(np.argmin(ordered.sum(axis=1))), axis=0)
