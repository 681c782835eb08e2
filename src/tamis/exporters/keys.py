"""A subset as a list of sample keys."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import xxhash

from tamis.exporters.exporter import Exporter
from tamis.storage import writing
from tamis.store import Run
from tamis.store.subset import Subset

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KeysExport(Exporter):
    """Writes one line per kept pair in the order of the pool, for loaders that skip samples by key.

    A pair that is kept k times has k lines. The keys of img2dataset name the shard, so they are unique in a pool;
    where keys are not, the log says so. A line break in a key is written as the two characters backslash and n (or r).

    Attributes:
        shard: writes `<shard>/<key>` instead of the key alone.
    """

    name: ClassVar[str] = "keys"
    shard: bool = False

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file and returns the number of lines in it."""
        hashes = [np.empty(0, np.uint64)]  # 8 bytes per key; among 10^8 keys two collide with a chance of 1 in 3700
        broken = 0
        with writing(out) as temporary, open(temporary, "w", encoding="utf-8") as file:
            for shard, rows in subset.rows_by_shard():
                keys = subset.run.index(shard, ["key"])["key"].take(pa.array(rows)).to_pylist()
                if self.shard:
                    keys = [f"{shard}/{key}" for key in keys]
                written = [_one_line(key) for key in keys]
                broken += sum(one != key for one, key in zip(written, keys, strict=True))
                first = np.flatnonzero(np.diff(rows, prepend=-1))  # a pair that is kept k times counts once
                digests = (xxhash.xxh3_64_intdigest(written[place].encode()) for place in first)
                hashes.append(np.fromiter(digests, np.uint64, first.size))
                file.writelines(f"{key}\n" for key in written)
        if broken:
            log.warning("%d keys hold line breaks, which are written as \\n and \\r", broken)
        every = np.concatenate(hashes)
        if repeated := every.size - np.unique(every).size:
            what = "a loader that goes by key alone takes other samples too; export with 'shard: true', or by uid"
            log.warning("%d keys are not unique: %s", repeated, what)
        return len(subset)

    def wrote(self, out: Path, run: Run | None) -> bool:
        """Whether the first ten lines of a file are keys of the run."""
        try:
            with open(out, encoding="utf-8") as file:
                lines = {line.rstrip("\n") for line in itertools.islice(file, 10)}
        except (OSError, ValueError):
            return False
        if run is None:
            return not lines
        for shard in run.shards:
            if not lines:
                break
            keys = [_one_line(key) for key in run.index(shard, ["key"])["key"].to_pylist()]
            lines -= {*keys, *(f"{shard}/{key}" for key in keys)}
        return not lines


def _one_line(key: str) -> str:
    return key.replace("\n", "\\n").replace("\r", "\\r")
