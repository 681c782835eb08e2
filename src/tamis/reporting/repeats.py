"""Groups of repeated images: those that a subset's steps found, and those of the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tamis.errors import RecipeError
from tamis.selectors import Distinct
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.store.table import Table
from tamis.uid import format_uid

#: Pairs that stand for the same image: `size` of them, and some of their `rows`, the one that stayed first.
Group = dict[str, Any]

#: Groups that are shown of a subset, and pairs of each.
MOST, MEMBERS = 8, 4

#: Why `distinct` and `semdedup` drop a pair.
REPEATS = "repeats another"

#: The largest pool in which the page looks for repeats by itself; `benchmarks/distinct.py` has the cost.
_POOL = 100_000


def groups_of(subset: Subset, table: Table) -> list[Group]:
    """Returns the largest groups that the steps of a subset found, where the run still has them in these rows."""
    groups = [group for line in subset.funnel for group in (line.get("facts") or {}).get("largest_groups", ())[:MOST]]
    return _present(groups, table)[:MOST]


def repeats_found(subsets: Sequence[Subset]) -> Mapping[int, int]:
    """Returns how many pairs steps of subsets dropped because they repeat another, by how many they looked at."""
    found: dict[int, int] = {}
    for subset in subsets:
        for line in subset.funnel:
            if (line.get("facts") or {}).get("largest_groups"):
                before, repeats = int(line["before"]), int((line.get("dropped") or {}).get(REPEATS, 0))
                found[before] = max(repeats, found.get(before, 0))
    return found


def repeats_of_pool(run: Run, table: Table) -> tuple[int, list[Group]] | None:
    """Returns how many pairs of a pool `distinct` would drop, and the largest groups.

    None where some shard has no hashes, or the pool has more than 100,000 pairs.
    """
    step = Distinct(best="image_bytes", missing="drop")
    if len(table) > _POOL or not step.reads <= set(run.columns):
        return None
    try:
        found = step.select(run.table())
    except RecipeError:  # hashes of another kind
        return None
    return int(found.counts.get(REPEATS, 0)), _present(found.facts.get("largest_groups", ())[:MOST], table)


def _present(groups: Sequence[Mapping[str, Any]], table: Table) -> list[Group]:
    found = []
    for group in groups:
        rows = np.array(group["rows"][:MEMBERS], np.int64)
        if rows.size and rows.max() < len(table):
            uids = [format_uid(*halves) for halves in zip(*table.uids(rows), strict=True)]
            if uids == group["uids"][:MEMBERS]:
                found.append({"size": int(group["size"]), "rows": rows.tolist()})
    return found
