"""Order and repetition: what they do to models of the lab at equal samples seen, and what an order by CABS costs.

`train` compares no filter (every epoch shuffled) with a soft cap, concept balance, CABS and clusters drawn anew for each
epoch, by `tamis bench`. `time` chooses orders of drawn concepts, of more and more pairs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tamis
from benchmarks.measure import spend
from tamis.cli.printing import print_table
from tamis.recipes.steps import Cabs
from tamis.runs.run import Run
from tamis.runs.table import MemoryTable
from tamis.train.scales import at_scale
from tamis_lab.pool import make_pool
from tamis_lab.tasks import make_tasks
from tamis_lab.world import OBJECTS

PAIRS, CLUSTERS = 10_000, 60


def scored(root: Path) -> tuple[Run, dict[str, Path]]:
    """Draws the pool, scores it, and returns it with the files of concepts: names of objects, and centres of clusters."""
    make_pool(root / "pool", pairs=PAIRS, again=False)
    (root / "objects.txt").write_text("\n".join(OBJECTS))
    clip: dict[str, Any] = {"model": "lab/clip"}
    names = {**clip, "classes_from": str(root / "objects.txt"), "templates": "scenes"}
    pool = tamis.PoolSpec(path=str(root / "pool"), fields=("truth",))
    tamis.score(pool, run=root / "run", signals=[{"clip": clip}, {"zero_shot_class": names}], keep=["embeddings"])
    run = tamis.cluster(root / "run", clusters=CLUSTERS)
    files = {"objects": ("zero_shot_class", "class_vectors.npy"), "clusters": ("cluster", "centroids.npy")}
    return run, {name: run.scores[label].folder / file for name, (label, file) in files.items()}


def arms(files: dict[str, Path], samples: int, batch: int) -> list[dict[str, Any]]:
    """Returns recipes whose order, if they have one, is as long as the training."""
    objects, clusters = str(files["objects"]), str(files["clusters"])
    concepts = {"concepts": {"concepts": objects, "k": 5, "at_least": 0.25}}
    epochs = math.ceil(5 * samples / PAIRS) + 2  # a fifth of the pairs that can be read is picked in each
    cabs = {"super_batch": 5 * batch, "share": 0.2, "epochs": epochs, "missing": "drop"}
    draw = {"cap": "hard", "std": None, "missing": "drop"}
    half = {**draw, "score": "0.8*log(concept_weight)", "fraction": 0.5, "epochs": math.ceil(2 * samples / PAIRS) + 1}
    steps: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "soft-cap": ([], {"sample": {"score": "clip", "fraction": 1.0, "missing": "drop"}}),
        "concept-balance": (
            [{"concept_weight": {"concepts": objects, "k": 5}}],
            {"sample": {**draw, "score": "log(concept_weight)", "fraction": 1.0}},
        ),
        "cluster-epochs": ([{"concept_weight": {"concepts": clusters, "k": 1}}], {"sample": half}),
        "cabs-dm": ([concepts], {"cabs": {**cabs, "rule": "dm"}}),
        "cabs-fm": ([concepts], {"cabs": {**cabs, "rule": "fm"}}),
    }
    readable = {"equals": {"score": "status", "value": ["ok", "json_broken", "duplicate_key"]}}
    return [
        {"name": name, "signals": [{"clip": {"model": "lab/clip"}}, *signals], "keep": ["embeddings"]}
        | {"select": [readable, step]}
        for name, (signals, step) in steps.items()
    ]


def train(root: Path, samples: int, seeds: int, workers: int) -> None:
    run, files = scored(root)
    tasks = make_tasks(root / "tasks", size=240, again=False)
    training = at_scale("lab", samples=samples)
    found = tamis.bench(
        run, ["no-filter", *arms(files, samples, training.batch)],
        tasks=tasks, out=root / "bench", training=training, seeds=seeds, workers=workers,
    )  # fmt: skip
    print_table(found.rows_of_table())
    print("\n".join(found.verdict()))


def drawn_concepts(pairs: int, each: float = 3.0, concepts: int = 12_253) -> pa.Array:
    """Returns texts of concepts whose frequency falls as 1 / rank, a Poisson number of them for each pair."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, concepts + 1)
    ends = np.concatenate([[0], np.cumsum(rng.poisson(each, pairs))])
    drawn = np.searchsorted(np.cumsum(share / share.sum()), rng.random(ends[-1]))
    names = pa.array([f"concept {number}" for number in range(concepts)]).take(pa.array(drawn))
    lists = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), names)
    return pc.binary_join(lists, "\t")


def time(sizes: Sequence[int]) -> None:
    rows = []
    for pairs in sizes:
        table = MemoryTable({"concepts": drawn_concepts(pairs)})
        for rule in ("fm", "dm"):
            took = spend(lambda step=Cabs(rule=rule), table=table: step.order(table))  # type: ignore[arg-type, misc]
            rows.append({
                "pairs": f"{pairs:,}", "rule": rule, "s": f"{took.seconds:.1f}",
                "µs per pair": f"{1e6 * took.cpu_seconds / pairs:.1f}", "peak GiB": f"{took.peak_bytes / 2**30:.2f}",
            })  # fmt: skip
    print_table(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["train", "time"])
    parser.add_argument("--out", type=Path, default=Path("order-bench"), help="the folder of `train`")
    parser.add_argument("--samples", type=int, default=24_576)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--sizes", type=lambda text: [int(one) for one in text.split(",")], default=[100_000, 1_000_000]
    )
    given = parser.parse_args()
    if given.part == "train":
        train(given.out, given.samples, given.seeds, given.workers)
    else:
        time(given.sizes)
