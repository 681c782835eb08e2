"""DataComp's subset file: sorted uids, as its resharder reads them by binary search."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.exporters.exporter import Exporter
from tamis.store.atomic import writing
from tamis.store.subset import Subset
from tamis.uid import SUBSET_DTYPE

log = logging.getLogger(__name__)

_BLOCK = 1 << 20

U64 = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class NpyExport(Exporter):
    """Writes the uids of a subset as one `.npy` of dtype (u8, u8), lexicographically sorted, each uid once.

    DataComp's resharder emits a sample as often as its uid stands in the file; two kept rows of one uid are two
    samples of the pool, and each shall come out once, so repeated uids are written once and counted in the log.
    """

    name: ClassVar[str] = "npy"

    def write(self, subset: Subset, out: Path) -> int:
        """Writes the file and returns how many uids it holds."""
        high, low = sort_uids(*subset.uids())
        fresh = np.ones(high.size, bool)
        fresh[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        unique = int(np.count_nonzero(fresh))
        if unique < high.size:
            log.warning("%d uids stand more than once in the pool; the file names each once", high.size - unique)
            high, low = high[fresh], low[fresh]
        with writing(out) as temporary, open(temporary, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(SUBSET_DTYPE), "fortran_order": False, "shape": (unique,)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, unique, _BLOCK):  # blocks: the interleaved copy of all would double the memory
                block = np.empty(min(_BLOCK, unique - start), SUBSET_DTYPE)
                block["f0"] = high[start : start + _BLOCK]
                block["f1"] = low[start : start + _BLOCK]
                file.write(block.tobytes())
        return unique


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
