"""Groups of repeated pictures that a subset's steps found: one of each stayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tamis.store.subset import Subset
from tamis.store.table import Table
from tamis.uid import format_uid

#: Groups that are shown of a subset, and pairs of each.
MOST, MEMBERS = 6, 4


@dataclass(frozen=True, kw_only=True)
class Group:
    """Pairs of which one stayed.

    Attributes:
        size: how many there are.
        rows: some of them, the one that stayed first.
    """

    size: int
    rows: tuple[int, ...]


def groups_of(subset: Subset, table: Table) -> tuple[Group, ...]:
    """Returns the largest groups that the steps of a subset tell of, where the run still holds them in these rows."""
    found = []
    for line in subset.funnel:
        for group in (line.get("facts") or {}).get("largest_groups", ())[:MOST]:
            rows = np.array(group["rows"][:MEMBERS], np.int64)
            if not rows.size or rows.max() >= len(table):
                continue
            uids = [format_uid(*halves) for halves in zip(*table.uids(rows), strict=True)]
            if uids == group["uids"][:MEMBERS]:
                found.append(Group(size=int(group["size"]), rows=tuple(rows.tolist())))
    return tuple(found[:MOST])
