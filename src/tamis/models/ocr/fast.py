"""FAST's text detector (Chen et al. 2021), which T-MARS used, from any ONNX export of its network.

The network gives one map of logits, a quarter of its input's size, positive in the shrunken cores of text regions.
Cores are connected regions, grown back by max pooling, and kept by their mean probability and their area. The authors
release .pth files (github.com/czczup/FAST); export the network alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import ModelError, require
from tamis.models.ocr.detector import Regions, TextDetector, clockwise
from tamis.models.ocr.onnx_network import load_network

# ImageNet's, as in FAST's training.
_MEAN = np.array((0.485, 0.456, 0.406), np.float32)
_STD = np.array((0.229, 0.224, 0.225), np.float32)


def load_fast_detector(
    model: str, *, side: int, threshold: float, area: int, pooling: int, tallest: float, device: Device
) -> TextDetector:
    """Loads FAST's detector; see `FastBoxes` for the settings. One image at a time, since exports may fix the batch."""
    require("cv2", extra="text")
    network = load_network(model, device)

    def detect(images: Sequence[Pixels]) -> list[Regions]:
        regions = []
        for image in images:
            square, left, top = squared(image)
            resized = np.asarray(Image.fromarray(square).resize((side, side), Image.Resampling.BICUBIC), np.float32)
            batch = ((resized / 255 - _MEAN) / _STD).transpose(2, 0, 1)[None]  # (1, 3, side, side)
            maps = network(np.ascontiguousarray(batch))
            if maps.ndim != 4 or maps.shape[0] != 1:
                raise ModelError(f"{model}: FAST gives (1, channels, height, width), this network {maps.shape}")
            quads, confidence = fast_quads(maps[0, 0], side, threshold, area, pooling)
            quads = quads * (square.shape[0] / side) - [left, top]
            height, width = image.shape[:2]
            edges = np.linalg.norm(quads - np.roll(quads, 1, axis=1), axis=2)  # (k, 4)
            kept = edges.min(axis=1, initial=np.inf) <= tallest * max(width, height)
            clipped = np.clip(quads[kept], 0, [width, height]).astype(np.float32)
            regions.append(Regions(clipped, confidence[kept]))
        return regions

    return detect


def squared(image: Pixels) -> tuple[Pixels, int, int]:
    """Pads an image to a white square (as T-MARS does); returns also the margins on the left and at the top."""
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

    A region is the smallest rotated rectangle around its pixels, which grow by about a quarter of `pooling`, in pixels
    of half the square. `logits` (h, w) may be probabilities, if the export ends in a sigmoid: all are then in [0, 1],
    as logits never are.

    Source: Chen et al. 2021, FAST (arXiv 2111.02394), section 3.3; sizes, order and ties as in github.com/czczup/FAST,
        models/head/fast_head.py and models/utils/generate_bbox.py (which draws the outline, not the rectangle).
    """
    import cv2

    if logits.min() >= 0 and logits.max() <= 1:
        clipped = np.clip(logits, 1e-7, 1 - 1e-7)
        logits = np.log(clipped / (1 - clipped))
    _, cores = cv2.connectedComponents((logits > 0).astype(np.uint8), connectivity=8)
    grown = _grown(cores.astype(np.float32), side, pooling).astype(np.int64)
    probability = 1 / (1 + np.exp(-_grown(logits.astype(np.float32), side, pooling).astype(np.float64)))
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


def _grown(values: NDArray[np.float32], side: int, pooling: int) -> NDArray[np.float32]:
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
