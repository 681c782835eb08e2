"""Faults of images that need no model: dark, bright, blurred, empty, transparent, grey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from tamis.core.arrays import Pixels
from tamis.core.types import Column, Device, Node, Signal
from tamis.signals.features.sources import DecodedImages, Transparencies, each_present

#: Images are reduced to this longer side first, so that sharpness does not depend on the resolution of the file.
LONGEST_SIDE = 512

#: Channels that are at most this far apart are grey: JPEG changes the colours of a grey image by a few values.
GREY_SPREAD = 8

# Perceived brightness is the root of .241 R² + .691 G² + .068 B², as CleanVision has it; here in thousandths.
_RED, _GREEN, _BLUE = (weight * np.arange(256, dtype=np.int32) ** 2 for weight in (241, 691, 68))


@dataclass(frozen=True, kw_only=True)
class ImageQuality(Signal):
    """Measures brightness, contrast, sharpness and flatness of an image: what its faults look like in numbers.

    All are of the image reduced to a longer side of 512 pixels; smaller images are not enlarged. CleanVision calls an
    image dark if `brightest` is below 0.32, and light if `darkest` is above 0.95. A shallow depth of field gives a low
    `sharpness` too: then `sharpest` is high, because some edge is in focus.

    Emits:
        brightness: mean brightness, in [0, 1].
        darkest: 5th percentile of the brightness, in [0, 1].
        brightest: 99th percentile of the brightness, in [0, 1].
        contrast: standard deviation of the lightness, in [0, 0.5].
        sharpness: variance of the Laplacian (4 neighbours) of the lightness in [0, 255]; below 100 often blurred. 0 for
            an image under 3 pixels wide or high.
        sharpest: 99.9th percentile of the absolute Laplacian, as a share of the range of the lightness (1st to 99th
            percentile, at least 1), in [0, 1020]; below 0.35 no edge is sharp. 0 where `sharpness` is.
        entropy: of the lightness (256 values), in [0, 8] bits.
        one_colour: share of pixels in the most frequent of 4,096 colours, in [0, 1].
        transparent: mean transparency, in [0, 1]; 0 where the file has no alpha channel.
        grey: share of pixels whose channels are at most 8 of 255 apart, in [0, 1].
        All NaN where the image does not decode.

    Cost: 8 ms per image of 512 x 512 pixels on one CPU core; reducing one of 2,000 x 3,000 adds 11 ms.

    Source: CleanVision (github.com/cleanlab/cleanvision) for percentiles of the perceived brightness; Pech-Pacheco et
        al. 2000, "Diatom autofocusing in brightfield microscopy", for the variance of the Laplacian.
    """

    name = "image_quality"
    version = 2
    host = True
    columns = (
        Column(name="brightness", unit="share", better="neither", about="mean brightness of the image"),
        Column(name="darkest", unit="share", better="low", about="5th percentile of brightness; high: overexposed"),
        Column(name="brightest", unit="share", better="high", about="99th percentile of brightness; low: dark"),
        Column(name="contrast", unit="share", better="high", about="standard deviation of the lightness"),
        Column(name="sharpness", unit="variance", better="high", about="variance of the Laplacian; low: blurred"),
        Column(name="sharpest", unit="share", better="high", about="sharpest edges; low: nothing is in focus"),
        Column(name="entropy", unit="bits", better="high", about="entropy of the lightness; low: little to see"),
        Column(name="one_colour", unit="share", better="low", about="share of pixels in the most frequent colour"),
        Column(name="transparent", unit="share", better="low", about="mean transparency of the stored image"),
        Column(name="grey", unit="share", better="neither", about="share of grey pixels; 1: no colour"),
    )

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages(), "transparent": Transparencies()}

    def load(self, device: Device) -> Callable[..., Any]:
        names = [column.name for column in self.columns]

        def score(*, images: Sequence[Pixels | None], transparent: Sequence[float]) -> dict[str, Any]:
            rows = np.full((len(images), len(names)), np.nan, np.float32)
            measured = each_present(images, lambda present: map(quality, present))
            for row, values, share in zip(rows, measured, transparent, strict=True):
                if values is not None:
                    row[:] = [({**values, "transparent": share})[name] for name in names]
            return dict(zip(names, rows.T, strict=True))

        return score


def quality(image: Pixels) -> dict[str, float]:
    """Returns the columns of `image_quality`, without `transparent`, of one image (height, width, 3) uint8."""
    small = Image.fromarray(image)
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BOX)
    light = np.asarray(small.convert("L"))
    red, green, blue = np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))
    shares = np.bincount(light.ravel(), minlength=256) / light.size
    present = shares[shares > 0]
    colours = np.bincount(((red >> 4).astype(np.uint16) << 8 | (green & 0xF0) | blue >> 4).ravel(), minlength=4096)
    squares = _RED[red] + _GREEN[green] + _BLUE[blue]  # whole numbers: the same on every processor
    bright = np.sqrt(squares.astype(np.float32) / 1000) / 255
    darkest, brightest = np.percentile(bright, (5, 99))
    sharpness, steepest = _laplacian(light.astype(np.float32))
    darkest_grey, brightest_grey = np.searchsorted(np.cumsum(shares), (0.01, 0.99))
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    return {
        "brightness": float(bright.mean(dtype=np.float64)),
        "darkest": float(darkest),
        "brightest": float(brightest),
        "contrast": float(light.std() / 255),
        "sharpness": sharpness,
        "sharpest": steepest / max(int(brightest_grey - darkest_grey), 1),
        "entropy": float((present * -np.log2(present)).sum()),
        "one_colour": float(colours.max() / light.size),
        "grey": float((spread <= GREY_SPREAD).mean()),
    }


def _laplacian(light: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[float, int]:
    """The variance and the 99.9th absolute percentile of the Laplacian inside the border, of lightness."""
    if min(light.shape) < 3:
        return 0.0, 0
    across = light[1:-1, :-2] + light[1:-1, 2:]
    down = light[:-2, 1:-1] + light[2:, 1:-1]
    edges = across + down - 4 * light[1:-1, 1:-1]
    counts = np.bincount(np.abs(edges).astype(np.int16).ravel())
    return float(edges.var(dtype=np.float64)), int(np.searchsorted(np.cumsum(counts), 0.999 * edges.size))
