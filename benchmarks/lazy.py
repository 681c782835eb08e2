"""`tamis run --lazy` beside the full run: the same uids, and how much less work.

Work is the number of pairs that each signal judged, times the seconds per pair that it and its features took in the
full run, and the reading of the images; what signals share counts once in each pass over the pool. The time of both
runs is given too: the lazy one begins with a sample, loads models again for each signal, and on small pools that is
much of it. Models are those of the lab, also for the pool of photographs, so costs are small and scores are not good;
--pool takes any other pool.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.measure import Case, finish, options, processor
from tamis import PoolSpec, lazy
from tamis.lab import make_pool
from tamis.lazy import _cost
from tamis.recipe import load
from tamis.run.failures import READING
from tamis.store.checked import read_record

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


def work(run: tamis.Run, plan: lazy.LazyPlan, took: dict[str, float]) -> float:
    """Returns the seconds of a run by the pairs that its signals judged; what they share counts once per pass."""
    judged = {entry: run.scores[entry[0] or entry[1].name].asked for entry in plan.waiting}
    shares = {entry: 1.0 if asked is None else asked / len(run) for entry, asked in judged.items()}
    full = [entry for entry in plan.recipe.signals if entry not in plan.waiting]
    later = sum(share * (took[READING] + _cost(took, [entry])) for entry, share in shares.items())
    return len(run) * (took[READING] + _cost(took, full) + later)


def compare(name: str, pool: str, folder: Path, run: tamis.Run, steps: list[Any], whole: float) -> Case:
    """Runs one recipe lazily, in a new folder, and compares it with a selection of the full run."""
    recipe = {"name": "lazy", "signals": SIGNALS, "select": steps}
    start = time.perf_counter()
    plan = lazy.planned_lazily(PoolSpec(path=pool), folder, load(recipe))
    planned = time.perf_counter() - start
    done, _ = lazy.score_lazily(PoolSpec(path=pool), folder, plan, quiet=True)
    seconds = time.perf_counter() - start
    subset, full = (tamis.select(one, recipe) for one in (done, run))
    assert subset.kept
    assert np.array_equal(subset.to_numpy(), full.to_numpy())
    took = {name: spent / len(run) for name, spent in read_record(run.path / "status.json")["took"].items()}
    ours, theirs = work(done, plan, took), work(run, replace(plan, waiting=()), took)
    judged = {label: len(run) if group.asked is None else group.asked for label, group in done.scores.items()}
    settings = {
        "pairs": len(run), "kept": full.kept, "judged": judged, "processor": processor(),
        "seconds of the sample, the lazy run with it, the full run": np.round([planned, seconds, whole], 1).tolist(),
        "plan": str(plan),
    }  # fmt: skip
    return Case(name, "s of work", ours, theirs, theirs / ours, f"{TARGETS[name.partition(': ')[2]]:g}", settings)


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
            start = time.perf_counter()
            run = tamis.score(pool, run=folder / f"full-{label}", signals=SIGNALS, quiet=True)
            took = time.perf_counter() - start
            for name, steps in recipes(run).items():
                cases.append(compare(f"{label}: {name}", pool, folder / f"lazy-{label}-{name}", run, steps, took))
    finish("lazy", cases, given.json)


if __name__ == "__main__":
    main()
