"""A subset as a list of sample keys."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from tamis.store.atomic import writing
from tamis.store.subset import Subset

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KeysExport:
    """Writes one line per kept pair, in the order of the pool: for loaders that skip samples by key.

    img2dataset's keys name the shard, so they are unique in a pool; where others are not, the log says so.

    Attributes:
        shard: writes `<shard>/<key>` instead of the key alone.
    """

    name: ClassVar[str] = "keys"
    shard: bool = False

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file and returns how many lines it has."""
        seen: set[str] = set()
        lines = 0
        with writing(out) as temporary, open(temporary, "w", encoding="utf-8") as file:
            for shard, rows in subset.rows_by_shard():
                keys = subset.run.index(shard, ["key"]).column("key").take(pa.array(rows)).to_pylist()
                if self.shard:
                    keys = [f"{shard}/{key}" for key in keys]
                seen.update(keys)
                lines += len(keys)
                file.writelines(f"{key}\n" for key in keys)
        if len(seen) < lines:
            log.warning(
                "%d keys are not unique: a loader that goes by key alone will take other samples too; export with "
                "'shard: true', or by uid",
                lines - len(seen),
            )
        return lines
