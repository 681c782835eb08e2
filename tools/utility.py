"""The utility study of T-MARS on the lab's world: what one more pair of each kind is worth.

A base pool gets 20 and 40 % more pairs of one kind. The same model is trained on each, for the same number of samples.
The utility of a kind is the slope of accuracy over added pairs. As in the paper, kinds whose images do not show their
caption are added to images alone, the others to images and a third of text-only pairs. Unlike the paper's, pairs of two
kinds are not variants of one image.

Run: python -m tools.utility [--quick] [--folder DIR] [--workers 2]. The same folder resumes.

Source: Maini et al. 2024, T-MARS (arXiv 2307.03132), section 6, figure 3 and appendix C.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tamis
from tamis.core.math.statistics import Estimate, mean_interval
from tamis.models.device import device_for
from tamis.runs.reasons import Verdict
from tamis.train.evaluate.bench import compare, truth_of
from tamis.train.scales import at_scale
from tamis_lab.pool import make_pool
from tamis_lab.tasks import make_tasks

#: For each kind: the paper's name for it, its utility (accuracy per million samples), and what it is added to.
PAPER: Mapping[str, tuple[str, float, str]] = {
    "text_only": ("S_t", -0.89, "images"),
    "mismatched": ("S_r", -0.80, "images"),
    "visual_text": ("S_it", 0.27, "images and text"),
    "visual_random_text": ("S_irt", 0.24, "images and text"),
    "visual": ("S_i", 0.23, "images and text"),
}
ADDED = (0.2, 0.4)  # added pairs / pairs in the base
TEXT = 0.5  # text-only pairs in the second base, for each image: 180,000 and 90,000 in the paper

#: The tasks about what images show; reading and retrieval are not part of the paper's accuracy.
TASKS = ("lab-colours", "lab-objects", "lab-places")


@dataclass(frozen=True)
class Pool:
    """A base, or a base with `added` more pairs of one kind ("" for none); `rows` are rows of the run."""

    name: str
    base: str
    kind: str
    added: int
    rows: NDArray[np.int64]


def pools(truth: NDArray[np.object_]) -> list[Pool]:
    """The two bases, and each kind added to its base; smaller additions are parts of larger ones.

    `truth` is the true kind of each row; every kind of `PAPER` must occur.
    """
    rows = {kind: np.flatnonzero(truth == kind) for kind in PAPER}
    images = int(min(some.size for some in rows.values()) / (1 + ADDED[-1]))
    bases = {"images": rows["visual"][:images]}
    bases["images and text"] = np.concatenate([bases["images"], rows["text_only"][: round(TEXT * images)]])
    made = [Pool(name, name, "", 0, some) for name, some in bases.items()]
    for kind, (_, _, base) in PAPER.items():
        first = images if kind == "visual" else 0
        for share in ADDED:
            added = rows[kind][first : first + round(share * images)]
            name = f"{base} + {share:.0%} {kind}"
            made.append(Pool(name, base, kind, added.size, np.concatenate([bases[base], added])))
    return made


def utilities(made: Sequence[Pool], scores: Mapping[str, Mapping[int, float]]) -> dict[str, Estimate]:
    """For each kind the mean least-squares slope of accuracy over thousands of pairs added.

    `scores` holds the score of each pool by name and seed.
    """
    slopes = {}
    for kind, (_, _, base) in PAPER.items():
        line = [pool for pool in made if pool.base == base and pool.kind in ("", kind)]
        seeds = set.intersection(*(set(scores[pool.name]) for pool in line))
        x = np.array([pool.added / 1000 for pool in line])
        fits = [np.polyfit(x, [scores[pool.name][seed] for pool in line], 1) for seed in sorted(seeds)]
        slopes[kind] = mean_interval([float(one[0]) for one in fits])
    return slopes


def study(folder: Path, *, pairs: int, samples: int, seeds: int = 3, workers: int = 1) -> list[str]:
    """Draws the pool, trains on every variant and returns the lines of two tables."""
    place = folder / f"utility-pool-{pairs}"
    if not place.exists():
        make_pool(place, pairs=pairs, mix="uniform", defects=False, workers=workers)
    spec = tamis.PoolSpec(path=str(place), fields=("truth",))
    run = tamis.score(spec, run=folder / f"utility-run-{pairs}", signals=["caption_length"], quiet=True)
    truth = truth_of(run)
    assert truth is not None, "a drawn pool has the true kind of each pair"
    made = pools(truth)
    done = compare(
        [_subset(run, pool) for pool in made],
        tasks=make_tasks(folder / "lab-tasks", again=False), only=TASKS, out=folder / f"utility-{pairs}",
        training=at_scale("lab", samples=samples), device=device_for("cpu", None, None, 1), seeds=seeds,
        workers=workers,
    )  # fmt: skip
    if done.failed:
        raise SystemExit("\n".join(f"{name}: {why}" for name, why in done.failed.items()))
    slopes = utilities(made, {one.name: one.scores for one in done.contenders})
    lines = ["| kind | T-MARS | its utility, per million | ours, per thousand | sign |", "|---|---|---|---|---|"]
    for kind, (name, theirs, base) in PAPER.items():
        ours = slopes[kind]
        sign = "not significant" if ours.low <= 0 <= ours.high else "same" if ours.value * theirs > 0 else "other"
        lines.append(f"| {kind}, added to {base} | {name} | {theirs:+.2f} | {ours} | {sign} |")
    scores = {one.name: one.score for one in done.contenders}
    lines += ["", "| pool | pairs | accuracy |", "|---|---|---|"]
    return lines + [f"| {pool.name} | {pool.rows.size:,} | {scores[pool.name]} |" for pool in made]


def _subset(run: tamis.Run, pool: Pool) -> tamis.Subset:
    keep = np.zeros(len(run), bool)
    keep[pool.rows] = True
    return tamis.Subset(run=run, keep=keep, recipe={"name": pool.name}, verdict=Verdict(problem="chosen by its truth"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller, honest size")
    parser.add_argument("--folder", type=Path, help="for pool, runs and results; a temporary folder by default")
    parser.add_argument("--pairs", type=int, help="of the drawn pool, a fifth of each kind")
    parser.add_argument("--samples", type=int, help="that each model sees")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="models trained at a time")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    pairs = asked.pairs or (10_000 if asked.quick else 40_000)
    samples = asked.samples or (12_288 if asked.quick else 46_080)
    with tempfile.TemporaryDirectory() as temporary:
        lines = study(
            asked.folder or Path(temporary), pairs=pairs, samples=samples, seeds=asked.seeds, workers=asked.workers
        )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
