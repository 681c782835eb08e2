"""Exporting 1 % of a pool to WebDataset shards: the share of the pool's bytes that is read, and the time.

The baseline reads every tar from front to back with webdataset and writes the kept samples, as DataComp's
resharder does.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from pathlib import Path

import webdataset

import tamis
from benchmarks.measure import Case, finish, options
from tamis.lab import make_pool


def bytes_read() -> int:
    """Returns the bytes that this process has asked the kernel for so far (Linux; memory-mapped files not counted)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def whole_tars(shards: list[str], keys: set[str], out: Path) -> None:
    """Reads everything, keeps what is wanted."""
    with webdataset.TarWriter(str(out)) as writer:
        for sample in webdataset.WebDataset(shards, shardshuffle=False):
            if sample["__key__"] in keys:
                writer.write({name: value for name, value in sample.items() if name != "__url__"})


def main() -> None:
    asked = options(__doc__ or "")
    logging.disable(logging.WARNING)
    pairs = 4_000 if asked.quick else 20_000
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        root = Path(folder)
        make_pool(
            root / "pool", pairs=pairs, shard_size=1000, image_size=224, defects=False, workers=os.cpu_count() or 1
        )
        run = tamis.score(root / "pool", run=root / "run", signals=["caption_length"], quiet=True)
        subset = tamis.select(run, {"name": "hundredth", "select": [{"random_fraction": {"fraction": 0.01}}]})
        keys = set(subset.to_arrow([]).column("key").to_pylist())
        shards = sorted(str(path) for path in (root / "pool").glob("*.tar"))
        total = sum(os.path.getsize(path) for path in shards)
        index = sum(path.stat().st_size for path in (root / "run" / "index").iterdir())
        rounds = []
        for number in range(3):
            before, start = bytes_read(), time.perf_counter()
            tamis.export(subset, "webdataset", root / f"out{number}")
            mine, read = time.perf_counter() - start, bytes_read() - before
            before, start = bytes_read(), time.perf_counter()
            whole_tars(shards, keys, root / f"baseline{number}.tar")
            theirs, read_all = time.perf_counter() - start, bytes_read() - before
            rounds.append((mine, theirs, read, read_all))
        mine, theirs = min(row[0] for row in rounds), min(row[1] for row in rounds)
        read, read_all = rounds[0][2], rounds[0][3]
        settings = {
            "pairs": pairs,
            "kept": len(subset),
            "pool MB": round(total / 1e6, 1),
            "index MB": round(index / 1e6, 2),
        }
        ours, baseline = 100 * (read + index) / total, 100 * read_all / total
        cases = [
            Case(
                "bytes read, index counted whole", "% of the pool", ours, baseline, baseline / ours, "<= 5 %", settings
            ),
            Case("time", "seconds", mine, theirs, theirs / mine, "-", settings),
        ]
        finish("export", cases, asked.json)


if __name__ == "__main__":
    main()
