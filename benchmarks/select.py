"""Exact selection from 128 million rows, beside DataComp's way on 12.8 million.

The rule: keep rows whose third score is at least a threshold, then the top 20 % of the pool by the min-max fusion of
the first two; write the uids sorted. DataComp's way reads every Parquet file twice, sorts all scores, and keeps `>=`
the value at the cut, with as many processes as there are cores, as `baselines.py` does; the fusion and the third score
are added to it. It gets the same rows in DataComp's own layout (uid as hex text, scores beside it).
"""

from __future__ import annotations

import filecmp
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Case, child, finish, options
from benchmarks.runs import write_description, write_manifest, write_rows
from tamis.data import Column
from tamis.processes import die_with_parent
from tamis.store.parts import write_scores

PART = 1_000_000
RECIPE = {
    "name": "fusion",
    "select": [
        {"at_least": {"score": "third", "value": 0.1}},
        {"top_fraction": {"score": "0.5*minmax(first) + 0.5*minmax(second)", "fraction": 0.2, "of": "pool"}},
    ],
}
COLUMNS = ("first", "second", "third")


def part_values(number: int, rows: int) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
    """Returns uids (rows, 2) and scores of a part; correlated, bell-shaped, as CLIP scores are."""
    rng = np.random.default_rng(number)
    uids = rng.integers(0, 2**64, (rows, 2), dtype=np.uint64)
    first = rng.normal(0.25, 0.05, rows)
    second = 0.5 * first + rng.normal(0.3, 0.1, rows)
    return uids, {
        "first": first.astype(np.float32),
        "second": second.astype(np.float32),
        "third": rng.random(rows, np.float32),
    }


def write_run(folder: Path, rows: int, part: int = PART) -> None:
    """Writes a run folder of parts of a million rows, or of so many, as `tamis score` would leave it."""
    if (folder / "run.json").exists():
        return
    scores = folder / "scores" / "given-0000000000000000"
    columns = [Column(name=name, unit="", better="high") for name in COLUMNS]
    names = []
    for number, start in enumerate(range(0, rows, part)):
        count = min(part, rows - start)
        uids, values = part_values(number, count)
        names.append(f"{number:05d}")
        digest = write_rows(folder, names[-1], uids)
        write_scores(scores / f"{names[-1]}.parquet", columns, values, [None] * count, uids=digest)
    write_description(scores, "given", columns)
    write_manifest(folder, names)


def write_metadata(folder: Path, rows: int) -> None:
    """Writes the same rows as DataComp's metadata has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, rows, PART)):
        path = folder / f"{number:05d}.parquet"
        if not path.exists():
            uids, values = part_values(number, min(PART, rows - start))
            text = [f"{high:016x}{low:016x}" for high, low in uids.tolist()]
            pq.write_table(pa.table({"uid": text, **values}), path)


def ours(folder: str, out: str, workers: int = 0) -> dict[str, Any]:
    """Selects and writes, as a user of the library does; with `workers`, Ray's read the scores."""
    import tamis
    from tamis.run.fill import engine_named

    engine = engine_named("ray", workers=workers) if workers else None
    start = time.perf_counter()
    subset = tamis.select(folder, RECIPE, engine=engine)
    chosen = time.perf_counter()
    tamis.export(subset, "npy", out, overwrite=True)
    return {"kept": len(subset), "select_seconds": chosen - start, "npy_seconds": time.perf_counter() - chosen}


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


def datacomp(folder: str, out: str) -> dict[str, Any]:
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
    return {"kept": len(uids)}


