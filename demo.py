"""`make demo`: the whole line on a drawn pool, by the commands that a user would type.

Everything lands in demo/. CLIP is the built-in `lab/clip`, which was trained on the drawn world and needs no download;
`DEMO_CLIP=openai/clip-vit-base-patch32 make demo` takes another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PAIRS = 1500
FOLDER = Path("demo")
RECIPES = ("no-filter", "random", "basic", "clip-50", "clip-30", "little-text")

LITTLE_TEXT = """\
name: little-text
about: Readable pairs in English, and of those the half with the least written text on the picture.
select:
  - equals: {score: status, value: ok}
  - at_least: {score: english, value: 0.5}
  - top_fraction: {score: -text_area, fraction: 0.5}
"""


def tamis(*words: str) -> None:
    """Shows a command and runs it."""
    print(f"\n$ tamis {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "tamis", *words], check=True)


def main() -> None:
    start = time.time()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    (FOLDER / "little-text.yaml").write_text(LITTLE_TEXT)
    pool, run = str(FOLDER / "pool"), str(FOLDER / "run")
    tamis("lab", "make-pool", pool, "--pairs", str(PAIRS), "--seed", "0", "--shard-size", "250")
    clip = os.environ.get("DEMO_CLIP", "lab/clip")
    signals = "caption_length,image_size,language,text_area,clip"
    tamis(
        "score", pool, "--run", run, "--signals", signals, "--set", f"scores.clip.model={clip}", "--field", "truth",
        "--keep", "embeddings", "--workers", "2",
    )  # fmt: skip
    subsets = []
    for name in RECIPES:
        recipe = str(FOLDER / f"{name}.yaml") if (FOLDER / f"{name}.yaml").exists() else name
        subset = str(FOLDER / f"{name}.parquet")
        tamis("select", run, "--recipe", recipe, "--out", subset)
        subsets.append(subset)
    basic = str(FOLDER / "basic.parquet")
    tamis("export", run, basic, str(FOLDER / "basic.npy"), "--to", "npy")
    tamis("export", run, basic, str(FOLDER / "basic-scores.parquet"), "--to", "parquet")
    tamis("export", run, basic, str(FOLDER / "basic-keys.txt"), "--to", "keys")
    tamis("export", run, basic, str(FOLDER / "basic-shards"), "--to", "webdataset")
    tamis("report", run, *subsets, "--out", str(FOLDER / "report.html"))
    kinds(subsets)
    print(f"\nDone in {time.time() - start:.0f} s. Everything is in {FOLDER.resolve()}:")
    print(f"  open {FOLDER / 'report.html'} in a browser")
    print("  run/           the scores of every pair         basic.npy      the subset as DataComp reads it")
    print("  basic-shards/  the subset as WebDataset tars    basic.parquet  the subset as `tamis export` reads it")


def kinds(subsets: list[str]) -> None:
    """Prints, for every true kind of pair, the share that each subset keeps: the drawn pool knows its truth."""
    import numpy as np

    from tamis.store import open_run
    from tamis.store.subset import Subset

    run = open_run(FOLDER / "run")
    chosen = [Subset.load(path, run) for path in subsets]
    truth = np.concatenate([run.index(shard, ["truth"]).column("truth").to_numpy() for shard in run.shards])
    print("\nWhat each recipe keeps of each true kind, in per cent:")
    print(f"{'':<20}{'pairs':>7}" + "".join(f"{subset.name:>13}" for subset in chosen))
    for kind in sorted(set(truth)):
        here = truth == kind
        shares = "".join(f"{100 * subset.keep[here].mean():>13.0f}" for subset in chosen)
        print(f"{kind:<20}{here.sum():>7}{shares}")


if __name__ == "__main__":
    main()
