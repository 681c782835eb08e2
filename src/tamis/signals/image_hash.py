"""Perceptual hashes of images: equal or nearly equal for copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tamis.core.arrays import Pixels
from tamis.core.math.copies import COLOUR, SIDE, image_hash
from tamis.core.types import Column, Device, Node, Signal
from tamis.signals.features.sources import DecodedImages, HiddenContents, each_present

#: Shares of each side that are cropped before hashing.
MARGINS = (0.0, 0.03, 0.06)


@dataclass(frozen=True, kw_only=True)
class ImageHash(Signal):
    """Gives each image hashes of 64 bits that hardly change when it is recompressed, scaled or made brighter.

    Copies differ in a few bits, unrelated images in about half of them. The first hash covers the whole image, the
    others leave out 3 % and 6 % of each side, to find cropped copies. Different images can have similar hashes;
    `distinct` then compares their lightness and colours, which are thumbnails.

    Emits:
        image_hash: three times 16 hex digits, separated by spaces; zeros if the image is flat. None if the image does
            not decode (content_hidden: NaN).
        image_colours: 256 hex digits: the blue and red difference (Cb, Cr) of 8 x 8 cells, a byte each.
        image_lightness: 2,048 hex digits: the lightness of 32 x 32 cells, a byte each.
        content_hidden: 1 if an image is a single colour once transparency is ignored, e.g. black line art on a
            transparent background, else 0. All such drawings decode to the same image, so we hash the alpha channel
            instead, and halve the colours so that they never match an opaque image. Always 0 with `--transparency
            white`.

    Cost: 1 ms per image on one CPU core.

    Source: see `tamis.core.math.copies.image_hash`.
    """

    name = "image_hash"
    version = 3
    columns = (
        Column("image_hash", "hex digits", "neither", kind="word", about="perceptual hash of the image"),
        Column("image_colours", "hex digits", "neither", kind="word", about="colours of 8 x 8 fields"),
        Column("image_lightness", "hex digits", "neither", kind="word", about="lightness of 32 x 32 fields"),
        Column(
            "content_hidden",
            "0 or 1",
            "low",
            about="1: a single colour once transparency is ignored, e.g. black line art on a transparent background",
        ),
    )

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages(), "hidden": HiddenContents()}

    def load(self, device: Device) -> Callable[..., Any]:
        def score(*, images: Sequence[Pixels | None], hidden: Sequence[Pixels | None]) -> dict[str, Any]:
            shown = [image if opacity is None else opacity for image, opacity in zip(images, hidden, strict=True)]
            flags = [opacity is not None for opacity in hidden]
            grey = each_present(shown, lambda present: map(_hashes_and_lightness, present))
            return {
                "image_hash": [None if found is None else found[0] for found in grey],
                "image_colours": [
                    None if image is None else colours_of(image, halved=flag)
                    for image, flag in zip(images, flags, strict=True)
                ],
                "image_lightness": [None if found is None else found[1] for found in grey],
                "content_hidden": np.where([image is None for image in images], np.nan, flags).astype(np.float32),
            }

        return score


def hashes_of(image: Pixels) -> str:
    """Returns the hashes of an image and of its cropped versions, as hex digits."""
    return _hashes_and_lightness(image)[0]


def colours_of(image: Pixels, *, halved: bool = False) -> str:
    """Returns the chroma of 8 x 8 cells of an image as 256 hex digits."""
    small = Image.fromarray(image).resize((COLOUR, COLOUR), Image.Resampling.BICUBIC)
    colours = np.asarray(small.convert("YCbCr"))[..., 1:]
    return (colours // 2 if halved else colours).tobytes().hex()


def lightness_of(image: Pixels) -> str:
    """Returns the lightness of 32 x 32 cells of an image, as 2,048 hex digits."""
    return _hashes_and_lightness(image)[1]


def _hashes_and_lightness(image: Pixels) -> tuple[str, str]:
    """Returns both from the same thumbnails: the first is of 32 x 32 cells, without a margin."""
    grey = Image.fromarray(image).convert("L")
    small = [_thumbnail(grey, margin) for margin in MARGINS]
    return " ".join(f"{image_hash(one.astype(np.float32)):016x}" for one in small), small[0].tobytes().hex()


def _thumbnail(grey: Image.Image, margin: float) -> NDArray[np.uint8]:
    """Returns a grey image cropped by a share of each side, resized to (SIDE, SIDE)."""
    width, height = grey.size
    inside = (margin * width, margin * height, (1 - margin) * width, (1 - margin) * height)
    # Not a box filter, which takes whole pixels: then the same image in another size would have other cells.
    return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=inside))
