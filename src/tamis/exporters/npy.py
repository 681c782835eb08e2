"""DataComp's subset file: sorted uids, as its resharder reads them by binary search."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import U64
from tamis.exporters.exporter import Exporter
from tamis.storage import writing
from tamis.store import Run
from tamis.store.subset import Subset
from tamis.uid import SUBSET_DTYPE

log = logging.getLogger(__name__)

_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class NpyExport(Exporter):
    """Writes the uids of a subset as one `.npy` of dtype (u8, u8), lexicographically sorted.

    DataComp's resharder emits a sample as often as its uid stands in the file. A row that is kept k times has its uid
    there k times. Two kept rows of one uid are two samples of the pool, and each shall come out as often as it is kept,
    so they count as one row (as the one that is kept most often), and the log says how many there are.
    """

    name: ClassVar[str] = "npy"
    ending: ClassVar[str] = "npy"

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file and returns how many uids it holds."""
        high, low, repeated = _unique(subset) if subset.times is None else _often(subset)
        count = high.size
        if repeated:
            log.warning("%d uids stand more than once in the pool; the file counts each once", repeated)
        with writing(out) as temporary, open(temporary, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(SUBSET_DTYPE), "fortran_order": False, "shape": (count,)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, count, _BLOCK):  # blocks: the interleaved copy of all would double the memory
                block = np.empty(min(_BLOCK, count - start), SUBSET_DTYPE)
                block["f0"] = high[start : start + _BLOCK]
                block["f1"] = low[start : start + _BLOCK]
                file.write(block.tobytes())
        return count

    def wrote(self, out: Path, run: Run | None) -> bool:
        try:
            with open(out, "rb") as file:
                np.lib.format.read_magic(file)
                return np.lib.format.read_array_header_1_0(file)[2] == SUBSET_DTYPE
        except (OSError, ValueError):
            return False


def _unique(subset: Subset) -> tuple[U64, U64, int]:
    """Returns the kept uids, sorted, each once, and how many rows have the uid of another."""
    high, low = sort_uids(*subset.uids())
    fresh = _fresh(high, low)
    repeated = high.size - int(np.count_nonzero(fresh))
    return (high[fresh], low[fresh], repeated) if repeated else (high, low, 0)


def _often(subset: Subset) -> tuple[U64, U64, int]:
    """Returns what `_unique` does, each uid as often as the row of it that is kept most often."""
    assert subset.times is not None
    rows = np.flatnonzero(subset.keep)
    high, low = subset.run.table().uids(rows)
    order = np.lexsort((low, high))
    high, low, times = high[order], low[order], subset.times[rows[order]]
    first = np.flatnonzero(_fresh(high, low))
    most = np.maximum.reduceat(times, first) if first.size else times
    return np.repeat(high[first], most), np.repeat(low[first], most), rows.size - first.size


def _fresh(high: U64, low: U64) -> NDArray[np.bool_]:
    """Returns which of sorted uids differ from the one before."""
    fresh = np.ones(high.size, bool)
    fresh[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return fresh


def sort_uids(high: U64, low: U64) -> tuple[U64, U64]:
    """Returns uids in ascending order of (high, low).

    One sort by the high half does nearly all: random halves hardly ever meet. Where they do, those runs are
    sorted by both halves, in place.
    """
    order = np.argsort(high)
    high, low = high[order], low[order]
    del order
    meets = high[1:] == high[:-1]
    if meets.any():
        tied = np.zeros(high.size, bool)
        tied[1:] |= meets
        tied[:-1] |= meets
        places = np.flatnonzero(tied)
        low[places] = low[places][np.lexsort((low[places], high[places]))]
    return high, low
