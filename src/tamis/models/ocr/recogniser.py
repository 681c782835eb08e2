"""PP-OCR's text recogniser (a CTC network over lines 48 pixels high), and which regions it can read.

Every region is turned upright and read as one line. Lines of one width class go through the network together, padded
to the same width, so the text of a line depends on no other line. The weights and the characters come with the rapidocr
package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import ModelError, require
from tamis.models.ocr.detector import Legible, Regions, load_network
from tamis.models.reference import resolve

_HEIGHT = 48  # pixels of a line, as in the network's training
_WIDTHS = (96, 160, 240, 320, 480, 640, 960, 1280, 1920)  # width classes; a longer line is squeezed
_TALL = 1.5  # height over width from which a region is read as a line turned by 90 degrees
_AT_ONCE = 320 * 16  # pixels of width in one batch
_CLOSER, _WIDER = 0.88, 1.12  # sides of the crops of a single character, relative to its region


@dataclass(frozen=True)
class Line:
    """The text of one region, "" where nothing is legible, and the mean probability of its characters in [0, 1]."""

    text: str
    confidence: float


#: From n images (height, width, 3) of uint8 RGB and their regions to a line for each region.
TextRecogniser = Callable[[Sequence[Pixels], Sequence[Regions]], list[list[Line]]]


def load_text_recogniser(model: str, *, device: Device) -> TextRecogniser:
    """Loads PP-OCR's recogniser ("ppocr-rec" or an ONNX file). Raises ModelError if it does not list its characters."""
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
                lines[n][k] = decoded(probability, characters)

        # A page has thousands of words, and a batch many pages: read crops as soon as they fill a batch.
        for n, (image, some) in enumerate(zip(images, regions, strict=True)):
            for k, quad in enumerate(some.quads):
                crop = upright(image, quad)
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
    """Loads a check of which regions, too high for a line of text, can be read.

    The detector takes a dog on a lawn for a huge letter, and the title of a book cover for the same; the recogniser is
    sure of the title only. It is least reliable with one character, as any round thing is a good O. Such a region is
    read again in a smaller and a larger crop, and must give the same character, at (1 + confidence) / 2.
    `confidence` is the lowest mean probability of the characters.
    """
    read = load_text_recogniser(model, device=device)
    single_confidence = (1 + confidence) / 2

    def legible(images: Sequence[Pixels], regions: Sequence[Regions]) -> list[NDArray[np.bool_]]:
        lines = read(images, regions)
        readable = [_confident(some, confidence) for some in lines]
        single = [np.array([len(line.text.strip()) == 1 for line in some], bool) for some in lines]
        which = [n for n, mask in enumerate(single) if (mask & readable[n]).any()]
        for n in which:
            readable[n] &= ~single[n] | _confident(lines[n], single_confidence)
        for scale in (_CLOSER, _WIDER):
            again = read([images[n] for n in which], [_scaled(regions[n], scale) for n in which])
            for n, some in zip(which, again, strict=True):
                pairs = zip(lines[n], some, strict=True)
                same = np.array([old.text.strip() == new.text.strip() for old, new in pairs], bool)
                readable[n] &= ~single[n] | (same & _confident(some, single_confidence))
        return readable

    return legible


def _confident(lines: Sequence[Line], confidence: float) -> NDArray[np.bool_]:
    return np.array([line.confidence >= confidence for line in lines], bool)


def _scaled(regions: Regions, scale: float) -> Regions:
    """Scales the regions about their centres; they may leave the image."""
    centres = regions.quads.mean(axis=1, keepdims=True)
    return Regions((centres + (regions.quads - centres) * np.float32(scale)).astype(np.float32), regions.confidence)


def upright(image: Pixels, quad: NDArray[np.float32]) -> Pixels | None:
    """Returns a region as a line 48 pixels high and at most 1,920 wide; None where it is thinner than a pixel."""
    import cv2

    across = max(np.linalg.norm(quad[1] - quad[0]), np.linalg.norm(quad[2] - quad[3]))
    down = max(np.linalg.norm(quad[3] - quad[0]), np.linalg.norm(quad[2] - quad[1]))
    if min(across, down) < 1:
        return None
    if down >= _TALL * across:  # on its side: its left edge, from the bottom up, is the top of the line
        quad, across, down = np.roll(quad, 1, axis=0), down, across
    width = int(np.clip(np.ceil(_HEIGHT * across / down), 4, _WIDTHS[-1]))
    corners = np.array([(0, 0), (width, 0), (width, _HEIGHT), (0, _HEIGHT)], np.float32)
    turn = cv2.getPerspectiveTransform(quad.astype(np.float32), corners)
    line = cv2.warpPerspective(image, turn, (width, _HEIGHT), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(line, np.uint8)


def decoded(probability: NDArray[np.float32], characters: Sequence[str]) -> Line:
    """Returns the likeliest line of probabilities (steps, classes) by CTC: repeats count once, then blanks (0) go.

    Source: Graves et al. 2006, "Connectionist temporal classification", best path decoding.
    """
    best = probability.argmax(1)
    kept = best != 0
    kept[1:] &= best[1:] != best[:-1]
    if not kept.any():
        return Line("", 0.0)
    confidence = probability[np.nonzero(kept)[0], best[kept]]
    return Line("".join(characters[k] for k in best[kept]), float(confidence.mean()))


def _characters(model: str) -> list[str]:
    """The characters of the classes: the blank, those that the file lists, the space."""
    import onnxruntime

    path = str(resolve(model).path)

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    metadata: dict[str, Any] = session.get_modelmeta().custom_metadata_map
    if "character" not in metadata:
        raise ModelError(f"{model}: the file does not list its characters, as PP-OCR's recognisers do")
    return ["", *metadata["character"].split("\n"), " "]
