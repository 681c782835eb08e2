"""Order and repetition: what they do to models of the lab at equal samples seen, and what an order by CABS costs.

`train` runs `tamis bench` on six arms: no filter, a soft cap, concept balance, cluster-epochs, cabs-dm and cabs-fm.
`time` chooses orders for more and more pairs with drawn concepts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import tamis
from benchmarks.choose import numbers
from benchmarks.measure import spend
from tamis.cli.printing import print_table
from tamis.core.math.balance import effective_number
from tamis.recipes.steps import Cabs
from tamis.runs.run import Run
from tamis.runs.subset import Subset
from tamis.runs.table import MemoryTable
from tamis.train.clip import training_rows
from tamis.train.scales import at_scale
from tamis_lab.pool import make_pool
from tamis_lab.tasks import make_tasks
from tamis_lab.world import OBJECTS

CLUSTERS = 60


def scored(root: Path, pairs: int) -> Run:
    """Draws a pool and scores it: its concepts are names of objects, and centres of clusters."""
    make_pool(root / "pool", pairs=pairs, again=False)
    (root / "objects.txt").write_text("\n".join(OBJECTS))
    clip: dict[str, Any] = {"model": "lab/clip"}
    names = {**clip, "classes_from": str(root / "objects.txt"), "templates": "scenes"}
    pool = tamis.PoolSpec(path=str(root / "pool"), fields=("truth",))
    tamis.score(pool, run=root / "run", signals=[{"clip": clip}, {"zero_shot_class": names}], keep=["embeddings"])
    run = tamis.cluster(root / "run", clusters=CLUSTERS)
    objects = str(run.scores["zero_shot_class"].folder / "class_vectors.npy")
    centres = str(run.scores["cluster"].folder / "centroids.npy")
    signals: list[Any] = [
        {"concept_weight": {"concepts": objects, "k": 5, "label": "rarity"}},
        {"concept_weight": {"concepts": centres, "k": 1, "label": "cluster_rarity"}},
        {"concepts": {"concepts": objects, "k": 5, "at_least": 0.25}},
    ]
    return tamis.derive(run, signals)


def arms(samples: int, pairs: int, batch: int) -> list[dict[str, Any]]:
    """Returns recipes whose order, if they have one, is as long as the training."""
    epochs = math.ceil(5 * samples / pairs) + 2  # a fifth of the pairs that can be read is picked in each
    cabs = {"super_batch": 5 * batch, "share": 0.2, "epochs": epochs, "missing": "drop"}
    rare = {"cap": "hard", "std": None, "missing": "drop"}
    half = {"fraction": 0.5, "epochs": math.ceil(2 * samples / pairs) + 1}
    steps = {
        "soft-cap": {"sample": {"score": "clip.clip", "fraction": 1.0, "missing": "drop"}},
        "concept-balance": {"sample": {**rare, "score": "log(rarity.concept_weight)", "fraction": 1.0}},
        "cluster-epochs": {"sample": {**rare, **half, "score": "0.8*log(cluster_rarity.concept_weight)"}},
        "cabs-dm": {"cabs": {**cabs, "rule": "dm"}},
        "cabs-fm": {"cabs": {**cabs, "rule": "fm"}},
    }
    readable = {"equals": {"score": "status", "value": ["ok", "json_broken", "duplicate_key"]}}
    return [{"name": name, "select": [readable, step]} for name, step in steps.items()]


def train(root: Path, size: int, samples: int, seeds: int, workers: int) -> None:
    run, training = scored(root, size), at_scale("lab", samples=samples)
    tasks = make_tasks(root / "tasks", size=240, again=False)
    found = tamis.bench(
        run, ["no-filter", *arms(samples, size, training.batch)],
        tasks=tasks, out=root / "bench", training=training, seeds=seeds, workers=workers,
    )  # fmt: skip
    print_table(found.rows_of_table())
    print("\n".join(found.verdict()))
    rows = []
    for path in sorted((root / "bench" / "subsets").glob("*.parquet")):
        pairs, times = seen(Subset.load(path, run), samples)
        objects = np.unique(run["zero_shot_class"][pairs].astype(str), return_counts=True)[1]
        rows.append({
            "": path.stem, "pairs seen": f"{pairs.size:,}", "in effect": f"{effective_number(times):,.0f}",
            "objects in effect": f"{effective_number(objects):.1f}",
            "mean cosine of images": f"{mean_cosine(run.table().vectors('image_embedding', pairs)):.4f}",
        })  # fmt: skip
    print_table(rows)


def seen(subset: Subset, samples: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the rows that a training of so many samples sees, and how often each."""
    rows, _ = training_rows(subset)
    epochs = range(math.ceil(samples / rows.epoch_size))
    order = np.concatenate([rows.epoch(0, number)[0] for number in epochs])[:samples]
    some, times = np.unique(order, return_counts=True)
    return rows.rows[some], times


def mean_cosine(vectors: NDArray[Any]) -> float:
    """Returns the mean over all pairs of two rows: the sum of rows' products, less each row's with itself."""
    units = vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return float((np.sum(units.sum(axis=0) ** 2) - len(units)) / (len(units) * (len(units) - 1)))


def drawn_concepts(pairs: int, each: float = 3.0, concepts: int = 12_253) -> pa.Array:
    """Returns texts of concepts whose frequency falls as 1 / rank, a Poisson number of them for each pair."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, concepts + 1)
    ends = np.concatenate([[0], np.cumsum(rng.poisson(each, pairs))])
    drawn = np.searchsorted(np.cumsum(share / share.sum()), rng.random(ends[-1]))
    names = pa.array([f"concept {number}" for number in range(concepts)]).take(pa.array(drawn))
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), names), "\t")


def time(sizes: Sequence[int]) -> None:
    rows = []
    for pairs in sizes:
        table = MemoryTable({"concepts": drawn_concepts(pairs)})
        for rule in ("fm", "dm"):
            took = spend(partial(Cabs(rule=rule).order, table))
            rows.append({
                "pairs": f"{pairs:,}", "rule": rule, "s": f"{took.seconds:.1f}",
                "µs per pair": f"{1e6 * took.cpu_seconds / pairs:.1f}", "peak GiB": f"{took.peak_bytes / 2**30:.2f}",
            })  # fmt: skip
    print_table(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["train", "time"])
    parser.add_argument("--out", type=Path, default=Path("order-bench"), help="the folder of `train`")
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=24_576)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sizes", type=numbers, default=[100_000, 1_000_000])
    given = parser.parse_args()
    if given.part == "train":
        train(given.out, given.pairs, given.samples, given.seeds, given.workers)
    else:
        time(given.sizes)
