"""What rules catch in a pool that tells the true kind of its pairs: `python -m benchmarks.known_defects POOL [FIELD]`.

Scores the pool with every signal that needs no download, prints rows by status, what each step of `basic` drops of each
kind, and the median text area per kind; then exports and reads the exports back with other people's readers: tars with
webdataset (members byte for byte), the npy by binary search, as DataComp's resharder does.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import webdataset

import tamis
from tamis.recipe import load
from tamis.selectors import run_steps
from tamis.selectors.steps import describe
from tamis.store import Run
from tamis.uid import SUBSET_DTYPE


def word(run: Run, name: str) -> Any:
    """Returns a text column of the index over the whole run."""
    return np.array([value for shard in run.shards for value in run.index(shard, [name]).column(name).to_pylist()])


def caught(run: Run, truth: Any) -> None:
    """Prints what each rule of `basic`, alone, drops of each kind."""
    steps = {describe(step): step for step in load("basic").steps}
    table = run.table()
    dropped = {name: ~run_steps(table, [step]).keep for name, step in steps.items()}
    dropped["status is ok"] = word(run, "status") != "ok"
    dropped["basic, all rules"] = ~tamis.select(run, "basic").keep
    print("\nrows that each rule drops, by kind")
    print(f"{'':<20}{'pairs':>7}" + "".join(f"{name:>22}" for name in dropped))
    for kind in sorted(set(truth)):
        here = truth == kind
        print(f"{kind:<20}{here.sum():>7}" + "".join(f"{(drop & here).sum():>22}" for drop in dropped.values()))


def read_back(run: Run, folder: Path) -> None:
    """Exports what `basic` keeps and compares it with the pool, through other readers."""
    subset = tamis.select(run, "basic")
    tamis.export(subset, "npy", folder / "subset.npy")
    tamis.export(subset, "webdataset", folder / "shards", shard_size=500)
    kept = {row["key"]: row["uid"] for row in subset.to_arrow([]).to_pylist()}
    originals = {}
    for url in run.urls.values():
        try:
            for sample in webdataset.WebDataset(url, shardshuffle=False, handler=webdataset.ignore_and_continue):
                originals[sample["__key__"]] = {k: v for k, v in sample.items() if not k.startswith("__")}
        except Exception as error:
            print(f"webdataset cannot read {url}: {error}")
    same = total = 0
    tars = sorted(str(path) for path in (folder / "shards").glob("*.tar"))
    for sample in webdataset.WebDataset(tars, shardshuffle=False):
        total += 1
        files = {k: v for k, v in sample.items() if not k.startswith("__")}
        same += sample["__key__"] in kept and files == originals[sample["__key__"]]
    print(f"\nwebdataset reads {total} exported samples, {same} of them byte for byte as in the pool, {len(kept)} kept")
    uids = np.load(folder / "subset.npy")
    found = {True: 0, False: 0}
    for high, low, keep in zip(*run.table().uids(np.arange(len(run))), subset.keep, strict=True):
        one = np.array([(high, low)], SUBSET_DTYPE)[0]
        count = int(np.searchsorted(uids, one, "right") - np.searchsorted(uids, one, "left"))
        found[bool(keep)] += count
    print(f"npy by binary search: {found[True]} kept and {found[False]} dropped rows found among {len(uids)} uids")


def main() -> None:
    path, field = sys.argv[1], (sys.argv[2:] or ["truth"])[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        spec = tamis.PoolSpec(path=path, fields=(field,))
        scores = ["caption_length", "image_size", "language", "text_area"]
        run = tamis.score(spec, run=folder / "run", scores=scores, quiet=True)
        print(f"{path}: {len(run)} rows; by status {dict(run.statuses)}; shards failed: {len(run.failures)}")
        truth = np.array([kind or "?" for kind in word(run, field)])
        caught(run, truth)
        area = run.to_numpy("text_area")
        print("\ntext_area by kind: median, and share of images with more than 2 %")
        for kind, count in sorted(Counter(truth.tolist()).items()):
            here = area[truth == kind]
            median = np.nanmedian(here) if np.isfinite(here).any() else np.nan
            print(f"{kind:<20}{count:>7}{median:>9.3f}{100 * np.mean(here > 0.02):>9.0f} %")
        read_back(run, folder)
        page = tamis.report(run, [tamis.select(run, "basic")], out=folder / "report.html")
        print(f"\nreport: {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
