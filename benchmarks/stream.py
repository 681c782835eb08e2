"""Reading 10 % of a pool's samples in a random order, and in the pool's: samples per second, and bytes read.

Two baselines. A trainer's usual way: export the subset and read the new shards with webdataset, in their order (what
the export costs is told beside). And plain random access: tarfile, with every tar left open.
"""

from __future__ import annotations

import gc
import logging
import os
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import webdataset

import tamis
from benchmarks.export import bytes_read
from benchmarks.measure import Case, finish, options
from tamis.lab import make_pool


def exported(folder: Path) -> int:
    """Reads exported shards with webdataset, in their order."""
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return sum(len(sample["jpg"]) > 0 for sample in webdataset.WebDataset(shards, shardshuffle=False))


def random_access(run: tamis.Run, pool: Path, order: np.ndarray, members: dict[str, dict[int, str]]) -> int:
    """Reads images with tarfile by name; every tar stays open, and its list of members in memory."""
    starts = np.concatenate([[0], np.cumsum(run.sizes)])
    tars: dict[str, tarfile.TarFile] = {}
    read = 0
    for row in order.tolist():
        block = int(np.searchsorted(starts, row, side="right")) - 1
        name = run.shards[block]
        if name not in tars:
            tars[name] = tarfile.open(pool / f"{name}.tar")  # noqa: SIM115  # closed below, all together
        file = tars[name].extractfile(f"{members[name][row - int(starts[block])]}.jpg")
        assert file is not None
        read += len(file.read()) > 0
    for tar in tars.values():
        tar.close()
    return read


def timed(work: Callable[[], int], expected: int) -> tuple[float, int]:
    """Returns samples per second and bytes read."""
    gc.collect()
    before, start = bytes_read(), time.perf_counter()
    count = work()
    seconds = time.perf_counter() - start
    if count != expected:
        raise SystemExit(f"{count} samples were read, expected {expected}")
    return count / seconds, bytes_read() - before


def main() -> None:
    asked = options(__doc__ or "")
    logging.disable(logging.WARNING)
    pairs = 4_000 if asked.quick else 40_000
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        root = Path(folder)
        make_pool(
            root / "pool", pairs=pairs, shard_size=1000, image_size=224, defects=False, workers=os.cpu_count() or 1
        )
        run = tamis.score(root / "pool", run=root / "run", signals=["caption_length"], quiet=True)
        recipe = {"name": "tenth", "select": [{"random_fraction": {"fraction": 0.1}}]}
        subset = tamis.select(run, recipe)
        start = time.perf_counter()
        tamis.export(subset, "webdataset", root / "out", shard_size=1000)
        exporting = time.perf_counter() - start
        keys = {name: dict(enumerate(run.index(name, ["key"]).column("key").to_pylist())) for name in run.shards}
        rng = np.random.default_rng(0)
        total = sum(path.stat().st_size for path in (root / "pool").glob("*.tar"))

        def mine(order: np.ndarray | None, fields: tuple[str, ...] = ("image", "caption")) -> int:
            return sum(one.problem is None for one in tamis.samples_of(subset, order=order, fields=fields))

        rounds = []
        for _ in range(3):
            order = rng.permutation(subset.rows())
            rounds.append(
                {
                    "shuffled": timed(lambda order=order: mine(order), len(subset)),
                    "pool's order": timed(lambda: mine(None), len(subset)),
                    "captions": timed(lambda order=order: mine(order, ("caption",)), len(subset)),
                    "pixels": timed(lambda order=order: mine(order, ("pixels",)), len(subset)),
                    "webdataset": timed(lambda: exported(root / "out"), len(subset)),
                    "tarfile": timed(lambda order=order: random_access(run, root / "pool", order, keys), len(subset)),
                }
            )
        best = {name: max(row[name][0] for row in rounds) for name in rounds[0]}
        read = {name: rounds[0][name][1] for name in rounds[0]}
        settings = {
            "pairs": pairs,
            "kept": len(subset),
            "pool MB": round(total / 1e6, 1),
            "read MB, shuffled": round(read["shuffled"] / 1e6, 1),
            "seconds of the export that webdataset needs first": round(exporting, 2),
        }

        def rate(case: str, name: str, baseline: str, target: str) -> Case:
            return Case(case, "samples/s", best[name], best[baseline], best[name] / best[baseline], target, settings)

        finish(
            "stream",
            [
                rate("shuffled, beside exported shards in their order (webdataset)", "shuffled", "webdataset", "1"),
                rate("shuffled, beside tarfile", "shuffled", "tarfile", "1"),
                rate("in the pool's order, beside exported shards (webdataset)", "pool's order", "webdataset", "1"),
                Case("captions alone, shuffled", "samples/s", best["captions"], None, None, "-", {}),
                Case("decoded, shuffled", "samples/s", best["pixels"], None, None, "-", {}),
                Case(
                    "bytes read, shuffled (index apart)",
                    "% of the pool",
                    100 * read["shuffled"] / total,
                    100 * read["tarfile"] / total,
                    read["tarfile"] / read["shuffled"],
                    "-",
                    {},
                ),
            ],
            asked.json,
        )


if __name__ == "__main__":
    main()
