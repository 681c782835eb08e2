"""Checks of what an image file's header claims, before Pillow reads it and takes the memory that is claimed."""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator

import numpy as np
from PIL.JpegImagePlugin import MARKER

from tamis.errors import SampleError

# Bytes of a value of each type of a TIFF directory; Pillow passes over types that are not here.
_UNITS = np.zeros(1 << 16, np.int64)
for _types, _size in (((1, 2, 6, 7), 1), ((3, 8), 2), ((4, 9, 11, 13), 4), ((5, 10, 12, 16, 17, 18), 8)):
    _UNITS[list(_types)] = _size
_BYTES = (1, 2, 7)  # whose values Pillow keeps as bytes; each of any other becomes an object

# Values of one tag: an image of 100,000 rows with a strip for each has no more.
_MOST_VALUES = 200_000

# The largest image in an ICO that is none of its format: the format has 256 x 256.
_MOST_ICON_PIXELS = 1 << 20

# What stands in a JPEG before its pixels: markers, and bytes that belong to none. Pillow passes over them one by one.
_MOST_MARKERS = 100_000
_MOST_JUNK = 1 << 20

# Markers of JPEG that say how large it is.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}

# Those that Pillow knows as markers of a segment with a length.
_SEGMENTS = frozenset(marker & 0xFF for marker, (_, _, reads) in MARKER.items() if reads is not None)

_EXIF = b"Exif\0\0"
_DIRECTORY = re.compile(rb"II\*\0|MM\0\*")
_MOST_DIRECTORIES = 20


def check_directories(data: bytes) -> None:
    """Checks what Pillow reads when it opens an image file: its EXIF, the directory of a TIFF, the images of an ICO.

    Raises:
        SampleError: it claims more than the file could hold.
    """
    if data.startswith(b"\xff\xd8\xff"):
        for blob in _jpeg_blobs(data):
            check_directory(blob)
    elif data[:2] in (b"II", b"MM"):
        check_directory(data)
    elif data.startswith(b"\0\0\1\0"):
        _check_icon(data)
    elif data[4:8] == b"ftyp":  # AVIF: its EXIF is somewhere in it
        starts = [hit.start() for hit in itertools.islice(_DIRECTORY.finditer(data), _MOST_DIRECTORIES + 1)]
        if len(starts) > _MOST_DIRECTORIES:
            raise SampleError("image_refused", f"it has more than {_MOST_DIRECTORIES} EXIF directories")
        for start in starts:
            check_directory(data[start:])


def check_directory(blob: bytes) -> None:
    """Checks a TIFF directory, which EXIF is too.

    Each of its entries may name all bytes of the file as its own: 65,535 entries of a file of 1 MB would take 30 GB.

    Raises:
        SampleError: its entries claim more bytes together than there are, or one has more values than any image needs.
    """
    while blob.startswith(_EXIF):
        blob = blob[len(_EXIF) :]
    if len(blob) < 16 or blob[:2] not in (b"II", b"MM"):
        return
    order = "<" if blob[:2] == b"II" else ">"
    if 43 in blob[2:4]:  # BigTIFF
        (start,) = struct.unpack_from(order + "Q", blob, 8)
        layout, first, counted = [("type", "u2"), ("count", "u8"), ("value", "u8")], start + 8, "Q"
    else:
        (start,) = struct.unpack_from(order + "L", blob, 4)
        layout, first, counted = [("type", "u2"), ("count", "u4"), ("value", "u4")], start + 2, "H"
    entry = np.dtype([("tag", order + "u2"), *((name, order + kind) for name, kind in layout)])
    if first >= len(blob):
        return
    (entries,) = struct.unpack_from(order + counted, blob, start)
    entries = min(entries, (len(blob) - first) // entry.itemsize)
    table = np.frombuffer(blob, entry, entries, first)
    counts = table["count"].astype(np.float64)  # no product of them overflows
    if (counts[~np.isin(table["type"], _BYTES) & (_UNITS[table["type"]] > 0)] > _MOST_VALUES).any():
        raise SampleError("image_refused", f"its EXIF or TIFF directory has a tag of more than {_MOST_VALUES:,} values")
    sizes = counts * _UNITS[table["type"]]
    claimed = float(np.minimum(sizes, len(blob))[sizes > 8].sum())
    if claimed > len(blob) + (64 << 10):
        raise SampleError(
            "image_refused", f"its EXIF or TIFF directory claims {claimed:,.0f} bytes, and has {len(blob):,}"
        )


def claimed_pixels(data: bytes) -> int | None:
    """Returns how many pixels a JPEG or PNG claims to have, in a hundredth of the time that decoding takes.

    None for other formats, and where the file does not say.
    """
    if data.startswith(b"\x89PNG") and len(data) >= 24:
        width, height = struct.unpack(">LL", data[16:24])
        return int(width * height)
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    sizes = (segment[1:5] for marker, segment in _jpeg_segments(data) if marker in _FRAMES and len(segment) >= 5)
    try:
        return max((a * b for a, b in (struct.unpack(">HH", size) for size in sizes)), default=None)
    except SampleError:
        return None


def _jpeg_blobs(data: bytes) -> Iterator[bytes]:
    """Yields the EXIF of a JPEG, of all its segments together as Pillow reads it, and its directory of images."""
    exif: list[bytes] = []
    for marker, segment in _jpeg_segments(data):
        if marker == 0xE1 and segment.startswith(_EXIF):
            exif.append(segment if not exif else segment[len(_EXIF) :])
        elif marker == 0xE2 and segment.startswith(b"MPF\0"):
            yield segment[4:]
    if exif:
        yield b"".join(exif)


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields marker and content of what stands in a JPEG before its pixels, with Pillow's notion of what is junk."""
    at, junk, last = 2, 0, len(data) - 4
    for _ in range(_MOST_MARKERS):
        start = data.find(b"\xff", at)
        if start < 0 or start > last:
            break
        if start != at:
            junk += start - at
            if junk > _MOST_JUNK:
                raise SampleError("image_broken", f"the JPEG has more than {_MOST_JUNK:,} bytes of no meaning")
        marker, at = data[start + 1], start + 2
        if marker == 0xFF:  # padding
            at = start + 1
            continue
        if marker == 0xDA:  # the pixels
            break
        if marker not in _SEGMENTS:
            continue
        length = max(data[at] << 8 | data[at + 1], 2)
        yield marker, data[at + 2 : at + length]
        at += length
    else:
        raise SampleError("image_broken", f"the JPEG has more than {_MOST_MARKERS:,} markers before its pixels")


def _check_icon(data: bytes) -> None:
    (images,) = struct.unpack_from("<H", data.ljust(6, b"\0"), 4)
    for number in range(min(images, (len(data) - 6) // 16)):
        (start,) = struct.unpack_from("<L", data, 6 + 16 * number + 12)
        head = data[start : start + 24]
        if len(head) < 24:
            continue
        width, height = struct.unpack(">LL", head[16:24]) if head.startswith(b"\x89PNG") else _dib_size(head)
        if width * height > _MOST_ICON_PIXELS:
            raise SampleError("image_too_large", f"an icon of {width} x {height} pixels; the format has 256 x 256")


def _dib_size(head: bytes) -> tuple[int, int]:
    if head[:4] == b"\x0c\0\0\0":
        width, height = struct.unpack("<HH", head[4:8])
    else:
        width, height = struct.unpack("<ll", head[4:12])
    return abs(width), abs(height)
