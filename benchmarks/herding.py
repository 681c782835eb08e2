"""Covariance herding on 2.84 million pairs x 512: the CLIP top half, 10 % of the pool, class by class.

The pool is that of `benchmarks.clipcov`, with its 1,000 classes found beforehand; measured is the step `herding` with
`per: zero_shot_class`, from the stored embeddings to the choice and its errors. Beside it stands one class alone, where
the rows of the kernel are computed many at a time, against the plain loop that computes one for each choice; both
choose the same pairs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clipcov import FRACTION, Mixture, classify, write_run
from benchmarks.measure import Case, child, finish, options
from tamis.math.herding import along, herd
from tamis.selectors.herding import Herding
from tamis.store import open_run

Array = np.ndarray[Any, Any]


def top_half(folder: str) -> Array:
    """Returns which pairs are in the half of highest cosine of image and caption."""
    run = open_run(folder)
    cosines = []
    for shard in run.shards:
        images, texts = (run.embedding(f"{side}_embedding", shard) for side in ("image", "text"))
        cosines.append(np.einsum("nd,nd->n", images.astype(np.float32), texts.astype(np.float32)))
    found = np.concatenate(cosines)
    return found >= np.median(found)


def ours(folder: str) -> dict[str, Any]:
    """Chooses from the top half as `tamis select` does."""
    table = open_run(folder).table().among(top_half(folder))
    start = time.perf_counter()
    found = Herding(fraction=FRACTION, of="pool", per="zero_shot_class").rank(table)
    took = time.perf_counter() - start
    facts = {name: found.facts[name] for name in ("herding_error", "covariance_error")}
    most = max(each["kept"] for each in found.facts["classes"])
    return {"step_seconds": took, "chosen": len(found.rows), "largest budget": most, **facts}


def one_class(n: int) -> tuple[Array, Array, Array]:
    """Returns the centred images and captions of one class, and their alignment with its covariance."""
    mixture = Mixture(1)
    images, texts = (side.astype(np.float32) for side in mixture.part(0, np.zeros(n, np.int64)))
    images -= images.mean(0)
    texts -= texts.mean(0)
    return images, texts, along(images, texts, images.T @ texts / n)


def plain(images: Array, texts: Array, aim: Array, count: int) -> Array:
    """Herding with one row of the kernel for each choice."""
    score = aim - np.einsum("nd,nd->n", images, images) * np.einsum("nd,nd->n", texts, texts) / 2
    chosen = np.empty(count, np.int64)
    for m in range(count):
        chosen[m] = best = int(score.argmax())
        score += aim - (images @ images[best]) * (texts @ texts[best])
        score[best] = -np.inf
    return chosen


CODE = """
import sys
from benchmarks.measure import self_measured
from benchmarks.herding import ours
self_measured(lambda: ours(sys.argv[1]))
"""


def main() -> None:
    asked = options(__doc__ or "")
    large, classes = (284_000, 300) if asked.quick else (2_840_000, 1_000)
    n, count = (6_000, 1_200) if asked.quick else (32_000, 6_400)
    images, texts, aim = one_class(n)
    rounds = []
    for _ in range(2):
        start = time.perf_counter()
        mine = herd(images, texts, aim, count=count).rows
        between = time.perf_counter()
        other = plain(images, texts, aim, count)
        rounds.append((between - start, time.perf_counter() - between))
    took, theirs = (min(column) for column in zip(*rounds, strict=True))
    same = int(np.count_nonzero(mine == other))
    settings = {"pairs": n, "chosen": count, "the same choice at the same place": same}
    settings["billion multiplications and additions a second"] = round(4 * n * images.shape[1] * count / took / 1e9, 1)
    cases = [Case("one class, beside one product a choice", "seconds", took, theirs, theirs / took, "> 1", settings)]
    del images, texts, aim
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        folder = Path(asked.folder or temporary) / f"clipcov-{large}"
        print(f"writing {large:,} pairs under {folder}", file=sys.stderr)
        write_run(folder, large, classes)
        classify(open_run(folder))
        found = child(CODE, str(folder))
        facts = json.loads(found.output.strip().splitlines()[-1])
        seconds = facts.pop("step_seconds")
        told = {name: facts[name] for name in facts if name not in ("seconds", "peak_bytes")}
        settings = {"pairs": large, "classes": classes, **told, "peak GiB": round(found.peak_bytes / 2**30, 2)}
        cases.append(Case("by classes", "seconds", seconds, None, None, "-" if asked.quick else "<= 300 s", settings))
    finish("herding", cases, asked.json)


if __name__ == "__main__":
    main()
