"""The utility study of T-MARS: what one more pair of each kind is worth.

A base pool gets 20 and 40 % more pairs of one kind, and the same model is trained on each for equal samples. The
utility of a kind is the slope of accuracy over the pairs added. As in the paper, kinds whose images do not show their
caption are added to images alone, the others to images and a third of text-only pairs. In the paper pairs of two kinds
are variants of one image; here they are different pairs.

Source: Maini et al. 2024, T-MARS (arXiv 2307.03132), section 6, figure 3 and appendix C.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tamis.core.errors import RunError
from tamis.core.math.statistics import Estimate, mean_interval
from tamis.runs.reasons import Verdict
from tamis.runs.run import Run
from tamis.runs.subset import Subset
from tamis.train.evaluate.bench import TRUTH, Bench, truth_of

#: For each kind: the paper's name for it, its utility (accuracy per million samples), and what it is added to.
PAPER: Mapping[str, tuple[str, float, str]] = {
    "text_only": ("S_t", -0.89, "images"),
    "mismatched": ("S_r", -0.80, "images"),
    "visual_text": ("S_it", 0.27, "images and text"),
    "visual_random_text": ("S_irt", 0.24, "images and text"),
    "visual": ("S_i", 0.23, "images and text"),
}
ADDED = (0.2, 0.4)  # added pairs / pairs of "images"
TEXT = 0.5  # text-only pairs in "images and text", for each image: 180,000 and 90,000 in the paper

#: The lab's tasks about what images show; reading and retrieval are not part of the paper's accuracy.
TASKS = ("lab-colours", "lab-objects", "lab-places")


def variants(run: Run) -> list[Subset]:
    """Returns the two bases, and each kind added to its base; smaller additions are parts of larger ones.

    Raises RunError if the run has no field `truth`, or fewer than 5 pairs of a kind.
    """
    truth = truth_of(run)
    rows = {kind: np.flatnonzero(truth == kind) if truth is not None else np.empty(0, np.int64) for kind in PAPER}
    if rare := [kind for kind, some in rows.items() if some.size < 5]:
        count = rows[rare[0]].size
        raise RunError(
            f"{run.path} has {count} pairs whose {TRUTH!r} is {rare[0]!r}; need 5 of each: {', '.join(PAPER)}"
        )
    images = int(min(some.size for some in rows.values()) / (1 + ADDED[-1]))
    bases = {"images": rows["visual"][:images]}
    bases["images and text"] = np.concatenate([bases["images"], rows["text_only"][: round(TEXT * images)]])
    made = dict(bases)
    for kind, (_, _, base) in PAPER.items():
        first = images if kind == "visual" else 0
        for share in ADDED:
            added = rows[kind][first : first + round(share * images)]
            made[_name(base, kind, share)] = np.concatenate([bases[base], added])
    return [_subset(run, name, some) for name, some in made.items()]


def utilities(bench: Bench) -> dict[str, Estimate | None]:
    """Returns the utility of each kind: the least-squares slope of accuracy over thousands of pairs added, per seed.

    The value is the mean of the slopes, with Student's interval; None with fewer than two seeds.
    """
    found, slopes = {one.name: one for one in bench.contenders}, dict[str, Estimate | None]()
    for kind, (_, _, base) in PAPER.items():
        line = [found[base], *(found[_name(base, kind, share)] for share in ADDED)]
        added = [(one.kept - line[0].kept) / 1000 for one in line]
        seeds = sorted(set.intersection(*(set(one.scores) for one in line)))
        fits = [float(np.polyfit(added, [one.scores[seed] for one in line], 1)[0]) for seed in seeds]
        slopes[kind] = mean_interval(fits) if len(fits) > 1 else None
    return slopes


def rows_of_utilities(slopes: Mapping[str, Estimate | None]) -> list[dict[str, str]]:
    """The utilities next to the paper's, as a table for people."""
    rows = []
    for kind, ours in slopes.items():
        name, theirs, base = PAPER[kind]
        unclear = ours is None or ours.low <= 0 <= ours.high
        sign = "not significant" if ours is None or unclear else "same" if ours.value * theirs > 0 else "other"
        row = {"kind": kind, "added to": base, "T-MARS": name, "per million": f"{theirs:+.2f}"}
        rows.append({**row, "ours, per thousand": str(ours or "–"), "sign": sign})
    return rows


def _name(base: str, kind: str, share: float) -> str:
    return f"{base} + {share:.0%} {kind}"


def _subset(run: Run, name: str, rows: NDArray[np.int64]) -> Subset:
    keep = np.zeros(len(run), bool)
    keep[rows] = True
    return Subset(run=run, keep=keep, recipe={"name": name}, verdict=Verdict(problem="chosen by its truth"))
