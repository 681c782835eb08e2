"""What the fuzzing tests feed: each reader takes any bytes and ends in a value, or in one of our own errors."""

import io
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from damage import RECIPE, small_run
from factories import EMBEDDING_SIZES, image_bytes, pair, write_tar
from hostile import IMAGES, RECIPES, good, header, member, overlapping_directory, pax, saved
from PIL import Image

import tamis
from tamis.core.errors import PoolError, RecipeError, RunError, SampleError, ShardError
from tamis.pools import PoolSpec
from tamis.pools.datacomp import embedding_shapes, npz_rows
from tamis.pools.images import decode, is_image, pixels_in
from tamis.pools.table_shards import table_shards
from tamis.pools.tar import TarShard
from tamis.pools.text_files import TABLES, read_captions_file, read_texts
from tamis.recipes import recipe
from tamis.runs import Run
from tamis.runs.expression import parse
from tamis.runs.subset import FACTS, Subset
from tamis.runs.table import MemoryTable

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
    if not shard.is_compressed():  # what the index says of members must hold for the bytes of the file
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
    ending = TABLES[data[0] % len(TABLES)] if data else ".csv"
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


def npz(data: bytes) -> None:
    path = _file("0.npz", data)
    with suppress(ShardError, PoolError):
        embedding_shapes(path)
    with suppress(ShardError, PoolError):
        for _ in zip(
            range(min((rows for rows, _ in embedding_shapes(path).values()), default=0)), npz_rows(path), strict=False
        ):
            pass


def json(data: bytes) -> None:
    """The json of a sample: of its uid, size, caption and carried fields whatever it holds."""
    path = _folder() / "json.tar"
    path.write_bytes(member("a.jpg", _SMALL_IMAGE) + member("a.txt", b"a cat") + member("a.json", data) + bytes(1024))
    for caption in (None, "json:caption"):
        fields = ("url", "caption", "exif")
        spec = PoolSpec(path=str(path), fields=fields, caption=caption, max_bytes=1 << 20)
        (sample,) = TarShard(name="0", url=str(path), spec=spec).samples()
        assert (sample.reason is None) == (sample.status == "ok"), sample
        for text in (sample.key, sample.shown_caption, sample.reason, *sample.given.values()):
            assert text is None or text.encode("utf-8") is not None


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
    values = parsed.values(MemoryTable(columns))
    assert values.shape == (5,)
    assert values.dtype == np.float64


@cache
def _run() -> Run:
    return small_run(_folder() / "run")


@cache
def _subset_file() -> bytes:
    path = _folder() / "seed.parquet"
    tamis.select(_run(), RECIPE).save(path)
    return path.read_bytes()


def subset(data: bytes) -> None:
    """The first byte says whether the rest is a file, or the facts in the footer of one that another program wrote."""
    run = _run()
    path = _file("subset.parquet", data[1:])
    if data[:1] == b"f":
        columns = {"shard": ["00000", "00001"], "row": pa.array([0, 2], pa.int64())}
        pq.write_table(pa.table(columns).replace_schema_metadata({FACTS: data[1:]}), path)
    try:
        found = Subset.load(path, run)
    except RunError as error:
        assert len(str(error)) < 5_000  # noqa: PT017
        return
    assert found.keep.shape == (len(run),)
    if data[:1] != b"f":
        assert found.keep.tobytes() == _kept(), "a damaged file keeps other rows"


@cache
def _kept() -> bytes:
    return Subset.load(_file("whole.parquet", _subset_file()), _run()).keep.tobytes()


_SMALL_IMAGE = image_bytes(0, (4, 4))


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
    return [bytes([number]) + plain[ending] for number, ending in enumerate(TABLES)]


def _recipes() -> list[bytes]:
    texts = [text.encode() for text in RECIPES.values() if len(text) < 2000]
    folder = Path(recipe.__file__).parent / "shipped"
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


def _npzs() -> list[bytes]:
    """DataComp's arrays, narrow, packed and plain; one of other shapes; one whose header claims far more."""
    found = []
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(2, 3)).astype(np.float16) for name in EMBEDDING_SIZES}
    for save in (np.savez, np.savez_compressed):
        for content in (arrays, {**arrays, "b32_img": np.zeros(3, np.float32)}, {"b32_img": arrays["b32_img"]}):
            out = io.BytesIO()
            save(out, **content)
            found.append(out.getvalue())
    return [*found, found[0].replace(b"(2, 3)", b"(99,9)"), found[0].replace(b"'<f2'", b"'|O8'")]


def _jsons() -> list[bytes]:
    return [
        b'{"uid": "00000000000000000000000000000001", "url": "https://x.org/a", "original_width": 640, "caption": "a"}',
        b'{"uid": 5, "original_height": 1e999, "width": -1, "exif": "{\\"a\\": [1]}", "caption": ["a", null]}',
        b'{"caption": "\\ud800", "url": {"a": "\\udfff"}, "sha256": null, "original_width": 99999999999999999999}',
        b'{"a": ' * 30 + b"1" + b"}" * 30,
        b"[]",
        b"NaN",
        b"\xff\xfe{\0}\0",
    ]


def _subsets() -> list[bytes]:
    footer = pq.read_metadata(io.BytesIO(_subset_file())).metadata[FACTS.encode()]
    return [b"p" + _subset_file(), b"f" + footer]


#: Each reader, and what makes inputs to begin with, good and hostile ones.
TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "tar": (tar, _tars),
    "image": (image, _images),
    "table": (table, _tables),
    "npz": (npz, _npzs),
    "json": (json, _jsons),
    "recipe": (recipes, _recipes),
    "expression": (expression, _expressions),
    "subset": (subset, _subsets),
}
