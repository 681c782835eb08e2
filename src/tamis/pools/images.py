"""Decoding: image bytes to RGB pixels, exactly as Pillow gives them, EXIF rotation applied."""

from __future__ import annotations

import io
import json
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from tamis.core.arrays import Pixels
from tamis.core.errors import SampleError, first_line
from tamis.core.files.find import describe_bytes
from tamis.core.types import EXIF_WORDS, ORIENTATION, Sample, Transparency

#: Formats that trainers' loaders open. Others are refused: they are no photographs from the web, and Pillow opens some
#: with outside programs (EPS with Ghostscript).
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "JPEG2000", "AVIF", "PPM", "TGA", "ICO")

# The most memory that decoding takes, in bytes per pixel (measured): 4 for Pillow's own image, 3 for our pixels, the
# rest for the decoder's buffers.
_USUAL_PIXEL_BYTES = 10
_PIXEL_BYTES: Mapping[str, int] = {"WEBP": 18, "AVIF": 18, "JPEG2000": 28}

_BAND_PIXELS = 4 << 20  # converted at once: a larger image is converted band by band

# A progressive JPEG goes over its pixels once for each scan, some 3 ns a pixel.
_USUAL_SCANS, _SCANNED_PIXELS = 20, 2_000_000_000

# If no channel has values further apart, an image has one colour; the same limit tells uniform transparency.
_ONE_COLOUR = 16

_lock = threading.Lock()
_inside = 0
_before: tuple[Any, int | None] = (None, None)


@contextmanager
def hide_warnings(max_pixels: int) -> Iterator[None]:
    """Silences Pillow's warnings, and raises its limit on pixels to ours, until the last thread leaves the block.

    Entering it once for many images is faster than for each.
    """
    global _inside, _before
    with _lock:
        if _inside == 0:
            filters = warnings.catch_warnings()
            filters.__enter__()
            warnings.simplefilter("ignore")
            _before = filters, Image.MAX_IMAGE_PIXELS
        _inside += 1
        if _before[1] is not None and max_pixels > _before[1]:
            Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                Image.MAX_IMAGE_PIXELS = _before[1]
                _before[0].__exit__(None, None, None)


def decode(
    data: bytes, *, max_pixels: int, transparency: Transparency = "drop", orientation: str | None = None
) -> Pixels:
    """Decodes one image: (height, width, 3) uint8 RGB, upright. Takes about 10 bytes of memory per pixel.

    Transparency is dropped, unless asked otherwise, as `Image.convert("RGB")` and trainers' loaders do. They clip
    16-bit grey to white; here it has the upper eight bits (`_eight_bits`). An animation gives its first frame. Images
    of more than `max_pixels` are not decoded; the limit is lower for formats whose decoders take more memory
    (`_PIXEL_BYTES`). `orientation`, in `EXIF_WORDS`, is the original's: it turns an image that was encoded again
    without its EXIF.

    Not decoded at half size, which libjpeg can: scores would depend on how an image was read.

    Raises SampleError with status image_broken, image_too_large or image_refused, and a reason.
    """
    return _upright(data, max_pixels, transparency, orientation).pixels


def decode_size(
    data: bytes, *, max_pixels: int, transparency: Transparency = "drop", orientation: str | None = None
) -> tuple[int, int]:
    """Decodes one image to know whether it can be; returns its width and height, upright. Args and raises: `decode`.

    Of a JPEG libjpeg reads every bit, and computes one pixel of 64, in about half the time: the same files fail.
    """
    with _load(data, max_pixels, orientation, coarse=True) as (image, turn, (width, height)):
        if not _is_plain(image):
            _rgb(image, transparency)  # what cannot be converted is broken
    if turn is not None:
        height, width = turn(np.empty((height, width, 0), np.uint8)).shape[:2]
    return width, height


class _Decoded(NamedTuple):
    """An image, upright: its pixels, its alpha channel if it shows something only there, its mean transparency."""

    pixels: Pixels
    hidden: Pixels | None
    transparent: float


def _upright(data: bytes, max_pixels: int, transparency: Transparency, orientation: str | None) -> _Decoded:
    with _load(data, max_pixels, orientation) as (image, turn, _):
        hidden, transparent = _alpha(image)
        hidden = hidden if transparency == "drop" else None
        pixels = _rgb(image, transparency)
    if turn is not None:
        pixels = np.ascontiguousarray(turn(pixels))
        hidden = None if hidden is None else np.ascontiguousarray(turn(hidden))
    return _Decoded(pixels, hidden, transparent)


