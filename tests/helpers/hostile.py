"""Hostile inputs, made: tars, compressed tars, images, tables, recipes, score expressions."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from factories import image_bytes, pair
from PIL import Image

Make = Callable[[Path], Path]

END = bytes(1024)


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Returns a tar's header that claims any size."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def member(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def good(key: str = "good", seed: int = 0) -> bytes:
    return b"".join(member(f"{key}.{ext}", data) for ext, data in pair(seed).items())


def pax(records: Iterable[tuple[str, bytes]], kind: bytes = tarfile.XHDTYPE) -> bytes:
    lines = []
    for key, value in records:
        rest = b" " + key.encode() + b"=" + value + b"\n"
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length += 1
        lines.append(str(length).encode() + rest)
    return member("pax", b"".join(lines), kind)


def written(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def zeros(path: Path, open_: Callable[[Path], io.BufferedIOBase], before: bytes, count: int, after: bytes) -> Path:
    """Writes a compressed file of many zeros without holding them."""
    with open_(path) as file:
        file.write(before)
        for _ in range(count >> 20):
            file.write(bytes(1 << 20))
        file.write(after)
    return path


def gz(path: Path) -> io.BufferedIOBase:
    return gzip.open(path, "wb", 1)


def xz(path: Path) -> io.BufferedIOBase:
    return lzma.open(path, "wb", preset=0)


def bz(path: Path) -> io.BufferedIOBase:
    return bz2.BZ2File(path, "wb", compresslevel=1)


def zeros_unwanted(kind: str, open_: Callable[[Path], io.BufferedIOBase], path: Path) -> Path:
    return zeros(path / f"0.tar.{kind}", open_, good() + header("a.bin", 2 << 30), 2 << 30, good("last", 1) + END)


def many_headers(path: Path) -> Path:
    return written(path / "0.tar", good(), member("././@LongLink", b"x\0", b"L") * 5000, good("last", 1), END)


def huge_pax(path: Path) -> Path:
    return zeros(
        path / "0.tar.gz", gz, good() + header("pax", 3 << 30, tarfile.XHDTYPE), 3 << 30, good("last", 1) + END
    )


def huge_name(path: Path) -> Path:
    before = good() + header("././@LongLink", 1 << 30, b"L")
    return zeros(path / "0.tar.gz", gz, before, 1 << 30, good("last", 1) + END)


def sparse_tail(path: Path) -> Path:
    """A terabyte of holes behind the end marker."""
    file = written(path / "0.tar", good(), END)
    with file.open("r+b") as out:
        out.truncate(1 << 40)
    return file


def sparse_member(path: Path) -> Path:
    """A member of GNU's old sparse format that claims 2^60 bytes and has 512."""
    block = bytearray(header("a.jpg", 512, tarfile.GNUTYPE_SPARSE))
    block[386:398], block[398:410] = b"00000000000\0", b"00000001000\0"
    block[483:495] = b"\x80" + (1 << 60).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return written(path / "0.tar", good(), bytes(block), bytes(512), member("a.txt", b"a cat"), good("last", 1), END)


def sparse_chain(path: Path) -> Path:
    """The map of a sparse file that goes on for a GiB of blocks."""
    block = bytearray(header("a.jpg", 512, tarfile.GNUTYPE_SPARSE))
    block[482] = 1
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    more = (bytes(504) + b"\1" + bytes(7)) * 2048
    with gzip.open(path / "0.tar.gz", "wb", 1) as file:
        file.write(good() + bytes(block))
        for _ in range(200):
            file.write(more)
    return path / "0.tar.gz"


def one_group(path: Path) -> Path:
    """A gzip of a hundred images of 200 MB each, all of one sample."""
    with gzip.open(path / "0.tar.gz", "wb", 1) as file:
        for _ in range(12):
            file.write(header("a.jpg", 200 << 20))
            for _ in range(200):
                file.write(bytes(1 << 20))
    return path / "0.tar.gz"


def many_members(path: Path) -> Path:
    """Half a million members of one sample."""
    block = b"".join(member(f"a.{number}", b"") for number in range(1000))
    with gzip.open(path / "0.tar.gz", "wb", 1) as file:
        file.write(member("a.txt", b"a cat"))
        for _ in range(500):
            file.write(block)
        file.write(END)
    return path / "0.tar.gz"


def long_captions(path: Path) -> Path:
    """A plain tar of captions of 15 MB each, 3 GB together, in holes between single letters."""
    file = path / "0.tar"
    with file.open("wb") as out:
        for number in range(200):
            out.write(header(f"{number}.txt", 15 << 20))
            out.write(b"a cat")
            out.seek((15 << 20) - 5, 1)
        out.write(END)
    return file


