"""Choosing from 12.8 million rows: a fusion beside DataComp's way. `benchmarks.steps` has the single steps.

`fusion`: rows whose third score is at least a threshold, of these the top 20 % of the pool by the min-max fusion of the
first two, uids written sorted. DataComp's way (`baselines.py`) reads every Parquet file twice with pandas, in as many
processes as there are cores, sorts all scores, and keeps `>=` the value at the cut; fusion and threshold are added to
it. It gets the same rows in DataComp's layout (uid as hex text, scores beside it), and must choose the same.

`large`: ten times as many rows.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import tamis
from benchmarks.measure import Case, alone, benchmark, child, in_turn, versus
from benchmarks.runs import Array, RunWriter, written
from tamis.core.processes import die_with_parent
from tamis.core.types import Column

PART = 1_000_000
COLUMNS = ("first", "second", "third")
RECIPE = {
    "name": "fusion",
    "select": [
        {"at_least": {"score": "third", "value": 0.1}},
        {"top_fraction": {"score": "0.5*minmax(first) + 0.5*minmax(second)", "fraction": 0.2, "of": "pool"}},
    ],
}


def part_values(number: int, rows: int) -> tuple[Array, dict[str, Array]]:
    """Returns uids (rows, 2) and scores of a part; correlated, bell-shaped, as CLIP scores are."""
    rng = np.random.default_rng(number)
    uids = rng.integers(0, 2**64, (rows, 2), dtype=np.uint64)
    first = rng.normal(0.25, 0.05, rows)
    second = 0.5 * first + rng.normal(0.3, 0.1, rows)
    scores = (first, second, rng.random(rows, np.float32))
    return uids, {name: values.astype(np.float32) for name, values in zip(COLUMNS, scores, strict=True)}


def write_run(folder: Path, rows: int) -> None:
    """Writes a run folder of parts of a million rows with three scores."""
    if written(folder):
        return
    run = RunWriter(folder, columns=[Column(name=name, unit="", better="high") for name in COLUMNS])
    for number, start in enumerate(range(0, rows, PART)):
        run.add(*part_values(number, min(PART, rows - start)))
    run.close()


def write_metadata(folder: Path, rows: int) -> None:
    """Writes the same rows as DataComp's metadata has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, rows, PART)):
        path = folder / f"{number:05d}.parquet"
        if not path.exists():
            uids, values = part_values(number, min(PART, rows - start))
            text = [f"{high:016x}{low:016x}" for high, low in uids.tolist()]
            pq.write_table(pa.table({"uid": text, **values}), path)


def ours(folder: str, out: str) -> int:
    """Selects and writes, as a user of the library does."""
    subset = tamis.select(folder, RECIPE)
    tamis.export(subset, "npy", out, overwrite=True)
    return len(subset)


def _load_scores(path: str) -> Any:
    return pd.read_parquet(path, columns=list(COLUMNS)).to_numpy()


def _load_uids(arguments: tuple[str, float, tuple[float, ...]]) -> Any:
    path, threshold, (low1, high1, low2, high2) = arguments
    table = pd.read_parquet(path, columns=["uid", *COLUMNS])
    first = (table["first"].to_numpy().astype(np.float64) - low1) / (high1 - low1)
    second = (table["second"].to_numpy().astype(np.float64) - low2) / (high2 - low2)
    keep = (0.5 * first + 0.5 * second >= threshold) & (table["third"].to_numpy() >= np.float32(0.1))
    return np.array(
        [(int(uid[:16], 16), int(uid[16:32], 16)) for uid in table["uid"].to_numpy()[keep]], np.dtype("u8,u8")
    )


def datacomp(folder: str, out: str) -> int:
    """DataComp's way: two readings of everything, one full sort."""
    paths = [str(path) for path in sorted(Path(folder).glob("*.parquet"))]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), die_with_parent) as pool:
        scores = np.concatenate(pool.map(_load_scores, paths))
        low1, high1 = float(scores[:, 0].min()), float(scores[:, 0].max())
        low2, high2 = float(scores[:, 1].min()), float(scores[:, 1].max())
        fused = 0.5 * (scores[:, 0].astype(np.float64) - low1) / (high1 - low1)
        fused += 0.5 * (scores[:, 1].astype(np.float64) - low2) / (high2 - low2)
        # The same order of steps as ours: the threshold first, then n of the whole pool.
        allowed = np.sort(fused[scores[:, 2] >= np.float32(0.1)])[::-1]
        threshold = allowed[round(0.2 * len(fused)) - 1]
        uids = np.concatenate(pool.map(_load_uids, [(path, threshold, (low1, high1, low2, high2)) for path in paths]))
    uids.sort()
    np.save(out, uids)
    return len(uids)


def fusion(root: Path, given: Any) -> list[Case]:
    rows = given.rows // 10 if given.quick else given.rows
    write_run(root / f"run-{rows}", rows)
    write_metadata(root / f"metadata-{rows}", rows)
    spent = in_turn(
        3,
        theirs=lambda: child(datacomp, root / f"metadata-{rows}", root / "theirs.npy"),
        ours=lambda: child(ours, root / f"run-{rows}", root / "ours.npy"),
    )
    same = np.load(root / "ours.npy").tolist() == np.load(root / "theirs.npy").tolist()
    name = "threshold and top 20 % of a fusion, next to DataComp's way"
    return [versus(name, spent["ours"], spent["theirs"], target=">= 5", rows=rows, same_uids=same)]


def large(root: Path, given: Any) -> list[Case]:
    rows = given.rows if given.quick else 10 * given.rows
    write_run(root / f"run-{rows}", rows)
    return [alone("the same, ten times as many rows", child(ours, root / f"run-{rows}", root / "large.npy"), rows=rows)]


if __name__ == "__main__":
    benchmark(__doc__, {"fusion": fusion, "large": large}, rows=12_800_000)