@contextmanager
def _load(
    data: bytes, max_pixels: int, orientation: str | None, *, coarse: bool = False
) -> Iterator[tuple[Image.Image, _Turn | None, tuple[int, int]]]:
    """Provides the image as Pillow decodes it, in eight bits, how to turn it upright, and its size; any error becomes
    `SampleError`. `coarse`: a JPEG at an eighth of its size.
    """
    if not data:
        raise SampleError("image_broken", "the image file has no bytes")
    with hide_warnings(max_pixels):
        try:
            with _open(data) as image:
                _check_size(image, max_pixels)
                _check_scans(image, data)
                size = image.size
                if coarse and image.format == "JPEG":
                    image.draft(None, (1, 1))
                image.load()
                _check_size(image, max_pixels)  # .ico: the size is known only after load()
                own = _orientation(image)
                turn = _TURNS.get(EXIF_WORDS.get(orientation or "") if own is None else own)
                yield _eight_bits(image), turn, size if image.format == "JPEG" else image.size
        except SampleError:
            raise
        except Image.DecompressionBombError as error:
            raise SampleError("image_too_large", f"more than the limit of {max_pixels:,} pixels: {error}") from error
        except UnidentifiedImageError as error:
            what = f"no format that trainers read is recognised; the file holds {describe_bytes(data)}"
            raise SampleError("image_broken", what) from error
        except Exception as error:  # on broken bytes Pillow raises anything
            raise SampleError("image_broken", f"cannot be decoded: {first_line(error)}") from error


def _open(data: bytes) -> Image.Image:
    Image.preinit()
    if not data.startswith(b"\xff\xd8"):  # JPEG, which no other format begins as; the others' modules take 30 ms
        Image.init()
    return Image.open(io.BytesIO(data), formats=[name for name in FORMATS if name in Image.OPEN])


