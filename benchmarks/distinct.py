"""`distinct` on a million pictures of which 20,000 are one placeholder; with `--pool`, which copies it finds.

The placeholder was saved by many sites: its copies differ in up to three bits of their hash and in a level of
lightness, no two words are alike, and they are the smallest files, so that they come last. 2 % of the other pictures
are copies too. Their hashes are drawn evenly; a web pool's lie nearer together. Seconds are of one process, reading
included; CPU seconds stand beside them.

`--pool POOL` takes the first pictures of a pool whose file is there once, makes copies of each (the same pixels; saved
again as JPEG of quality 35 to 90 at 40 to 95 % of its size; up to 3 % cut off each side), and counts how many are
found. It also tells how many pairs of the pool itself are dropped, and how many are byte for byte another one.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import tamis
from benchmarks.measure import Case, child, finish
from benchmarks.select import _index_column
from tamis.selectors import Distinct
from tamis.signals.image_hash import ImageHash, colours_of, hashes_of, lightness_of
from tamis.store.parts import INDEX_FIELDS, write_scores
from tamis.store.table import Table

Array = np.ndarray[Any, Any]

PART = 50_000
COPIES = 0.02


def flipped(rng: np.random.Generator, hashes: Array, most: int) -> Array:
    """Returns hashes of which up to `most` bits are turned over."""
    for _ in range(most):
        bit = np.uint64(1) << rng.integers(0, 64, hashes.shape, dtype=np.uint64)
        hashes = np.where(rng.random(hashes.shape) < 0.5, hashes ^ bit, hashes)
    return hashes


def part(number: int, rows: int, placeholder: bool) -> dict[str, Array]:
    """Returns hashes (rows, 3), colours (rows, 32), lightness (rows, 256) and file sizes of drawn pictures."""
    rng = np.random.default_rng(number)
    if placeholder:
        whole = flipped(rng, np.full(rows, 0x8F0F3C5A6B1D2E47, np.uint64), 3)
        colours = np.full((rows, 32), 128, np.uint8)
        light = np.full((rows, 256), 250, np.uint8)
        light[:, 90:160] = 60
        light -= rng.integers(0, 2, light.shape, dtype=np.uint8)
        sizes = rng.integers(900, 1000, rows)
    else:
        whole = rng.integers(0, 2**64, rows, dtype=np.uint64)
        colours = rng.normal(128, 12, (rows, 32)).clip(0, 255).astype(np.uint8)
        light = rng.integers(0, 256, (rows, 256), dtype=np.uint8)
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


def write_run(folder: Path, rows: int, placeholders: int) -> None:
    """Writes a run folder as `tamis score --signals image_hash` would leave it."""
    scores = folder / "scores" / "image_hash-0000000000000000"
    for place in (folder / "index", scores):
        place.mkdir(parents=True)
    shards = []
    counts = [min(PART, rows - placeholders - start) for start in range(0, rows - placeholders, PART)]
    for number, count in enumerate([*counts, placeholders]):
        drawn = part(number, count, placeholder=number == len(counts))
        name = f"{number:05d}"
        shards.append({"name": name, "url": f"{name}.tar"})
        uids = np.random.default_rng([7, number]).integers(0, 2**64, (count, 2), dtype=np.uint64)
        columns = {field.name: _index_column(field, uids, count) for field in INDEX_FIELDS}
        columns["image_bytes"] = pa.array(drawn["sizes"], pa.int64())
        pq.write_table(pa.table(columns, schema=pa.schema(INDEX_FIELDS)), folder / "index" / f"{name}.parquet")
        spelt = hex_words(drawn["hashes"].astype(">u8").view(np.uint8))
        words = {
            "image_hash": [f"{one[:16]} {one[16:32]} {one[32:]}" for one in spelt],
            "image_colours": hex_words(drawn["colours"]),
            "image_lightness": hex_words(drawn["light"]),
        }
        write_scores(scores / f"{name}.parquet", ImageHash.columns, words, [None] * count, uids="")
    described = [
        {"name": column.name, "unit": "", "better": "neither", "kind": "word", "about": ""}
        for column in ImageHash.columns
    ]
    (scores / "scorer.json").write_text(json.dumps({"name": "image_hash", "label": "image_hash", "columns": described}))
    (folder / "run.json").write_text(
        json.dumps({"format": 1, "pool": {"kind": "webdataset", "fields": []}, "shards": shards})
    )


def ours(folder: str, placeholders: int) -> dict[str, Any]:
    """Selects as the recipe does; returns how many stay, and how many placeholders."""
    before = time.process_time()
    subset = tamis.select(folder, "distinct")
    return {
        "cpu_seconds": time.process_time() - before,
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


def saved(picture: Image.Image, quality: int) -> Array:
    """Returns the pixels of a picture that was saved as JPEG."""
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality)
    return np.asarray(Image.open(out).convert("RGB"))


def again(rng: np.random.Generator, pixels: Array) -> Array:
    """Returns a picture made smaller and saved again."""
    picture = Image.fromarray(pixels)
    share = rng.uniform(0.4, 0.95)
    size = (max(8, int(picture.width * share)), max(8, int(picture.height * share)))
    return saved(picture.resize(size, Image.Resampling.BICUBIC), int(rng.integers(35, 90)))


def cut(rng: np.random.Generator, pixels: Array) -> Array:
    """Returns a picture of which up to 3 % were cut off each side."""
    height, width = pixels.shape[:2]
    left, right, top, bottom = rng.uniform(0, 0.03, 4)
    inside = pixels[int(top * height) : height - int(bottom * height), int(left * width) : width - int(right * width)]
    return saved(Image.fromarray(inside), 85)


def found(pictures: list[Array], change: Any, step: Distinct) -> int:
    """Returns of how many pictures the changed copy goes, beside the picture itself alone."""
    gone = 0
    for pixels in pictures:
        both = [pixels, change(pixels)]
        words = {
            "image_hash": list(map(hashes_of, both)),
            "image_colours": list(map(colours_of, both)),
            "image_lightness": list(map(lightness_of, both)),
        }
        gone += int(not step.select(Table.of(words)).keep.all())
    return gone


def copies(pool: str, most: int, folder: Path) -> list[Case]:
    """Counts the copies that are found, with and without the lightness, and what the pool itself loses."""
    run = tamis.score(pool, run=folder / "run", scores=["image_hash"], quiet=True)
    table, cases = run.table(), []
    chosen = [
        sample for sample in tamis.samples_of(run, fields=("image", "pixels"), errors="mark") if not sample.problem
    ]
    files = [sample.image for sample in chosen]
    rows = np.array([sample.row for sample in chosen])
    alone = np.flatnonzero([files.count(file) == 1 for file in files])[:most]
    pictures = [chosen[place].pixels for place in alone]
    for name, column in (("", "image_lightness"), (", without lightness", None)):
        keep = Distinct(lightness=column, best="image_bytes", missing="drop").select(table).keep[rows]
        settings = {"pictures": len(rows), "byte-identical copies among them": len(files) - len(set(files))}
        cases.append(Case(f"dropped of the pool{name}", "pairs", int((~keep).sum()), None, None, "-", settings))
        for what, change in (("the same file", lambda _, pixels: pixels), ("saved again", again), ("cut", cut)):
            rng = np.random.default_rng(0)
            count = found(pictures, lambda pixels, c=change, r=rng: c(r, pixels), Distinct(lightness=column))
            cases.append(Case(f"{what}{name}", "copies found", count, None, None, "-", {"of": len(pictures)}))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller, honest size")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    parser.add_argument("--pool", default=None, help="a pool whose pictures are copied")
    parser.add_argument("--pictures", type=int, default=300, help="of the pool, to copy")
    parser.add_argument("--folder", default=None, help="where to put the data; a temporary folder by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        if asked.pool:
            cases = copies(asked.pool, asked.pictures, Path(temporary))
        else:
            rows, placeholders = (100_000, 2_000) if asked.quick else (1_000_000, 20_000)
            cases = crowd(Path(asked.folder or temporary), rows, placeholders)
    finish("distinct", cases, asked.json)


if __name__ == "__main__":
    main()
