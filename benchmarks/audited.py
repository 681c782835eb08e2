"""The small figures of the audits against the papers, on inputs that are made here: what is done now beside the fault.

- a page: of 56 x 31 words in a detector's map, how many regions are found; the fault kept the first 1,000 contours.
- long rows: ten of 300 rows are 12 times as long; of the fifteen that ClipCov takes, how many are among the ten, with
  rows made one long and with rows as they lie.
- double greedy: what stays of 90 pairs whose similarities are negative, and of 300 of which all may stay, without it
  (the recipe's way) and with it.
- copies: of 100 exact copies, how many `semdedup` finds at epsilon 0, beside a comparison of rounded cosines with 1.
- batches: how far a score of `icc` moves with the size of the batch, in float32 and in bf16 (`--data`: a table with a
  column `caption` or `text`; without it captions of the lab).
- black pictures (`--pictures FOLDER`, images or tars): how many transparent pictures decode to black alone, and how
  many on white.
"""

from __future__ import annotations

import argparse
import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.measure import Case, finish
from tamis.data import Device
from tamis.errors import SampleError
from tamis.evaluate.texts import score_texts
from tamis.math import clipcov as formulas
from tamis.math.similarity import unit_rows
from tamis.models.ocr.detector import regions_of
from tamis.pool.images import decode
from tamis.selectors import ClipCov, SemDeDup
from tamis.signals import Icc
from tamis.store.table import Table
from tools.lab_models.vocabulary import corpus

Array = np.ndarray[Any, Any]

CAP = 1000  # contours that the fault looked at
PARTS = ("page", "rows", "greedy", "copies", "batches", "pictures")


