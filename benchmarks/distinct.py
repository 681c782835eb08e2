"""`distinct` on a million images of which 20,000 are one placeholder; with `--pool`, which copies it finds.

The placeholder was saved by many sites: its copies differ in up to three bits of their hash and in a level of
lightness, no two words are alike, and they are the smallest files, so that they come last. 2 % of the other images
are copies too. Their hashes are drawn evenly; a web pool's are nearer to each other. Seconds are of one process,
reading included; CPU seconds are given as well.

`--pool POOL` takes the first images of a pool whose file is there once, makes copies of each (`CHANGES`), and counts
how many are found. It also says how many pairs of the pool itself are dropped, and how many are byte for byte another
one. `--products` does the same with drawn product photographs (`benchmarks/products.py`), of which no two are copies.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

import tamis
from benchmarks.measure import Case, child, finish
from benchmarks.products import products
from benchmarks.runs import write_description, write_manifest, write_rows
from tamis.pool.images import decode
from tamis.selectors import Distinct
from tamis.signals.image_hash import ImageHash, colours_of, hashes_of, lightness_of
from tamis.store.parts import write_scores
from tamis.store.table import Table

Array = np.ndarray[Any, Any]

PART = 50_000
SCORES = "scores/image_hash-0000000000000000"
COPIES = 0.02


def flipped(rng: np.random.Generator, hashes: Array, most: int) -> Array:
    """Returns hashes of which up to `most` bits are turned over."""
    for _ in range(most):
        bit = np.uint64(1) << rng.integers(0, 64, hashes.shape, dtype=np.uint64)
        hashes = np.where(rng.random(hashes.shape) < 0.5, hashes ^ bit, hashes)
    return hashes


def part(number: int, rows: int, placeholder: bool) -> dict[str, Array]:
    """Returns hashes (rows, 3), colours (rows, 128), lightness (rows, 1024) and file sizes of drawn images."""
    rng = np.random.default_rng(number)
    if placeholder:
        whole = flipped(rng, np.full(rows, 0x8F0F3C5A6B1D2E47, np.uint64), 3)
        colours = np.full((rows, 128), 128, np.uint8)
        light = np.full((rows, 1024), 250, np.uint8)
        light[:, 360:640] = 60
        light -= rng.integers(0, 2, light.shape, dtype=np.uint8)
        sizes = rng.integers(900, 1000, rows)
    else:
        whole = rng.integers(0, 2**64, rows, dtype=np.uint64)
        colours = rng.normal(128, 12, (rows, 128)).clip(0, 255).astype(np.uint8)
        light = rng.integers(0, 256, (rows, 1024), dtype=np.uint8)
        sizes = rng.integers(5_000, 500_000, rows)
        copies = np.flatnonzero(rng.random(rows - 1) < COPIES)
        whole[copies + 1] = flipped(rng, whole[copies], 4)
        colours[copies + 1], light[copies + 1] = colours[copies], light[copies]
    hashes = np.stack([whole, flipped(rng, whole, 8), flipped(rng, whole, 12)], axis=1)
    return {"hashes": hashes, "colours": colours, "light": light, "sizes": sizes}


def hex_words(numbers: Array) -> list[str]:
    """Returns the bytes of each row as hex digits."""
    digits, width = numbers.tobytes().hex(), 2 * numbers.shape[1]
    return [digits[start : start + width] for start in range(0, len(digits), width)]


def write_part(folder: Path, name: str, number: int, drawn: dict[str, Array]) -> str:
    """Writes one shard's index and hashes, with uids drawn by number, and returns the hash of the uids."""
    count = len(drawn["sizes"])
    uids = np.random.default_rng([7, number]).integers(0, 2**64, (count, 2), dtype=np.uint64)
    digest = write_rows(folder, name, uids, image_bytes=pa.array(drawn["sizes"], pa.int64()))
    spelt = hex_words(drawn["hashes"].astype(">u8").view(np.uint8))
    words = {
        "image_hash": [f"{one[:16]} {one[16:32]} {one[32:]}" for one in spelt],
        "image_colours": hex_words(drawn["colours"]),
        "image_lightness": hex_words(drawn["light"]),
        "content_hidden": np.zeros(count, np.float32),
    }
    write_scores(folder / SCORES / f"{name}.parquet", ImageHash.columns, words, [None] * count, uids=digest)
    return digest


