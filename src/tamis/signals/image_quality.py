"""Faults of images that need no model: dark, bright, blurred, empty, transparent, grey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tamis.core.arrays import Pixels
from tamis.core.types import Column, Device, Node, Signal
from tamis.signals.features.sources import DecodedImages, Transparencies, each_present

#: Images are reduced to this longer side first, so that sharpness does not depend on the resolution of the file.
LONGEST_SIDE = 512

#: Channels that are at most this far apart are grey: JPEG changes the colours of a grey image by a few values.
GREY_SPREAD = 8

# Perceived brightness is the root of .241 R² + .691 G² + .068 B², as CleanVision has it; here in thousandths.
_WEIGHTS = 241, 691, 68

_MOST = 1000 * 255**2

#: The largest Laplacian: of a pixel of 0 among four of 255, or the reverse.
_STEEPEST = 4 * 255


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

    Cost: 5 ms per image of 512 x 512 pixels on one CPU core; reducing one of 2,000 x 3,000 adds 11 ms.

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
    grey = small.convert("L")
    counts = np.array(grey.histogram())
    shares = counts / counts.sum()
    present = shares[shares > 0]
    red, green, blue = map(np.asarray, small.split())
    colours = np.bincount(((red >> 4).astype(np.uint16) << 8 | (green & 0xF0) | blue >> 4).ravel(), minlength=4096)
    # Whole numbers: the same on every processor.
    squares: Any = sum(
        weight * each.astype(np.int32) ** 2 for weight, each in zip(_WEIGHTS, (red, green, blue), strict=True)
    )
    darkest, brightest = _brightness_at(squares, np.array([0.05, 0.99]))
    sharpness, steepest = _laplacian(np.asarray(grey))
    darkest_grey, brightest_grey = np.searchsorted(np.cumsum(shares), (0.01, 0.99))
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    return {
        "brightness": float(_brightness(squares).mean(dtype=np.float64)),
        "darkest": float(darkest),
        "brightest": float(brightest),
        "contrast": variance(counts) ** 0.5 / 255,
        "sharpness": sharpness,
        "sharpest": steepest / max(int(brightest_grey - darkest_grey), 1),
        "entropy": float((present * -np.log2(present)).sum()),
        "one_colour": float(colours.max() / squares.size),
        "grey": np.count_nonzero(spread <= GREY_SPREAD) / squares.size,
    }


def _brightness(squares: NDArray[np.int32]) -> NDArray[np.float32]:
    """The brightness in [0, 1] of weighted squares of the channels."""
    return np.asarray(np.sqrt(squares.astype(np.float32) / 1000) / 255, np.float32)


def _brightness_at(squares: NDArray[np.int32], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """`np.quantile` of the brightness: brighter pixels have larger squares, which are faster to order."""
    places = (squares.size - 1) * shares
    below = places.astype(np.intp)
    ordered = np.partition(squares.ravel(), below)
    above = np.array([ordered[place + 1 :].min(initial=_MOST) for place in below])  # the next in order
    low, high, part = _brightness(ordered[below]), _brightness(above), places - below
    found: NDArray[np.float64] = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return found


def variance(counts: NDArray[np.int64]) -> float:
    """The variance of whole numbers, of which 0 occurs counts[0] times, 1 counts[1] times; rounded once."""
    values = np.arange(counts.size)
    n, total, squares = (int(each.sum()) for each in (counts, counts * values, counts * values**2))
    return (n * squares - total**2) / n**2


def _laplacian(light: NDArray[np.uint8]) -> tuple[float, int]:
    """The variance and the 99.9th absolute percentile of the Laplacian inside the border, of lightness."""
    if min(light.shape) < 3:
        return 0.0, 0
    signed = light.astype(np.int16)
    edges = signed[1:-1, :-2] + signed[1:-1, 2:] + signed[:-2, 1:-1] + signed[2:, 1:-1] - 4 * signed[1:-1, 1:-1]
    counts = np.bincount((edges + np.int16(_STEEPEST)).ravel(), minlength=2 * _STEEPEST + 1)
    steep = counts[_STEEPEST:] + np.append(0, counts[_STEEPEST - 1 :: -1])  # by absolute value
    return variance(counts), int(np.searchsorted(np.cumsum(steep), 0.999 * edges.size))
