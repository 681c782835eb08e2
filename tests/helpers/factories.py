"""Small, seeded inputs for tests: images, shards, pools, runs."""

import io
import itertools
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import tamis
from tamis.core.arrays import Pixels
from tamis.core.files.checked import uids_digest
from tamis.core.ids import content_uid
from tamis.core.types import Column, Device, Member, Node, Sample
from tamis.pools import PoolSpec, open_pool
from tamis.runs import Run, manifest
from tamis.runs.parts import read_columns, uids_of, write_rows, write_scores
from tamis.runs.writers import IndexWriter
from tamis.signals.graph import execute

WORDS = [
    *("a", "red", "blue", "green", "dog", "cat", "boat", "tree", "house", "on", "under", "near", "the", "of", "beach"),
    *("two", "three", "old", "small"),
]


def image_bytes(seed: int = 0, size: tuple[int, int] = (48, 32), format: str = "JPEG", mode: str = "RGB") -> bytes:
    """Returns a smooth random image, unlike any of another seed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode)
    out = io.BytesIO()
    image.save(out, format)
    return out.getvalue()


def drawn_text(
    text: str,
    size: tuple[int, int] = (320, 160),
    font: int = 40,
    back: tuple[int, int, int] = (245, 240, 225),
    front: tuple[int, int, int] = (20, 20, 60),
) -> Pixels:
    """Returns an image of one line of text, 20 pixels from its left."""
    image = Image.new("RGB", size, back)
    ImageDraw.Draw(image).text((20, size[1] // 2 - font // 2), text, front, ImageFont.load_default(font))
    return np.array(image)


def plain_image(seed: int, size: tuple[int, int] = (320, 160)) -> Pixels:
    """Returns a sky that pales towards the ground: nothing that looks like text. (Anything round is an O.)"""
    rng = np.random.default_rng(seed)
    top, bottom, ground = rng.integers(30, 226, (3, 3))
    image = np.linspace(top, bottom, size[1])[:, None].repeat(size[0], axis=1)
    image[int(size[1] * 0.8) :] = ground
    return image.astype(np.uint8)


def images_of_many_shapes() -> list[Pixels]:
    """Returns 7 smooth images, wide, high, square and small."""
    sizes = [(70, 40), (40, 90), (33, 33), (200, 20), (16, 16), (64, 64), (20, 130)]
    rough = [np.random.default_rng(n).integers(0, 256, (4, 6, 3), dtype=np.uint8) for n in range(len(sizes))]
    return [np.asarray(Image.fromarray(one).resize(size)) for one, size in zip(rough, sizes, strict=True)]


def png(pixels: Pixels) -> bytes:
    """Returns an image file of some pixels."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def text_pool(folder: Path, *texts: str, plain: int = 3) -> Path:
    """Writes a pool of one shard: images of one colour, then one of each text, which is its caption too."""
    colours = np.random.default_rng(0).integers(0, 256, (plain, 3), dtype=np.uint8)
    samples = [(f"{n}", pair(n) | {"jpg": png(np.full((160, 320, 3), colour))}) for n, colour in enumerate(colours)]
    for n, text in enumerate(texts):
        files = {"jpg": png(drawn_text(text, size=(330, 200))), "txt": text.encode()}
        samples.append((f"text{n}", pair(50 + n) | files))
    return write_tar(folder / "00000.tar", samples).parent


def caption(seed: int = 0) -> str:
    """Returns a random caption of 3 to 9 words."""
    rng = np.random.default_rng(seed)
    return " ".join(rng.choice(WORDS, rng.integers(3, 10)))


def pair(seed: int, **json_fields: Any) -> dict[str, bytes]:
    """Returns the files of one good sample, by extension, with a json that gives a uid."""
    image = image_bytes(seed)
    meta = {"uid": f"{seed * 7919 + 1:032x}", "original_width": 480, "original_height": 320} | json_fields
    return {"jpg": image, "txt": caption(seed).encode(), "json": json.dumps(meta).encode()}


