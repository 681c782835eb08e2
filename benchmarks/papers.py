"""Figures of T-MARS and SIEVE that need no large training: ours on the lab, the paper's as the baseline.

`laion`: the share of each kind that a filter keeps (T-MARS, tables 1 and 4), where C-SSFT and C-RHO learn from other
drawings; the cosine that goes with the written text (T-MARS, figure 13); what a recipe and CLIPScore both keep, over
what either keeps (SIEVE, table 8). `captions`: SIEVE's AUC of right against wrong pairs, half of them hard, by the
number of captions (SIEVE's table 5 trains models instead).
"""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.measure import Case, benchmark
from tamis.core.math.statistics import Estimate, auc, bootstrap, share_interval
from tamis.models.device import device_for
from tamis.train.clip import TrainingSet, fine_tuning, train_c_rho, train_c_ssft
from tamis.train.scales import at_scale
from tamis.train.step import How
from tamis_lab.pool import make_pool

KINDS = ("all", "mismatched", "visual", "visual_random_text", "visual_text", "text_only")
KEPT = {
    "clip-50": (0.5, *[None] * 5), "text_match": (0.864, 1.00, 0.99, 0.89, 0.22, 0.08),
    "c_ssft": (0.9, 0.59, 0.89, 0.80, 0.93, 0.91), "c_rho": (0.5, 0.41, 0.60, 0.62, 0.65, 0.46),
    "tmars": (0.5, 0.29, 0.67, 0.71, 0.48, 0.07), "tmars-and-c_ssft": (0.452, 0.24, 0.60, 0.51, 0.45, 0.07),
    "tmars-and-c_rho": (0.275, 0.12, 0.37, 0.42, 0.30, 0.04),
}  # fmt: skip
BOTH = {"sieve": (0.1600, 0.2999, 0.3954), "sieve+clip": (0.2718, 0.4400, 0.5693)}


def line(name: str, ours: Estimate, theirs: float | None = None, unit: str = "share") -> Case:
    return Case(name, unit, ours.value, theirs, settings={"95 % interval": str(ours), "n": ours.n})


def laion(root: Path, given: Any) -> list[Case]:
    make_pool(root / "pool", pairs=400 if given.quick else given.pairs, seed=22, again=False)
    make_pool(root / "clean", pairs=600, seed=122, shares={"visual": 1}, again=False)
    pool = tamis.PoolSpec(path=str(root / "pool"), fields=("truth",))
    signals = [{"clip": {"model": "lab/clip"}}, {"tmars": {"model": "lab/clip"}}, "text_match"]
    run = tamis.score(pool, run=root / "run", signals=[*signals, {"sieve": {"captioner": "lab/captioner"}}])
    clean = tamis.score(root / "clean", run=root / "clean-run")
    how = How(device=device_for("cpu", None, None, None))
    train_c_ssft(clean, out=root / "c_ssft", training=fine_tuning("lab/clip", batch=64), how=how)
    train_c_rho(TrainingSet(clean, 32), TrainingSet(run, 1), out=root / "c_rho", training=at_scale("lab"), how=how)
    rho = {name: str(root / "c_rho" / name) for name in ("clean", "pool")}
    run = tamis.score(pool, run=run.path, signals=[{"c_ssft": {"folder": str(root / "c_ssft")}}, {"c_rho": rho}])
    truth, cases = run["truth"], []
    for recipe, paper in KEPT.items():
        keep = tamis.select(run, recipe, any_model=True).keep
        for kind, theirs in zip(KINDS, paper, strict=True):
            some = keep[(truth == kind) | (kind == "all")]
            cases.append(line(f"{recipe}: {kind}", share_interval(int(some.sum()), some.size), theirs))
    drops = {kind: bootstrap(np.nanmean, run["clip_drop"][truth == kind]) for kind in KINDS[1:]}
    cases += [line(f"without text: {kind}", drop, unit="cosine lost") for kind, drop in drops.items()]
    for (recipe, paper), n in product(BOTH.items(), (1, 2, 3)):
        share = [f"select.top_fraction.fraction={n / 10}"]
        one, two = (tamis.select(run, name, settings=share, any_model=True).keep for name in (recipe, "clip-30"))
        both = share_interval(int((one & two).sum()), int((one | two).sum()))
        cases.append(line(f"{recipe} and CLIPScore, top {n}0 %", both, paper[n - 1]))
    return cases


def captions(root: Path, given: Any) -> list[Case]:
    make_pool(root / "pool", pairs=400 if given.quick else given.pairs, mix="hard", again=False)
    sieves = {n: {"captioner": "lab/captioner", "sampling": {"captions": n}, "label": f"s{n}"} for n in (1, 2, 4, 8)}
    pool = tamis.PoolSpec(path=str(root / "pool"), fields=("truth",))
    run = tamis.score(pool, run=root / "run", signals=[{"sieve": sieve} for sieve in sieves.values()])
    truth = run["truth"].astype(str)
    right = np.isin(truth, ["visual", "visual_text", "visual_random_text", "watermark"])
    wrong = np.isin(truth, ["mismatched", "text_only", "large_text"]) | np.char.startswith(truth, "wrong_")
    aucs = {n: bootstrap(auc, run[f"s{n}.sieve"][right], run[f"s{n}.sieve"][wrong]) for n in sieves}
    return [line(f"{n} captions", area, unit="AUC") for n, area in aucs.items()]


if __name__ == "__main__":
    benchmark(__doc__, {"laion": laion, "captions": captions}, pairs=6000)
