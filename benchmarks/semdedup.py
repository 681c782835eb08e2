"""SemDeDup on a million vectors x 512: clustering and deduplication apart, the latter beside full matrices.

Deduplication is measured on the clusters that the vectors were drawn from, whose sizes are very different, so that both
ways do the same work. The other way is the published one: of each cluster the whole matrix of cosines, its upper
triangle, the maximum of each column. Both keep who stands first by uid, and must keep the same.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clipcov import class_sizes
from benchmarks.measure import Case, child, finish, options
from benchmarks.runs import write_manifest, write_rows
from tamis.math.similarity import unit_rows
from tamis.selectors.clusters import Clusters, assign, by_uid, fit, gathered
from tamis.selectors.semdedup import SemDeDup
from tamis.store import open_run
from tamis.store.checked import write_array

Array = np.ndarray[Any, Any]

WIDTH = 512
PART = 100_000
EPSILON = 0.05
ALSO = (0.01, 0.1, 0.2)
NAME = "image_embedding"


def write_run(folder: Path, rows: int, clusters: int) -> None:
    """Writes a run folder of vectors around centres, a tenth of them near copies of others of their cluster."""
    if (folder / "run.json").exists():
        return
    rng = np.random.default_rng(1)
    centres = unit_rows(rng.normal(size=(clusters, WIDTH)))
    kinds = np.repeat(np.arange(clusters), class_sizes(rows, clusters)).astype(np.int32)
    rng.shuffle(kinds)
    store = folder / "embeddings" / f"{NAME}-0000000000000000"
    names = []
    for number, start in enumerate(range(0, rows, PART)):
        kind = kinds[start : start + PART]
        noise = rng.standard_normal((len(kind), WIDTH), np.float32) * np.float32(0.9 / np.sqrt(WIDTH))
        values = unit_rows(centres[kind] + noise)
        order = np.argsort(kind, kind="stable")
        same = kind[order[1:]] == kind[order[:-1]]
        copies = np.flatnonzero(same & (rng.random(len(same)) < 0.1))
        spread = rng.standard_normal((copies.size, WIDTH), np.float32) * np.float32(0.1 / np.sqrt(WIDTH))
        values[order[copies + 1]] = unit_rows(values[order[copies]] + spread)
        uids = rng.integers(0, 2**64, (len(kind), 2), dtype=np.uint64)
        name = f"{number:05d}"
        names.append(name)
        write_array(store / f"{name}.npy", values.astype(np.float16), uids=write_rows(folder, name, uids))
    np.save(folder / "centres.npy", centres)
    np.save(folder / "kinds.npy", kinds)
    write_manifest(folder, names)


def cluster(folder: str, out: str) -> dict[str, Any]:
    """Trains k-means and says where each row lies."""
    run, count = open_run(folder), len(np.load(Path(folder) / "centres.npy"))
    table = run.table()
    there = np.ones(len(table), bool)
    start = time.perf_counter()
    centroids = fit(table, NAME, there, count)
    trained = time.perf_counter()
    found = assign(table, NAME, there, centroids)
    np.save(out, found.label)
    sizes = np.sort(np.bincount(found.label, minlength=count))
    return {
        "train_seconds": trained - start,
        "assign_seconds": time.perf_counter() - trained,
        "largest": int(sizes[-1]),
        "smallest": int(sizes[0]),
    }


def _drawn(folder: str) -> Clusters:
    kinds = np.load(Path(folder) / "kinds.npy")
    return Clusters(np.load(Path(folder) / "centres.npy"), kinds, np.zeros(len(kinds), np.float32))


def ours(folder: str, out: str) -> dict[str, Any]:
    """Blocks of cosines; four thresholds in the one pass."""
    step = SemDeDup(epsilon=EPSILON, keep="random", also=ALSO)
    keep, _, facts = step.dedup(open_run(folder).table(), _drawn(folder))
    np.save(out, keep)
    return {"kept": int(keep.sum()), "groups": facts["groups"], "shares": facts["kept_share_by_epsilon"]}


def whole_matrices(folder: str, out: str) -> dict[str, Any]:
    """One matrix per cluster; four thresholds in the one pass."""
    table, found = open_run(folder).table(), _drawn(folder)
    rows = np.arange(len(table))
    order = by_uid(table, rows, groups=found.label)
    starts = np.searchsorted(found.label[order], np.arange(len(found.centroids) + 1)).astype(np.int64)
    keep = {epsilon: np.ones(len(table), bool) for epsilon in (EPSILON, *ALSO)}
    for group in gathered(table, [NAME], order, starts):
        for _, place, (vectors,) in group:
            unit = unit_rows(vectors)
            largest = np.triu(unit @ unit.T, 1).max(0)
            for epsilon, kept in keep.items():
                kept[order[place]] = largest <= np.float32(1 - epsilon)
    np.save(out, keep[EPSILON])
    return {"kept": int(keep[EPSILON].sum())}


CODE = """
import sys
from benchmarks.measure import self_measured
from benchmarks.semdedup import cluster, ours, whole_matrices
self_measured(lambda: {name}(sys.argv[1], sys.argv[2]))
"""


def main() -> None:
    asked = options(__doc__ or "")
    rows, clusters = (100_000, 200) if asked.quick else (1_000_000, 2_000)
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        root = Path(asked.folder or temporary)
        print(f"writing {rows:,} vectors under {root}", file=sys.stderr)
        run = root / f"semdedup-{rows}"
        write_run(run, rows, clusters)
        rounds = []
        for _ in range(2):
            other = child(CODE.format(name="whole_matrices"), str(run), str(root / "theirs.npy"))
            mine = child(CODE.format(name="ours"), str(run), str(root / "ours.npy"))
            rounds.append((mine, other))
        same = bool((np.load(root / "ours.npy") == np.load(root / "theirs.npy")).all())
        mine = min((pair[0] for pair in rounds), key=lambda done: done.seconds)
        other = min((pair[1] for pair in rounds), key=lambda done: done.seconds)
        facts = json.loads(mine.output.strip().splitlines()[-1])
        sizes = class_sizes(rows, clusters)
        settings = {
            "rows": rows,
            "clusters": clusters,
            "largest cluster": int(sizes.max()),
            "epsilon": EPSILON,
            "kept": facts["kept"],
            "same survivors": same,
            "kept share by epsilon": facts["shares"],
        }
        peaks = [round(done.peak_bytes / 2**30, 3) for done in (mine, other)]
        cases = [
            Case(
                "deduplication, seconds",
                "seconds",
                mine.seconds,
                other.seconds,
                other.seconds / mine.seconds,
                "ratio > 1",
                settings,
            ),
            Case("deduplication, peak memory", "GiB", peaks[0], peaks[1], peaks[1] / peaks[0], "ratio > 1", settings),
        ]
        done = child(CODE.format(name="cluster"), str(run), str(root / "labels.npy"))
        facts = json.loads(done.output.strip().splitlines()[-1])
        told = {name: facts[name] for name in ("train_seconds", "assign_seconds", "largest", "smallest")}
        cases.append(
            Case(
                "clustering",
                "seconds",
                done.seconds,
                None,
                None,
                "-",
                {"rows": rows, "clusters": clusters, **told, "peak GiB": round(done.peak_bytes / 2**30, 2)},
            )
        )
        finish("semdedup", cases, asked.json)


if __name__ == "__main__":
    main()
