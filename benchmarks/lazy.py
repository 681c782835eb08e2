"""`tamis run --lazy` beside the full run: the same uids, and how much less work.

Work is seconds of all cores, with the loading of models for each pass over the pool, which small pools feel. The sample
of 32 pairs with which the lazy run begins is told beside it, and so is the time that passes. Models are those of the
lab, also for the pool of photographs, so costs are small and scores are not good; --pool takes any other pool.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import tamis
from benchmarks.measure import Case, finish, options, processor
from tamis import PoolSpec, lazy
from tamis.lab import make_pool
from tamis.recipe import load

T = TypeVar("T")

CLIP, CAPTIONER = "lab/clip", "lab/captioner"
SIGNALS: list[Any] = [
    *("caption_length", "image_size", "language"),
    {"clip": {"model": CLIP}},
    {"tmars": {"model": CLIP}},
    {"sieve": {"captioner": CAPTIONER, "encoder": "minilm"}},
]
TARGETS = {"chain": 4.0, "basic, then ranks": 0.0, "intersection": 2.5}


def recipes(run: tamis.Run) -> dict[str, list[Any]]:
    """Returns the steps of three recipes, with thresholds at quantiles of the run's scores."""

    def at_least(score: str, share: float) -> dict[str, Any]:
        value = float(np.nanquantile(run[score], 1 - share))
        return {"at_least": {"score": score, "value": value, "missing": "drop"}}

    readable = {"equals": {"score": "status", "value": ["ok", "json_broken", "duplicate_key"]}}
    ranked = {"top_fraction": {"score": "0.5 * sieve + 0.5 * clip", "fraction": 0.5, "missing": "drop"}}
    clip_30 = {"top_fraction": {"score": "clip", "fraction": 0.3, "of": "pool", "missing": "drop"}}
    return {
        "chain": [readable, at_least("sieve", 0.5), at_least("tmars", 0.5), at_least("clip", 0.3)],
        "basic, then ranks": [{"all_of": ["basic"]}, ranked],
        "intersection": [{"all_of": [[readable, clip_30], [at_least("tmars", 0.5)], [at_least("sieve", 0.5)]]}],
    }


def compare(name: str, pool: str, folder: Path, run: tamis.Run, steps: list[Any], whole: list[float]) -> Case:
    """Runs one recipe lazily, in a new folder, and compares it with a selection of the full run."""
    recipe = {"name": "lazy", "signals": SIGNALS, "select": steps}
    plan, planned = measured(lambda: lazy.planned_lazily(PoolSpec(path=pool), folder, load(recipe)))
    (done, _), spent = measured(lambda: lazy.score_lazily(PoolSpec(path=pool), folder, plan, quiet=True))
    subset, full = (tamis.select(one, recipe) for one in (done, run))
    assert subset.kept
    assert np.array_equal(subset.to_numpy(), full.to_numpy())
    judged = {label: len(run) if group.asked is None else group.asked for label, group in done.scores.items()}
    settings = {
        "pairs": len(run), "kept": full.kept, "judged": judged, "processor": processor(),
        "seconds of the sample, the lazy run, the full run": np.round([planned[1], spent[1], whole[1]], 1).tolist(),
        "processor seconds of the sample": round(planned[0], 1),
        "plan": str(plan),
    }  # fmt: skip
    target = f"{TARGETS[name.partition(': ')[2]]:g}"
    return Case(name, "processor s", spent[0], whole[0], whole[0] / spent[0], target, settings)


def measured(work: Callable[[], T]) -> tuple[T, list[float]]:
    """Returns what work in this process returns, and the seconds of all cores and of the clock that it takes."""
    start, before = time.perf_counter(), time.process_time()
    result = work()
    return result, [time.process_time() - before, time.perf_counter() - start]


def main() -> None:
    given = options(__doc__ or "", pool=True, pairs=2000)
    cases = []
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Path(temporary)
        lazy._WORTH_PAIRS = 0  # type: ignore[attr-defined]  # small pools too
        pools = {Path(given.pool).name: given.pool} if given.pool else {"lab": str(folder / "lab")}
        if not given.pool:
            make_pool(folder / "lab", pairs=600 if given.quick else given.pairs, seed=0)
        for label, pool in pools.items():
            full = partial(tamis.score, pool, run=folder / f"full-{label}", signals=SIGNALS, quiet=True)
            run, took = measured(full)
            for name, steps in recipes(run).items():
                cases.append(compare(f"{label}: {name}", pool, folder / f"lazy-{label}-{name}", run, steps, took))
    finish("lazy", cases, given.json)


if __name__ == "__main__":
    main()
