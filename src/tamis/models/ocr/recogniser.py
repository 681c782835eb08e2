"""PP-OCR's text recogniser (a CTC network over lines 48 pixels high), on OpenVINO or ONNX Runtime.

Every region is turned upright and read as one line. Lines of one width class go through the network together, each
padded to the width of its class, so that what is read does not depend on what else is read. The weights and the
characters are those that the rapidocr package carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import ModelError, needs_extra
from tamis.models.ocr.detector import Regions
from tamis.models.ocr.onnx_network import load_network
from tamis.models.reference import resolve

_HEIGHT = 48  # pixels of a line, as the network was trained
_WIDTHS = (96, 160, 240, 320, 480, 640, 960, 1280, 1920)  # classes; a longer line is squeezed
_TALL = 1.5  # height over width from which a region is read as a line turned by 90 degrees
_AT_ONCE = 320 * 16  # pixels of width in one batch


@dataclass(frozen=True)
class Line:
    """What one region says: the text, and the mean probability of its characters in [0, 1]."""

    text: str
    confidence: float


class TextRecogniser(Protocol):
    """What reads found text."""

    def __call__(self, images: Sequence[Pixels], regions: Sequence[Regions]) -> list[list[Line]]:
        """Returns a line for each region of n images (height, width, 3) of uint8 RGB; "" where nothing is legible."""
        ...


def load_text_recogniser(model: str, *, device: Device) -> TextRecogniser:
    """Returns PP-OCR's recogniser.

    Args:
        model: an ONNX recogniser of PP-OCR's kind ("ppocr-rec" or a file).
        device: its threads and precision are passed on to the runtime.

    Raises:
        ModelError: it is not here, or does not say which characters it knows.
        DependencyError: opencv or onnxruntime is not installed.
    """
    try:
        import cv2  # noqa: F401
    except ImportError as error:
        raise needs_extra("opencv-python-headless", "text") from error
    found_model = resolve(model)
    characters = _characters(str(found_model.path), model)
    network = load_network(found_model.path, found_model.digest, device)

    def read(images: Sequence[Pixels], regions: Sequence[Regions]) -> list[list[Line]]:
        found = [[Line("", 0.0)] * len(some) for some in regions]
        waiting: dict[int, list[tuple[int, int, Pixels]]] = {width: [] for width in _WIDTHS}

        def read_waiting(width: int) -> None:
            crops, waiting[width] = waiting[width], []
            batch = np.zeros((len(crops), 3, _HEIGHT, width), np.float32)
            for row, (_, _, crop) in enumerate(crops):
                # PP-OCR is fed BGR, scaled to [-1, 1]; what is beside the line stays 0.
                batch[row, :, :, : crop.shape[1]] = crop[..., ::-1].transpose(2, 0, 1) / np.float32(127.5) - 1
            for (n, k, _), probability in zip(crops, network(batch), strict=True):
                found[n][k] = decoded(probability, characters)

        # A page has thousands of words, and a batch many pages: crops are read as soon as they fill a batch.
        for n, (image, some) in enumerate(zip(images, regions, strict=True)):
            for k, quad in enumerate(some.quads):
                crop = upright(image, quad)
                if crop is not None:
                    width = next(width for width in _WIDTHS if crop.shape[1] <= width)
                    waiting[width].append((n, k, crop))
                    if len(waiting[width]) == max(1, _AT_ONCE // width):
                        read_waiting(width)
        for width, crops in waiting.items():
            if crops:
                read_waiting(width)
        return found

    return read


def upright(image: Pixels, quad: NDArray[np.float32]) -> Pixels | None:
    """Returns a region as a line 48 pixels high and at most 1,920 wide; None where it is thinner than a pixel."""
    import cv2

    across = max(np.linalg.norm(quad[1] - quad[0]), np.linalg.norm(quad[2] - quad[3]))
    down = max(np.linalg.norm(quad[3] - quad[0]), np.linalg.norm(quad[2] - quad[1]))
    if min(across, down) < 1:
        return None
    if down >= _TALL * across:  # stands on its side: its left edge, from the bottom up, is the top of the line
        quad, across, down = np.roll(quad, 1, axis=0), down, across
    width = int(np.clip(np.ceil(_HEIGHT * across / down), 4, _WIDTHS[-1]))
    corners = np.array([(0, 0), (width, 0), (width, _HEIGHT), (0, _HEIGHT)], np.float32)
    turn = cv2.getPerspectiveTransform(quad.astype(np.float32), corners)
    line = cv2.warpPerspective(image, turn, (width, _HEIGHT), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(line, np.uint8)


def decoded(probability: NDArray[np.float32], characters: Sequence[str]) -> Line:
    """Returns the likeliest line by the rule of CTC: repeated classes count once, then blanks (class 0) go.

    Args:
        probability: (steps, classes).
        characters: of each class; the blank's is "".

    Source: Graves et al. 2006, "Connectionist temporal classification", best path decoding.
    """
    best = probability.argmax(1)
    kept = best != 0
    kept[1:] &= best[1:] != best[:-1]
    if not kept.any():
        return Line("", 0.0)
    sure = probability[np.nonzero(kept)[0], best[kept]]
    return Line("".join(characters[k] for k in best[kept]), float(sure.mean()))


def _characters(path: str, model: str) -> list[str]:
    """Returns the characters of the classes: the blank, those that the file lists, the space."""
    try:
        import onnxruntime
    except ImportError as error:
        raise needs_extra("onnxruntime", "text") from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    known: dict[str, Any] = (
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        .get_modelmeta()
        .custom_metadata_map
    )
    if "character" not in known:
        raise ModelError(f"{model}: the file does not list its characters, as PP-OCR's recognisers do")
    return ["", *known["character"].split("\n"), " "]