def wide_json(path: Path) -> Path:
    """A json of 15 MB of empty mappings, which take a hundred times as much in Python."""
    data = b'{"a":[' + b",".join([b"{}"] * (5 << 20)) + b"]}"
    return written(path / "0.tar", *(member(f"{n}.json", data) + member(f"{n}.txt", b"a cat") for n in range(3)), END)


TARS: dict[str, Make] = {
    "a size of 2^62 bytes": lambda path: written(path / "0.tar", good(), header("a.jpg", 1 << 62), bytes(5000)),
    "a size of 2^62 bytes, gzip": lambda path: written(
        path / "0.tar.gz", gzip.compress(good() + header("a.bin", 1 << 62) + bytes(5000))
    ),
    "a size below zero": lambda path: written(path / "0.tar", good(), header("a.jpg", -512), good("last", 1), END),
    "a pax size of 2^62 bytes": lambda path: written(
        path / "0.tar", good(), pax([("size", b"%d" % (1 << 62))]), member("a.jpg", b"x"), END
    ),
    "a pax size of 5,000 digits": lambda path: written(
        path / "0.tar", good(), pax([("size", b"9" * 5000)]), member("a.jpg", b"x"), END
    ),
    "a pax record that claims no bytes": lambda path: written(
        path / "0.tar", good(), member("pax", b"0 path=a\n" * 100, tarfile.XHDTYPE), member("a.jpg", b"x"), END
    ),
    "a long name of 1 GB, gzip": huge_name,
    "a pax header of 3 GB, gzip": huge_pax,
    "5,000 long names before a member": many_headers,
    "a sparse file of 2^60 bytes": sparse_member,
    "a map of a sparse file without end": sparse_chain,
    "6 GB of zeros behind the end marker, gzip": lambda path: zeros(path / "0.tar.gz", gz, good() + END, 6 << 30, b""),
    "1 TB of holes behind the end marker": sparse_tail,
    **{
        f"2 GB of zeros in a member that is not read, {kind}": partial(zeros_unwanted, kind, open_)
        for kind, open_ in (("gz", gz), ("bz2", bz), ("xz", xz))
    },
    "an xz whose dictionary has 1.5 GB": lambda path: written(path / "0.tar.xz", xz_of_large_dictionary(good() + END)),
    "a gzip of 300,000 empty streams": lambda path: written(
        path / "0.tar.gz", gzip.compress(b"") * 300_000, gzip.compress(good() + END)
    ),
    "2.4 GB of images in one sample, gzip": one_group,
    "half a million members in one sample": many_members,
    "3 GB of captions": long_captions,
    "a json of 5 million mappings": wide_json,
}


