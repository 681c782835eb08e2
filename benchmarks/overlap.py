"""`tamis overlap` of a million images with 50,000 references: time and peak memory, by hashes and by embeddings.

40 % of the references are changed images of the pool: up to four bits of their hash and a level of lightness, and noise
on the embedding. One placeholder is in the pool 20,000 times, and 20 times among the references. Hashes are drawn
evenly; a web pool's are nearer to each other. The recall is left out: it takes 300 images whatever the size.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.distinct import PART, SCORES, Array, flipped, part, write_part
from benchmarks.measure import Case, child, finish, options
from benchmarks.runs import write_description, write_manifest
from tamis.math.similarity import unit_rows
from tamis.signals.image_hash import ImageHash
from tamis.store.checked import write_array

WIDTH, EMBEDDING = 512, "image_embedding"

#: Settings of `overlap` in each case.
CASES: dict[str, dict[str, Any]] = {
    "hashes": {},
    "embeddings": {"embedding": EMBEDDING, "hashes": False},
}


def embedded(number: int, rows: int) -> Array:
    return unit_rows(np.random.default_rng([5, number]).standard_normal((rows, WIDTH), np.float32))


def changed(drawn: dict[str, Array], vectors: Array, rows: int) -> tuple[dict[str, Array], Array]:
    """Returns copies of the first rows that are not the same byte for byte."""
    rng = np.random.default_rng(9)
    some = {name: values[:rows] for name, values in drawn.items()}
    some["hashes"] = np.stack([flipped(rng, each, 4) for each in some["hashes"].T], axis=1)
    some["light"] = some["light"] - (some["light"] > 0)
    return some, unit_rows(vectors[:rows] + 0.2 * embedded(8, rows))  # cosine .98


def write_runs(folder: Path, rows: int, references: int) -> None:
    """Writes the run of the pool and the run of the references."""
    if (folder / "references" / "run.json").exists():
        return
    copies, crowd = round(0.4 * references), round(0.0004 * references)
    others = round(0.98 * rows)
    pool = [*(min(PART, others - start) for start in range(0, others, PART)), rows - others]
    plans = {"pool": pool, "references": [copies, references - copies - crowd, crowd]}
    for which, counts in plans.items():
        names = []
        for number, count in enumerate(counts):
            other = number if which == "pool" or not number else number + 1000
            drawn = part(other, count, placeholder=number == len(counts) - 1)
            vectors = embedded(other, count)
            if which == "references" and not number:
                drawn, vectors = changed(part(0, PART, placeholder=False), embedded(0, PART), copies)
            name = f"{number:05d}"
            digest = write_part(folder / which, name, other + 5000 * (which != "pool"), drawn)
            store = folder / which / "embeddings" / f"{EMBEDDING}-0000000000000000"
            write_array(store / f"{name}.npy", vectors.astype(np.float16), uids=digest)
            names.append(name)
        write_description(folder / which / SCORES, "image_hash", ImageHash.columns)
        write_manifest(folder / which, names)


def ours(folder: str, settings: str) -> dict[str, Any]:
    """Looks for the references; returns what was found."""
    found = tamis.overlap(f"{folder}/pool", f"{folder}/references", planted=0, **json.loads(settings))
    return {"rows": found.rows, "references": found.references, "copies": found.copies, "found": found.found}


CODE = """
import sys
from benchmarks.measure import self_measured
from benchmarks.overlap import ours
self_measured(lambda: ours(*sys.argv[1:]))
"""


def main() -> None:
    asked = options(__doc__ or "", [*CASES])
    rows, references = (100_000, 5_000) if asked.quick else (1_000_000, 50_000)
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        folder = Path(asked.folder or temporary) / f"overlap-{rows}"
        write_runs(folder, rows, references)
        cases = []
        for name in [asked.only] if asked.only else [*CASES]:
            done = child(CODE, str(folder), json.dumps(CASES[name]))
            facts = json.loads(done.output.strip().splitlines()[-1])
            settings = {key: facts[key] for key in ("rows", "references", "copies", "found")}
            settings |= {"CPU seconds": round(facts["cpu_seconds"], 1), "peak GiB": round(done.peak_bytes / 2**30, 2)}
            cases.append(Case(name, "seconds", done.seconds, None, None, "at most 600", settings))
        finish("overlap", cases, asked.json)


if __name__ == "__main__":
    main()