def page() -> list[Case]:
    """A page whose words fill the map; the regions of the first contours alone are the fault."""
    probability = np.zeros((56 * 16, 31 * 32), np.float32)
    for row in range(56):
        for column in range(31):
            probability[row * 16 + 5 : row * 16 + 11, column * 32 + 6 : column * 32 + 26] = 0.9
    found, _ = regions_of(probability, probability.shape[1], probability.shape[0], threshold=0.5)
    contours, _ = cv2.findContours((probability > 0.3).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    before = min(len(contours), CAP)
    return [Case("a page of 1,736 words: regions", "regions", len(found), before, len(found) / before, "1,736")]


def embeddings(rows: int, side: int, apart: bool) -> tuple[Array, Array]:
    """Returns images and captions as rows of length 1: around one centre, or in all directions."""
    rng = np.random.default_rng(2)
    centre = 0 if apart else rng.normal(size=side)
    images, texts = (unit_rows(centre + rng.normal(size=(rows, side))) for _ in range(2))
    return images.astype(np.float32), texts.astype(np.float32)


def table_of(images: Array, texts: Array) -> Table:
    high, low = np.random.default_rng(1).integers(0, 2**64, (2, len(images)), dtype=np.uint64)
    columns = {"image_embedding": images, "text_embedding": texts, "kind": ["all"] * len(images)}
    return Table.of(columns, uids=(high, low))


def rows() -> list[Case]:
    """Ten rows that are longer than the others; what a choice of rows as they lie makes of them is the fault."""
    images, texts = embeddings(300, 16, apart=False)
    images[::30] *= 12
    texts[::30] *= 12
    step = ClipCov(n=15, per="kind", terms=("cov",), double_greedy=False)
    ours = np.isin(step.rank(table_of(images, texts)).rows, np.arange(0, 300, 30)).sum()
    modular = formulas.modular_gains(images, texts, terms=("cov",))
    weight = formulas.pair_weight(len(images), ("cov",))
    as_they_lie = formulas.greedy(images, texts, modular, weight=weight, count=15).rows
    before = int(np.isin(as_they_lie, np.arange(0, 300, 30)).sum())
    chance = "0.5 of 15 by chance"
    return [Case("places of 15 that ten long rows of 300 take", "places", int(ours), before, None, chance)]


def greedy() -> list[Case]:
    """What the recipe keeps of its budget, beside what double greedy leaves of it."""
    cases = []
    for name, allowed, apart in (("90 pairs of 160, in all directions", 90, True), ("all of 300 may stay", 300, False)):
        table = table_of(*embeddings(160 if apart else 300, 16, apart=apart))
        kept = [
            ClipCov(n=allowed, per="kind", terms=("cov",), double_greedy=double).select(table).counts["kept"]
            for double in (False, True)
        ]
        cases.append(Case(f"{name}: kept", "pairs", kept[0], kept[1], None, f"{allowed}"))
    return cases


def copies() -> list[Case]:
    """Exact copies at epsilon 0; cosines in float32 that reach 1 are the fault."""
    images, texts = embeddings(200, 12, apart=True)
    images = images.astype(np.float16)
    images[100:] = images[:100]
    found = SemDeDup(epsilon=0, clusters=1).select(table_of(images, texts))
    unit = unit_rows(images.astype(np.float32)).astype(np.float32)
    before = int(((unit[100:] * unit[:100]).sum(axis=1) >= 1).sum())
    return [Case("exact copies found at epsilon 0", "of 100", found.counts["repeats another"], before, None, "100")]


def batches(captions: list[str], model: str) -> list[Case]:
    """The same captions one at a time and 64 at a time."""
    cases = []
    for precision in ("float32", "bf16"):
        device = Device(precision=precision)
        together, alone = (
            np.array(score_texts(Icc(model=model), captions, replace(device, batch_size=size))["icc"], float)
            for size in (64, 1)
        )
        moved = float(np.nanmax(np.abs(together - alone)))
        cases.append(Case(f"icc by {model}, batches of 64 and of 1, {precision}", "farthest", moved, None, None, "-"))
    return cases


def pictures_in(folder: Path) -> Iterator[bytes]:
    """Yields the files of a folder and the members of its tars that are named as images."""
    kinds = (".png", ".webp", ".gif")
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".tar":
            with tarfile.open(path) as tar:
                for member in tar:
                    if member.name.lower().endswith(kinds):
                        yield tar.extractfile(member).read()  # type: ignore[union-attr]
        elif path.suffix.lower() in kinds:
            yield path.read_bytes()


def pictures(folder: Path) -> list[Case]:
    """Transparent pictures that are black on black, as colours alone are read, and the same on white."""
    seen, black, still = 0, 0, 0
    for data in pictures_in(folder):
        try:
            with Image.open(io.BytesIO(data)) as image:
                clear = image.has_transparency_data
            if not clear:
                continue
            seen += 1
            black += int(decode(data, max_pixels=2**26).max() == 0)
            still += int(decode(data, max_pixels=2**26, transparency="white").max() == 0)
        except (SampleError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue
    return [
        Case("transparent pictures that are all black: on white, and without", "pictures", still, black, None, "0"),
        Case("transparent pictures looked at", "pictures", seen, None, None, "-"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--data", type=Path, help="a Parquet file of captions")
    parser.add_argument("--pictures", type=Path, help="a folder of images or tars")
    parser.add_argument("--model", default="norms", help="the student of icc")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    wanted = [asked.only] if asked.only else [part for part in PARTS if part != "pictures" or asked.pictures]
    cases: list[Case] = []
    for part in wanted:
        if part == "batches":
            captions = corpus(500, seed=5)
            if asked.data:
                named = pq.read_table(asked.data)
                column = next(name for name in ("caption", "text", "TEXT") if name in named.column_names)
                captions = [text for text in named.column(column).to_pylist() if text][:500]
            cases += batches(captions, asked.model)
        elif part == "pictures":
            cases += pictures(asked.pictures)
        else:
            cases += {"page": page, "rows": rows, "greedy": greedy, "copies": copies}[part]()
    finish("audited", cases, asked.json)


if __name__ == "__main__":
    main()
