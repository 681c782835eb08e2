"""What one more pair of each kind is worth: the utility study of T-MARS on the lab's world.

`tamis.evaluate.utility` says what is added to what, and how a utility is computed.

Run: python -m benchmarks.utility [--quick] [--folder DIR] [--workers 2] [--plot FILE.svg]. The same folder goes on
where it stopped.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tamis
from benchmarks.measure import Case, finish
from tamis.evaluate.bench import Bench, compare, truth_of
from tamis.evaluate.utility import PAPER, Pool, pools, utilities
from tamis.lab import make_pool
from tamis.models.device import device_for
from tamis.store.reasons import Verdict
from tamis.train.scales import at_scale

#: What pictures show; reading and retrieval are no part of the paper's accuracy.
TASKS = ("lab-colours", "lab-objects", "lab-places")
COLOURS = ("#2456a6", "#c2571a", "#3b7a57", "#8a3f8f", "#888888")


def plot(made: Sequence[Pool], done: Bench) -> str:
    """Returns accuracy over pairs added, a panel for each base, as SVG on white."""
    scores = {one.name: one.score for one in done.contenders if one.score is not None}
    ends = [end for one in scores.values() for end in (one.low, one.high)]
    low, high = min(ends), max(ends)
    most = max(pool.added for pool in made) or 1
    shapes = ['<rect width="960" height="300" fill="#ffffff"/>']
    for panel, base in enumerate(("images", "images and text")):
        left = 50 + 440 * panel
        shapes.append(f'<text x="{left}" y="20" font-size="13">base: {base}; accuracy over pairs added</text>')
        shapes.append(f'<path d="M{left} 30 V260 H{left + 270}" fill="none" stroke="#444"/>')
        for edge, value in ((40, high), (260, low)):
            shapes.append(f'<text x="{left - 5}" y="{edge}" font-size="11" text-anchor="end">{value:.2f}</text>')
        shapes.append(f'<text x="{left + 250}" y="276" font-size="11" text-anchor="middle">{most:,}</text>')
        kinds = [kind for kind, (_, _, its) in PAPER.items() if its == base]
        for place, kind in enumerate(kinds):
            colour, points = COLOURS[place], []
            for pool in made:
                if pool.base != base or pool.kind not in ("", kind) or pool.name not in scores:
                    continue
                at, x = scores[pool.name], left + 250 * pool.added / most + 3 * place
                top, y, bottom = (260 - 220 * (one - low) / (high - low or 1) for one in (at.high, at.value, at.low))
                points.append(f"{x:.1f},{y:.1f}")
                shapes.append(f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}" opacity=".5"/>')
            shapes.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
            name = f"{PAPER[kind][0]} {kind}"
            shapes.append(f'<text x="{left + 280}" y="{60 + 18 * place}" fill="{colour}" font-size="12">{name}</text>')
    size = 'width="960" height="300" font-family="sans-serif"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(shapes)}</svg>\n'


def subset(run: tamis.Run, pool: Pool) -> tamis.Subset:
    keep = np.zeros(len(run), bool)
    keep[pool.rows] = True
    return tamis.Subset(run=run, keep=keep, recipe={"name": pool.name}, verdict=Verdict(problem="chosen by its truth"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller, honest size")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    parser.add_argument("--folder", default=None, help="for pool, runs and results; a temporary folder by default")
    parser.add_argument("--pairs", type=int, default=None, help="of the drawn pool, a fifth of each kind")
    parser.add_argument("--samples", type=int, default=None, help="that each model sees")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="models that are trained at a time")
    parser.add_argument("--plot", default=None, help="write the curves here, as SVG")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    pairs = asked.pairs or (10_000 if asked.quick else 40_000)
    training = at_scale("lab", samples=asked.samples or (12_288 if asked.quick else 46_080))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(asked.folder or temporary)
        place = root / f"utility-pool-{pairs}"
        if not place.exists():
            make_pool(place, pairs=pairs, mix="uniform", defects=False, workers=asked.workers)
        spec = tamis.PoolSpec(path=str(place), fields=("truth",))
        run = tamis.score(spec, run=root / f"utility-run-{pairs}", scores=["caption_length"], quiet=True)
        truth = truth_of(run)
        assert truth is not None, "a drawn pool says what is true of its pairs"
        made = pools(truth)
        done = compare(
            [subset(run, pool) for pool in made], tasks="lab", only=TASKS, out=root / f"utility-{pairs}",
            training=training, device=device_for("cpu", None, None, 1), seeds=asked.seeds, workers=asked.workers,
        )  # fmt: skip
        if done.failed:
            raise SystemExit("\n".join(f"{name}: {why}" for name, why in done.failed.items()))
        found = utilities(made, {one.name: one.scores for one in done.contenders})
        cases = []
        print("\n| kind | T-MARS | its utility, per million | ours, per thousand | sign |\n|---|---|---|---|---|")
        for kind, (name, theirs, base) in PAPER.items():
            ours = found[kind]
            sign = "not told from 0" if ours.low <= 0 <= ours.high else "same" if ours.value * theirs > 0 else "other"
            print(f"| {kind}, added to {base} | {name} | {theirs:+.2f} | {ours} | {sign} |")
            settings = {"paper": theirs, "low": ours.low, "high": ours.high, "sign": sign, "samples": training.samples}
            cases.append(
                Case(kind, "accuracy per thousand pairs", ours.value, None, None, "the paper's sign", settings)
            )
        print("\n| pool | pairs | accuracy |\n|---|---|---|")
        scores = {one.name: one.score for one in done.contenders}
        for pool in made:
            print(f"| {pool.name} | {pool.rows.size:,} | {scores[pool.name]} |")
        if asked.plot:
            Path(asked.plot).write_text(plot(made, done), encoding="utf-8")
        if asked.json:
            finish("utility", cases, True)


if __name__ == "__main__":
    main()
