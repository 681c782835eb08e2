"""An oracle of arms trained at several lengths, and races drawn from it.

`oracle` trains every arm with every seed at every length on the lab, and appends a row per model to a table; it goes on
where it stopped.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tamis
from tamis.models.device import device_for
from tamis.recipes.recipe import Recipe, at_share, load
from tamis.runs.run import Run
from tamis.train.clip import TrainingSet, fine_tuning, train_c_rho, train_c_ssft
from tamis.train.evaluate.cells import counted_tasks, train_all
from tamis.train.scales import at_scale
from tamis.train.step import How
from tamis_lab.pool import make_pool
from tamis_lab.tasks import make_tasks
from tamis_lab.world import OBJECTS

TABLE = Path(__file__).with_name("choose_oracle.csv")
PAIRS, IMAGES = 5_000, 240
LENGTHS = (12_288, 24_576, 49_152)
ARMS: tuple[tuple[str, float | None], ...] = (
    ("no-filter", None), ("random", 0.3), ("clip-50", 0.3), ("clip-50", 0.5), ("tmars", 0.3), ("tmars", 0.5),
    ("sieve+clip", 0.3), ("text_match", None), ("c_rho", 0.5), ("c_ssft", 0.75), ("clipcov", 0.3),
    ("tmars-and-c_rho", None),
)  # fmt: skip


def scored(root: Path) -> Run:
    """Draws the pool, trains the models of C-SSFT and C-RHO on other, clean drawings, and scores everything."""
    make_pool(root / "pool", pairs=PAIRS, again=False)
    make_pool(root / "clean", pairs=600, seed=122, shares={"visual": 1}, again=False)
    (root / "objects.txt").write_text("\n".join(OBJECTS))
    pool = tamis.PoolSpec(path=str(root / "pool"), fields=("truth",))
    clip = {"model": "lab/clip"}
    names = {"model": "lab/clip", "classes_from": str(root / "objects.txt"), "templates": "scenes"}
    signals: list[Any] = [{"clip": clip}, {"tmars": clip}, "text_match", {"zero_shot_class": names}]
    signals += [{"sieve": {"captioner": "lab/captioner"}}]
    run = tamis.score(pool, run=root / "run", signals=signals, keep=["embeddings"])
    clean = tamis.score(root / "clean", run=root / "clean-run")
    how = How(device=device_for("cpu", None, None, None))
    if not (root / "c_ssft").exists():
        train_c_ssft(clean, out=root / "c_ssft", training=fine_tuning("lab/clip", batch=64), how=how)
    if not (root / "c_rho").exists():
        train_c_rho(TrainingSet(clean, 32), TrainingSet(run, 1), out=root / "c_rho", training=at_scale("lab"), how=how)
    rho = {name: str(root / "c_rho" / name) for name in ("clean", "pool")}
    return tamis.score(
        pool, run=root / "run", signals=[{"c_ssft": {"folder": str(root / "c_ssft")}}, {"c_rho": rho}]
    )  # fmt: skip


def arms(run: Run) -> list[tamis.Subset]:
    recipes: list[Recipe] = []
    for name, share in ARMS:
        recipe = load(name)
        recipes.append(recipe if share is None else at_share(recipe, share) or recipe)
    return [tamis.select(run, recipe, any_model=True) for recipe in recipes]


def oracle(root: Path, seeds: Iterable[int], lengths: Iterable[int], precision: str) -> None:
    """Trains what the table lacks; one cell after the other, in this process."""
    run = scored(root)
    tasks = make_tasks(root / f"tasks-{IMAGES}", size=IMAGES, again=False)
    subsets, training, device = arms(run), at_scale("lab"), device_for("cpu", precision, None, None)
    device = replace(device, threads=1)
    counted = counted_tasks(training, tasks, ())
    for samples in lengths:
        for seed in seeds:
            for subset in subsets:
                done = {(row["arm"], int(row["samples"]), int(row["seed"])) for row in rows()}
                if (subset.name, samples, seed) in done:
                    continue
                key = (subset.name, samples, seed)
                wanted = {key: (subset, replace(training, samples=samples, seed=seed))}
                found, failed = train_all(
                    wanted, tasks=tasks, counted=counted, device=device, folder=root / "cells", workers=1
                )
                if failed:
                    raise SystemExit(str(failed))
                one = found[key]
                add(
                    {"arm": subset.name, "kept": subset.kept, "samples": samples, "seed": seed}
                    | {f"accuracy {name}": round(value, 5) for name, value in sorted(one.scores.items())}
                    | {f"nats {name}": round(value, 5) for name, value in sorted(one.likelihoods.items())}
                    | {"seconds": one.seconds}
                )


def rows() -> list[dict[str, str]]:
    if not TABLE.is_file():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def add(row: dict[str, Any]) -> None:
    new = not TABLE.is_file()
    with TABLE.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["oracle"])
    parser.add_argument("--out", type=Path, default=Path("choose-oracle"))
    parser.add_argument("--seeds", type=numbers, default=list(range(6)))
    parser.add_argument("--lengths", type=numbers, default=list(LENGTHS))
    given = parser.parse_args()
    oracle(given.out, given.seeds, given.lengths, "float32")
