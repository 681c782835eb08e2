"""Decoding: image bytes to RGB pixels, exactly as Pillow gives them, EXIF rotation applied."""

from __future__ import annotations

import io
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from tamis.arrays import Pixels
from tamis.data import Sample
from tamis.errors import SampleError
from tamis.pool.files import kind_of
from tamis.pool.headers import check_directories, check_directory, claimed_pixels

#: Formats that trainers' loaders open. Others are refused: Pillow hands some of them to outside programs (EPS to
#: Ghostscript), and none of them is a photograph from the web.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "JPEG2000", "AVIF", "PPM", "TGA", "ICO")

#: What becomes of transparency: "drop" shows the colours that lie under it, as `convert("RGB")` and so trainers'
#: loaders do (black, as most programs write it); "white" lays the image on white, as a page shows it.
Transparency = Literal["drop", "white"]

# What decoding takes at its height, in bytes a pixel, measured with images of 16 million pixels (the table is made anew
# by tests/attack/memory_of_images.py): Pillow's own image of 4, our pixels of 3, and what the decoder holds beside.
_USUAL_PIXEL_BYTES = 10
_PIXEL_BYTES: Mapping[str, int] = {"WEBP": 18, "AVIF": 18, "JPEG2000": 28}

# What images that are decoded at once take together.
_TOGETHER = 1 << 30

# Pixels that are converted at once: a larger image is, band by band.
_BAND_PIXELS = 4 << 20

# A progressive JPEG goes over its pixels once for each scan, some 3 ns a pixel.
_USUAL_SCANS = 20
_SCANNED_PIXELS = 2_000_000_000

# An image is of one colour where no channel has values further apart; its transparency is uniform likewise.
_ONE_COLOUR = 16

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

#: Holds these settings over many images: to set them for each takes longer than to read its header.
undisturbed = _PILLOW.quiet


class _Memory:
    """Lets threads decode at once only what fits together: each waits until there is room, or no other decodes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, size: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._most)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


_MEMORY = _Memory(_TOGETHER)


def decode(data: bytes, *, max_pixels: int, transparency: Transparency = "drop") -> Pixels:
    """Decodes one image.

    Transparency is dropped, unless asked otherwise, and 16-bit values are clipped, both as `Image.convert("RGB")`
    does: a trainer's loader shows its model the same. Of an animation the first frame is taken.

    Decoding takes about 10 bytes a pixel at its height, and however many threads decode, they take a GiB together; one
    image of the default limit on pixels takes about that by itself.

    Args:
        data: the bytes of an image file.
        max_pixels: more than this are not decoded. Formats whose decoders take more memory for a pixel are allowed
            fewer (`_PIXEL_BYTES`).
        transparency: what becomes of it, "drop" or "white".

    Returns:
        (height, width, 3) uint8 RGB, upright.

    Raises:
        SampleError: with status image_broken, image_too_large or image_refused, and a reason.
    """
    return _upright(data, max_pixels, transparency)[0]


def _upright(data: bytes, max_pixels: int, transparency: Transparency) -> tuple[Pixels, Pixels | None]:
    """Returns the pixels of an image, and its transparency where what it shows is in that alone."""
    with _explaining(data, max_pixels):
        pixels, hidden, turn = _decoded(data, max_pixels, transparency)
    if turn is None:
        return pixels, hidden
    return np.ascontiguousarray(turn(pixels)), None if hidden is None else np.ascontiguousarray(turn(hidden))


def decoded_size(data: bytes, *, max_pixels: int, transparency: Transparency = "drop") -> tuple[int, int]:
    """Decodes one image for nothing but to know whether it can be: returns width and height, upright.

    Args and raises: as `decode`.
    """
    with _explaining(data, max_pixels), _loaded(data, max_pixels) as image:
        if not _is_plain(image):
            _rgb(image, transparency)  # what cannot be converted is broken
        turn = _TURNS.get(_orientation(image))
        width, height = image.size
    if turn is not None:
        height, width = turn(np.empty((height, width, 0), np.uint8)).shape[:2]
    return width, height


@contextmanager
def _explaining(data: bytes, max_pixels: int) -> Iterator[None]:
    """A block that decodes an image: what Pillow raises there becomes a `SampleError`."""
    if not data:
        raise SampleError("image_broken", "the image file has no bytes")
    with _PILLOW.quiet(max_pixels):
        try:
            yield
        except SampleError:
            raise
        except Image.DecompressionBombError as error:
            raise SampleError("image_too_large", f"more than the limit of {max_pixels:,} pixels: {error}") from error
        except UnidentifiedImageError as error:
            raise _unidentified(data) from error
        except _BROKEN as error:
            raise SampleError("image_broken", f"cannot be decoded: {type(error).__name__}: {error}") from error


def _decoded(
    data: bytes, max_pixels: int, transparency: Transparency
) -> tuple[Pixels, Pixels | None, Callable[[Pixels], Pixels] | None]:
    """Returns the pixels as they are stored, hidden content, and what makes both upright: None where they are."""
    with _loaded(data, max_pixels) as image:
        hidden = _hidden(image) if transparency == "drop" else None
        return _rgb(image, transparency), hidden, _TURNS.get(_orientation(image))


@contextmanager
def _loaded(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Gives an image whose pixels Pillow has decoded, and counts the memory that is taken while the block runs."""
    with _opened(data) as image:
        size = image.size
        if problem := _too_large(image, max_pixels):
            raise SampleError("image_too_large", problem)
        if problem := _endless(image, data):
            raise SampleError("image_refused", problem)
        with _MEMORY.taking(image.width * image.height * _PIXEL_BYTES.get(image.format or "", _USUAL_PIXEL_BYTES)):
            image.load()
            if image.size != size and (problem := _too_large(image, max_pixels)):
                raise SampleError("image_too_large", problem)
            yield image


