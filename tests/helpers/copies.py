"""Copies of images, and the hashes by which they are found."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from tamis.core.arrays import Pixels
from tamis.signals.image_hash import colours_of, hashes_of, lightness_of


def hash_columns(images: Sequence[Pixels]) -> dict[str, Any]:
    """Returns what the signals `image_hash` and `image_size` say of images."""
    return {
        "image_hash": [hashes_of(image) for image in images],
        "image_colours": [colours_of(image) for image in images],
        "image_lightness": [lightness_of(image) for image in images],
        "width": np.array([image.shape[1] for image in images], np.float32),
        "height": np.array([image.shape[0] for image in images], np.float32),
    }


def recompressed(pixels: Pixels, quality: int = 60) -> Pixels:
    """Returns what JPEG makes of some pixels."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=quality)
    return np.asarray(Image.open(out).convert("RGB"))
