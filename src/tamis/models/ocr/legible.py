"""Which regions hold text that can be read: the second look at those that are too high for a line of text.

The detector takes a dog on a lawn for a huge letter, and the title of a book cover for the same. The recogniser tells
them apart: it is sure of the title and unsure of the dog. It is least to be trusted with one character, as any round
thing is a good O; such a region is read again a little closer and a little wider, which what is written survives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.models.ocr.detector import Legible, Regions
from tamis.models.ocr.recogniser import Line, load_text_recogniser

_CLOSER, _WIDER = 0.88, 1.12  # sides of the crops of one character, to those of its region


def load_legible(model: str, *, confidence: float, device: Device) -> Legible:
    """Returns what says which regions can be read.

    Args:
        model: a recogniser, as in `load_text_recogniser`.
        confidence: the lowest mean probability of the characters. One character alone must be the same in three crops
            of different size, with half the doubt in each: 0.95 for 0.9.
        device: as in `load_text_recogniser`.
    """
    read = load_text_recogniser(model, device=device)
    of_one = (1 + confidence) / 2

    def legible(images: Sequence[Pixels], regions: Sequence[Regions]) -> list[NDArray[np.bool_]]:
        lines = read(images, regions)
        found = [_reach(some, confidence) for some in lines]
        alone = [np.array([len(line.text.strip()) == 1 for line in some], bool) for some in lines]
        which = [n for n, ones in enumerate(alone) if (ones & found[n]).any()]
        for n in which:
            found[n] &= ~alone[n] | _reach(lines[n], of_one)
        for size in (_CLOSER, _WIDER):
            again = read([images[n] for n in which], [resized(regions[n], size) for n in which])
            for n, some in zip(which, again, strict=True):
                pairs = zip(lines[n], some, strict=True)
                same = np.array([old.text.strip() == new.text.strip() for old, new in pairs], bool)
                found[n] &= ~alone[n] | (same & _reach(some, of_one))
        return found

    return legible


def _reach(lines: Sequence[Line], confidence: float) -> NDArray[np.bool_]:
    return np.array([line.confidence >= confidence for line in lines], bool)


def resized(regions: Regions, size: float) -> Regions:
    """Returns the regions with their sides `size` times as long, about their centres; they may leave the image."""
    centres = regions.quads.mean(axis=1, keepdims=True)
    return Regions((centres + (regions.quads - centres) * np.float32(size)).astype(np.float32), regions.confidence)
