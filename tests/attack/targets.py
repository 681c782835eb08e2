"""What fuzzers feed: each reader takes any bytes and ends in a value, or in one of our own errors."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from factories import image_bytes, pair, write_tar
from hostile import IMAGES, RECIPES, good, header, member, overlapping_directory, pax, saved
from PIL import Image

from tamis import recipe
from tamis.errors import PoolError, RecipeError, SampleError, ShardError
from tamis.pool import PoolSpec
from tamis.pool.captions_file import read_captions_file
from tamis.pool.images import decode, is_image, pixels_in
from tamis.pool.table import ENDINGS, table_shards
from tamis.pool.tar import TarShard
from tamis.pool.texts import read_texts
from tamis.selectors.expression import parse
from tamis.store.table import Table

_MAX_PIXELS = 200_000


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="tamis-fuzz-"))


def _file(name: str, data: bytes) -> str:
    path = _folder() / name
    path.write_bytes(data)
    return str(path)


def tar(data: bytes) -> None:
    path = _file("0.tar", data)
    shard = TarShard(name="0", url=path, spec=PoolSpec(path=path, fields=("url",), max_bytes=1 << 20))
    samples = []
    try:
        for sample in shard.samples():
            samples.append(sample)
    except ShardError:
        pass
    for sample in samples:
        sample.key.encode()
        assert (sample.reason is None) == (sample.status == "ok")
    if shard.compression() is None:  # what the index says of members must hold for the bytes of the file
        for sample in samples:
            for part in sample.members:
                whole = part.offset + part.size <= len(data)
                assert whole or sample.status != "ok", (sample.key, part)


def image(data: bytes) -> None:
    is_image(data)
    expected = pixels_in(data, max_pixels=_MAX_PIXELS)
    try:
        pixels = decode(data, max_pixels=_MAX_PIXELS)
    except SampleError:
        return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert pixels.shape[0] * pixels.shape[1] == expected


def table(data: bytes) -> None:
    """The first byte says of which kind the file is."""
    ending = ENDINGS[data[0] % len(ENDINGS)] if data else ".csv"
    path = _file(f"0{ending}", data[1:])
    spec = PoolSpec(path=path, fields=("url",), max_bytes=1 << 20)
    try:
        for shard in table_shards(path, "0", spec):
            for sample in shard.samples():
                sample.key.encode()
                if sample.shown_caption is not None:
                    sample.shown_caption.encode()
    except (PoolError, ShardError):
        pass
    with suppress(PoolError):
        read_texts(path)
    with suppress(RecipeError):
        read_captions_file(Path(path))


def recipes(data: bytes) -> None:
    try:
        recipe.load(_file("mine.yaml", data))
    except RecipeError as error:
        assert len(str(error)) < 5_000  # noqa: PT017


def expression(data: bytes) -> None:
    try:
        parsed = parse(data.decode("utf-8", "surrogateescape"))
    except RecipeError as error:
        assert len(str(error)) < 2_000  # noqa: PT017
        return
    columns = {name: np.linspace(0, 1, 5, dtype=np.float32) for name in parsed.columns}
    values = parsed.values(Table.of(columns))
    assert values.shape == (5,)
    assert values.dtype == np.float64


TARGETS: dict[str, Callable[[bytes], None]] = {
    "tar": tar,
    "image": image,
    "table": table,
    "recipe": recipes,
    "expression": expression,
}


def seeds(target: str) -> list[bytes]:
    """Returns inputs to begin with, good and hostile ones."""
    return {"tar": _tars, "image": _images, "table": _tables, "recipe": _recipes, "expression": _expressions}[target]()


def _tars() -> list[bytes]:
    found = []
    for mode in ("w", "w:gz", "w:bz2", "w:xz"):
        samples = [(f"{n}", pair(n) | {"jpg": image_bytes(n, (4, 4))}) for n in range(2)]
        found.append(write_tar(_folder() / "seed", samples, mode).read_bytes())
    small = member("a.txt", b"a cat")
    return [
        *found,
        header("././@LongLink", 3, b"L") + b"b.x".ljust(512, b"\0") + small + bytes(1024),
        pax([("path", b"c.txt"), ("size", b"5")]) + small + bytes(1024),
        pax([("GNU.sparse.major", b"1"), ("GNU.sparse.name", b"d.txt")]) + small + bytes(1024),
        member("a.txt", b"x", b"S") + small + bytes(1024),
        pax([("comment", b"x")], b"g") + small + bytes(1024),
        small + header("a.jpg", 1 << 62),
        good() + bytes(1024) + good("b"),
    ]


def _images() -> list[bytes]:
    one = Image.effect_noise((9, 7), 50)
    found = [
        saved(one.convert(mode), format, **settings)
        for format, mode, settings in (
            ("JPEG", "RGB", {"exif": overlapping_directory(300, 3)}),
            ("JPEG", "CMYK", {"progressive": True}),
            ("PNG", "RGBA", {}),
            ("PNG", "P", {"transparency": 3}),
            ("WEBP", "RGBA", {}),
            ("GIF", "P", {}),
            ("BMP", "RGB", {}),
            ("TIFF", "RGB", {}),
            ("TIFF", "L", {"compression": "tiff_lzw"}),
            ("JPEG2000", "RGB", {}),
            ("ICO", "RGBA", {}),
            ("PPM", "RGB", {}),
            ("TGA", "RGB", {"compression": "tga_rle"}),
        )
    ]
    hostile = (IMAGES[name]() for name in ("a PNG of 50,000 x 50,000", "a PPM in letters that ends early"))
    return [*found, *(data[:2000] for data in hostile)]


def _tables() -> list[bytes]:
    out = io.BytesIO()
    rows = {"image": ["x.jpg", None], "caption": ["a cat", "é"], "key": ["1", "2"], "original_width": [3, None]}
    pq.write_table(pa.table(rows), out)
    csv = b'image,caption,key,original_width\nx.jpg,"a, cat",1,3\n"y",b,2,\n'
    lines = b'{"image": "x.jpg", "caption": "a", "uid": "0"}\n{"image": {"bytes": "a"}, "text": ["a"]}\n'
    plain = {".parquet": out.getvalue(), ".csv": csv, ".tsv": csv.replace(b",", b"\t"), ".jsonl": lines}
    return [bytes([number]) + plain[ending] for number, ending in enumerate(ENDINGS)]


def _recipes() -> list[bytes]:
    texts = [text.encode() for text in RECIPES.values() if len(text) < 2000]
    folder = Path(recipe.__file__).parent / "recipes"
    return [*texts, *(path.read_bytes() for path in sorted(folder.glob("*.yaml")))]


def _expressions() -> list[bytes]:
    return [
        b"0.5*minmax(a) + 0.5*minmax(b.c)",
        b"-a ** 2 / (1e-3 - +b)",
        b"max(rank(a), zscore(b)) - logit(abs(sqrt(exp(log(c)))))",
        b"9**9**9**9*a",
        b"lambda: a",
        b"a if b else c",
        b"'a' * 9",
        b"[a for a in a]",
    ]