def _opened(data: bytes) -> Image.Image:
    check_directories(data)
    Image.init()
    return Image.open(io.BytesIO(data), formats=_formats(len(Image.OPEN)))


def _too_large(image: Image.Image, max_pixels: int) -> str:
    width, height = image.size
    cost = _PIXEL_BYTES.get(image.format or "", _USUAL_PIXEL_BYTES)
    limit = min(max_pixels, max_pixels * _USUAL_PIXEL_BYTES // cost)
    if width * height <= limit:
        return ""
    of = "" if limit == max_pixels else f" for {image.format}, whose decoder takes {cost} bytes a pixel"
    return f"{width} x {height} pixels, more than the limit of {limit:,}{of}"


def _endless(image: Image.Image, data: bytes) -> str:
    """Says what is wrong with a progressive JPEG of so many scans that it would take minutes: each visits all pixels.

    Ten are usual; a file of a few MB can hold a hundred thousand.
    """
    if image.format not in ("JPEG", "MPO") or not image.info.get("progressive"):
        return ""
    scans = data.count(b"\xff\xda")
    if scans <= _USUAL_SCANS or scans * image.width * image.height <= _SCANNED_PIXELS:
        return ""
    return f"a JPEG of {scans:,} scans over {image.width} x {image.height} pixels would take minutes to decode"


def _rgb(image: Image.Image, transparency: Transparency) -> Pixels:
    """Returns the pixels of a loaded image; of a large one band by band, so that no copy of all of it is made."""
    width, height = image.size
    rows = max(1, _BAND_PIXELS // max(width, 1))
    if rows >= height:
        return np.asarray(_opaque(image, transparency))
    pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        pixels[top : top + rows] = np.asarray(_opaque(band, transparency))
    pixels.flags.writeable = False  # as Pillow's own are
    return pixels


def _orientation(image: Image.Image) -> object:
    """Returns how an image is turned by its EXIF, or XMP where that does not say, as `ImageOps.exif_transpose` does."""
    if image.format == "JPEG" and _SAYS_HOW_TURNED.isdisjoint(image.info):
        return 1
    blob, text = image.info.get("exif"), image.info.get("Raw profile type exif")
    if isinstance(blob, bytes):
        check_directory(blob)
    elif isinstance(text, str):
        check_directory(bytes.fromhex("".join(text.split("\n")[3:])))
    return image.getexif().get(ExifTags.Base.Orientation, 1)


# Where Pillow looks for how a JPEG is turned.
_SAYS_HOW_TURNED = frozenset(("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"))

# What makes an image upright, by its orientation in EXIF.
_TURNS: Mapping[object, Callable[[Pixels], Pixels]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: pixels.transpose(1, 0, 2)[:, ::-1],
    7: lambda pixels: pixels[::-1, ::-1].transpose(1, 0, 2),
    8: lambda pixels: pixels.transpose(1, 0, 2)[::-1],
}


def _is_plain(image: Image.Image) -> bool:
    return image.mode == "RGB" and "transparency" not in image.info


def _opaque(image: Image.Image, transparency: Transparency) -> Image.Image:
    if _is_plain(image):
        return image
    return (_on_white(image) if transparency == "white" else image).convert("RGB")


def _has_transparency(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info


def _hidden(image: Image.Image) -> Pixels | None:
    """Returns the transparency of an image that is of one colour without it, as a black drawing on no ground is."""
    if not _has_transparency(image):
        return None
    full = image if image.mode in ("RGBA", "LA") else image.convert("RGBA")
    *colours, opacity = [int(high - low) for low, high in np.asarray(full.getextrema())]
    return np.asarray(full.getchannel("A")) if max(colours) <= _ONE_COLOUR < opacity else None


def _on_white(image: Image.Image) -> Image.Image:
    """Returns an image laid on white; itself where nothing of it is transparent."""
    if not _has_transparency(image):
        return image
    page = Image.new("RGBA", image.size, "white")
    page.alpha_composite(image if image.mode == "RGBA" else image.convert("RGBA"))
    return page


def is_image(data: bytes) -> bool:
    """Tells by its header whether a file is an image in one of `FORMATS`; it may still be truncated or too large."""
    with _PILLOW.quiet(1):
        try:
            with _opened(data):
                return True
        except Image.DecompressionBombError:
            return True
        except (*_BROKEN, SampleError):
            return False


def pixels_in(data: bytes, *, max_pixels: int) -> int:
    """Returns how many pixels `decode` would make of a file, by its header; 0 where it would refuse it."""
    with _PILLOW.quiet(max_pixels):
        try:
            with _opened(data) as image:
                return 0 if _too_large(image, max_pixels) else image.width * image.height
        except (*_BROKEN, Image.DecompressionBombError, SampleError):
            return 0


@cache
def _formats(known: int) -> list[str]:
    """Returns those of `FORMATS` that Pillow opens here; it may learn some, which changes how many it knows."""
    return [name for name in FORMATS if name in Image.OPEN]


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
    return SampleError("image_broken", f"no image format is recognised; the file holds {kind_of(data)}")


def weighed(samples: Iterable[Sample], most: int, *, size: int, max_pixels: int) -> Iterator[tuple[list[Sample], int]]:
    """Yields samples a few at a time, with what they will take when they are decoded.

    Args:
        most: samples that come together at most.
        size: bytes that they take together at most; a larger one comes alone.
        max_pixels: as of `decode`.
    """
    some: list[Sample] = []
    held = 0
    for sample in samples:
        data = sample.image or b""
        pixels = claimed_pixels(data) if data else 0
        pixels = pixels_in(data, max_pixels=max_pixels) if pixels is None else pixels
        weight = len(data) + 3 * (pixels if pixels <= max_pixels else 0)
        if some and (len(some) >= most or held + weight > size):
            yield some, held
            some, held = [], 0
        some.append(sample)
        held += weight
    if some:
        yield some, held


def fill_pixels(
    sample: Sample, *, max_pixels: int, transparency: Transparency = "drop", keeps_pixels: bool = True
) -> None:
    """Decodes the image of a sample into it, or marks the sample with what is wrong.

    Args:
        max_pixels, transparency: as of `decode`.
        keeps_pixels: False where nobody looks at them: the sample gets its size alone.
    """
    if sample.image is None:
        return  # the reader has marked it: there is no image member
    how: dict[str, Any] = {"max_pixels": max_pixels, "transparency": transparency}
    try:
        if keeps_pixels:
            sample.pixels, sample.hidden = _upright(sample.image, **how)
            sample.height, sample.width = sample.pixels.shape[:2]
        else:
            sample.width, sample.height = decoded_size(sample.image, **how)
    except SampleError as error:
        sample.mark(error.status, error.reason)
