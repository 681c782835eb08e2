"""DataComp's subset file: sorted uids, which its resharder reads by binary search."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from tamis.arrays import U64, Rows
from tamis.exporters.exporter import Exporter
from tamis.ids import SUBSET_DTYPE
from tamis.storage import writing
from tamis.store import Run
from tamis.store.subset import Subset

log = logging.getLogger(__name__)

_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class NpyExport(Exporter):
    """Writes the uids of a subset as one `.npy` of dtype (u8, u8), sorted by high half, then low half.

    DataComp's resharder emits a sample as often as its uid is in the file, so the uid of a row that is kept k times is
    written k times. It emits every sample of a uid: if rows share a uid, it is written max(times) times, and the log
    counts such rows.
    """

    name: ClassVar[str] = "npy"
    ending: ClassVar[str] = "npy"

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file and returns the number of uids in it."""
        high, low, repeated = _uids(subset)
        if repeated:
            log.warning("%d kept rows have the same uid as another; the file does not count them again", repeated)
        with writing(out) as temporary, open(temporary, "wb") as file:
            descr = np.lib.format.dtype_to_descr(SUBSET_DTYPE)
            header = {"descr": descr, "fortran_order": False, "shape": (high.size,)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, high.size, _BLOCK):  # the interleaved copy of all would double the memory
                block = np.empty(min(_BLOCK, high.size - start), SUBSET_DTYPE)
                block["f0"] = high[start : start + _BLOCK]
                block["f1"] = low[start : start + _BLOCK]
                file.write(block.tobytes())
        return int(high.size)

    def wrote(self, out: Path, run: Run | None) -> bool:
        try:
            with open(out, "rb") as file:
                np.lib.format.read_magic(file)
                return np.lib.format.read_array_header_1_0(file)[2] == SUBSET_DTYPE
        except (OSError, ValueError):
            return False


def _uids(subset: Subset) -> tuple[U64, U64, int]:
    """Returns the uids to write, high and low halves, and how many kept rows have the uid of another."""
    high, low = subset.run.table().uids(np.flatnonzero(subset.keep))
    order = uid_order(high, low)
    high, low = high[order], low[order]
    new = np.ones(high.size, bool)
    new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    repeated = high.size - int(np.count_nonzero(new))
    if subset.times is None:
        return (high[new], low[new], repeated) if repeated else (high, low, 0)
    times = subset.times[subset.keep][order]
    most = np.maximum.reduceat(times, np.flatnonzero(new)) if times.size else times
    return np.repeat(high[new], most), np.repeat(low[new], most), repeated


def uid_order(high: U64, low: U64) -> Rows:
    """Returns the order that sorts uids by (high, low). Few high halves are equal, so the low ones rarely matter."""
    order = np.argsort(high)
    ranked = high[order]
    equal = ranked[1:] == ranked[:-1]
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    rows = order[tied]
    order[tied] = rows[np.lexsort((low[rows], high[rows]))]
    return order
