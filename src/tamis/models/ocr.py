"""Written text in images: PP-OCR's detector and recogniser, FAST's detector, and the networks in ONNX files.

Both detectors (PP-OCR: Liao et al. 2020; FAST: Chen et al. 2021, used by T-MARS) estimate for every pixel the
probability that it is in the shrunken core of a text region. A core is a connected region; we grow it back to the size
of the text and take its smallest rotated rectangle, with its mean probability as confidence. FAST's authors release
.pth files (github.com/czczup/FAST): export the network alone.

The recogniser (a CTC network over lines 48 pixels high) turns every region upright and reads it as one line. Lines of
one width class go through the network together, padded to the same width, so other lines never change a line's text.
PP-OCR's weights and its list of characters come with the rapidocr package.
"""

from __future__ import annotations

import importlib.util
import re
import threading
import unicodedata
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError, require
from tamis.core.machine import cores, fast_bf16
from tamis.core.math.regions import quad_mask
from tamis.core.types import Device, ModelRef
from tamis.models.loading import load_once, one_sentence
from tamis.models.reference import resolve


@dataclass(frozen=True, eq=False)
class Regions:
    """The k text regions of one image, and their `confidence` (k,) float32 in [0, 1].

    `quads` is (k, 4, 2) float32: corners (x, y) in pixels, clockwise from the text's top left, inside the image.
    """

    quads: NDArray[np.float32]
    confidence: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.quads)

    def select(self, which: NDArray[np.bool_ | np.intp]) -> Regions:
        """Returns the regions that a (k,) mask or row numbers select."""
        return Regions(self.quads[which], self.confidence[which])


#: n images and their regions -> whether each region can be read, (k,) bool per image.
Legible = Callable[[Sequence[Pixels], Sequence[Regions]], list[NDArray[np.bool_]]]

#: n images (height, width, 3) of uint8 RGB -> their regions, each image on its own.
TextDetector = Callable[[Sequence[Pixels]], list[Regions]]

#: Asks for the probability maps of images, and returns lines and what may be titles.
Search = Generator[Pixels, NDArray[np.float32], tuple[Regions, Regions]]

_PIXELS_AT_ONCE = 32 << 18  # of the images in one batch of a GPU: 32 of 512 x 512 pixels
_CORE = 0.3  # lowest probability of a pixel in a core (PP-OCR's setting)
_GROW = 1.6  # cores grow by area * _GROW / perimeter on every side (PP-OCR's unclip ratio)
_SMALLEST = 3  # pixels; cores with a shorter side are noise
_LONGEST = 2048  # pixels; longer images are shrunk to bound the memory
_SMALL_SIDE = 128  # pixels of the shorter side in the pass for large letters, which costs at most a third of the first
_STRIDE = 32  # the network halves its input five times

# A small image is first searched coarsely. All in pixels of that look:
_COARSE = (224, 400)  # the shorter side
_SURE = 16  # regions of at least this height need no finer look
_STRONG, _WEAK = 0.5, 0.01  # a strong response elsewhere makes us look finely at the rectangle around all weak ones
_MARGIN = 16  # around that rectangle
# The finer look
_ZOOM = (1.25, 2.25)  # enlarges at least and at most this much
_STEP = 64  # pixels; the network is compiled once for every size