def _check_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    cost = _PIXEL_BYTES.get(image.format or "", _USUAL_PIXEL_BYTES)
    limit = min(max_pixels, max_pixels * _USUAL_PIXEL_BYTES // cost)
    if width * height > limit:
        why = "" if limit == max_pixels else f" for {image.format}, whose decoder takes {cost} bytes a pixel"
        raise SampleError("image_too_large", f"{width} x {height} pixels, more than the limit of {limit:,}{why}")


def _check_scans(image: Image.Image, data: bytes) -> None:
    """Refuses a progressive JPEG with so many scans that decoding would take minutes: ten are usual."""
    if image.format not in ("JPEG", "MPO") or not image.info.get("progressive"):
        return
    scans = data.count(b"\xff\xda")
    if scans > _USUAL_SCANS and scans * image.width * image.height > _SCANNED_PIXELS:
        size = f"{image.width} x {image.height}"
        raise SampleError("image_refused", f"a JPEG of {scans:,} scans over {size} pixels would take minutes to decode")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Returns 16-bit grey with its upper eight bits, as Pillow reads 16-bit colour, and any other image as it is.
    Refuses numbers of other sizes: nothing says which of them are black and white.
    """
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):  # Pillow scales PGM to 16 bits
        what = "32-bit floats" if image.mode == "F" else "signed or 32-bit numbers"
        raise SampleError("image_refused", f"its pixels are {what}, of unknown range: save it with 8 or 16 bits")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    tags = getattr(image, "tag_v2", {})  # of a TIFF, which Pillow inverts in 8 bits only
    bits = 12 if tags.get(ExifTags.Base.BitsPerSample) == (12,) else 16
    grey = (values >> (bits - 8)).astype(np.uint8)
    grey = 255 - grey if tags.get(ExifTags.Base.PhotometricInterpretation) == 0 else grey
    low, high = values.min(), values.max()
    if low < high and grey.min() == grey.max():
        raise SampleError("image_refused", f"its values of {bits} bits, {low} to {high}, are one colour in 8 bits")
    return Image.fromarray(grey)


def _rgb(image: Image.Image, transparency: Transparency) -> Pixels:
    """Returns the pixels of a loaded image, converted band by band if it is large: no whole copy is made."""
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


# Keys of `Image.info` where Pillow looks for the orientation of a JPEG.
_ORIENTED = frozenset(("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"))


def _orientation(image: Image.Image) -> object:
    """Returns the orientation in EXIF, or in XMP if EXIF has none, as `ImageOps.exif_transpose` does; None without."""
    if image.format == "JPEG" and _ORIENTED.isdisjoint(image.info):
        return None
    return image.getexif().get(ExifTags.Base.Orientation)


def orientation_left(exif: Any, image: bytes | None) -> str | None:
    """Returns how an image that has lost its EXIF must be turned, in `EXIF_WORDS`; None if it is upright.

    `exif`: EXIF as img2dataset's field of that name has it. If the file has an orientation of its own, that counts.
    """
    with suppress(Exception):  # no JSON, no image, or none at all
        tags = json.loads(exif) if "Image Orientation" in exif else {}
        words = tags.get("Image Orientation", "")
        # OpenCV, which img2dataset decodes with, turns TIFFs itself; other files do not have these tags.
        if image and EXIF_WORDS.get(words, 1) != 1 and not {"Image StripOffsets", "Image TileOffsets"} & set(tags):
            with hide_warnings(1), _open(image) as opened:
                return words if _orientation(opened) is None else None
    return None


def turn_file(data: bytes, orientation: str, *, max_pixels: int) -> tuple[bytes, str]:
    """Returns an image file encoded again upright, and its extension: JPEG stays JPEG (quality 95), others become PNG.

    Args and raises: `decode`.
    """
    out, ext = io.BytesIO(), "jpg" if data.startswith(b"\xff\xd8") else "png"
    with _load(data, max_pixels, None) as (image, _, _):
        image.getexif()[ExifTags.Base.Orientation] = EXIF_WORDS[orientation]
        turned = ImageOps.exif_transpose(image)
        turned.save(out, "JPEG" if ext == "jpg" else "PNG", quality=95, exif=upright_exif())
    return out.getvalue(), ext


def upright_exif() -> Image.Exif:
    """Returns EXIF for an image that was turned: without it, the sample's json would turn it once more."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 1
    return exif


_Turn = Callable[[Pixels], Pixels]

# How to turn an image upright, by its orientation in EXIF.
_TURNS: Mapping[object, _Turn] = {
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


def _has_transparency(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info


def _opaque(image: Image.Image, transparency: Transparency) -> Image.Image:
    if _is_plain(image):
        return image
    if transparency == "white" and _has_transparency(image):
        page = Image.new("RGBA", image.size, "white")
        page.alpha_composite(image if image.mode == "RGBA" else image.convert("RGBA"))
        image = page
    return image.convert("RGB")


def _alpha(image: Image.Image) -> tuple[Pixels | None, float]:
    """Returns the alpha channel if the image is a single colour without it, else None; and the mean transparency."""
    if not _has_transparency(image):
        return None, 0.0
    full = image if image.mode in ("RGBA", "LA") else image.convert("RGBA")
    *colours, opacity = [int(high - low) for low, high in np.asarray(full.getextrema())]
    alpha = np.asarray(full.getchannel("A"))
    return alpha if max(colours) <= _ONE_COLOUR < opacity else None, 1 - float(alpha.mean()) / 255


def is_image(data: bytes) -> bool:
    """Whether a file is an image in one of `FORMATS`, by its header; it may still be truncated or too large."""
    with hide_warnings(1):
        try:
            with _open(data):
                return True
        except Exception as error:
            return isinstance(error, Image.DecompressionBombError)


def pixels_in(data: bytes, *, max_pixels: int) -> int:
    """Returns how many pixels `decode` would return for a file, judging by its header; 0 if it would refuse it."""
    with hide_warnings(max_pixels):
        try:
            with _open(data) as image:
                _check_size(image, max_pixels)
                return image.width * image.height
        except Exception:
            return 0


def group_by_bytes(
    samples: Iterable[Sample], most: int, *, size: int, max_pixels: int
) -> Iterator[tuple[list[Sample], int]]:
    """Yields samples in small groups, each with the bytes that it will take, read and decoded.

    The image of several captions in a row counts once.
    """
    group: list[Sample] = []
    held = 0
    for sample in samples:
        data = sample.image or b""
        if group and group[-1].image is data:
            data = b""
        weight = len(data) + 3 * pixels_in(data, max_pixels=max_pixels)
        if group and (len(group) >= most or held + weight > size):
            yield group, held
            group, held = [], 0
        group.append(sample)
        held += weight
    if group:
        yield group, held


def fill_pixels(
    sample: Sample, *, max_pixels: int, transparency: Transparency = "drop", keeps_pixels: bool = True
) -> None:
    """Decodes the image of a sample into it, or marks the sample with what is wrong."""
    if sample.image is None:
        return  # the reader has marked it: there is no image member
    turn = sample.given.get(ORIENTATION)
    try:
        if keeps_pixels:
            decoded = _upright(sample.image, max_pixels, transparency, turn)
            sample.pixels, sample.hidden, sample.transparent = decoded
            sample.height, sample.width = decoded.pixels.shape[:2]
        else:
            how: dict[str, Any] = {"transparency": transparency, "orientation": turn}
            sample.width, sample.height = decode_size(sample.image, max_pixels=max_pixels, **how)
    except SampleError as error:
        sample.mark(error.status, error.reason)