def write_run(folder: Path, rows: int, placeholders: int) -> None:
    """Writes a run folder as `tamis score --signals image_hash` would leave it."""
    names = []
    counts = [min(PART, rows - placeholders - start) for start in range(0, rows - placeholders, PART)]
    for number, count in enumerate([*counts, placeholders]):
        drawn = part(number, count, placeholder=number == len(counts))
        name = f"{number:05d}"
        names.append(name)
        write_part(folder, name, number, drawn)
    write_description(folder / SCORES, "image_hash", ImageHash.columns)
    write_manifest(folder, names)


def ours(folder: str, placeholders: int) -> dict[str, Any]:
    """Selects as the recipe does; returns how many stay, and how many placeholders."""
    subset = tamis.select(folder, "distinct")
    return {
        "kept": len(subset),
        "placeholders_kept": int(subset.keep[-placeholders:].sum()),
    }


CODE = """
import sys
from benchmarks.distinct import ours
from benchmarks.measure import self_measured
self_measured(lambda: ours(sys.argv[1], int(sys.argv[2])))
"""


def crowd(folder: Path, rows: int, placeholders: int) -> list[Case]:
    """Measures the selection of one such run."""
    run = folder / f"distinct-{rows}-{placeholders}"
    if not run.exists():
        write_run(run, rows, placeholders)
    done = child(CODE, str(run), str(placeholders))
    facts = json.loads(done.output.strip().splitlines()[-1])
    name = f"{rows:,} pictures, {placeholders:,} of them one placeholder"
    told = {key: facts[key] for key in ("cpu_seconds", "kept", "placeholders_kept")}
    return [
        Case(f"{name}: time", "seconds", done.seconds, None, None, "at most 60", told),
        Case(f"{name}: peak memory", "GiB", round(done.peak_bytes / 2**30, 3), None, None, "at most 1", {}),
    ]


def saved(picture: Image.Image, kind: str, quality: int) -> Image.Image:
    """Returns an image as it comes back from a file."""
    out = io.BytesIO()
    picture.save(out, kind, quality=quality)
    return Image.open(out).convert("RGB")


def resized(picture: Image.Image, across: float, down: float) -> Image.Image:
    return picture.resize((max(8, round(picture.width * across)), max(8, round(picture.height * down))))


