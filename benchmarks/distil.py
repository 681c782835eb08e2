"""Whether certificates of distilled choices hold: 200 simulated worlds and SIEVE from CLIP, and what they cost.

A cheap score explains .73 of an expensive one, as ridge regression on CLIP embeddings does of SIEVE. The rest is
normal, has heavy tails (t with 2.5 degrees of freedom), grows with the cheap score, or is shifted in a twentieth of the
rows. Ours is the share of worlds whose choice is at least as near to the true one as its certificate says.

The real case is `tamis distil sieve` on a pool of the lab, or `--pool`, scored in full to know the truth. Such a pool
is far too small to save much: the sample is made smaller, and the bounds are looser than on large ones.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.measure import Case, finish, options
from tamis import distilled
from tamis.lab import make_pool
from tamis.math.distil import Choice, certify

_KINDS = ("normal", "heavy tails", "heteroscedastic", "shifted shard")
_EXPLAINED = 0.73


def world(kind: str, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cheap and the expensive score of each row."""
    cheap, noise = rng.normal(size=(2, rows))
    if kind == "heavy tails":
        noise = rng.standard_t(2.5, rows) / np.sqrt(5)
    if kind == "heteroscedastic":
        noise *= np.exp(cheap / 2)
    full = np.sqrt(_EXPLAINED) * cheap + np.sqrt(1 - _EXPLAINED) * noise
    if kind == "shifted shard":
        full[: rows // 20] += 2 * rng.choice([-1, 1])
    return np.sqrt(_EXPLAINED) * cheap, full


def worlds(kind: str, count: int, rows: int, kept: int, at_most_wrong: float) -> Case:
    held, jaccards, bounds, asked, audited, start = 0, [], [], [], [], time.perf_counter()
    for seed in range(count):
        rng = np.random.default_rng([seed, _KINDS.index(kind)])
        cheap, full = world(kind, rows, rng)
        orders = rng.integers(0, 1 << 63, (4, rows)).astype(np.uint64)
        found = certify(
            Choice(cheap=cheap, kept=kept, order=orders[0], sample=np.argsort(orders[0])[: max(2000, rows // 50)]),
            lambda some, full=full: np.where(some, full, np.nan), orders.__getitem__, at_most_wrong=at_most_wrong,
        )  # fmt: skip
        keep = np.zeros(rows, bool)
        keep[np.argsort(-full)[:kept]] = True
        both = np.count_nonzero(keep & found.decisions.keep)
        jaccards.append(both / (2 * kept - both))
        bounds.append(found.jaccard)
        held += jaccards[-1] >= bounds[-1]
        asked.append(found.asked.mean())
        audited.append(found.audited)
    settings = {
        "rows": rows, "kept": kept, "at_most_wrong": at_most_wrong, "worlds": count,
        "certified": float(np.mean(np.array(bounds) >= 1 - at_most_wrong)),
        "share scored": round(float(np.mean(asked)), 4), "audited": round(float(np.mean(audited))),
        "bound": round(float(np.mean(bounds)), 4), "true Jaccard": round(float(np.mean(jaccards)), 4),
        "seconds a world": round((time.perf_counter() - start) / count, 2),
    }  # fmt: skip
    return Case(f"certificate holds, {kind}", "of worlds", held / count, None, None, ">= 0.95", settings)


def real(pool: str, folder: Path, at_most_wrong: float) -> Case:
    """Distils SIEVE in a run that holds all scores, so that each is computed once; the same rows are asked for."""
    sieve = {"captioner": "lab/captioner", "sampling": {"captions": 2}}
    recipe: dict[str, Any] = {
        "signals": [{"clip": {"model": "lab/clip"}}, {"sieve": sieve}],
        "keep": ["embeddings"],
        "select": [
            {"equals": {"score": "status", "value": "ok"}},
            {"top_fraction": {"score": "sieve", "fraction": 0.3, "missing": "drop"}},
        ],
    }
    run = tamis.score(pool, run=folder / "run", recipe=recipe, quiet=True)
    truth, start = tamis.select(run, recipe), time.process_time()
    how: dict[str, Any] = {"at_most_wrong": at_most_wrong, "least": 0, "quiet": True}
    run = tamis.distil(pool, "sieve", run=run.path, recipe=recipe, **how).run
    took, bound = time.process_time() - start, dict(run.scores["sieve_distilled"].facts["bound"])
    ours = tamis.select(run, {"select": recipe["select"], "columns": {"sieve": "sieve_distilled"}})
    score, guess = run["sieve"], run["sieve_distilled"]
    rest = (guess != score) & ~np.isnan(guess) & ~np.isnan(score)  # was not asked for
    both = np.count_nonzero(truth.keep & ours.keep)
    settings = {
        "pairs": len(run), "kept": ours.kept, "at_most_wrong": at_most_wrong, **bound,
        "correlation of the other rows": round(float(np.corrcoef(guess[rest], score[rest])[0, 1]), 3),
        "seconds without scoring": round(took, 1),
    }  # fmt: skip
    index = float(both / (truth.kept + ours.kept - both))
    target = f">= {bound['jaccard_at_least']:.3f}, the bound"
    return Case(f"SIEVE from CLIP, {Path(pool).name}", "Jaccard index", index, None, None, target, settings)


def main() -> None:
    asked = options(__doc__, ("worlds", "real"), pool=True, pairs=4000)
    cases, (count, rows) = list[Case](), (10 if asked.quick else 50, 20_000)
    if asked.only != "real":
        cases += [worlds(kind, count, rows, 3 * rows // 10, 0.1) for kind in _KINDS]
    if asked.only != "worlds":
        distilled._SAMPLE = 0.1, 200, 20_000
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(asked.folder or temporary)
            if not (pool := Path(asked.pool or folder / "lab")).exists():
                make_pool(pool, pairs=asked.pairs // 10 if asked.quick else asked.pairs, seed=5)
            cases += [real(str(pool), folder, wrong) for wrong in (0.1, 0.2, 0.3)]
    finish("distil", cases, asked.json)


if __name__ == "__main__":
    main()
