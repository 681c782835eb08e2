"""A CLIP made of 4,000 photographs, and what filters keep with it: `python -m benchmarks.photographs --data FOLDER`.

Trains an image tower from scratch beside the frozen MiniLM on `pools/flickr8k-clean`, each photograph with all five of
its captions, then judges the pairs of `pools/flickr8k-noisy` with it, whose true kinds are known: AUC of `visual`
against the other kinds, and the share of each kind that `clip-50`, `t-mars` and `text-match` keep.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import webdataset

import tamis
from benchmarks.known_defects import word
from tamis.data import Device
from tamis.math.intervals import bootstrap, share
from tamis.math.ranks import auc
from tamis.recipe import load
from tamis.selectors import run_steps
from tamis.store import Run
from tamis.store.stream import pool_of
from tamis.train.clip import train_clip
from tamis.train.clip_loop import How
from tamis.train.scales import at_scale

RECIPES = ("clip-50", "t-mars", "text-match")

#: Beside the scale `lab`, for photographs: finer pictures, and few of them, so crops differ more.
TRAINING: dict[str, Any] = {"crop": 0.4, "model": "resnet-96"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the real pools")
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--folder", type=Path, help="where model and runs go, to go on; else a temporary folder")
    parser.add_argument("--model", type=Path, help="a model that is there already")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        model = asked.model or trained(asked.data, folder, asked.epochs)
        run = judged(asked.data, folder, model)
        table = {"auc": separations(run), "kept": shares(run)}
    if asked.json:
        print(json.dumps({"name": "photographs", **table}))


def trained(data: Path, folder: Path, epochs: float) -> Path:
    """Trains on the clean pool and says how long it took."""
    start = time.perf_counter()
    written(data / "pools/flickr8k-clean", folder / "captions")
    run = tamis.score(str(folder / "captions"), run=folder / "clean", scores=["caption_length"], quiet=True)
    how = How(device=Device(threads=torch.get_num_threads(), precision="bf16"))
    training = at_scale("lab", **TRAINING)
    done = train_clip(run, pool=pool_of(run), out=folder / "model", training=training, how=how, epochs=epochs)
    took = time.perf_counter() - start
    print(f"{done.samples:,} samples of {done.pairs:,} pairs in {took / 60:.0f} min, {done.samples_per_second:.0f}/s")
    return done.folder


def written(clean: Path, folder: Path) -> None:
    """Writes the clean pool anew with a pair for each of a photograph's five captions."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        return
    tars = sorted(str(path) for path in clean.glob("*.tar"))
    with webdataset.ShardWriter(str(folder / "%05d.tar"), maxcount=1_000, verbose=0) as shards:
        for sample in webdataset.WebDataset(tars, shardshuffle=False):
            for number, caption in enumerate(json.loads(sample["json"])["captions"]):
                shards.write({"__key__": f"{sample['__key__']}-{number}", "jpg": sample["jpg"], "txt": caption})


def judged(data: Path, folder: Path, model: Path) -> Run:
    """Scores the noisy pool with the model."""
    pool = tamis.PoolSpec(path=(str(data / "pools/flickr8k-noisy"),), fields=("truth",))
    scorers: list[Any] = [{"clip": {"model": str(model)}}, {"tmars": {"model": str(model)}}, "text_match"]
    return tamis.score(pool, run=folder / "noisy", scores=scorers, quiet=True)


def separations(run: Run) -> dict[str, dict[str, Any]]:
    """Prints and returns the AUC of `visual` against each other kind, by score."""
    truth = word(run, "truth")
    found: dict[str, dict[str, Any]] = {}
    for name in ("clip", "tmars"):
        values = run.to_numpy(name)
        known = values == values  # not NaN
        print(f"AUC of {name}, visual against")
        for kind in sorted(set(truth) - {"visual"}):
            others = values[known & (truth == kind)]
            if others.size:
                one = bootstrap(auc, values[known & (truth == "visual")], others)
                found.setdefault(name, {})[kind] = one.value
                print(f"    {kind}: {one} of {others.size}")
    return found


def shares(run: Run) -> dict[str, dict[str, float]]:
    """Prints and returns the share of each kind that is kept, by recipe and kind."""
    truth = word(run, "truth")
    found: dict[str, dict[str, float]] = {}
    for recipe in RECIPES:
        keep = run_steps(run.table(), load(recipe).steps).keep  # whichever model the scores are of
        print(f"{recipe} keeps {keep.sum():,} of {keep.size:,}")
        for kind in sorted(set(truth)):
            here = truth == kind
            one = share(int(keep[here].sum()), int(here.sum()))
            found.setdefault(recipe, {})[kind] = one.value
            print(f"    {kind}: {one} of {one.n}")
    return found


if __name__ == "__main__":
    main()
