"""`tamis run --lazy` beside the full run: the same uids, and how much less work.

Work is the number of pairs that each signal judged, times its seconds per pair as the full run measured them, and the
reading of the images. The time of both runs is given too: the lazy one begins with a sample, loads models again for
each signal, and on small pools that is much of it. Models are those of the lab, also for the pool of photographs, so
costs are small and scores are not good; --pool takes any other pool.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.measure import Case, finish, options, processor
from tamis import PoolSpec, lazy
from tamis.graph import topological
from tamis.lab import make_pool
from tamis.recipe import load, signal_from
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


def work(run: tamis.Run, plan: lazy.LazyPlan, seconds: dict[str, float]) -> float:
    """Returns the seconds that the signals of a run took by its counts, and the reading of their images."""
    total = seconds[READING]
    for entry in plan.recipe.signals:
        group = run.scores[entry[0] or entry[1].name]
        share = 1.0 if group.asked is None else group.asked / len(run)
        again = seconds[READING] if entry in plan.waiting else 0.0
        total += share * (seconds[group.label] + again)
    return total * len(run)


def compare(name: str, pool: str, folder: Path, run: tamis.Run, steps: list[Any], took: float) -> Case:
    """Runs one recipe lazily, in a new folder, and compares it with a selection of the full run."""
    recipe = {"name": "lazy", "signals": SIGNALS, "select": steps}
    start = time.perf_counter()
    plan = lazy.planned_lazily(PoolSpec(path=pool), folder, load(recipe))
    planned = time.perf_counter() - start
    done = lazy.score_lazily(PoolSpec(path=pool), folder, plan, quiet=True)
    seconds = time.perf_counter() - start
    subset, full = (tamis.select(one, recipe) for one in (done, run))
    assert subset.kept
    assert np.array_equal(subset.to_numpy(), full.to_numpy())
    ours, theirs = (work(one, plan, costs(run)) for one in (done, run))
    judged = {label: len(run) if group.asked is None else group.asked for label, group in done.scores.items()}
    settings = {
        "pairs": len(run), "kept": full.kept, "judged": judged, "processor": processor(),
        "seconds of the sample, the lazy run with it, the full run": np.round([planned, seconds, took], 1).tolist(),
        "plan": str(plan),
    }  # fmt: skip
    return Case(name, "s of work", ours, theirs, theirs / ours, f"{TARGETS[name.partition(': ')[2]]:g}", settings)


def costs(run: tamis.Run) -> dict[str, float]:
    """Returns the seconds per pair of each signal of a full run, and of reading."""
    took = read_record(run.path / "status.json")["took"]
    made = {signal.name: signal for _, signal in map(signal_from, SIGNALS)}
    found = {
        name: sum(took.get(inner, 0.0) for inner in {node.name for node in topological([signal])}) / len(run)
        for name, signal in made.items()
    }
    return found | {READING: took.get(READING, 0.0) / len(run)}


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
