"""`make demo`: from pairs to a subset on a drawn pool whose truth is known, by the commands that a user would type.

Everything is written to demo/. The models are built in, were trained on the drawn world and need no download;
`DEMO_CLIP=openai/clip-vit-base-patch32 make demo` takes another CLIP.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PAIRS = 1000
CAPTIONS = 4  # that SIEVE draws for each picture
FOLDER = Path("demo")
CLIP = os.environ.get("DEMO_CLIP", "lab/clip")

#: What each paper's recipe is chosen by: a model that is here, in place of the hub's.
RECIPES = {
    "clip-30": [f"signals.clip.model={CLIP}"],
    "tmars": [f"signals.tmars.model={CLIP}"],
    "sieve": ["signals.sieve.captioner=lab/captioner", f"signals.sieve.sampling.captions={CAPTIONS}"],
    "icc": ["signals.icc.model=norms"],
}


def tamis(*words: str) -> None:
    """Shows a command and runs it."""
    print(f"\n$ tamis {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "tamis", *words], check=True)


def main() -> None:
    start = time.time()
    shutil.rmtree(FOLDER, ignore_errors=True)
    pool, run = str(FOLDER / "pool"), str(FOLDER / "run")
    settings = {name: [word for setting in some for word in ("--set", setting)] for name, some in RECIPES.items()}
    tamis("lab", "make-pool", pool, "--pairs", str(PAIRS), "--seed", "0", "--shard-size", "250")
    tamis("run", pool, "--recipe", "basic", "--run", run, "--set", "pool.fields=[truth]")
    # One pass over the images scores by all four papers.
    every = [word for words in settings.values() for word in words]
    tamis("score", pool, "--run", run, "--signals", "clip,tmars,sieve,icc", "--workers", "2", *every)
    for name, words in settings.items():
        tamis("select", run, "--recipe", name, *words)
    names = ["basic", *RECIPES]
    tamis("report", run, *names, "--out", str(FOLDER / "report.html"))
    tamis("export", run, "basic", str(FOLDER / "basic.npy"))
    tamis("export", run, "basic", str(FOLDER / "basic-shards"))
    kinds(names)
    print(f"\nDone in {time.time() - start:.0f} s. Next:")
    print(f"  open {FOLDER / 'report.html'} in a browser, or type  tamis explore {run} clip-30")
    print(f"  {FOLDER / 'basic.npy'} is the subset as DataComp reads it, {FOLDER / 'basic-shards'} as WebDataset tars")


def kinds(names: list[str]) -> None:
    """Prints, for every true kind of pair, the share that each subset keeps: the drawn pool knows its truth."""
    import numpy as np

    from tamis.runs import open_run
    from tamis.runs.subset import Subset

    run = open_run(FOLDER / "run")
    chosen = [Subset.load(name, run) for name in names]
    truth = run["truth"]
    print("\nWhat each recipe keeps of each true kind, in per cent:")
    print(f"{'':<19}{'pairs':>6}" + "".join(f"{subset.name:>11}" for subset in chosen))
    for kind in [*sorted(set(truth)), "all"]:
        here = np.ones(truth.size, bool) if kind == "all" else truth == kind
        shares = "".join(f"{100 * subset.keep[here].mean():>11.0f}" for subset in chosen)
        print(f"{kind:<19}{here.sum():>6}{shares}")


if __name__ == "__main__":
    main()