def load_text_detector(
    model: str, *, side: int, threshold: float, tallest: float, legible: Legible | None, device: Device
) -> TextDetector:
    """Loads PP-OCR's detector ("ppocr" or an ONNX file); see `TextBoxes` for the settings.

    `legible` decides which regions higher than `tallest` are kept, next to `is_drawn`; None drops them all.
    """
    require("cv2", extra="text")
    import cv2

    on_cpu = device.kind == "cpu"
    network = load_network(model, device, one_by_one=on_cpu)
    pool = ThreadPoolExecutor(device.threads or cores(), "tamis-text")

    def respond(images: Sequence[Pixels]) -> NDArray[np.float32]:
        """Returns the probability maps of n images of one size: (n, h, w)."""
        # PP-OCR reads BGR, scaled to [-1, 1].
        batch = cv2.dnn.blobFromImages(images, 1 / 127.5, mean=(127.5, 127.5, 127.5), swapRB=True)  # (n, 3, h, w)
        return network(np.asarray(batch, np.float32))[:, 0]

    def search(image: Pixels) -> Search:
        """Returns the lines, and what may be titles."""
        height, width = image.shape[:2]
        size, limit = coarse_size(width, height, side), tallest * min(width, height)
        response = yield _resize(image, size)
        regions, heights = regions_of(response, width, height, threshold)
        scale, zoom = size[1] / height, fine_zoom(width, height, side)
        sure = heights * scale >= _SURE
        large = legible is not None and response.max() > _CORE
        crop = crop_of(response, regions.select(sure), width, height, zoom) if zoom else None
        if crop is not None:
            left, top, right, bottom = crop
            part, enlarged = (
                image[top:bottom, left:right],
                [_round_up((end - start) * zoom, _STEP) for start, end in ((left, right), (top, bottom))],
            )
            # Cubic interpolation finds a tenth more words than bilinear.
            response = yield np.asarray(cv2.resize(part, enlarged, interpolation=cv2.INTER_CUBIC), np.uint8)
            fine, fine_heights = regions_of(response, right - left, bottom - top, threshold)
            # The coarse look sees large letters better: out of context, windows and icons look like them.
            small = fine_heights * scale < 2 * _SURE
            moved = Regions(fine.quads + np.array([left, top], np.float32), fine.confidence).select(small)
            regions, new = _add_uncovered(regions.select(sure), moved, image)
            heights = np.concatenate([heights[sure], fine_heights[small][new]])
        titles = regions.select(heights > limit)
        if large:
            # The network sees a large letter as a thing, and a part of it as a letter, so look at a smaller image too.
            response = yield _resize(image, small_size(*size))
            again, their_heights = regions_of(response, width, height, threshold)
            titles = _concatenate(titles, again.select(their_heights > limit / 2))
        return regions.select(heights <= limit), titles

    def answer_alone(searching: Search) -> tuple[Regions, Regions]:
        asked, found = _go_on(searching, None)
        while asked is not None:  # one image at a time on each core, since OpenVINO compiles each size of batch again
            asked, found = _go_on(searching, respond([asked])[0])
        lines, titles = found
        return lines, titles

    def find_titles(image: Pixels, found: tuple[Regions, Regions]) -> tuple[Regions, NDArray[np.bool_]]:
        """Returns the titles that lines do not cover, and which of them are drawn."""
        titles = found[1].select(_add_uncovered(*found, image, apart=True)[1])
        return titles, np.array([is_drawn(image, quad) for quad in titles.quads], bool)

    def detect(images: Sequence[Pixels]) -> list[Regions]:
        searches = [search(image) for image in images]
        if on_cpu:  # large images first, so that all cores finish together
            order = sorted(range(len(images)), key=lambda n: -images[n].size)
            by_number = dict(zip(order, pool.map(answer_alone, [searches[n] for n in order]), strict=True))
            results = [by_number[n] for n in range(len(images))]
        else:
            results = answer_together(searches, respond, pool)
        if legible is None:
            return [lines for lines, _ in results]
        # Neither titles that lines cover nor those that are drawn need to be read.
        titles, drawn = zip(*pool.map(find_titles, images, results), strict=True) if images else ((), ())
        readable = legible(images, [some.select(~mask) for some, mask in zip(titles, drawn, strict=True)])
        for mask, read in zip(drawn, readable, strict=True):
            mask[~mask] = read
        return [
            _add_uncovered(lines, some.select(mask), image)[0]
            for image, (lines, _), some, mask in zip(images, results, titles, drawn, strict=True)
        ]

    return detect


def _go_on(search: Search, response: NDArray[np.float32] | None) -> tuple[Pixels | None, Any]:
    """Sends a map to a search; returns what it asks next, or None and what it found."""
    try:
        return (next(search) if response is None else search.send(response)), None
    except StopIteration as end:
        return None, end.value


