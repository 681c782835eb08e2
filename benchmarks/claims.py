"""Do models trained on what a method keeps bear out its paper? `python -m benchmarks.claims filters --folder OUT`.

A pool of the lab in LAION's mix, the same small model trained on every subset at equal samples seen, three seeds, ranked
by `tamis bench`. `filters`: T-MARS, Text-Match, SIEVE, C-SSFT, C-RHO and their intersections, at half of the pool and at a
fifth. `coverage`: ClipCov beside random pairs, the highest CLIP scores and what lies between, at a tenth. Sizes were chosen by the
accuracy of `no-filter` alone. Repeated, the command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import tamis
from benchmarks.c_ssft_lab import indexed
from tamis.api import pool_of
from tamis.cli.printing import print_table
from tamis.data import Device
from tamis.evaluate.bench import lab_pool
from tamis.train.c_rho import Part, train_c_rho
from tamis.train.c_ssft import fine_tuning, train_c_ssft
from tamis.train.clip_loop import How
from tamis.train.scales import at_scale

CLIP = {"clip": {"model": "lab/clip"}}
TMARS = {"tmars": {"model": "lab/clip"}}
SIEVE = {"sieve": {"captioner": "lab/captioner"}}
CLASSES = {"zero_shot_class": {"model": "lab/clip", "classes": "lab"}}


def top(name: str, score: str, share: float, *scorers: Any) -> dict[str, Any]:
    """Returns the recipe that keeps the highest share of the pool by a score."""
    step = {"score": score, "fraction": share, "of": "pool", "missing": "drop"}
    return {"name": name, "scores": list(scorers), "select": [{"top_fraction": step}]}


def random(share: float) -> dict[str, Any]:
    """Returns the recipe of a random share of the pool."""
    return {"name": f"random-{100 * share:.0f}", "select": [{"random_fraction": {"fraction": share}}]}


#: At half of the pool, by the recipes that ship; and at a fifth of it, where SIEVE has its results.
FILTERS: tuple[Any, ...] = (
    "no-filter", "random", "clip-50", "t-mars", "clip∩text-match", "t-mars∩c-ssft", "t-mars∩c-rho",
    random(0.20),
    top("clip-20", "clip", 0.20, CLIP),
    top("t-mars-20", "tmars", 0.20, TMARS),
    "sieve",
    "sieve+clip",
)  # fmt: skip


def filters(folder: Path, pairs: int) -> tuple[tamis.PoolSpec, list[str]]:
    """Draws the pool and makes the models that C-SSFT and C-RHO compare; the pool and the scorers' settings."""
    how = How(device=Device(threads=2, batch_size=64))
    drawn, _ = indexed(folder / "clean", 1_400, seed=22)
    clean = tamis.select(drawn, {"name": "clean", "select": [{"equals": {"score": "truth", "value": "visual"}}]})
    pool = tamis.PoolSpec(path=(str(lab_pool(folder, pairs, 2)),), fields=("truth",))
    run = tamis.score(pool, run=folder / "bench/run", scores=["caption_length"], quiet=True)
    train_c_ssft(
        clean, pool=pool_of(drawn), out=folder / "c-ssft", training=fine_tuning("lab/clip", batch=64), how=how
    )
    parts = (Part(source=clean, pool=pool_of(drawn), epochs=32), Part(source=run, pool=pool_of(run), epochs=1))
    train_c_rho(*parts, out=folder / "c-rho", training=at_scale("lab", batch=128), how=how)
    return pool, [
        "scores.clip.model=lab/clip", "scores.tmars.model=lab/clip", "scores.sieve.captioner=lab/captioner",
        f"scores.c_ssft.folder={folder / 'c-ssft'}", f"scores.c_rho.clean={folder / 'c-rho/clean'}",
        f"scores.c_rho.pool={folder / 'c-rho/pool'}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=("filters",))
    parser.add_argument("--folder", type=Path, required=True, help="where pool, models and results go")
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=46_080)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    pool, settings = filters(asked.folder, asked.pairs)
    found = tamis.bench(
        pool, FILTERS, tasks="lab", out=asked.folder / "bench", settings=settings, seeds=asked.seeds,
        training=at_scale("lab", samples=asked.samples), workers=asked.workers, quiet=True,
    )  # fmt: skip
    print_table(found.rows_of_table())
    for sentence in found.verdict():
        print(sentence)
    for rows in (found.rows_of_kinds(), found.rows_of_overlap()):
        print()
        print_table(rows)
    if asked.json:
        print(json.dumps({"name": f"claims-{asked.which}", **found.facts()}))


if __name__ == "__main__":
    main()