def xz_of_large_dictionary(data: bytes) -> bytes:
    """Returns an xz that asks for a dictionary of 1.5 GB."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
    packed = bytearray(lzma.compress(data, filters=filters))
    # Block header: size, flags, filter id 0x21, one byte of properties: the size of the dictionary. Then its CRC32.
    start = 12
    length = (packed[start] + 1) * 4
    packed[start + 4] = 39  # 3 << 29
    packed[start + length - 4 : start + length] = struct.pack("<I", zlib.crc32(packed[start : start + length - 4]))
    return bytes(packed)


def saved(image: Image.Image, format: str, **settings: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **settings)  # type: ignore[arg-type]
    return out.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *more: bytes, pixels: bytes = bytes(100), depth: int = 8, colour: int = 2) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(pixels, 1))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(more) + data + chunk(b"IEND", b"")


def overlapping_directory(size: int, entries: int) -> bytes:
    """Returns EXIF of which each entry names nearly all of its bytes as its own."""
    body = b"MM\0*" + struct.pack(">LH", 8, entries)
    body += b"".join(struct.pack(">HHLL", 2000 + number, 7, size - 16, 8) for number in range(entries))
    return (body + bytes(8)).ljust(size, b"\0")


def many_values(count: int) -> bytes:
    """Returns a TIFF whose strips are as many as its bytes allow."""
    head = b"II*\0" + struct.pack("<L", 8)
    tags = [(256, 3, 1, 5000), (257, 3, 1, 5000), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    entries = [struct.pack("<HHLHH", tag, kind, n, value, 0) for tag, kind, n, value in tags]
    entries += [struct.pack("<HHLL", tag, 4, count, 200) for tag in (273, 279)]
    body = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    return (head + body).ljust(200 + 4 * count, b"\1")


def jpeg_with(*segments: bytes) -> bytes:
    data = image_bytes(0)
    return data[:2] + b"".join(segments) + data[2:]


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def many_scans(count: int, side: int = 6000) -> bytes:
    """Returns a progressive JPEG whose last scan comes again and again."""
    data = saved(Image.new("L", (side, side), 128), "JPEG", progressive=True, quality=30)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


def gif_frames(count: int) -> bytes:
    data = saved(Image.new("P", (64, 64)), "GIF")
    start = data.index(b",", 13 + 3 * 2)
    return data[:start] + data[start:-1] * count + b";"


def apng_frames(count: int) -> bytes:
    frames = b"".join(
        chunk(b"fcTL", struct.pack(">IIIIIHHBB", 2 * n + 1, 64, 64, 0, 0, 1, 10, 0, 0))
        + chunk(b"fdAT", struct.pack(">I", 2 * n + 2) + zlib.compress(bytes(64 * 193), 1))
        for n in range(count)
    )
    whole = png(64, 64, chunk(b"acTL", struct.pack(">II", count, 0)), pixels=bytes(64 * 193))
    return whole[: -len(chunk(b"IEND", b""))] + frames + chunk(b"IEND", b"")


def icon_of_large_png() -> bytes:
    inside = png(12_000, 12_000, pixels=bytes(36_001 * 300))
    return b"\0\0\1\0\1\0" + struct.pack("<BBBBHHLL", 16, 16, 0, 0, 1, 32, len(inside), 22) + inside


def tall_text_ppm() -> bytes:
    return b"P3\n4000 4000\n255\n" + b"1 " * (2 << 20)


def odd_mode(mode: str) -> Callable[[], bytes]:
    """Returns a maker of an image in a mode that photographs do not have."""

    def make() -> bytes:
        image = Image.new("P" if mode == "PA" else mode, (9000, 9000))
        return saved(image, "PNG", **({"transparency": 0} if mode == "PA" else {}))

    return make


IMAGES: dict[str, Callable[[], bytes]] = {
    "a GIF of 10,000 frames": lambda: gif_frames(10_000),
    "an APNG of 10,000 frames": lambda: apng_frames(10_000),
    "a PNG of 50,000 x 50,000": lambda: png(50_000, 50_000),
    "a PNG of 1 GB behind its pixels": lambda: png(8, 8, pixels=bytes(1 << 30)),
    "a PNG whose EXIF claims 13 GB": lambda: png(
        8, 8, chunk(b"eXIf", overlapping_directory(1 << 20, 63_000)), pixels=bytes(200)
    ),
    "a PNG whose EXIF in hex claims 5 GB": lambda: png(
        8,
        8,
        chunk(
            b"zTXt",
            b"Raw profile type exif\0\0"
            + zlib.compress(b"\nexif\n  500000\n" + overlapping_directory(500_000, 40_000).hex().encode(), 9),
        ),
        pixels=bytes(200),
    ),
    "a PNG whose ICC unpacks to 1 GB": lambda: png(
        8, 8, chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 30), 1)), pixels=bytes(200)
    ),
    "a PNG of 200,000 texts": lambda: png(8, 8, chunk(b"tEXt", b"x\0" + bytes(200)) * 200_000, pixels=bytes(200)),
    "a JPEG of 300 EXIF segments that claim 20 GB": lambda: jpeg_with(
        *(segment(0xE1, b"Exif\0\0" + part) for part in pieces(overlapping_directory(300 * 60_000, 63_000), 60_000))
    ),
    "a JPEG of 100 MB of ICC": lambda: jpeg_with(
        *(segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(65_000)) for _ in range(1600))
    ),
    "a JPEG of 50 MB of junk before its pixels": lambda: jpeg_with(bytes(50 << 20)),
    "a progressive JPEG of 5,000 scans": lambda: many_scans(5_000),
    "a TIFF of 20 million strips": lambda: many_values(20_000_000),
    "a TIFF whose directory claims 60 GB": lambda: overlapping_directory(1 << 20, 63_000),
    "an icon that holds a PNG of 12,000 x 12,000": icon_of_large_png,
    "a PPM in letters that ends early": tall_text_ppm,
    "a JPEG 2000 of 9,000 x 9,000": lambda: saved(Image.new("RGB", (9000, 9000)), "JPEG2000"),
    "a WebP of 9,500 x 9,500": lambda: saved(Image.new("RGB", (9500, 9500)), "WEBP", method=0),
    "a progressive JPEG of 9,900 x 9,900": lambda: saved(
        Image.new("RGB", (9900, 9900), (200, 30, 70)), "JPEG", progressive=True, subsampling=0
    ),
    **{f"a PNG of 9,000 x 9,000 in mode {mode}": odd_mode(mode) for mode in ("1", "LA", "PA", "I;16")},
    "a JPEG of 9,900 x 9,900 in CMYK": lambda: saved(Image.new("CMYK", (9900, 9900)), "JPEG"),
}


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def parquet_of_large_cells(path: Path) -> Path:
    cells = [np.random.default_rng(n).bytes(10 << 20) for n in range(40)]
    table = pa.table({"image": pa.array(cells, pa.binary()), "caption": ["a cat"] * 40})
    pq.write_table(table, path / "0.parquet", compression="none")
    return path / "0.parquet"


def lines_of(path: Path, name: str, before: bytes, part: bytes, count: int) -> Path:
    with (path / name).open("wb") as file:
        file.write(before)
        for _ in range(count):
            file.write(part)
    return path / name


def parquet_of(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path / "0.parquet")
    return path / "0.parquet"


def not_utf8() -> pa.Array:
    offsets, letters = struct.pack("<3i", 0, 7, 8), b"a \xff catb"
    return pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])


TABLES: dict[str, Make] = {
    "40 cells of 10 MB": parquet_of_large_cells,
    "list columns": lambda path: parquet_of(
        path, image=pa.array([[1, 2]] * 3), caption=pa.array([["a"], [], None]), key=pa.array([{"a": 1}] * 3)
    ),
    "captions that are not UTF-8": lambda path: parquet_of(path, image=pa.array(["x.jpg"] * 2), caption=not_utf8()),
    "a CSV of one line of 2 GB": lambda path: lines_of(path, "0.csv", b"image,caption\nx.jpg,", b"a" * (1 << 20), 2048),
    "a CSV whose quote never ends": lambda path: lines_of(
        path, "0.csv", b'image,caption\nx.jpg,"', b'b\n","' * 200_000, 500
    ),
    "JSON lines of one line of 2 GB": lambda path: lines_of(
        path, "0.jsonl", b'{"image": "x.jpg", "caption": "a"}\n{"a": "', b"a" * (1 << 20), 2048
    ),
    "JSON lines nested 100,000 deep": lambda path: lines_of(
        path, "0.jsonl", b'{"image": "x.jpg", "caption": "a"}\n', b"[" * 100_000 + b"\n", 3
    ),
}


def bomb(place: str) -> str:
    """Returns a recipe with nine aliases of nine of nine ... under some key: 9^9 values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    return "\n".join(["select: []", f"{place}:", *("  " + line for line in lines)]) + "\n"


