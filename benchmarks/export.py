"""Getting at a subset's samples: bytes read by an export, and samples per second read in place.

`export`: 1 % of a pool to WebDataset shards, next to reading every tar from front to back with webdataset and writing
what is kept, as DataComp's resharder does.

`stream`: 10 % of a pool with `samples_of`, in a random order and in the pool's, next to a trainer's usual way: export
the subset (not counted) and read the new shards with webdataset, in their order.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import webdataset

import tamis
from benchmarks.measure import Case, benchmark, in_turn, read_bytes, spend, versus
from benchmarks.runs import Array
from tamis_lab.pool import make_pool


def subset_of(root: Path, pairs: int, fraction: float) -> tamis.Subset:
    """Draws a pool, scores it and keeps a random share of it."""
    cores = os.cpu_count() or 1
    make_pool(root / "pool", pairs=pairs, shard_size=1000, image_size=224, defects=False, workers=cores)
    run = tamis.score(root / "pool", run=root / "run", signals=["caption_length"], quiet=True)
    return tamis.select(run, {"name": "random", "select": [{"random_fraction": {"fraction": fraction}}]})


def export(root: Path, given: Any) -> list[Case]:
    pairs = 4_000 if given.quick else 20_000
    subset = subset_of(root, pairs, 0.01)
    keys = set(subset.to_arrow([]).column("key").to_pylist())
    shards = sorted(str(path) for path in (root / "pool").glob("*.tar"))

    def ours() -> int:
        before = read_bytes()
        tamis.export(subset, "webdataset", root / "ours", overwrite=True)
        return read_bytes() - before

    def whole_tars() -> int:
        before = read_bytes()
        with webdataset.TarWriter(str(root / "theirs.tar")) as writer:
            for sample in webdataset.WebDataset(shards, shardshuffle=False):
                if sample["__key__"] in keys:
                    writer.write({name: value for name, value in sample.items() if name != "__url__"})
        return read_bytes() - before

    spent = in_turn(3, ours=ours, theirs=whole_tars)
    total = sum(os.path.getsize(path) for path in shards)
    index = sum(path.stat().st_size for path in (root / "run" / "index").iterdir())
    read, everything = (100 * min(each.result for each in spent[side]) / total for side in ("ours", "theirs"))
    read += 100 * index / total  # counted whole, though it may be mapped
    settings = {"pairs": pairs, "kept": len(subset), "pool MB": round(total / 1e6, 1)}
    return [
        Case("export of 1 %: bytes read", "% of the pool", read, everything, everything / read, "<= 5 %", settings),
        versus("export of 1 %: time", spent["ours"], spent["theirs"]),
    ]


def stream(root: Path, given: Any) -> list[Case]:
    pairs = 4_000 if given.quick else 40_000
    subset = subset_of(root, pairs, 0.1)
    exporting = spend(lambda: tamis.export(subset, "webdataset", root / "out", shard_size=1000))
    order = np.random.default_rng(0).permutation(subset.rows())
    shards = sorted(str(path) for path in (root / "out").glob("*.tar"))
    warnings.simplefilter("ignore", ResourceWarning)

    def ours(rows: Array | None, *fields: str) -> int:
        return sum(one.problem is None for one in tamis.samples_of(subset, order=rows, fields=fields))

    spent = in_turn(
        3,
        shuffled=lambda: ours(order, "image", "caption"),
        ordered=lambda: ours(None, "image", "caption"),
        exported=lambda: sum(len(one["jpg"]) > 0 for one in webdataset.WebDataset(shards, shardshuffle=False)),
    )
    assert {each.result for side in spent.values() for each in side} == {len(subset)}
    rate: dict[str, Any] = {"count": len(subset), "unit": "samples/s", "target": ">= 1"}
    beside = {"pairs": pairs, "seconds of the export that webdataset needs first": round(exporting.seconds, 2)}
    return [
        versus(
            "10 % shuffled, next to exported shards in order", spent["shuffled"], spent["exported"], **rate, **beside
        ),
        versus("10 % in the pool's order, next to exported shards", spent["ordered"], spent["exported"], **rate),
    ]


if __name__ == "__main__":
    benchmark(__doc__, {"export": export, "stream": stream})
