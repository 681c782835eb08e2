"""Copies: `distinct` by hashes, `semdedup` by embeddings, and which changed copies are found.

`distinct`: a million images of which 20,000 are one placeholder, saved by many sites: up to three bits of its hash and
a level of lightness differ, and its files are the smallest. 2 % of the other images are copies too. Hashes are drawn
evenly; a web pool's are nearer to each other. Then 6,000 copies of one image, each cropped and saved in another way.

`semdedup`: a million vectors x 512 in 2,000 clusters of very different sizes, a tenth of them near copies. Next to the
published way: the whole matrix of cosines of each cluster, and the maximum of each column of its upper triangle. Both
get the clusters that the vectors were drawn from, keep the first by uid, and must keep the same.

`recall` needs `--pool`: changes the pool's first images in the ways of `CHANGES`, and counts how often the copy is
found; also how many pairs of the pool itself are dropped, and how many files are byte for byte another's.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

import tamis
from benchmarks.clipcov import class_sizes
from benchmarks.measure import Case, Spent, alone, benchmark, child, in_turn, spend, versus
from benchmarks.runs import Array, RunWriter, written
from tamis.core.math.similarity import unit_rows
from tamis.recipes.steps import Distinct
from tamis.recipes.steps.clusters import Clusters
from tamis.recipes.steps.semdedup import SemDeDup
from tamis.runs import open_run
from tamis.runs.regroup import Records, regroup
from tamis.runs.table import MemoryTable, Table
from tamis.signals.image_hash import ImageHash, colours_of, hashes_of, lightness_of

PART = 50_000

# ---- by hashes


def flipped(rng: np.random.Generator, hashes: Array, most: int) -> Array:
    """Returns hashes of which up to `most` bits are inverted."""
    for _ in range(most):
        bit = np.uint64(1) << rng.integers(0, 64, hashes.shape, dtype=np.uint64)
        hashes = np.where(rng.random(hashes.shape) < 0.5, hashes ^ bit, hashes)
    return hashes


def draw(number: int, rows: int, *, placeholder: bool = False) -> dict[str, Array]:
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
        copies = np.flatnonzero(rng.random(rows - 1) < 0.02)
        whole[copies + 1] = flipped(rng, whole[copies], 4)
        colours[copies + 1], light[copies + 1] = colours[copies], light[copies]
    hashes = np.stack([whole, flipped(rng, whole, 8), flipped(rng, whole, 12)], axis=1)
    return {"hashes": hashes, "colours": colours, "light": light, "sizes": sizes}


def write_hashes(folder: Path, rows: int) -> None:
    """Writes a run folder as `tamis score --signals image_hash` would leave it."""
    if written(folder):
        return

    def in_hex(numbers: Array) -> list[str]:
        digits, width = numbers.tobytes().hex(), 2 * numbers.shape[1]
        return [digits[start : start + width] for start in range(0, len(digits), width)]

    run, crowd = RunWriter(folder, "image_hash", ImageHash.columns), rows // 50
    counts = [min(PART, rows - crowd - start) for start in range(0, rows - crowd, PART)]
    for number, count in enumerate([*counts, crowd]):
        shard = draw(number, count, placeholder=number == len(counts))
        uids = np.random.default_rng([7, number]).integers(0, 2**64, (count, 2), dtype=np.uint64)
        hashes = in_hex(shard["hashes"].astype(">u8").view(np.uint8))
        scores = {
            "image_hash": [f"{one[:16]} {one[16:32]} {one[32:]}" for one in hashes],
            "image_colours": in_hex(shard["colours"]),
            "image_lightness": in_hex(shard["light"]),
            "content_hidden": np.zeros(count, np.float32),
        }
        run.add(uids, scores, image_bytes=pa.array(shard["sizes"], pa.int64()))
    run.close()


def choose(folder: str) -> int:
    return len(tamis.select(folder, "distinct"))


def choose_of_copies(count: int) -> Spent:
    """Chooses among so many copies of one image."""
    rng = np.random.default_rng(0)
    fields = rng.integers(0, 256, (6, 8, 3), np.uint8).astype(np.float32).repeat(2, 0).repeat(2, 1)
    picture = Image.fromarray((fields + rng.normal(0, 20, fields.shape)).clip(0, 255).astype(np.uint8))
    picture = picture.resize((320, 240), Image.Resampling.BICUBIC)
    table = table_of([np.asarray(cropped(rng, picture, 0.02)) for _ in range(count)])
    return spend(lambda: int(Distinct().select(table).keep.sum()))


def distinct(root: Path, given: Any) -> list[Case]:
    rows = 100_000 if given.quick else 1_000_000
    write_hashes(root / f"run-{rows}", rows)
    spent = child(choose, root / f"run-{rows}")
    cases = [alone("distinct", spent, target="<= 60 s, 1 GiB", rows=rows, kept=spent.result)]
    copies = child(choose_of_copies, 600 if given.quick else 6000)
    return [*cases, alone("distinct, copies of one image", copies, target="<= 2 s", kept=copies.result)]


# ---- by embeddings

WIDTH, EMBEDDING = 512, "image_embedding"
EPSILON, ALSO = 0.05, (0.01, 0.1, 0.2)


def write_vectors(folder: Path, rows: int, clusters: int) -> None:
    """Writes a run folder of vectors around centres, a tenth of them near copies of others of their cluster."""
    if written(folder):
        return
    rng = np.random.default_rng(1)
    centres = unit_rows(rng.normal(size=(clusters, WIDTH)))
    kinds = np.repeat(np.arange(clusters), class_sizes(rows, clusters)).astype(np.int32)
    rng.shuffle(kinds)
    run = RunWriter(folder)
    for start in range(0, rows, 2 * PART):
        kind = kinds[start : start + 2 * PART]
        noise = rng.standard_normal((len(kind), WIDTH), np.float32) * np.float32(0.9 / np.sqrt(WIDTH))
        values = unit_rows(centres[kind] + noise)
        order = np.argsort(kind, kind="stable")
        same = kind[order[1:]] == kind[order[:-1]]
        copies = np.flatnonzero(same & (rng.random(len(same)) < 0.1))
        spread = rng.standard_normal((copies.size, WIDTH), np.float32) * np.float32(0.1 / np.sqrt(WIDTH))
        values[order[copies + 1]] = unit_rows(values[order[copies]] + spread)
        run.add(rng.integers(0, 2**64, (len(kind), 2), dtype=np.uint64), embeddings={EMBEDDING: values})
    np.savez(folder / "clusters.npz", centres=centres, kinds=kinds)
    run.close()


def clusters_of(folder: str) -> Clusters:
    kept = np.load(Path(folder) / "clusters.npz")
    return Clusters(kept["centres"], kept["kinds"], np.zeros(len(kept["kinds"]), np.float32))


def blocks(folder: str, out: str) -> int:
    """Ours; four thresholds in one pass."""
    table = open_run(folder).table()
    kept, *_ = SemDeDup(epsilon=EPSILON, keep="random", also=ALSO).choose(table, clusters_of(folder))
    keep = kept(slice(0, len(table)))
    np.save(out, keep)
    return int(keep.sum())


def whole_matrices(folder: str, out: str) -> int:
    """One matrix per cluster; four thresholds in one pass."""
    table, clusters = open_run(folder).table(), clusters_of(folder)

    def work(cluster: int, places: slice, rows: Records, _: None) -> tuple[Array, Array]:
        unit = unit_rows(rows["vectors"][EMBEDDING])
        return rows["row"].copy(), np.triu(unit @ unit.T, 1).max(0)

    keep = {epsilon: np.ones(len(table), bool) for epsilon in (EPSILON, *ALSO)}
    for rows, largest in regroup(table, [EMBEDDING], clusters.label, len(clusters.centroids)).scan(work):
        for epsilon, kept in keep.items():
            kept[rows] = largest <= np.float32(1 - epsilon)
    np.save(out, keep[EPSILON])
    return int(keep[EPSILON].sum())


def semdedup(root: Path, given: Any) -> list[Case]:
    rows, clusters = (100_000, 200) if given.quick else (1_000_000, 2_000)
    run = root / f"run-{rows}"
    write_vectors(run, rows, clusters)
    spent = in_turn(
        2,
        theirs=lambda: child(whole_matrices, run, root / "theirs.npy"),
        ours=lambda: child(blocks, run, root / "ours.npy"),
    )
    same = bool((np.load(root / "ours.npy") == np.load(root / "theirs.npy")).all())
    name = "semdedup, next to one matrix per cluster"
    return [versus(name, spent["ours"], spent["theirs"], target="> 1", rows=rows, clusters=clusters, same_rows=same)]


# ---- which copies are found


def saved(picture: Image.Image, kind: str, quality: int) -> Image.Image:
    """Returns an image as it comes back from a file."""
    out = io.BytesIO()
    picture.save(out, kind, quality=quality)
    return Image.open(out).convert("RGB")


def resized(picture: Image.Image, across: float, down: float) -> Image.Image:
    return picture.resize((max(8, round(picture.width * across)), max(8, round(picture.height * down))))


def cropped(rng: np.random.Generator, picture: Image.Image, most: float) -> Image.Image:
    left, top, right, bottom = rng.uniform(0, most, 4) * (2 * (picture.width, picture.height))
    box = (int(left), int(top), picture.width - int(right), picture.height - int(bottom))
    return saved(picture.crop(box), "JPEG", 85)


#: How copies are made.
CHANGES: dict[str, Callable[[np.random.Generator, Image.Image], Image.Image]] = {
    "the same pixels (PNG)": lambda rng, picture: saved(picture, "PNG", 0),
    "JPEG of quality 30 to 95": lambda rng, picture: saved(picture, "JPEG", int(rng.integers(30, 96))),
    "WebP of quality 30 to 95": lambda rng, picture: saved(picture, "WEBP", int(rng.integers(30, 96))),
    "resized to 0.3 to 2": lambda rng, picture: resized(picture, *[rng.uniform(0.3, 2)] * 2),
    "resized, another shape by 2 to 5 %": lambda rng, picture: resized(picture, 0.7, 0.7 * rng.uniform(1.02, 1.05)),
    "cropped by up to 2 % a side": lambda rng, picture: cropped(rng, picture, 0.02),
    "cropped by up to 5 % a side": lambda rng, picture: cropped(rng, picture, 0.05),
    "cropped by up to 10 % a side": lambda rng, picture: cropped(rng, picture, 0.1),
}


def table_of(pictures: Sequence[Array]) -> Table:
    """Returns what `distinct` reads of images."""
    columns = {"image_hash": hashes_of, "image_colours": colours_of, "image_lightness": lightness_of}
    read: dict[str, Any] = {name: list(map(function, pictures)) for name, function in columns.items()}
    for axis, name in enumerate(("height", "width")):
        read[name] = np.array([picture.shape[axis] for picture in pictures], np.float32)
    return MemoryTable(read)


def recall(root: Path, given: Any) -> list[Case]:
    if not given.pool:
        print("recall needs --pool")
        return []
    run = tamis.score(given.pool, run=root / "run", signals=["image_hash"], quiet=True)
    samples = [one for one in tamis.samples_of(run, fields=("image", "pixels"), errors="mark") if not one.problem]
    files = [sample.image for sample in samples]
    pictures = [sample.pixels for sample in samples if files.count(sample.image) == 1]
    pictures = pictures[: 30 if given.quick else given.images]
    keep = Distinct(best="image_bytes", missing="drop").select(run.table()).keep[[sample.row for sample in samples]]
    settings = {"images": len(files), "byte-identical copies among them": len(files) - len(set(files))}
    cases = [Case("dropped of the pool", "pairs", int((~keep).sum()), settings=settings)]
    for what, change in CHANGES.items():
        rng = np.random.default_rng(0)
        copies = [np.asarray(change(rng, Image.fromarray(pixels))) for pixels in pictures]
        pairs = zip(pictures, copies, strict=True)
        count = sum(not Distinct().select(table_of([pixels, copy])).keep.all() for pixels, copy in pairs)
        cases.append(Case(f"copies found: {what}", "share", count / len(pictures), settings={"of": len(pictures)}))
    return cases


if __name__ == "__main__":
    parts = {"distinct": distinct, "semdedup": semdedup, "recall": recall}
    benchmark(__doc__, parts, pool=None, images=300)
