"""A hash of what a picture looks like: equal or nearly equal for copies of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from tamis.arrays import Pixels
from tamis.data import Column, Device, Node, Scorer
from tamis.features.sources import DecodedImages
from tamis.math import lightness
from tamis.math.hashing import SIDE, image_hash

#: What is cut off on each side before a hash is taken, as a share of the side.
MARGINS = (0.0, 0.03, 0.06)

#: Fields on each side whose colours are told.
FIELDS = 4


@dataclass(frozen=True, kw_only=True)
class ImageHash(Scorer):
    """Gives each image hashes of 64 bits that hardly change when it is recompressed, scaled or made brighter.

    Copies differ in a few bits, unrelated pictures in about half of them. The first hash is of the whole image, the
    others of its inside, without 3 % and 6 % of each side: so a copy that lost its rim is found. The hashes see
    brightness only; the colours tell pictures of one composition apart, and the lightness things on one white ground.
    `distinct` drops what lies near.

    Emits:
        image_hash: three times 16 hex digits with spaces between them, as a word; zeros where the picture is flat.
            None (a NaN among numbers) where the image does not decode.
        image_colours: 64 hex digits: the mean blue and red difference (Cb, Cr) of 4 x 4 fields, a byte each.
        image_lightness: 512 hex digits: the mean lightness of 16 x 16 fields, a byte each.

    Cost: 0.6 ms per image on one CPU core.

    Source: see `tamis.math.hashing.image_hash`.
    """

    name: ClassVar[str] = "image_hash"
    version: ClassVar[int] = 3
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="image_hash", unit="hex digits", better="neither", kind="word", about="perceptual hash of the image"
        ),
        Column(
            name="image_colours", unit="hex digits", better="neither", kind="word", about="mean colours of 16 fields"
        ),
        Column(
            name="image_lightness", unit="hex digits", better="neither", kind="word", about="lightness of 256 fields"
        ),
    )

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages()}

    def load(self, device: Device) -> Callable[..., Any]:
        def score(*, images: Sequence[Pixels | None]) -> dict[str, list[str | None]]:
            return {
                "image_hash": [None if image is None else hashes_of(image) for image in images],
                "image_colours": [None if image is None else colours_of(image) for image in images],
                "image_lightness": [None if image is None else lightness_of(image) for image in images],
            }

        return score


def hashes_of(image: Pixels) -> str:
    """Returns the hashes of an image and of its inside, as hex digits."""
    grey = Image.fromarray(image).convert("L")
    width, height = grey.size
    found = []
    for margin in MARGINS:
        box = (margin * width, margin * height, (1 - margin) * width, (1 - margin) * height)
        small = grey.resize((SIDE, SIDE), Image.Resampling.BOX, box=box)
        found.append(f"{image_hash(np.asarray(small, np.float32)):016x}")
    return " ".join(found)


def colours_of(image: Pixels) -> str:
    """Returns the mean colours of 4 x 4 fields of an image, without their brightness, as 64 hex digits."""
    height, width = image.shape[:2]
    # An image narrower than the fields is enlarged, as it is for its hash.
    small = Image.fromarray(image).resize((FIELDS, FIELDS), Image.Resampling.BOX, box=(0, 0, width, height))
    return np.asarray(small.convert("YCbCr"))[..., 1:].tobytes().hex()


def lightness_of(image: Pixels) -> str:
    """Returns the mean lightness of 16 x 16 fields of an image, as 512 hex digits."""
    height, width = image.shape[:2]
    grey = Image.fromarray(image).convert("L")
    size = (lightness.FIELDS, lightness.FIELDS)
    return np.asarray(grey.resize(size, Image.Resampling.BOX, box=(0, 0, width, height))).tobytes().hex()