def write_tar(path: Path, samples: Iterable[tuple[str, Mapping[str, bytes]]], mode: str = "w") -> Path:
    """Writes a tar of (key, {extension: bytes}) samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for key, files in samples:
            for ext, data in files.items():
                info = tarfile.TarInfo(f"{key}.{ext}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def write_pool(folder: Path, shards: int = 3, rows: int = 7, first: int = 0) -> Path:
    """Writes a pool of good pairs: 00000.tar and so on."""
    for shard in range(first, first + shards):
        samples = [(f"{shard:05d}{row:04d}", pair(shard * 1000 + row)) for row in range(rows)]
        write_tar(folder / f"{shard:05d}.tar", samples)
    return folder


def score(pool: Path | str | PoolSpec, run: Path, *signals: Any, **options: Any) -> Run:
    """Scores a pool, quietly; by two signals that need no model, if none is named."""
    return tamis.score(pool, run=run, signals=list(signals or ("caption_length", "image_size")), quiet=True, **options)


def write_run(
    folder: Path,
    columns: Mapping[str, Sequence[Any]],
    *,
    shards: int = 3,
    uids: Sequence[tuple[int, int]] | None = None,
    embeddings: Mapping[str, Any] | None = None,
) -> Run:
    """Writes a run folder without scoring anything: rows with the given columns, cut into shards.

    Lists of words become word columns, everything else numbers with NaN for null. `embeddings` are (rows, d), by name.
    """
    rows = len(next(iter(columns.values())))
    pool_folder = folder.parent / f"{folder.name}-pool"
    cuts = np.linspace(0, rows, shards + 1).astype(int)
    for number in range(shards):
        write_tar(pool_folder / f"{number:05d}.tar", [])
    manifest.begin(folder, None, open_pool(pool_folder), {})
    words = {name for name, values in columns.items() if any(isinstance(value, str) for value in values)}
    spec = [Column(name=n, unit="", better="high", kind="word" if n in words else "number") for n in columns]
    described = [{"name": c.name, "unit": "", "better": "high", "kind": c.kind, "about": ""} for c in spec]
    scores = "scores/given-0000000000000000"
    manifest.describe(folder, {scores: {"name": "given", "label": "given", "columns": described}})
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        index = IndexWriter((), source="", stamp="")
        for row in range(start, stop):
            uid = uids[row] if uids else content_uid(b"image", str(row).encode())
            index.add(None, [Sample(uid=uid, key=f"{row:09d}", caption=caption(row), shown_caption=caption(row))])
        part = folder / "index" / f"{number:05d}.parquet"
        index.write(part)
        values = {name: list(column[start:stop]) for name, column in columns.items()}
        for name in columns:
            if name not in words:
                values[name] = np.asarray(values[name], np.float32)  # type: ignore[assignment]
        none = [None] * (stop - start)
        write_scores(folder / scores / f"{number:05d}.parquet", spec, values, none, uids=uids_in(part))
        for name, vectors in (embeddings or {}).items():
            store = folder / "embeddings" / f"{name}-0000000000000000"
            write_rows(store / f"{number:05d}.npy", [vectors[start:stop]], uids=uids_in(part))
    for name in embeddings or {}:
        manifest.describe(folder, {f"embeddings/{name}-0000000000000000": {"name": name}})
    return Run(folder)


def safetensors_bytes(content: bytes = b"weights") -> bytes:
    """Returns a safetensors file of one tensor, of these bytes, for tests that load nothing."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}}).encode()
    return len(header).to_bytes(8, "little") + header + content


def score_batch(node: Node, samples: Sequence[Sample]) -> Any:
    """Returns a node's value for one batch: what a worker does, without its threads and files."""
    return execute([node], samples, Device(threads=1))[node]


def index_rows(run: Run, shard: str | None = None) -> list[dict[str, Any]]:
    """Returns the index of one shard, or of all in order, as mappings."""
    shards = run.shards if shard is None else (shard,)
    return [row for name in shards for row in run.index(name).to_pylist()]


def members_of(run: Run, shard: str) -> list[list[Member]]:
    """Returns the tar members of a shard's rows."""
    rows = run.index(shard, ["members"])["members"].to_pylist()
    return [[Member(**part) for part in row] for row in rows]


def parts_of(run: Path) -> dict[str, bytes]:
    """Returns every part file of a run folder with its bytes, by relative path."""
    kinds = ("index", "scores", "embeddings", "captions", "texts")
    return {
        str(path.relative_to(run)): path.read_bytes()
        for kind in kinds
        for path in sorted((run / kind).rglob("*"))
        if path.suffix in (".parquet", ".npy")
    }


#: The arrays of DataComp's npz and their widths.
EMBEDDING_SIZES = {"b32_img": 512, "b32_txt": 512, "l14_img": 768, "l14_txt": 768}


def write_metadata(path: Path, rows: int = 5, seed: int = 0, **changes: Any) -> dict[str, np.ndarray]:
    """Writes metadata and the npz beside it as DataComp publishes them, and returns the arrays of the npz."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {
        "uid": [f"{seed:016x}{row:016x}" for row in range(rows)],
        "url": [f"https://x.org/{row}.jpg" for row in range(rows)],
        "text": [caption(seed * 100 + row) for row in range(rows)],
        "original_width": [640 + row for row in range(rows)],
        "original_height": [480] * rows,
        "clip_b32_similarity_score": rng.normal(0.2, 0.1, rows).astype(np.float16).astype(np.float32),
        "clip_l14_similarity_score": [None, *rng.normal(0.2, 0.1, rows - 1).astype(np.float32)] if rows else [],
    }
    columns |= changes
    pq.write_table(pa.table({name: value for name, value in columns.items() if value is not None}), path)
    arrays = {name: rng.normal(size=(rows, size)).astype(np.float16) for name, size in EMBEDDING_SIZES.items()}
    np.savez(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    return arrays


def uids_in(path: Path) -> str:
    """The hash of the uids of an index part, from its rows."""
    return uids_digest(*uids_of(read_columns(path, ["uid_hi", "uid_lo"])))