def answer_together(
    searches: Sequence[Search], respond: Callable[[Sequence[Pixels]], NDArray[np.float32]], pool: ThreadPoolExecutor
) -> list[tuple[Regions, Regions]]:
    """Runs searches side by side; one batch of the network answers those that wait for maps of the same size."""
    states = list(pool.map(_go_on, searches, [None] * len(searches)))
    while waiting := [(n, asked) for n, (asked, _) in enumerate(states) if asked is not None]:
        by_size: dict[tuple[int, ...], list[tuple[int, Pixels]]] = {}
        for n, asked in waiting:
            by_size.setdefault(asked.shape, []).append((n, asked))
        for (height, width, _), those in by_size.items():
            most = max(1, _PIXELS_AT_ONCE // (height * width))
            for some in (those[start : start + most] for start in range(0, len(those), most)):
                responses = respond([asked for _, asked in some])
                for (n, _), state in zip(
                    some, pool.map(_go_on, [searches[n] for n, _ in some], responses), strict=True
                ):
                    states[n] = state
    return [found for _, found in states]


def crop_of(
    response: NDArray[np.float32], sure: Regions, width: int, height: int, zoom: float
) -> tuple[int, int, int, int] | None:
    """Returns the part of an image that deserves a finer look, in its pixels: left, top, right, bottom."""
    import cv2

    unsure = response.copy()
    scale = np.array([unsure.shape[1] / width, unsure.shape[0] / height])
    for quad in sure.quads:
        cv2.fillPoly(unsure, [np.rint(quad * scale).astype(np.int32)], 0)
    if unsure.max() <= _STRONG:
        return None
    left, top, wide, high = cv2.boundingRect((unsure > _WEAK).astype(np.uint8))
    ends = []
    for start, length, share, most in ((left, wide, scale[0], width), (top, high, scale[1], height)):
        middle, length = (start + length / 2) / share, (length + 2 * _MARGIN) / share
        length = min(most, round(_round_up(length * zoom, _STEP) / zoom))
        begin = int(np.clip(round(middle - length / 2), 0, most - length))
        ends.append((begin, begin + length))
    return ends[0][0], ends[1][0], ends[0][1], ends[1][1]


def _resize(image: Pixels, size: tuple[int, int]) -> Pixels:
    import cv2

    # Bilinear sampling skips pixels when an image shrinks to less than half.
    averaged = size[0] * 2 <= image.shape[1] and size[1] * 2 <= image.shape[0]
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA if averaged else cv2.INTER_LINEAR))


def _concatenate(some: Regions, others: Regions) -> Regions:
    return Regions(np.concatenate([some.quads, others.quads]), np.concatenate([some.confidence, others.confidence]))


def _add_uncovered(
    regions: Regions, others: Regions, image: Pixels, *, apart: bool = False
) -> tuple[Regions, NDArray[np.bool_]]:
    """Adds each of the others that is less than half covered by the regions so far; also returns which these are.

    `apart`: by the regions alone, not by others that were added.
    """
    if not len(others):
        return regions, np.zeros(0, bool)
    height, width = image.shape[:2]
    covered = quad_mask(list(regions.quads), width, height)
    new = np.zeros(len(others), bool)
    for k, quad in enumerate(others.quads):
        own = quad_mask([quad], width, height)
        if (own & covered).sum() * 2 < own.sum():
            new[k] = True
            if not apart:
                covered |= own
    return _concatenate(regions, others.select(new)), new


def coarse_size(width: int, height: int, side: int) -> tuple[int, int]:
    """Returns the network's input size for the whole image, both multiples of 32; it fits the longest side, 2048."""
    short = min(width, height)
    ratio = np.clip(short, *_COARSE) / short if fine_zoom(width, height, side) else 1.0
    return _scale_sides(width, height, min(float(ratio), _LONGEST / max(width, height)))


def fine_zoom(width: int, height: int, side: int) -> float:
    """Returns how much the finer look enlarges, to a shorter side of `side` if it can; 0 for large images."""
    zoom = min(_ZOOM[1], side / min(width, height), _LONGEST / max(width, height))
    return zoom if zoom >= _ZOOM[0] else 0.0


def small_size(width: int, height: int) -> tuple[int, int]:
    """Returns the size of the pass for large letters, from the size of the first."""
    return _scale_sides(width, height, _SMALL_SIDE / min(width, height))


def _scale_sides(width: int, height: int, ratio: float) -> tuple[int, int]:
    wide, high = (max(_STRIDE, round(side * ratio / _STRIDE) * _STRIDE) for side in (width, height))
    return wide, high


