"""Decoding: what Pillow gives, upright; everything else a reason."""

import io
import struct
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import image_bytes, index_rows, pair, write_tar
from hostile import many_scans, png, saved
from PIL import ExifTags, Image, ImageCms, ImageOps

import tamis
from tamis.core.errors import SampleError
from tamis.core.types import Sample, Transparency
from tamis.pools import PoolSpec
from tamis.pools.images import decode, decode_size, fill_pixels, pixels_in

LIMIT = 100_000_000
TRANSPARENCY: tuple[Transparency, ...] = ("drop", "white")


def pillow(data: bytes) -> np.ndarray:
    """Pillow as its documentation uses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data)) as image:
            if image.mode == "I;16":
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def drawn_image(mode: str = "RGB", size: tuple[int, int] = (37, 23)) -> Image.Image:
    rng = np.random.default_rng(len(mode))
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 1 << 16, size[::-1], dtype=np.uint16))
    coarse = Image.fromarray(rng.integers(0, 256, (5, 4, 4), dtype=np.uint8), "RGBA")
    return coarse.resize(size, Image.Resampling.BICUBIC).convert(mode)


def frames(mode: str = "RGB") -> list[Image.Image]:
    return [Image.new(mode, (20, 12), colour) for colour in ("red", "green", "blue")]


ODD = {
    "grey jpeg": saved(drawn_image("L"), "JPEG"),
    "cmyk jpeg": saved(drawn_image("CMYK"), "JPEG"),
    "alpha png": saved(drawn_image("RGBA"), "PNG"),
    "grey alpha png": saved(drawn_image("LA"), "PNG"),
    "one-bit png": saved(drawn_image("1"), "PNG"),
    "palette png": saved(drawn_image("P"), "PNG"),
    "palette png with one transparent colour": saved(drawn_image("P"), "PNG", transparency=3),
    "palette png with transparency bytes": saved(drawn_image("P"), "PNG", transparency=bytes(range(256))),
    "16-bit png": saved(drawn_image("I;16"), "PNG"),
    "animated gif": saved(frames()[0], "GIF", save_all=True, append_images=frames()[1:], duration=50),
    "animated webp": saved(
        frames("RGBA")[0], "WEBP", save_all=True, append_images=frames("RGBA")[1:], duration=50, lossless=True
    ),
    "bmp": saved(drawn_image(), "BMP"),
    "tiff": saved(drawn_image(), "TIFF"),
    "one pixel": saved(Image.new("RGB", (1, 1), "red"), "PNG"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_images_are_decoded_as_pillow_does(name: str) -> None:
    found = decode(ODD[name], max_pixels=LIMIT)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, pillow(ODD[name]))  # of an animation the first frame
    pixels = found.size // 3
    assert decode_size(ODD[name], max_pixels=pixels * 2) == found.shape[1::-1]
    assert pixels_in(ODD[name], max_pixels=pixels * 2) == pixels
    assert pixels_in(ODD[name], max_pixels=pixels - 1) == 0
    with pytest.raises(SampleError, match=r"more than the limit of"):
        decode(ODD[name], max_pixels=pixels - 1)


@pytest.mark.parametrize("name", ODD)
def test_transparent_images_lie_on_white_where_that_is_asked_for(name: str) -> None:
    found = decode(ODD[name], max_pixels=LIMIT, transparency="white")
    with Image.open(io.BytesIO(ODD[name])) as image:
        layer = np.asarray(image.convert("RGBA"), np.float64)
    share = layer[..., 3:] / 255
    expected = layer[..., :3] * share + 255 * (1 - share)
    if (share == 1).all():
        expected = pillow(ODD[name]).astype(np.float64)  # 16-bit and CMYK images too: as without it
    assert np.abs(found - expected).max() <= 1


def tiff(pixels: bytes, bits: int, **tags: int) -> bytes:
    """Returns a grey TIFF of 8 x 6 pixels, as some cameras and scanners write it and Pillow does not."""
    facts = {"ImageWidth": 8, "ImageLength": 6, "BitsPerSample": bits, "Compression": 1, "PhotometricInterpretation": 1}
    facts |= {"StripOffsets": 200, "SamplesPerPixel": 1, "RowsPerStrip": 6, "StripByteCounts": len(pixels), **tags}
    entries = [struct.pack("<HHII", ExifTags.Base[name], 4, 1, value) for name, value in facts.items()]
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(sorted(entries)) + bytes(4)
    return head.ljust(200, b"\0") + pixels


GREY = np.random.default_rng(0).integers(0, 256, (6, 8), dtype=np.uint8)
DEEP = GREY.astype(np.uint16) << 8 | 77
BIG_ENDIAN = Image.frombytes("I;16B", (8, 6), DEEP.astype(">u2").tobytes())
TWELVE = b"".join(bytes((a, 9 << 4 | b >> 4, b << 4 & 255 | 9)) for a, b in GREY.reshape(-1, 2).tolist())
COLOUR = Image.fromarray(np.random.default_rng(1).integers(0, 256, (6, 8, 3), dtype=np.uint8))
LAB = ImageCms.profileToProfile(COLOUR, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB")

# The rows of the table in docs/what-tamis-reads.md: a file, and the grey or colour image that it equals.
MODES: dict[str, tuple[bytes, Any]] = {
    "16-bit PNG": (saved(Image.fromarray(DEEP), "PNG"), GREY),
    "16-bit PNG with a transparent value": (saved(Image.fromarray(DEEP), "PNG", transparency=3), GREY),
    "16-bit TIFF": (saved(Image.fromarray(DEEP), "TIFF"), GREY),
    "16-bit TIFF, big-endian": (saved(BIG_ENDIAN, "TIFF"), GREY),
    "16-bit TIFF, 0 is white": (tiff(DEEP.tobytes(), 16, PhotometricInterpretation=0), 255 - GREY),
    "12-bit TIFF": (tiff(TWELVE, 12), GREY),
    "16-bit JPEG 2000": (saved(Image.fromarray(DEEP), "JPEG2000", irreversible=False), GREY),
    "16-bit PGM": (saved(Image.fromarray(DEEP.astype(np.int32)), "PPM"), GREY),
    "8-bit PNG": (saved(Image.fromarray(GREY), "PNG"), GREY),
    "1-bit PNG": (saved(Image.fromarray(GREY > 99), "PNG"), (GREY > 99) * np.uint8(255)),
    "16-bit colour PNG": (png(8, 6, pixels=b"".join(b"\0" + row.tobytes() for row in (
        np.asarray(COLOUR).astype(">u2") << 8 | 77).astype(">u2")), depth=16, colour=2), COLOUR),
    "CMYK TIFF": (saved(COLOUR.convert("CMYK"), "TIFF"), COLOUR.convert("CMYK").convert("RGB")),
    "YCbCr TIFF": (saved(COLOUR.convert("YCbCr"), "TIFF"), COLOUR.convert("YCbCr").convert("RGB")),
    "Lab TIFF": (saved(LAB, "TIFF"), LAB.convert("RGB")),
}  # fmt: skip


@pytest.mark.parametrize("name", MODES)
def test_pixels_of_every_kind_are_those_of_the_image_of_eight_bits(name: str) -> None:
    data, twin = MODES[name]
    expected = np.asarray(Image.fromarray(twin).convert("RGB") if isinstance(twin, np.ndarray) else twin)
    for how in TRANSPARENCY:
        np.testing.assert_array_equal(decode(data, max_pixels=LIMIT, transparency=how), expected)
    assert decode_size(data, max_pixels=LIMIT) == (8, 6)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (Image.fromarray(GREY.astype(np.float32)), "its pixels are 32-bit floats, of unknown range"),
        (Image.fromarray(GREY.astype(np.int32)), "its pixels are signed or 32-bit numbers, of unknown range"),
        (Image.fromarray(GREY.astype(np.uint16)), "its values of 16 bits, 4 to 248, are one colour in 8 bits"),
    ],
)
def test_pixels_of_unknown_range_are_refused(image: Image.Image, reason: str) -> None:
    for read in (decode, decode_size):
        with pytest.raises(SampleError, match=reason) as error:
            read(saved(image, "TIFF"), max_pixels=LIMIT)
        assert error.value.status == "image_refused"
    same = Image.new("I;16", (8, 6), 700)
    assert (decode(saved(same, "PNG"), max_pixels=LIMIT) == 2).all()


def test_images_of_one_colour_without_their_transparency_are_known() -> None:
    drawn = np.zeros((20, 30, 4), np.uint8)
    drawn[5:10, 5:10, 3] = 255
    palette = Image.new("P", (30, 20), 0)
    palette.putpalette([0, 0, 0, 0, 0, 0])
    palette.paste(1, (5, 5, 10, 10))
    deep = b"".join(b"\0" + (row.astype(">u2") * 257).tobytes() for row in drawn)
    hidden = {
        "RGBA": saved(Image.fromarray(drawn), "PNG"),
        "webp": saved(Image.fromarray(drawn), "WEBP", lossless=True),
        "LA": saved(Image.fromarray(drawn[..., 2:], "LA"), "PNG"),
        "palette": saved(palette, "PNG", transparency=0),
        "16 bits": png(30, 20, pixels=deep, depth=16, colour=6),
    }
    shown = drawn.copy()
    shown[5:10, 5:10, 0] = 200
    uniform = np.full((20, 30, 4), 90, np.uint8)
    known = {"of two colours": shown, "as transparent everywhere": uniform}
    known_files = {name: saved(Image.fromarray(pixels), "PNG") for name, pixels in known.items()}
    found = {}
    for name, data in (hidden | known_files).items():
        for how in TRANSPARENCY:
            sample = Sample(uid=(0, 0), key="a", image=data)
            fill_pixels(sample, max_pixels=LIMIT, transparency=how)
            found[name, how] = sample.hidden
    for name, data in hidden.items():
        np.testing.assert_array_equal(found[name, "drop"], drawn[..., 3])
        assert decode(data, max_pixels=LIMIT).max() == 0
        on_white = decode(data, max_pixels=LIMIT, transparency="white")
        assert ((on_white[5:10, 5:10] == 0).all(), int((on_white == 255).sum())) == (True, 3 * (600 - 25))
    assert {name for (name, how), opacity in found.items() if opacity is None and how == "drop"} == set(known)
    assert all(opacity is None for (_, how), opacity in found.items() if how == "white")


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8, 99])
def test_exif_rotation_is_applied(orientation: int) -> None:
    image = Image.fromarray(
        np.kron(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8), np.ones((16, 16, 1))).astype(np.uint8)
    )
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(image, "JPEG", exif=exif, quality=95)
    found = decode(data, max_pixels=LIMIT)
    flat = orientation not in (5, 6, 7, 8)
    assert found.shape[:2] == ((16, 48) if flat else (48, 16))
    np.testing.assert_array_equal(found, pillow(data))
    assert decode_size(data, max_pixels=LIMIT) == found.shape[1::-1]
    # Where the red end goes, from the EXIF standard's table.
    first = found[8, 4] if flat else found[4, 8]
    assert (first[0] > 200) == (orientation in (1, 4, 5, 6, 99))


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (b"", "image_broken", "the image file has no bytes"),
        (image_bytes(0)[:300], "image_broken", "cannot be decoded"),
        (saved(drawn_image(), "PNG")[:200], "image_broken", "cannot be decoded"),
        (saved(drawn_image(), "PNG")[:20], "image_broken", "cannot be decoded: Truncated File Read"),
        (b"GIF89a", "image_broken", "no format that trainers read is recognised"),
        (bytes(1000), "image_broken", "the file holds zeros (1,000 bytes)"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "image_broken",
            "no format that trainers read is recognised",
        ),
        (png(30_000, 30_000), "image_too_large", "100,000,000"),
        (png(12_000, 10_000), "image_too_large", "12000 x 10000 pixels, more than the limit of 100,000,000"),
        (png(4_000_000, 4_000_000), "image_too_large", "100,000,000"),
        (png(0, 5), "image_broken", ""),
        (many_scans(1000, 2000), "image_refused", "would take minutes to decode"),
        (b"hunter2-AKIA1234", "image_broken", "the file holds text (16 bytes)"),
    ],
    ids=range(13),
)
def test_what_cannot_be_decoded_gives_a_reason(data: bytes, status: str, reason: str) -> None:
    with pytest.raises(SampleError) as error:
        decode(data, max_pixels=LIMIT)
    assert error.value.status == status
    with pytest.raises(SampleError) as same:
        decode_size(data, max_pixels=LIMIT)
    assert (same.value.status, same.value.reason) == (status, error.value.reason)
    assert reason in error.value.reason
    assert "hunter2" not in error.value.reason


@pytest.mark.parametrize("kind", ["plain", "progressive", "restarts", "L", "CMYK"])
def test_a_damaged_jpeg_fails_alike_whether_its_pixels_are_kept_or_not(kind: str) -> None:
    """Of pixels that are not kept only one in 64 is computed; the same files must fail, with the same words."""
    rng, how = np.random.default_rng(0), {"progressive": {"progressive": True}, "restarts": {"restart_marker_rows": 1}}
    data = saved(drawn_image(kind if kind in ("L", "CMYK") else "RGB", (187, 93)), "JPEG", **how.get(kind, {}))
    outcomes = set()
    for number in range(150):
        broken = bytearray(data)
        if number % 2:
            del broken[rng.integers(2, len(data)) :]
        else:
            broken[rng.integers(len(data))] = rng.integers(256)
        found = []
        for read in (
            lambda one: decode(one, max_pixels=LIMIT).shape[1::-1],
            lambda one: decode_size(one, max_pixels=LIMIT),
        ):
            try:
                found.append(read(bytes(broken)))
            except SampleError as error:
                found.append((error.status, error.reason))
        assert found[0] == found[1]
        outcomes.add(found[0][0])
    assert {187, "image_broken"} <= outcomes


def test_formats_that_take_more_memory_are_allowed_fewer_pixels() -> None:
    data = saved(Image.new("RGB", (100, 100)), "JPEG2000")
    assert decode(data, max_pixels=28_000).shape == (100, 100, 3)
    with pytest.raises(SampleError, match="more than the limit of 7,142 for JPEG2000, whose decoder takes 28 bytes"):
        decode(data, max_pixels=20_000)


def test_the_limit_on_pixels_can_be_set_above_pillows_own() -> None:
    data = png(20_000, 9_100)  # 182 million pixels; Pillow stops at 179
    with pytest.raises(SampleError, match="limit of 100,000,000"):
        decode(data, max_pixels=LIMIT)
    limit = Image.MAX_IMAGE_PIXELS
    with pytest.raises(SampleError, match="cannot be decoded") as error:  # tried, and found to hold no pixels
        decode(data, max_pixels=200_000_000)
    assert error.value.status == "image_broken"
    assert limit == Image.MAX_IMAGE_PIXELS


def test_the_pools_limit_reaches_the_decoder(tmp_path: Path) -> None:
    images = (image_bytes(0), png(30_000, 30_000), image_bytes(2, (9, 9)))
    write_tar(tmp_path / "pool" / "0.tar", [(f"{n}", pair(n) | {"jpg": image}) for n, image in enumerate(images)])
    for limit, first in ((LIMIT, "ok"), (1000, "image_too_large")):
        spec = PoolSpec(path=str(tmp_path / "pool"), max_pixels=limit)
        rows = index_rows(tamis.score(spec, run=tmp_path / str(limit), signals=["image_size"], quiet=True))
        assert [row["status"] for row in rows] == [first, "image_too_large", "ok"]
    assert rows[0]["reason"] == "48 x 32 pixels, more than the limit of 1,000"


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Makes threads change over after every few instructions, so that a race shows at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_threads")
def test_decoding_in_threads_leaves_the_process_as_it_was() -> None:
    """Warnings of Pillow's are no concern of the user's, but their filters are the whole process's."""
    filters, limit = list(warnings.filters), Image.MAX_IMAGE_PIXELS
    images = [ODD["palette png with transparency bytes"], image_bytes(0, (300, 200)), image_bytes(0)[:300]] * 200

    def attempt(data: bytes) -> str:
        try:
            return str(decode(data, max_pixels=LIMIT).shape)
        except SampleError as error:
            return error.status

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(attempt, images))
    assert outcomes == ["(23, 37, 3)", "(200, 300, 3)", "image_broken"] * 200
    assert list(warnings.filters) == filters
    assert limit == Image.MAX_IMAGE_PIXELS
