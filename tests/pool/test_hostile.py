"""Small hostile images and tables, and files that are none: `tests/attack` has the large ones."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import pytest
from factories import image_bytes
from PIL import Image

from tamis.data import Sample
from tamis.errors import PoolError, RecipeError, SampleError
from tamis.pool import PoolSpec
from tamis.pool.images import decode, weighed
from tamis.pool.table import table_shards
from tamis.pool.texts import read_captions_file


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def overlapping(size: int, entries: int) -> bytes:
    """EXIF of which each entry names nearly all of its bytes as its own."""
    body = b"MM\0*" + struct.pack(">LH", 8, entries)
    body += b"".join(struct.pack(">HHLL", 2000 + number, 7, size - 16, 8) for number in range(entries))
    return (body + bytes(8)).ljust(size, b"\0")


def test_exif_that_claims_a_multiple_of_its_bytes_is_refused() -> None:
    blob = overlapping(60_000, 4000)
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    png = out.getvalue()[:33] + chunk(b"eXIf", blob) + out.getvalue()[33:]
    jpeg = image_bytes(0)
    jpeg = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(blob) + 8) + b"Exif\0\0" + blob + jpeg[2:]
    for data in (png, jpeg, blob):
        with pytest.raises(SampleError, match="EXIF or TIFF directory claims 239,936,000 bytes") as error:
            decode(data, max_pixels=10**6)
        assert error.value.status == "image_refused"


def test_a_jpeg_of_thousands_of_scans_is_refused() -> None:
    out = io.BytesIO()
    Image.new("L", (2000, 2000), 128).save(out, "JPEG", progressive=True)
    data = out.getvalue()
    last = data.rindex(b"\xff\xda")
    with pytest.raises(SampleError, match="would take minutes to decode") as error:
        decode(data[:last] + data[last:-2] * 1000 + data[-2:], max_pixels=10**8)
    assert error.value.status == "image_refused"


def test_formats_that_take_more_memory_are_allowed_fewer_pixels() -> None:
    out = io.BytesIO()
    Image.new("RGB", (100, 100)).save(out, "JPEG2000")
    assert decode(out.getvalue(), max_pixels=28_000).shape == (100, 100, 3)
    with pytest.raises(SampleError, match="more than the limit of 7,142 for JPEG2000, whose decoder takes 28 bytes"):
        decode(out.getvalue(), max_pixels=20_000)


def test_large_images_are_decoded_a_few_at_a_time() -> None:
    def sample(size: tuple[int, int]) -> Sample:
        return Sample(uid=(0, 0), key="", image=image_bytes(0, size))

    samples = [sample((10, 10)), sample((10, 10)), sample((100, 100)), sample((10, 10)), sample((10, 10))]
    groups = list(weighed(samples, 2, size=20_000, max_pixels=10**6))
    assert [len(some) for some, _ in groups] == [2, 1, 2]
    assert groups[1][1] == 30_000 + len(samples[2].image or b"")


SECRET = "hunter2-AKIA1234"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", f"{SECRET}\n"),
        ("a.csv", f"uid,captions\n{SECRET},{SECRET}\n"),
        ("a.csv", f"uid,captions\n{SECRET},{SECRET},{SECRET}\n"),
        ("a.csv", f"key,captions\na,{SECRET}\n"),
        ("a.jsonl", f"{SECRET}\n"),
        ("a.parquet", f"{SECRET}\n"),
    ],
)
def test_a_captions_file_that_is_none_is_not_quoted(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RecipeError, match="captions_from") as error:
        read_captions_file(tmp_path / name)
    assert SECRET not in str(error.value)


def test_what_is_no_table_and_no_image_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{SECRET}\n")
    with pytest.raises(PoolError, match="its columns: 1 of unreadable names") as error:
        table_shards(str(tmp_path / "a.csv"), "a", PoolSpec(path="a.csv"))
    assert SECRET not in str(error.value)
    with pytest.raises(SampleError, match=r"the file holds text \(16 bytes\)") as refused:
        decode(SECRET.encode(), max_pixels=100)
    assert SECRET[:8] not in refused.value.reason