def _round_up(length: float, step: int) -> int:
    """Rounds up to a multiple, but forgives a hundredth."""
    return max(1, int(np.ceil(length / step - 0.01))) * step


def regions_of(
    probability: NDArray[np.float32], width: int, height: int, threshold: float
) -> tuple[Regions, NDArray[np.float32]]:
    """Returns the regions of a probability map (h, w), in pixels of the image, and their heights, (k,) float32.

    A height is the shorter side before clipping to the image. A region's mean probability is at least `threshold`.
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
        # Growing a rectangle moves each side outwards, which needs no polygon clipper.
        offset = sides[0] * sides[1] * _GROW / (2 * (sides[0] + sides[1]))
        grown = (sides[0] + 2 * offset, sides[1] + 2 * offset)
        corners = cv2.boxPoints((centre, grown, angle)) * scale
        heights.append(min(np.linalg.norm(corners[0] - corners[1]), np.linalg.norm(corners[1] - corners[2])))
        quads.append(_to_edges(clockwise(corners), width, height))
        confidence.append(mean)
    regions = Regions(np.array(quads, np.float32).reshape(-1, 4, 2), np.array(confidence, np.float32))
    return regions, np.array(heights, np.float32)


def _to_edges(corners: NDArray[Any], width: int, height: int) -> NDArray[Any]:
    """Moves corners outside the image, or less than a pixel from its edge, to the edge: masks leave no last column."""
    ends = np.array([width, height])
    return np.where(corners < 1, 0, np.where(corners > ends - 1, ends, corners))


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


# ---- FAST

# ImageNet's mean and deviation, as in FAST's training.
_MEAN = np.array((0.485, 0.456, 0.406), np.float32)
_STD = np.array((0.229, 0.224, 0.225), np.float32)


def load_fast_detector(
    model: str, *, side: int, threshold: float, area: int, pooling: int, tallest: float, device: Device
) -> TextDetector:
    """Loads FAST's detector; see `FastBoxes` for the settings. Runs single images, as an export may fix the batch."""
    require("cv2", extra="text")
    network = load_network(model, device)

    def detect(images: Sequence[Pixels]) -> list[Regions]:
        regions = []
        for image in images:
            square, left, top = pad_to_square(image)
            resized = np.asarray(Image.fromarray(square).resize((side, side), Image.Resampling.BICUBIC), np.float32)
            batch = ((resized / 255 - _MEAN) / _STD).transpose(2, 0, 1)[None]  # (1, 3, side, side)
            maps = network(np.ascontiguousarray(batch))
            if maps.ndim != 4 or maps.shape[0] != 1:
                raise ModelError(f"{model}: FAST returns (1, channels, height, width), this network {maps.shape}")
            quads, confidence = fast_quads(maps[0, 0], side, threshold, area, pooling)
            quads = quads * (square.shape[0] / side) - [left, top]
            height, width = image.shape[:2]
            edges = np.linalg.norm(quads - np.roll(quads, 1, axis=1), axis=2)  # (k, 4)
            kept = edges.min(axis=1, initial=np.inf) <= tallest * max(width, height)
            clipped = np.clip(quads[kept], 0, [width, height]).astype(np.float32)
            regions.append(Regions(clipped, confidence[kept]))
        return regions

    return detect


def pad_to_square(image: Pixels) -> tuple[Pixels, int, int]:
    """Pads an image to a white square, as T-MARS does; also returns the left and top margins."""
    height, width = image.shape[:2]
    longer = max(height, width)
    left, top = (longer - width) // 2, (longer - height) // 2
    square = np.full((longer, longer, 3), 255, np.uint8)
    square[top : top + height, left : left + width] = image
    return square, left, top