def generated(rows: int) -> dict[str, Any]:
    """Applies the steps to rows made when a block is read: a million, moved a little in each block."""
    from tamis.recipe import load
    from tamis.selectors.outcome import run_steps
    from tamis.store.table import Table

    _, values = part_values(0, PART)
    row = np.arange(PART, dtype=np.uint64)

    def read(block: int, names: Any) -> dict[str, Any]:
        return {name: values[name] + np.float32(block % 997 * 1e-5) for name in names}

    table = Table([PART] * (rows // PART), read, lambda block: (row * 0 + block, row), lambda _: "number")
    outcome = run_steps(table, load(RECIPE).steps)
    return {"kept": sum(int(np.count_nonzero(outcome.keep[place])) for place in table.row_ranges())}


GENERATED = """
import sys
from benchmarks.measure import self_measured
from benchmarks.select import generated
self_measured(lambda: generated(int(sys.argv[1])))
"""
OURS = """
import sys
from benchmarks.measure import self_measured
from benchmarks.select import ours
self_measured(lambda: ours(*sys.argv[1:3], *map(int, sys.argv[3:])))
"""
DATACOMP = """
import sys
from benchmarks.measure import self_measured
from benchmarks.select import datacomp
if __name__ == "__main__":
    self_measured(lambda: datacomp(sys.argv[1], sys.argv[2]))
"""


def main() -> None:
    asked = options(__doc__ or "")
    huge, large, small = (128_000_000, 12_800_000, 1_280_000)
    if not asked.quick:
        huge, large, small = 10 * huge, 10 * large, 10 * small
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        root = Path(folder)
        print(f"writing {large:,} and {small:,} rows under {root}", file=sys.stderr)
        write_run(root / "small", small)
        write_metadata(root / "metadata", small)
        rounds: list[tuple[Any, Any]] = []
        for _ in range(2):
            theirs = child(DATACOMP, str(root / "metadata"), str(root / "theirs.npy"))
            mine = child(OURS, str(root / "small"), str(root / "ours.npy"))
            rounds.append((mine, theirs))
        same = bool(
            (np.load(root / "ours.npy") == np.load(root / "theirs.npy").astype([("f0", "<u8"), ("f1", "<u8")])).all()
        )
        mine = min((pair[0] for pair in rounds), key=lambda run: run.seconds)
        theirs = min((pair[1] for pair in rounds), key=lambda run: run.seconds)
        cases = [
            Case(
                "same rows",
                "seconds",
                mine.seconds,
                theirs.seconds,
                theirs.seconds / mine.seconds,
                "ratio >= 5",
                {
                    "rows": small,
                    "same uids": same,
                    "our peak GiB": round(mine.peak_bytes / 2**30, 2),
                    "their peak GiB": round(theirs.peak_bytes / 2**30, 2),
                },
            )
        ]
        write_run(root / "large", large)
        big = child(OURS, str(root / "large"), str(root / "large.npy"))
        facts = json.loads(big.output.strip().splitlines()[-1])
        settings = {key: facts[key] for key in ("kept", "cpu_seconds", "select_seconds", "npy_seconds")}
        cases.append(
            Case(
                "large",
                "seconds",
                big.seconds,
                None,
                None,
                "<= 8 s" if not asked.quick else "-",
                {"rows": large, **settings, "peak GiB": round(big.peak_bytes / 2**30, 2), "peak target": "<= 1 GiB"},
            )
        )
        spread = child(OURS, str(root / "large"), str(root / "spread.npy"), "2")
        facts = json.loads(spread.output.strip().splitlines()[-1])
        same = filecmp.cmp(root / "spread.npy", root / "large.npy", shallow=False)
        settings = {"rows": large, "same uids": same, **{key: facts[key] for key in settings}}
        settings["peak GiB"] = round(spread.peak_bytes / 2**30, 2)
        cases.append(Case("two workers of Ray", "seconds", spread.seconds, big.seconds, None, "same uids", settings))
        made = child(GENERATED, str(huge))
        facts = {
            "rows": huge,
            "peak GiB": round(made.peak_bytes / 2**30, 2),
            **json.loads(made.output.splitlines()[-1]),
        }
        cases.append(Case("generated as they are read", "seconds", made.seconds, None, None, "<= 1 GiB", facts))
        finish("select", cases, asked.json)


if __name__ == "__main__":
    main()
