"""What C-SSFT and C-RHO keep of each true kind of pair in the lab: `python -m benchmarks.c_ssft_lab`.

The shape of T-MARS's Table 4. The clean set is of other drawings, of the kind `visual` alone. The pool is ten times as
large and has LAION's mix, so that the model that sees it once sees about a third of what the other one sees in 32
epochs, as in the paper (CC3M 32 times, 16 to 64 million pairs once).
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import tamis
from benchmarks.known_defects import word
from benchmarks.measure import options
from tamis.data import Device
from tamis.lab import make_pool
from tamis.math.intervals import share
from tamis.store import Run
from tamis.store.stream import pool_of
from tamis.train.c_rho import Part, train_c_rho
from tamis.train.c_ssft import fine_tuning, train_c_ssft
from tamis.train.clip_loop import How
from tamis.train.scales import at_scale

#: The kept share of each kind among 500 pairs of LAION: Maini et al. 2024 (T-MARS), table 4.
PAPER = {
    "c_ssft": {"visual": 0.89, "visual_text": 0.93, "visual_random_text": 0.80, "text_only": 0.91, "mismatched": 0.59},
    "c_rho": {"visual": 0.60, "visual_text": 0.65, "visual_random_text": 0.62, "text_only": 0.46, "mismatched": 0.41},
}
KEPT = {"clip": 0.9, "c_ssft": 0.9, "c_rho": 0.5}

#: The paper's learning rate, and ten times as much: the lab has a thousandth of the steps.
RATES = {"paper": 1e-5, "faster": 1e-4}
SEEDS = (0, 1)


def indexed(folder: Path, pairs: int, seed: int) -> tuple[Run, tamis.PoolSpec]:
    """A drawn pool in LAION's mix, with the true kind of each pair; drawn once, so that a command can go on."""
    drawn = folder / f"{pairs}-{seed}.drawn"
    if not drawn.is_file():
        make_pool(folder / "pool", pairs=pairs, seed=seed, defects=False)
        drawn.touch()
    pool = tamis.PoolSpec(path=(str(folder / "pool"),), fields=("truth",))
    return tamis.score(pool, run=folder / "run", scores=["caption_length"], quiet=True), pool


def trained(folder: Path, clean: tamis.Subset, run: Run) -> dict[str, dict[str, Any]]:
    """Makes the models; the settings of the scorers that take them, by what the table calls them."""
    how = How(device=Device(threads=1, batch_size=64))
    scorers: dict[str, dict[str, Any]] = {"clip": {"clip": {"model": "lab/clip"}}}
    for called, rate in RATES.items():
        out = folder / f"c-ssft-{called}"
        training = fine_tuning("lab/clip", learning_rate=rate, batch=64)
        train_c_ssft(clean, pool=pool_of(clean.run), out=out, training=training, how=how)
        scorers[f"c_ssft_{called}"] = {"c_ssft": {"folder": str(out)}}
    for seed in SEEDS:
        out = folder / f"c-rho-{seed}"
        parts = (Part(source=clean, pool=pool_of(clean.run), epochs=32), Part(source=run, pool=pool_of(run), epochs=1))
        train_c_rho(*parts, out=out, training=at_scale("lab", seed=seed, batch=128), how=how)
        scorers[f"c_rho_{seed}"] = {"c_rho": {"clean": str(out / "clean"), "pool": str(out / "pool")}}
    return scorers


def main() -> None:
    asked = options(__doc__ or "")
    torch.set_num_threads(1)
    start = time.perf_counter()
    pairs, clean_pairs = (1_500, 300) if asked.quick else (6_000, 600)
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        drawn, _ = indexed(folder / "clean", round(clean_pairs / 0.45), seed=22)
        clean = tamis.select(drawn, {"name": "clean", "select": [{"equals": {"score": "truth", "value": "visual"}}]})
        run, pool = indexed(folder / "mix", pairs, seed=21)
        scorers = trained(folder, clean, run)
        written = [
            {name: {**settings, "label": label}}
            for label, scorer in scorers.items()
            for name, settings in scorer.items()
        ]
        run = tamis.score(pool, run=run.path, scores=written, quiet=True, threads=1)
        table = shares(run, {label: name for label, scorer in scorers.items() for name in scorer})
    print(f"{pairs:,} pairs, a clean set of {len(clean):,}, {time.perf_counter() - start:.0f} s")
    if asked.json:
        print(json.dumps({"name": "c_ssft_lab", "pairs": pairs, "clean": len(clean), "kept": table}))


def shares(run: Run, columns: dict[str, str]) -> dict[str, dict[str, float]]:
    """Prints and returns the share of each kind that is kept, by score and kind."""
    truth = word(run, "truth")
    table: dict[str, dict[str, float]] = {}
    for label, name in columns.items():
        step = {"score": f"{label}.{name}", "fraction": KEPT[name], "of": "pool", "missing": "drop"}
        keep = tamis.select(run, {"name": label, "select": [{"top_fraction": step}]}).keep
        print(f"{label}, {KEPT[name]:.0%} kept")
        table[label] = {}
        for kind in PAPER["c_ssft"]:
            here = truth == kind
            found = share(int(keep[here].sum()), int(here.sum()))
            table[label][kind] = found.value
            paper = PAPER.get(name, {}).get(kind)
            print(f"    {kind}: {found} of {found.n:,}" + (f", the paper {paper:.2f}" if paper is not None else ""))
    return table


if __name__ == "__main__":
    main()
