"""Do models trained on what a method keeps bear out its paper? `python -m benchmarks.claims filters --folder OUT`.

A pool of the lab in LAION's mix, the same small model trained on every subset at equal samples seen, three seeds,
ranked by `tamis bench`. `filters`: T-MARS, Text-Match, SIEVE, C-SSFT, C-RHO and intersections, at half of the pool
and at a fifth. `coverage`: ClipCov with the class names of the test, with other names, with clusters, without some of
its terms, after T-MARS; beside random pairs, the highest CLIP scores, and a random share of their better half;
`--share` of the pool each. Sizes were chosen before any method was trained. Repeated, the command goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import tamis
from benchmarks.c_ssft_lab import indexed
from tamis.cli.printing import print_table
from tamis.data import Device
from tamis.evaluate.bench import lab_pool
from tamis.lab.world import OBJECTS, PLACES
from tamis.recipe import load
from tamis.store.stream import pool_of
from tamis.train.c_rho import Part, train_c_rho
from tamis.train.c_ssft import fine_tuning, train_c_ssft
from tamis.train.clip_loop import How
from tamis.train.scales import at_scale

CLIP = {"clip": {"model": "lab/clip"}}
TMARS = {"tmars": {"model": "lab/clip"}}
SIEVE = {"sieve": {"captioner": "lab/captioner"}}


def top(name: str, score: str, share: float, *scorers: Any) -> dict[str, Any]:
    """Returns the recipe that keeps the highest share of the pool by a score."""
    step = {"score": score, "fraction": share, "of": "pool", "missing": "drop"}
    return {"name": name, "scores": list(scorers), "select": [{"top_fraction": step}]}


def random(share: float) -> dict[str, Any]:
    """Returns the recipe of a random share of the pool."""
    return {"name": f"random-{100 * share:.0f}", "select": [{"random_fraction": {"fraction": share}}]}


#: Recipes of ClipCov with some of its terms, of which each bench takes the step.
CLIPCOV = Path(__file__).parent / "coverage"
TAKEN_APART = ("clipcov-share", "clipcov-only-label", "clipcov-without-label", "clipcov-only-cov")

#: At half of the pool, by the recipes that ship; and at a fifth of it, where SIEVE has its results.
FILTERS: tuple[Any, ...] = (
    "no-filter", "random", "clip-50", "t-mars", "clip∩text-match", "t-mars∩c-ssft", "t-mars∩c-rho",
    random(0.20),
    top("clip-20", "clip", 0.20, CLIP),
    top("t-mars-20", "tmars", 0.20, TMARS),
    "sieve",
    "sieve+clip",
)  # fmt: skip


def coverage(share: float, names: Path, others: Path) -> list[dict[str, Any]]:
    """Returns ways to keep a share of the pool.

    Args:
        share: of the pool, above 0 and at most one half.
        names: the file of the classes that the test asks for.
        others: one of other names.
    """
    budget = {"fraction": share, "of": "pool", "missing": "drop"}
    half = {"top_fraction": {"score": "clip", "fraction": 0.5, "of": "pool", "missing": "drop"}}
    mars = {"top_fraction": {"score": "tmars", "fraction": 0.5, "of": "pool", "missing": "drop"}}

    def recipe(name: str, *steps: Any, classes: Path | None = None) -> dict[str, Any]:
        scorers: list[Any] = [CLIP, TMARS]
        if classes is not None:
            scorers.append(
                {"zero_shot_class": {"model": "lab/clip", "classes_from": str(classes), "label": classes.stem}}
            )
        return {"name": name, "scores": scorers, "keep": ["embeddings"], "select": list(steps)}

    def clipcov(kind: str, per: str = f"{names.stem}.zero_shot_class") -> dict[str, Any]:
        (step,) = load(CLIPCOV / f"{kind}.yaml").text["select"]
        return {"clipcov": {**step["clipcov"], **budget, "per": per}}

    return [
        recipe("random", {"random_fraction": {"fraction": share}}),
        top("clip", "clip", share, CLIP),
        recipe("clip-half-random", half, {"random_fraction": {"fraction": share, "of": "pool"}}),
        recipe("t-mars", {"top_fraction": {"score": "tmars", **budget}}),
        recipe("t-mars-half-random", mars, {"random_fraction": {"fraction": share, "of": "pool"}}),
        recipe("clipcov", clipcov("clipcov-all"), classes=names),
        recipe("clipcov-after-t-mars", mars, clipcov("clipcov-all"), classes=names),
        recipe("clipcov-other-names", clipcov("clipcov-all", f"{others.stem}.zero_shot_class"), classes=others),
        recipe("clipcov-clusters", clipcov("clipcov-without-label", "cluster")),
        *(recipe(kind, clipcov(kind), classes=names) for kind in TAKEN_APART),
    ]


def coverage_bench(folder: Path, pairs: int, share: float) -> tuple[Any, list[Any], list[str]]:
    """Draws and scores the pool, and sorts it into clusters; the run, the recipes, no settings."""
    folder.mkdir(parents=True, exist_ok=True)
    names, others = folder / "names.txt", folder / "others.txt"
    names.write_text("".join(f"{name}\n" for name in OBJECTS))
    others.write_text("".join(f"{place.noun}\n" for place in PLACES.values()))
    recipes = coverage(share, names, others)
    scorers = list({json.dumps(one): one for recipe in recipes for one in recipe["scores"]}.values())
    pool = tamis.PoolSpec(path=(str(lab_pool(folder, pairs, 2)),), fields=("truth",))
    tamis.score(pool, run=folder / "run", scores=scorers, keep=["embeddings"], workers=2, quiet=True)
    return tamis.cluster(folder / "run", clusters=48), recipes, []


def filter_bench(folder: Path, pairs: int) -> tuple[Any, list[Any], list[str]]:
    """Draws the pool and makes the models that C-SSFT and C-RHO compare; pool, recipes, settings of scorers."""
    how = How(device=Device(threads=2, batch_size=64))
    drawn, _ = indexed(folder / "clean", 1_400, seed=22)
    clean = tamis.select(drawn, {"name": "clean", "select": [{"equals": {"score": "truth", "value": "visual"}}]})
    pool = tamis.PoolSpec(path=(str(lab_pool(folder, pairs, 2)),), fields=("truth",))
    run = tamis.score(pool, run=folder / "filters/run", scores=["caption_length"], quiet=True)
    train_c_ssft(clean, pool=pool_of(drawn), out=folder / "c-ssft", training=fine_tuning("lab/clip", batch=64), how=how)
    parts = (Part(source=clean, pool=pool_of(drawn), epochs=32), Part(source=run, pool=pool_of(run), epochs=1))
    train_c_rho(*parts, out=folder / "c-rho", training=at_scale("lab", batch=128), how=how)
    return pool, list(FILTERS), [
        "scores.clip.model=lab/clip", "scores.tmars.model=lab/clip", "scores.sieve.captioner=lab/captioner",
        f"scores.c_ssft.folder={folder / 'c-ssft'}", f"scores.c_rho.clean={folder / 'c-rho/clean'}",
        f"scores.c_rho.pool={folder / 'c-rho/pool'}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=("filters", "coverage"))
    parser.add_argument("--folder", type=Path, required=True, help="where pool, models and results go")
    parser.add_argument("--share", type=float, default=0.10, help="of the pool, for coverage")
    parser.add_argument("--only", help="names of recipes, separated by commas; else all")
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=46_080)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.which == "filters":
        source, recipes, settings = filter_bench(asked.folder, asked.pairs)
    else:
        source, recipes, settings = coverage_bench(asked.folder, asked.pairs, asked.share)
    if asked.only:
        only = asked.only.split(",")
        recipes = [one for one in recipes if (one if isinstance(one, str) else one["name"]) in only]
    out = asked.folder / (asked.which if asked.which == "filters" else f"coverage-{100 * asked.share:.0f}")
    found = tamis.bench(
        source, recipes, tasks="lab", out=out, settings=settings, seeds=asked.seeds,
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
