"""Adaptive SIEVE against eight captions of every pair: what it draws, keeps and gains.

The recipe keeps the top 20 % or 30 % by SIEVE. The gain is the mean score of the kept pairs minus that of all, by eight
captions of another seed. Two full seeds say how much a choice by eight captions varies by chance. Times are the
processor's, of scoring alone. Takes a pool and a captioner: `--pool POOL`, else a lab pool with `lab/captioner`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.measure import Case, finish
from tamis.lab import make_pool


def seconds(work: Callable[[], Any]) -> tuple[Any, float]:
    """Returns a result and the processor's seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


def jaccard(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.count_nonzero(one & other) / np.count_nonzero(one | other))


def compare(pool: str, captioner: str, fraction: float, folder: Path) -> Case:
    sieve = {"captioner": captioner, "sampling": {"captions": 8}}
    status = {"equals": {"score": "status", "value": "ok"}}
    select = [status, {"top_fraction": {"score": "sieve", "fraction": fraction, "missing": "drop"}}]

    def scored(name: str, **settings: Any) -> tuple[Any, float]:
        recipe = {"signals": [{"sieve": {**sieve, **settings}}], "select": select}
        run, took = seconds(lambda: tamis.score(pool, run=folder / name, recipe=recipe, workers=1, quiet=True))
        return (run, tamis.select(run, recipe)), took

    (full, chosen), all_seconds = scored("full")
    (_, again), _ = scored("again", sampling={"captions": 8, "seed": 1})
    (one, few), one_seconds = scored("one", sampling={"captions": 1})
    (run, ours), near_seconds = scored(f"adaptive-{fraction}", adaptive=True)
    judge = np.where(one["status"] == "ok", again.run["sieve"], np.nan)
    gains = [float(np.nanmean(judge[one_choice.keep]) - np.nanmean(judge)) for one_choice in (chosen, few, ours)]
    drawn = run["captions_drawn"]
    return Case(
        f"{Path(pool).name}, top {fraction:.0%}", "of the gain of eight captions", gains[2] / gains[0],
        gains[1] / gains[0], gains[2] / gains[1], ">= 0.97",
        {
            "pairs": len(full), "candidates": int(np.count_nonzero(~np.isnan(drawn))),
            "share with eight captions": round(float(np.count_nonzero(drawn == 8) / np.count_nonzero(drawn > 0)), 3),
            "seconds, share of eight captions'": round(near_seconds / all_seconds, 3),
            "seconds of one caption": round(one_seconds / all_seconds, 3),
            "Jaccard to eight captions": round(jaccard(ours.keep, chosen.keep), 3),
            "Jaccard of one caption": round(jaccard(few.keep, chosen.keep), 3),
            "Jaccard of two seeds": round(jaccard(again.keep, chosen.keep), 3),
        },
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller, honest size")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    parser.add_argument("--folder", default=None, help="where to put the data; a temporary folder by default")
    parser.add_argument("--pool", default=None, help="a pool; by default one of the lab is made")
    parser.add_argument("--captioner", default="lab/captioner")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(asked.folder or temporary)
        pool = asked.pool or str(folder / "lab")
        if not Path(pool).exists():
            make_pool(pool, pairs=400 if asked.quick else 2000, seed=5)
        fractions = (0.3,) if asked.quick else (0.2, 0.3)
        finish("adaptive", [compare(pool, asked.captioner, fraction, folder) for fraction in fractions], asked.json)


if __name__ == "__main__":
    main()
