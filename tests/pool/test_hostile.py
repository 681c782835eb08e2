"""Small hostile pools: what they claim is never taken at its word. `tests/attack` has the large ones."""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import image_bytes, pair
from PIL import Image

from tamis.data import Sample
from tamis.errors import PoolError, RecipeError, SampleError, ShardError
from tamis.pool import PoolSpec, rows
from tamis.pool.captions_file import read_captions_file
from tamis.pool.files import expand_braces, kind_of
from tamis.pool.images import decode, weighed
from tamis.pool.rows import listed_columns
from tamis.pool.table import table_shards
from tamis.pool.tar import MAX_HEADER, TarShard

END = bytes(1024)


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def member(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def good(key: str, seed: int = 0) -> bytes:
    return b"".join(member(f"{key}.{ext}", data) for ext, data in pair(seed).items())


def read(path: Path, data: bytes) -> tuple[list[Sample], str]:
    path.write_bytes(data)
    found: list[Sample] = []
    try:
        for sample in TarShard(name="0", url=str(path), spec=PoolSpec(path=str(path))).samples():
            found.append(sample)
    except ShardError as error:
        return found, str(error)
    return found, ""


def test_members_without_end_under_one_key_end_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.pool.tar._MOST_MEMBERS", 6)
    many = b"".join(member(f"b.{n}", b"") for n in range(7))
    found, error = read(tmp_path / "0.tar", good("a") + many + good("c") + END)
    assert [sample.key for sample in found] == ["a", "b"]
    assert "more than 6 members have the key 'b'" in error


def test_pairs_of_one_key_are_rows_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.pool.tar._MOST_MEMBERS", 6)
    found, error = read(tmp_path / "0.tar", b"".join(good("a", seed) for seed in range(5)) + END)
    assert ([sample.status for sample in found], error) == (["ok", *["duplicate_key"] * 4], "")


@pytest.mark.parametrize("name", ["a.jpg", "a.bin"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.timeout(120)
def test_a_size_beyond_the_file_ends_where_the_file_ends(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    found, error = read(tmp_path / "0.tar", pack(good("good") + header(name, 1 << 62) + bytes(5000)))
    assert [sample.status for sample in found] == ["ok", "shard_cut"]
    assert "a header claims 4,611,686,018,427,387,904 bytes, 5,000 follow it" in error


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_long_names_and_pax_headers_have_a_limit(kind: bytes, tmp_path: Path) -> None:
    data = good("good") + header("h", MAX_HEADER + 1, kind) + bytes(MAX_HEADER + 512) + good("last", 1) + END
    found, error = read(tmp_path / "0.tar", data)
    assert [sample.key for sample in found] == ["good"]
    assert "a long name or a pax header has 65,537 bytes" in error


def test_five_thousand_headers_before_a_member_end_the_shard(tmp_path: Path) -> None:
    chain = member("././@LongLink", b"b/last.txt\0", b"L") * 5000
    found, error = read(tmp_path / "0.tar", good("good") + chain + member("x", b"a cat") + END)
    assert [sample.key for sample in found] == ["good"]
    assert "RecursionError" in error


@pytest.mark.timeout(120)
def test_a_bomb_of_bzip2_ends_soon(tmp_path: Path) -> None:
    first, zeros = bz2.compress(good("good") + header("a.bin", 1 << 33), 1), bz2.compress(bytes(4 << 20), 1)
    found, error = read(tmp_path / "0.tar.bz2", first + 75 * zeros)  # one stream after another
    assert [sample.status for sample in found] == ["ok", "shard_cut"]
    assert "a decompression bomb" in error


def test_zeros_behind_the_end_marker_have_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    path.write_bytes(good("good") + END)
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    shard = TarShard(name="0", url=str(path), spec=PoolSpec(path=str(path)))
    with pytest.raises(ShardError, match="zeros follow the tar's end marker"):
        list(shard.samples())


def test_a_sparse_member_is_a_row_with_a_reason(tmp_path: Path) -> None:
    """Exports read by byte ranges: they would have written other bytes than were scored."""
    data = member("a.jpg", image_bytes(0), b"S") + member("a.txt", b"a cat") + good("b") + END
    found, error = read(tmp_path / "0.tar", data)
    assert [(sample.key, sample.status) for sample in found] == [("a", "image_refused"), ("b", "ok")]
    assert found[0].reason == "the .jpg member is stored as a sparse file, whose bytes are not in one place"
    assert error == ""


def test_members_of_one_sample_are_not_held_without_end(tmp_path: Path) -> None:
    """Images of one name, each of which begins another sample, are handed out one by one."""
    path = tmp_path / "0.tar"
    with path.open("wb") as file:
        for _ in range(20):
            file.write(header("a.jpg", 64 << 20))
            file.seek(64 << 20, 1)  # holes
        file.write(END)
    seen = 0
    for sample in TarShard(name="0", url=str(path), spec=PoolSpec(path=str(path))).samples():
        assert sample.image_bytes == 64 << 20
        seen += 1
        if seen == 2:  # after reading three at most: all twenty would be 1.3 GB
            break
    assert seen == 2


def test_captions_of_a_shard_have_a_limit_together(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    with path.open("wb") as file:
        for number in range(30):
            file.write(header(f"{number}.txt", 10 << 20) + b"a cat")
            file.seek((10 << 20) - 5, 1)
        file.write(END)
    found = TarShard(name="0", url=str(path), spec=PoolSpec(path=str(path))).samples()
    assert [next(found).key for _ in range(12)] == [f"{number}" for number in range(12)]
    with pytest.raises(ShardError, match="far more than pools of captions have; the 12 before were read"):
        next(found)


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


def test_the_first_line_of_what_is_no_table_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{SECRET}\n")
    with pytest.raises(PoolError, match="its columns: 1 of unreadable names") as error:
        table_shards(str(tmp_path / "a.csv"), "a", PoolSpec(path="a.csv"))
    assert SECRET not in str(error.value)
    assert listed_columns(["image", "caption"]) == "image, caption"


def test_an_image_that_is_none_is_not_quoted() -> None:
    with pytest.raises(SampleError, match=r"the file holds text \(16 bytes\)") as error:
        decode(SECRET.encode(), max_pixels=100)
    assert SECRET.encode()[:8].hex(" ") not in error.value.reason
    assert kind_of(b"\x01\x02") == "something else (2 bytes)"


@pytest.mark.parametrize("line", ["x.jpg,a,²", "x.jpg,a," + "9" * 5000])
def test_sizes_in_a_table_that_are_no_numbers_are_words(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"image,caption,original_width\n{line}\n", encoding="utf-8")
    (shard,) = table_shards(str(path), "a", PoolSpec(path=str(path)))
    assert [(sample.caption, sample.original_width) for sample in shard.samples()] == [("a", 0)]


def test_a_row_without_end_is_an_error_of_its_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_CHARACTERS", 1 << 20)
    path = tmp_path / "a.csv"
    path.write_bytes(b'image,caption\nx.jpg,b\nx.jpg,"' + b'b\n","' * 300_000)
    (shard,) = table_shards(str(path), "a", PoolSpec(path=str(path)))
    with pytest.raises(ShardError, match="a row has more than 1,048,576 characters"):
        list(shard.samples())


def test_braces_that_name_too_many_files_are_an_error() -> None:
    for pattern in (
        "a{0..999999}{0..999999}",
        "{" + ",".join("ab" * 1000) + "}" * 1 + "{0..9999}",
        "{1.." + "9" * 5000 + "}",
    ):
        with pytest.raises(PoolError, match=r"names? more than 3,000,000 files"):
            expand_braces(pattern)
