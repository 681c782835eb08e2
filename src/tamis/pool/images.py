"""Decoding: image bytes to RGB pixels, exactly as Pillow gives them, EXIF rotation applied."""

from __future__ import annotations

import io
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tamis.arrays import Pixels
from tamis.data import Sample
from tamis.errors import SampleError

#: Formats that trainers' loaders open. Others are refused: Pillow hands some of them to outside programs (EPS to
#: Ghostscript), and none of them is a photograph from the web.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "JPEG2000", "AVIF", "PPM", "TGA", "ICO")

#: What becomes of transparency: "drop" shows the colours that lie under it, as `convert("RGB")` and so trainers'
#: loaders do (black, as most programs write it); "white" lays the image on white, as a page shows it.
Transparency = Literal["drop", "white"]

# What Pillow raises on broken bytes: almost anything that parsing can raise.
_BROKEN = (
    OSError,
    ValueError,
    TypeError,
    SyntaxError,
    KeyError,
    IndexError,
    AttributeError,
    EOFError,
    OverflowError,
    ZeroDivisionError,
    NotImplementedError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
)


class _Pillow:
    """Settings of the whole process that hold while any thread decodes, and are put back when the last one ends.

    Pillow warns of odd EXIF and of palettes, which changes no pixels; and it stops at a number of pixels of its own.
    Threads that each entered `catch_warnings` would put back each other's filters, and leave all warnings off.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filters = warnings.catch_warnings()
        self._limit: int | None = None

    @contextmanager
    def quiet(self, max_pixels: int) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")
                self._limit = Image.MAX_IMAGE_PIXELS
            self._inside += 1
            if self._limit is not None and max_pixels > self._limit:
                Image.MAX_IMAGE_PIXELS = max_pixels
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    Image.MAX_IMAGE_PIXELS = self._limit
                    self._filters.__exit__(None, None, None)


_PILLOW = _Pillow()


def decode(data: bytes, *, max_pixels: int, transparency: Transparency = "drop") -> Pixels:
    """Decodes one image.

    Transparency is dropped, unless asked otherwise, and 16-bit values are clipped, both as `Image.convert("RGB")`
    does: a trainer's loader shows its model the same. Of an animation the first frame is taken.

    Args:
        data: the bytes of an image file.
        max_pixels: more than this are not decoded.
        transparency: what becomes of it, "drop" or "white".

    Returns:
        (height, width, 3) uint8 RGB, upright.

    Raises:
        SampleError: with status image_broken, image_too_large or image_refused, and a reason.
    """
    if not data:
        raise SampleError("image_broken", "the image file has no bytes")
    with _PILLOW.quiet(max_pixels):
        try:
            with Image.open(io.BytesIO(data), formats=[name for name in FORMATS if _known(name)]) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise SampleError(
                        "image_too_large", f"{width} x {height} pixels, more than the limit of {max_pixels:,}"
                    )
                upright = ImageOps.exif_transpose(image)
                return np.asarray((_on_white(upright) if transparency == "white" else upright).convert("RGB"))
        except SampleError:
            raise
        except Image.DecompressionBombError as error:
            raise SampleError("image_too_large", f"more than the limit of {max_pixels:,} pixels: {error}") from error
        except UnidentifiedImageError as error:
            raise _unidentified(data) from error
        except _BROKEN as error:
            raise SampleError("image_broken", f"cannot be decoded: {type(error).__name__}: {error}") from error


def _on_white(image: Image.Image) -> Image.Image:
    """Returns an image laid on white; itself where nothing of it is transparent."""
    if image.mode not in ("RGBA", "RGBa", "LA", "La", "PA") and "transparency" not in image.info:
        return image
    page = Image.new("RGBA", image.size, "white")
    page.alpha_composite(image if image.mode == "RGBA" else image.convert("RGBA"))
    return page


def is_image(data: bytes) -> bool:
    """Tells by its header whether a file is an image in one of `FORMATS`; it may still be truncated or too large."""
    with _PILLOW.quiet(1):
        try:
            with Image.open(io.BytesIO(data), formats=[name for name in FORMATS if _known(name)]):
                return True
        except Image.DecompressionBombError:
            return True
        except _BROKEN:
            return False


def pixels_in(data: bytes, *, max_pixels: int) -> int:
    """Returns how many pixels `decode` would make of a file, by its header; 0 where it would refuse it."""
    with _PILLOW.quiet(max_pixels):
        try:
            with Image.open(io.BytesIO(data), formats=[name for name in FORMATS if _known(name)]) as image:
                count = image.width * image.height
        except (*_BROKEN, Image.DecompressionBombError):
            return 0
    return count if count <= max_pixels else 0


def _known(name: str) -> bool:
    Image.init()
    return name in Image.OPEN


def _unidentified(data: bytes) -> SampleError:
    """Says whether bytes that none of `FORMATS` opens are an image of another format, without decoding them."""
    Image.init()
    for name, (_, accepts) in Image.OPEN.items():
        if name in FORMATS or accepts is None:
            continue
        try:
            if accepts(data[:64]) is True:
                return SampleError("image_refused", f"the format {name} is none that trainers read")
        except _BROKEN:
            continue
    return SampleError("image_broken", f"no image format is recognised; the bytes begin with {data[:8].hex(' ')}")


def fill_pixels(sample: Sample, *, max_pixels: int, transparency: Transparency = "drop") -> None:
    """Decodes the image of a sample into it, or marks the sample with what is wrong."""
    if sample.image is None:
        return  # the reader has marked it: there is no image member
    try:
        sample.pixels = decode(sample.image, max_pixels=max_pixels, transparency=transparency)
    except SampleError as error:
        sample.mark(error.status, error.reason)
        return
    sample.height, sample.width = sample.pixels.shape[:2]