def reshaped(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    """Returns an image made smaller, with its shape changed by 2 to 5 %."""
    scale = rng.uniform(0.5, 0.95)
    return resized(picture, scale, scale * (1 + rng.choice([-1, 1]) * rng.uniform(0.02, 0.05)))


def again(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    """Returns an image made smaller and saved again."""
    scale = rng.uniform(0.4, 0.95)
    return saved(resized(picture, scale, scale), "JPEG", int(rng.integers(35, 90)))


def cut(rng: np.random.Generator, picture: Image.Image, most: float) -> Image.Image:
    """Returns an image of which up to a share was cut off each side."""
    left, top, right, bottom = rng.uniform(0, most, 4) * (2 * (picture.width, picture.height))
    box = (int(left), int(top), picture.width - int(right), picture.height - int(bottom))
    return saved(picture.crop(box), "JPEG", 85)


#: How copies are made.
CHANGES: dict[str, Callable[[np.random.Generator, Image.Image], Image.Image]] = {
    "the same pixels (PNG)": lambda rng, picture: saved(picture, "PNG", 0),
    "JPEG of quality 30": lambda rng, picture: saved(picture, "JPEG", 30),
    "JPEG of quality 30 to 95": lambda rng, picture: saved(picture, "JPEG", int(rng.integers(30, 96))),
    "WebP of quality 30 to 95": lambda rng, picture: saved(picture, "WEBP", int(rng.integers(30, 96))),
    "resized to 0.3": lambda rng, picture: resized(picture, 0.3, 0.3),
    "resized to 0.3 to 2": lambda rng, picture: resized(picture, *[rng.uniform(0.3, 2)] * 2),
    "resized, another shape by 2 to 5 %": reshaped,
    "0.4 to 0.95 of its size, JPEG of quality 35 to 90": again,
    "cut by up to 2 % a side": lambda rng, picture: cut(rng, picture, 0.02),
    "cut by up to 3 % a side": lambda rng, picture: cut(rng, picture, 0.03),
    "cut by up to 5 % a side": lambda rng, picture: cut(rng, picture, 0.05),
    "cut by up to 10 % a side": lambda rng, picture: cut(rng, picture, 0.1),
}


def table_of(pictures: Sequence[Array]) -> Table:
    """Returns what `distinct` reads of images."""
    sizes = np.array([picture.shape[:2] for picture in pictures], np.float32).reshape(-1, 2)
    return Table.of(
        {
            "image_hash": list(map(hashes_of, pictures)),
            "image_colours": list(map(colours_of, pictures)),
            "image_lightness": list(map(lightness_of, pictures)),
            "width": sizes[:, 1],
            "height": sizes[:, 0],
        }
    )


def found(pictures: Sequence[Array], of: str) -> list[Case]:
    """Counts of how many images a changed copy is found, next to the image itself alone."""
    cases = []
    for what, change in CHANGES.items():
        rng, count = np.random.default_rng(0), 0
        for pixels in pictures:
            copy = np.asarray(change(rng, Image.fromarray(pixels)))
            count += int(not Distinct().select(table_of([pixels, copy])).keep.all())
        cases.append(Case(f"{of}: {what}", "copies found", count, None, None, "-", {"of": len(pictures)}))
    return cases


def copies(pool: str, most: int, folder: Path) -> list[Case]:
    """Counts the copies of a pool's images that are found, and what the pool itself loses."""
    run = tamis.score(pool, run=folder / "run", signals=["image_hash"], quiet=True)
    chosen = [
        sample for sample in tamis.samples_of(run, fields=("image", "pixels"), errors="mark") if not sample.problem
    ]
    files = [sample.image for sample in chosen]
    rows = np.array([sample.row for sample in chosen])
    alone = np.flatnonzero([files.count(file) == 1 for file in files])[:most]
    keep = Distinct(best="image_bytes", missing="drop").select(run.table()).keep[rows]
    settings = {"pictures": len(rows), "byte-identical copies among them": len(files) - len(set(files))}
    dropped = Case("dropped of the pool", "pairs", int((~keep).sum()), None, None, "-", settings)
    return [dropped, *found([chosen[place].pixels for place in alone], "pool")]


def drawn(objects: int, most: int) -> list[Case]:
    """Counts the drawn products that go as copies of others, and the copies of them that are found."""
    pictures = [decode(data, max_pixels=10**7) for _, data in products(objects)]
    lost = int((~Distinct().select(table_of(pictures)).keep).sum())
    wrong = Case("drawn products dropped", "pictures", lost, None, None, "at most 1 %", {"of": len(pictures)})
    return [wrong, *found(pictures[:: max(1, len(pictures) // most)], "drawn products")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller, honest size")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    parser.add_argument("--pool", default=None, help="a pool whose pictures are copied")
    parser.add_argument("--products", action="store_true", help="drawn product photographs in its place")
    parser.add_argument("--images", type=int, default=300, help="of the pool, to copy")
    parser.add_argument("--folder", default=None, help="where to put the data; a temporary folder by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        if asked.products:
            cases = drawn(6 if asked.quick else 18, asked.images)
        elif asked.pool:
            cases = copies(asked.pool, asked.images, Path(temporary))
        else:
            rows, placeholders = (100_000, 2_000) if asked.quick else (1_000_000, 20_000)
            cases = crowd(Path(asked.folder or temporary), rows, placeholders)
    finish("distinct", cases, asked.json)


if __name__ == "__main__":
    main()
