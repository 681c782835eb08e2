"""Rows that share their uid with another row. Both are kept; the page says how many there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.store.table import Table
from tamis.uid import format_uid, scramble


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Uids that more than one row has.

    Attributes:
        uids: how many uids.
        rows: how many rows have one of them.
        examples: some of the uids with their first rows.
    """

    uids: int
    rows: int
    examples: tuple[tuple[str, tuple[int, ...]], ...]


def duplicates(table: Table, order: NDArray[np.uint64], *, examples: int = 5) -> Duplicates:
    """Counts rows with one uid, in 8 bytes per row.

    Args:
        table: the pool's rows.
        order: (rows,) scrambled uids, sorted in place. Equal uids have equal ones; others hardly ever do, and are
            told apart by the uids themselves.
        examples: how many uids to show.
    """
    order.sort()
    twice = np.unique(order[1:][order[1:] == order[:-1]])
    if not twice.size:
        return Duplicates(uids=0, rows=0, examples=())
    found: dict[tuple[int, int], list[int]] = {}
    for block in range(len(table.sizes)):
        high, low = table.read_uids(block)
        if not high.size:
            continue
        for row in np.flatnonzero(np.isin(scramble(high, low), twice)):
            found.setdefault((int(high[row]), int(low[row])), []).append(int(table.starts[block]) + int(row))
    shared = {uid: rows for uid, rows in found.items() if len(rows) > 1}
    first = sorted(shared.items(), key=lambda item: (-len(item[1]), item[0]))[:examples]
    return Duplicates(
        uids=len(shared),
        rows=sum(map(len, shared.values())),
        examples=tuple((format_uid(*uid), tuple(rows[:6])) for uid, rows in first),
    )