def merges() -> str:
    lines = ["  a0: &a0 {x: 1, y: 2}"]
    lines += [f"  a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 10)]
    return "\n".join(["select: []", "about:", *lines]) + "\n"


RECIPES: dict[str, str] = {
    **{f"aliases under {place}": bomb(place) for place in ("about", "pool", "select")},
    "merges of merges": merges(),
    "a text in 100,000 places": "select: []\nabout: [&a " + "x" * 50_000 + ", " + ", ".join(["*a"] * 30_000) + "]\n",
    "a timestamp that is none": "select: []\nabout: !!timestamp never\n",
    "bytes that are none": "select: []\nabout: !!binary é\n",
    "a set": "select: !!set {a, b}\n",
    "a number of 10,000 digits": "select:\n- top_n: {score: a, n: " + "9" * 10_000 + "}\n",
    "a number of 10,000 hex digits": "select: 0x" + "f" * 10_000 + "\n",
    "a number in base 60 of 20,000 digits": "select: 1" + ":59" * 20_000 + "\n",
    "a mapping that is a list": "select: !!map [a]\n",
    "nested 100,000 deep": "select: " + "[" * 100_000,
    "nested 100,000 deep in blocks": "select:\n" + "- " * 50_000 + "a\n",
    "3 MB": "select: []\nabout: " + "x" * (3 << 20) + "\n",
    "a zero byte": "select: \0\n",
    "a name of 100,000 letters": "select:\n- all_of: [" + "x" * 100_000 + "]\n",
    "a step of 100,000 letters": "select:\n- " + "x" * 100_000 + "\n",
    "5,000 unary minuses": "select:\n- at_least: {score: '" + "-" * 5000 + "a', value: 1}\n",
    "900 parentheses": "select:\n- at_least: {score: '" + "(" * 900 + "a" + ")" * 900 + "', value: 1}\n",
    "ranks of ranks": "select:\n- at_least: {score: '" + "rank(" * 90 + "a" + ")" * 90 + "', value: 1}\n",
}
