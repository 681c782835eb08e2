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

_LINES = 10  # that tell a list of keys from another text


@dataclass(frozen=True, kw_only=True)
class KeysExport(Exporter):
    """Writes one line per kept pair, in the order of the pool: for loaders that skip samples by key.

    A pair that is kept k times has k lines.

    img2dataset's keys name the shard, so they are unique in a pool; where others are not, the log says so. Line
    breaks in keys are written as the two characters backslash and n (or r), so that a line is a key.

    Attributes:
        shard: writes `<shard>/<key>` instead of the key alone.
    """

    name: ClassVar[str] = "keys"
    shard: bool = False

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file and returns how many lines it has."""
        hashes = [np.empty(0, np.uint64)]  # 8 bytes per key; two of 10^8 keys share one with a chance of 1 in 3700
        lines = pairs = broken = 0
        with writing(out) as temporary, open(temporary, "w", encoding="utf-8") as file:
            for shard, rows in subset.rows_by_shard():
                keys = subset.run.index(shard, ["key"]).column("key").take(pa.array(rows)).to_pylist()
                if self.shard:
                    keys = [f"{shard}/{key}" for key in keys]
                for place, key in enumerate(keys):
                    if "\n" in key or "\r" in key:
                        keys[place] = _line(key)
                        broken += 1
                once = [key for place, key in enumerate(keys) if not place or rows[place] != rows[place - 1]]
                hashes.append(
                    np.fromiter((xxhash.xxh3_64_intdigest(key.encode()) for key in once), np.uint64, len(once))
                )
                lines += len(keys)
                pairs += len(once)
                file.writelines(f"{key}\n" for key in keys)
        if broken:
            log.warning("%d keys hold line breaks, which are written as \\n and \\r", broken)
        unique = np.unique(np.concatenate(hashes)).size
        if unique < pairs:
            log.warning(
                "%d keys are not unique: a loader that goes by key alone will take other samples too; export with "
                "'shard: true', or by uid",
                pairs - unique,
            )
        return lines

    def wrote(self, out: Path, run: Run | None) -> bool:
        """Whether the first lines of a file are keys of the run."""
        try:
            with open(out, encoding="utf-8") as file:
                lines = {line.rstrip("\n") for line in itertools.islice(file, _LINES)}
        except (OSError, ValueError):
            return False
        if run is None:
            return not lines
        for shard in run.shards:
            keys = [_line(key) for key in run.index(shard, ["key"]).column("key").to_pylist()]
            lines -= {*keys, *(f"{shard}/{key}" for key in keys)}
            if not lines:
                break
        return not lines


def _line(key: str) -> str:
    """Returns a key without its line breaks."""
    return key.replace("\n", "\\n").replace("\r", "\\r")