def fast_quads(
    logits: NDArray[np.float32], side: int, threshold: float, area: int, pooling: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns the regions of one map, in pixels of the network's square input: corners (k, 4, 2), confidence (k,).

    A region is the smallest rotated rectangle around its pixels, after they grow by about `pooling` / 4 at half size.
    `logits` (h, w) may be probabilities, if the export ends in a sigmoid: then all are in [0, 1], as logits never are.

    Source: Chen et al. 2021, FAST (arXiv 2111.02394), section 3.3; sizes, order and ties as in github.com/czczup/FAST,
        models/head/fast_head.py and models/utils/generate_bbox.py (which draws the outline, not the rectangle).
    """
    import cv2

    if logits.min() >= 0 and logits.max() <= 1:
        clipped = np.clip(logits, 1e-7, 1 - 1e-7)
        logits = np.log(clipped / (1 - clipped))
    _, cores = cv2.connectedComponents((logits > 0).astype(np.uint8), connectivity=8)
    grown = _max_pool(cores.astype(np.float32), side, pooling).astype(np.int64)
    probability = 1 / (1 + np.exp(-_max_pool(logits.astype(np.float32), side, pooling).astype(np.float64)))
    pixels = np.bincount(grown.ravel())
    means = np.bincount(grown.ravel(), weights=probability.ravel()) / np.maximum(pixels, 1)
    quads, confidence = [], []
    for label in range(1, len(pixels)):
        if pixels[label] < max(area, 1) or means[label] < threshold:
            continue
        points = np.argwhere(grown == label)[:, ::-1].astype(np.float32)  # x, y
        quads.append(clockwise(np.asarray(cv2.boxPoints(cv2.minAreaRect(points)), np.float32)))
        confidence.append(means[label])
    return np.array(quads, np.float32).reshape(-1, 4, 2), np.array(confidence, np.float32)


def _max_pool(values: NDArray[np.float32], side: int, pooling: int) -> NDArray[np.float32]:
    """Max-pools a map at half the side, as FAST does, and resizes it to the side."""
    import cv2

    half = _nearest(values, side // 2)
    window, before = pooling // 2 + 1, (pooling // 2) // 2
    kernel = np.ones((window, window), np.uint8)
    spread = np.asarray(cv2.dilate(half, kernel, anchor=(before, before)), np.float32)
    end = len(spread) - (window - 1 - 2 * before)  # an even window makes the map one smaller
    return _nearest(spread[:end, :end], side)


def _nearest(values: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """Resizes a map by repeating values (torch's "nearest")."""
    rows, columns = ((np.arange(side) * (size / side)).astype(int) for size in values.shape)
    return np.ascontiguousarray(values[rows][:, columns])


# ---- PP-OCR's recogniser

_HEIGHT = 48  # pixels of a line, as in the network's training
_WIDTHS = (96, 160, 240, 320, 480, 640, 960, 1280, 1920)  # width classes; a longer line is squeezed
_TALL = 1.5  # regions with at least this height / width are read as lines turned by 90 degrees
_AT_ONCE = 320 * 16  # pixels of width in one batch
_CLOSER, _WIDER = 0.88, 1.12  # sides of the crops of a single character, relative to its region


@dataclass(frozen=True)
class Line:
    """The text of one region, "" if nothing is legible, and the mean probability of its characters in [0, 1]."""

    text: str
    confidence: float


#: n images (height, width, 3) of uint8 RGB and their regions -> one line per region.
TextRecogniser = Callable[[Sequence[Pixels], Sequence[Regions]], list[list[Line]]]


def load_text_recogniser(model: str, *, device: Device) -> TextRecogniser:
    """Loads PP-OCR's recogniser ("ppocr-rec" or an ONNX file); ModelError if it does not list its characters."""
    require("cv2", "onnxruntime", extra="text")
    characters, network = _characters(model), load_network(model, device)

    def read(images: Sequence[Pixels], regions: Sequence[Regions]) -> list[list[Line]]:
        lines = [[Line("", 0.0)] * len(some) for some in regions]
        pending: dict[int, list[tuple[int, int, Pixels]]] = {width: [] for width in _WIDTHS}

        def read_pending(width: int) -> None:
            crops, pending[width] = pending[width], []
            batch = np.zeros((len(crops), 3, _HEIGHT, width), np.float32)
            for row, (_, _, crop) in enumerate(crops):
                # PP-OCR reads BGR, scaled to [-1, 1]; the padding is 0.
                batch[row, :, :, : crop.shape[1]] = crop[..., ::-1].transpose(2, 0, 1) / np.float32(127.5) - 1
            for (n, k, _), probability in zip(crops, network(batch), strict=True):
                lines[n][k] = decode_line(probability, characters)

        # A page has thousands of words, and a batch many pages, so read crops as soon as they fill a batch.
        for n, (image, some) in enumerate(zip(images, regions, strict=True)):
            for k, quad in enumerate(some.quads):
                crop = cut_line(image, quad)
                if crop is not None:
                    width = next(width for width in _WIDTHS if crop.shape[1] <= width)
                    pending[width].append((n, k, crop))
                    if len(pending[width]) == max(1, _AT_ONCE // width):
                        read_pending(width)
        for width, crops in pending.items():
            if crops:
                read_pending(width)
        return lines

    return read


def load_legible(model: str, *, confidence: float, device: Device) -> Legible:
    """Loads a check of whether regions that are too high for a line of text can be read.

    The detector takes a dog on a lawn for a huge letter, like the title of a book cover, but the recogniser is sure
    only of the title: mean probability at least `confidence`. It is least reliable with one character, since any round
    thing is a good O, so three crops of different size must give the same one, at (1 + confidence) / 2.
    """
    read = load_text_recogniser(model, device=device)
    single_confidence = (1 + confidence) / 2

    def legible(images: Sequence[Pixels], regions: Sequence[Regions]) -> list[NDArray[np.bool_]]:
        lines = read(images, regions)
        readable = [_are_confident(some, confidence) for some in lines]
        single = [np.array([len(line.text.strip()) == 1 for line in some], bool) for some in lines]
        for n in range(len(images)):
            readable[n] &= ~single[n] | _are_confident(lines[n], single_confidence)
        for scale in (_CLOSER, _WIDER):
            which = [np.flatnonzero(mask & one) for mask, one in zip(readable, single, strict=True)]
            closer = [_rescale(some.select(rows), scale) for some, rows in zip(regions, which, strict=True)]
            for n, again in enumerate(read(images, closer)):
                pairs = zip(which[n].tolist(), again, strict=True)
                same = np.array([lines[n][k].text.strip() == new.text.strip() for k, new in pairs], bool)
                readable[n][which[n]] = same & _are_confident(again, single_confidence)
        return readable

    return legible


def _are_confident(lines: Sequence[Line], confidence: float) -> NDArray[np.bool_]:
    return np.array([line.confidence >= confidence for line in lines], bool)


def _rescale(regions: Regions, scale: float) -> Regions:
    """Scales the regions about their centres; they may leave the image."""
    centres = regions.quads.mean(axis=1, keepdims=True)
    return Regions((centres + (regions.quads - centres) * np.float32(scale)).astype(np.float32), regions.confidence)


def cut_line(image: Pixels, quad: NDArray[np.float32]) -> Pixels | None:
    """Returns a region as a line 48 pixels high and at most 1,920 wide; None if it is thinner than a pixel."""
    import cv2

    across = max(np.linalg.norm(quad[1] - quad[0]), np.linalg.norm(quad[2] - quad[3]))
    down = max(np.linalg.norm(quad[3] - quad[0]), np.linalg.norm(quad[2] - quad[1]))
    if min(across, down) < 1:
        return None
    if down >= _TALL * across:  # text on its side: its left edge, from the bottom up, is the top of the line
        quad, across, down = np.roll(quad, 1, axis=0), down, across
    width = int(np.clip(np.ceil(_HEIGHT * across / down), 4, _WIDTHS[-1]))
    corners = np.array([(0, 0), (width, 0), (width, _HEIGHT), (0, _HEIGHT)], np.float32)
    turn = cv2.getPerspectiveTransform(quad.astype(np.float32), corners)
    line = cv2.warpPerspective(image, turn, (width, _HEIGHT), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(line, np.uint8)


_FLAT = 4  # deviation of a channel below which its two tones are noise
_TWO_TONES = 0.88  # share of the variance between the two tones
_THICKEST = 0.24  # width of a stroke, as a share of the line's height
_UNEVEN = 0.45  # deviation of that width, as a share of it
_AT_THE_RIM = 0.1  # share of the rim that is ink


def is_drawn(image: Pixels, quad: NDArray[np.float32]) -> bool:
    """Whether a region looks like large writing in any script: thin strokes of one colour and width, inside the region.

    Few things in a photograph have only two tones, and their parts differ in width. Icons and line drawings pass.
    Otsu's threshold separates the tones, in the best channel of Lab; the tone that is rarer at the rim is the ink. We
    measure a stroke at its middle, where the distance to its edge is largest.

    Source: Otsu 1979, the criterion eta; Epshtein et al. 2010, "Detecting text in natural scenes with stroke width
        transform", section 3. The thresholds are measured (docs/signals.md, "Large letters").
    """
    import cv2

    line = cut_line(image, quad)
    if line is None:
        return False
    most, ink = 0.0, np.zeros(line.shape[:2], bool)
    for channel in cv2.split(cv2.cvtColor(line, cv2.COLOR_RGB2LAB)):
        high = channel > cv2.threshold(np.asarray(channel, np.uint8), 0, 255, cv2.THRESH_OTSU)[0]
        if channel.std() < _FLAT or high.all():
            continue
        share = high.mean()
        separated = share * (1 - share) * (channel[high].mean() - channel[~high].mean()) ** 2 / channel.var()
        if separated > most:
            most, ink = separated, high
    if most < _TWO_TONES:
        return False
    rim = np.concatenate([ink[0], ink[-1], ink[:, 0], ink[:, -1]]).mean()
    reach = np.asarray(cv2.distanceTransform((ink ^ (rim > 0.5)).astype(np.uint8), cv2.DIST_L2, 3))
    middle = (reach > 0) & (reach == cv2.dilate(reach, np.ones((3, 3), np.uint8)))
    widths = 2 * reach[middle]
    thin, even = widths.mean() < _THICKEST * _HEIGHT, widths.std() < _UNEVEN * widths.mean()
    return bool(thin and even and min(rim, 1 - rim) < _AT_THE_RIM)


def decode_line(probability: NDArray[np.float32], characters: Sequence[str]) -> Line:
    """Decodes probabilities (steps, classes) by CTC's best path: merge repeats, drop blanks, 0 (Graves et al. 2006)."""
    best = probability.argmax(1)
    kept = best != 0
    kept[1:] &= best[1:] != best[:-1]
    if not kept.any():
        return Line("", 0.0)
    confidence = probability[np.nonzero(kept)[0], best[kept]]
    return Line("".join(characters[k] for k in best[kept]), float(confidence.mean()))


def load_can_read(model: str) -> Callable[[str], bool]:
    """Loads a check of whether a recogniser knows the script of a text: at least half of its letters, accents aside."""
    known = set(_characters(model))

    def can_read(text: str) -> bool:
        plain = (
            character for character in unicodedata.normalize("NFKD", text) if unicodedata.category(character) != "Mn"
        )
        found = [character in known for character in plain if character.isalpha()]
        return 2 * sum(found) >= len(found)

    return can_read


def _characters(model: str) -> list[str]:
    """Returns the character of each class: a blank, the characters in the file, a space."""
    import onnxruntime

    path = str(resolve(model).path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    metadata: dict[str, Any] = session.get_modelmeta().custom_metadata_map
    if "character" not in metadata:
        raise ModelError(f"{model}: the file does not list its characters, as PP-OCR's recognisers do")
    return ["", *metadata["character"].split("\n"), " "]


# ---- networks in ONNX files

#: An entry of a tensor's `external_data` with the key "location", as protobuf writes it.
_EXTERNAL = re.compile(rb"\x6a[\x00-\xff]{1,2}\n\x08location\x12")

Network = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@load_once(keep=4)
def load_network(model: ModelRef, device: Device, one_by_one: bool = False) -> Network:
    """Loads an .onnx file as a function from one float32 array to its first output.

    `one_by_one`: each call is computed by one core of a CPU, so that several threads can call it at once.

    On a CPU OpenVINO runs it, in bf16 if both the device and the CPU do; without OpenVINO, ONNX Runtime in float32. On
    other devices torch runs it in float32; networks with operators that we do not know stay on the CPU.
    """
    path = resolve(model).path
    if _EXTERNAL.search(path.read_bytes()):
        raise ModelError(f"{path} has weights in other files: save it as one file (onnx.save without external data)")
    with one_sentence("the ONNX network", path):
        if device.kind != "cpu":
            from tamis.models.onnx_torch import load_on_device

            if (network := load_on_device(path, device)) is not None:
                return network
        return (_on_openvino if _has_openvino() else _on_onnxruntime)(path, device, one_by_one)


def _on_openvino(path: Path, device: Device, one_by_one: bool) -> Network:
    import openvino

    config: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "bf16" if device.precision == "bf16" and fast_bf16() else "f32",
        "PERFORMANCE_HINT": "LATENCY",
        # Pinning would bind the calling thread of every worker to the same first core.
        "ENABLE_CPU_PINNING": False,
        # Kernels are compiled for each size of image; the 5,000 that OpenVINO keeps are those of 60 sizes.
        "CPU_RUNTIME_CACHE_CAPACITY": 10_000,
    }
    if device.threads or one_by_one:
        config["INFERENCE_NUM_THREADS"] = device.threads or cores()
    if one_by_one:
        config |= {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": device.threads or cores()}
    compiled = openvino.Core().compile_model(_with_small_head(openvino.Core().read_model(path)), "CPU", config)
    own = threading.local()  # an inference request serves one thread

    def run(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        # Keep the shapes dynamic: a reshaped network would be compiled again for every size.
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        return np.array(own.request.infer([batch])[0])

    return run


#: The end of PP-OCR's detector, from its output.
_HEAD = ("Sigmoid", "Add", "ConvolutionBackpropData", "Relu", "Add", "ConvolutionBackpropData")


def _with_small_head(model: Any) -> Any:
    """Computes PP-OCR's last two transposed convolutions before enlarging: the same numbers, a fifth less time. Each
    enlarges twofold without overlap, so it is a 1 x 1 convolution with four times the channels, side by side.
    """
    from openvino import Model, opset13

    steps = [model.get_results()[0]]
    for kind in _HEAD:
        step = steps[-1].input_value(0).get_node()
        while step.get_type_name() == "Identity":
            step = step.input_value(0).get_node()
        if step.get_type_name() != kind:
            return model
        steps.append(step)
    first, second = steps[6], steps[3]
    weights, bias, weights2, bias2 = (
        np.asarray(step.input_value(1).get_node().get_data()) for step in (first, steps[5], second, steps[2])
    )
    c_in, c = weights.shape[:2]
    if weights.shape[2:] != (2, 2) or weights2.shape != (c, 1, 2, 2) or first.get_attributes()["strides"] != [2, 2]:
        return model
    before = weights.transpose(2, 3, 1, 0).reshape(4 * c, c_in, 1, 1)  # ((y, x, c), c_in)
    after = np.zeros((2, 2, 2, 2, 2, 2, c), np.float32)  # (y, y2, x, x2), (y, x, c)
    for y, x in np.ndindex(2, 2):
        after[y, :, x, :, y, x] = weights2[:, 0].transpose(1, 2, 0)

    def conv(values: Any, kernel: Any, added: Any) -> Any:
        product = opset13.convolution(values, opset13.constant(kernel), [1, 1], [0, 0], [0, 0], [1, 1])
        return opset13.add(product, opset13.constant(added.reshape(1, -1, 1, 1)))

    values = opset13.relu(conv(first.input_value(0), np.ascontiguousarray(before), np.tile(bias.ravel(), 4)))
    values = opset13.sigmoid(conv(values, after.reshape(16, 4 * c, 1, 1), np.tile(bias2.ravel(), 16)))
    return Model([opset13.depth_to_space(values, "blocks_first", 4)], model.get_parameters())


def _on_onnxruntime(path: Path, device: Device, one_by_one: bool) -> Network:
    require("onnxruntime", extra="text")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1 if one_by_one else device.threads or 0
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0].name
    return lambda batch: np.asarray(session.run(None, {entry: batch})[0])


def network_arithmetic(device: Device) -> str:
    """Returns the arithmetic of `load_network` on a device, for fingerprints.

    In float32, OpenVINO and ONNX Runtime found identical quadrilaterals in 96 of 96 images, so both are "float32".
    OpenVINO's bf16 found others in 30 of the 96.
    """
    if device.kind != "cpu":
        return f"float32 on {device.kind.partition(':')[0]}"
    return "bf16" if _has_openvino() and device.precision == "bf16" and fast_bf16() else "float32"


def _has_openvino() -> bool:
    return importlib.util.find_spec("openvino") is not None
