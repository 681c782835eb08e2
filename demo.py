"""`make demo`: all four papers' methods on a drawn pool whose truth is known, by the commands that a user would type.

Everything lands in demo/. The models are built in, were trained on the drawn world and need no download;
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
CAPTIONS = 4  # that SIEVE draws of each picture
FOLDER = Path("demo")
CLIP = os.environ.get("DEMO_CLIP", "lab/clip")

#: What is compared by training: three subsets, three models each, a minute and a half on two idle cores.
BENCH = ("no-filter", "clip-50", "tmars")
TRAINING = ("--samples", "4096", "--train-batch", "128", "--size", "96")

#: A machine that has taken longer so far is too slow or too busy to train on, in seconds.
TIME_ALLOWS = 100

#: What is measured, in one pass: every method of the four papers, and what the common rules look at.
SCORES = f"""\
signals:
  - caption_length
  - image_size
  - language
  - image_hash
  - clip: {{model: {CLIP}}}
  - sieve: {{captioner: lab/captioner, sampling: {{captions: {CAPTIONS}}}}}
  - tmars: {{model: {CLIP}}}
  - text_match
  - icc: {{model: norms}}
  - zero_shot_class: {{model: {CLIP}, classes_from: {FOLDER}/classes.txt}}
keep: [embeddings]
"""

#: The shipped recipes name checkpoints of a hub; these say which of the run's scores are meant.
SETTINGS = {
    "clip": f"signals.clip.model={CLIP}",
    "tmars": f"signals.tmars.model={CLIP}",
    "captioner": "signals.sieve.captioner=lab/captioner",
    "captions": f"signals.sieve.sampling.captions={CAPTIONS}",
    "icc": "signals.icc.model=norms",
    "classes": f"signals.zero_shot_class.classes_from={FOLDER}/classes.txt",
    "class model": f"signals.zero_shot_class.model={CLIP}",
}
RECIPES = {
    "random": (),
    "basic": (),
    "clip-30": ("clip",),
    "clip-50": ("clip",),
    "sieve": ("captioner", "captions"),
    "sieve+clip": ("captioner", "captions", "clip"),
    "text_match": (),
    "tmars": ("tmars",),
    "icc": ("icc",),
    "clipcov": ("clip", "classes", "class model"),
}


def tamis(*words: str) -> None:
    """Shows a command and runs it."""
    print(f"\n$ tamis {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "tamis", *words], check=True)


def main() -> None:
    from tamis_lab.world import OBJECTS

    start = time.time()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    (FOLDER / "scores.yaml").write_text(SCORES)
    (FOLDER / "classes.txt").write_text("".join(f"{name}\n" for name in OBJECTS))
    pool, run = str(FOLDER / "pool"), str(FOLDER / "run")
    tamis("lab", "make-pool", pool, "--pairs", str(PAIRS), "--seed", "0", "--shard-size", "250")
    tamis("score", pool, "--run", run, "--recipe", str(FOLDER / "scores.yaml"), "--field", "truth", "--workers", "2")
    subsets = []
    for name, settings in RECIPES.items():
        subsets.append(str(FOLDER / f"{name}.parquet"))
        changed = [word for setting in settings for word in ("--set", SETTINGS[setting])]
        tamis("select", run, "--recipe", name, "--out", subsets[-1], *changed)
    basic = str(FOLDER / "basic.parquet")
    tamis("export", run, basic, str(FOLDER / "basic.npy"), "--to", "npy")
    tamis("export", run, basic, str(FOLDER / "basic-dropped.parquet"), "--to", "dropped")
    tamis("export", run, basic, str(FOLDER / "basic-shards"), "--to", "webdataset")
    bench(run, time.time() - start)
    tamis("report", run, *subsets, "--out", str(FOLDER / "report.html"))
    kinds(subsets)
    print(f"\nDone in {time.time() - start:.0f} s. Everything is in {FOLDER.resolve()}:")
    print(f"  open {FOLDER / 'report.html'} in a browser")
    print("  run/           the scores of every pair         basic.npy              the subset as DataComp reads it")
    print("  basic-shards/  the subset as WebDataset tars    basic-dropped.parquet  what is not in it, and why")


def bench(run: str, taken: float) -> None:
    """Trains the same small model on what three recipes keep, where time allows; the report has the ranking."""
    settings = [word for setting in ("clip", "tmars") for word in ("--set", SETTINGS[setting])]
    words = ["bench", run, "--recipes", ",".join(BENCH), "--tasks", "lab", "--out", str(FOLDER / "bench")]
    words += [*TRAINING, *settings]
    if taken > TIME_ALLOWS:
        print(
            f"\n{taken:.0f} s so far: to see what models trained on the subsets can do, type\n$ tamis {' '.join(words)}"
        )
        return
    tamis(*words, "--quiet")


def kinds(subsets: list[str]) -> None:
    """Prints, for every true kind of pair, the share that each subset keeps: the drawn pool knows its truth."""
    import numpy as np

    from tamis.runs import open_run
    from tamis.runs.subset import Subset

    run = open_run(FOLDER / "run")
    chosen = [Subset.load(path, run) for path in subsets]
    truth = np.concatenate([run.index(shard, ["truth"]).column("truth").to_numpy() for shard in run.shards])
    print("\nWhat each recipe keeps of each true kind, in per cent:")
    print(f"{'':<19}{'pairs':>6}" + "".join(f"{subset.name:>11}" for subset in chosen))
    for kind in sorted(set(truth)):
        here = truth == kind
        shares = "".join(f"{100 * subset.keep[here].mean():>11.0f}" for subset in chosen)
        print(f"{kind:<19}{here.sum():>6}{shares}")
    total = "".join(f"{100 * subset.keep.mean():>11.0f}" for subset in chosen)
    print(f"{'all':<19}{len(truth):>6}{total}")


if __name__ == "__main__":
    main()
