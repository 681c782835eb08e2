"""Groups of repeated pictures: those that a subset's steps found, and those of the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tamis.errors import RecipeError
from tamis.selectors import Distinct
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.store.table import Table
from tamis.uid import format_uid

#: Groups that are shown of a subset, and pairs of each.
MOST, MEMBERS = 8, 4

#: Why `distinct` and `semdedup` drop a pair.
REPEATS = "repeats another"

#: Pairs of a pool that the page looks for repeats in by itself.
_POOL = 100_000


@dataclass(frozen=True, kw_only=True)
class Group:
    """Pairs of which one stayed.

    Attributes:
        size: how many there are.
        rows: some of them, the one that stayed first.
    """

    size: int
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """Repeated pictures of a pool.

    Attributes:
        pairs: how many repeat another.
        groups: the largest.
    """

    pairs: int
    groups: tuple[Group, ...]


def groups_of(subset: Subset, table: Table) -> tuple[Group, ...]:
    """Returns the largest groups that the steps of a subset tell of, where the run still holds them in these rows."""
    told = [group for line in subset.funnel for group in (line.get("facts") or {}).get("largest_groups", ())[:MOST]]
    return _here(told, table)[:MOST]


def repeats_told(subsets: Sequence[Subset]) -> Mapping[int, int]:
    """Returns how many pairs steps of subsets dropped that repeat another, by how many they looked at."""
    found: dict[int, int] = {}
    for subset in subsets:
        for line in subset.funnel:
            if (line.get("facts") or {}).get("largest_groups"):
                repeats = int((line.get("dropped") or {}).get(REPEATS, 0))
                found[int(line["before"])] = max(repeats, found.get(int(line["before"]), 0))
    return found


def repeats_of_pool(run: Run, table: Table) -> Repeated | None:
    """Returns what the step `distinct` finds in a pool; None where it lacks hashes, or has very many pairs.

    Args:
        run: the run, which has the columns of `image_hash` for every shard.
        table: its rows.

    Cost: `benchmarks/distinct.py`; pools of more than 100,000 pairs are left to recipes.
    """
    step = Distinct(best="image_bytes", missing="drop")
    if len(table) > _POOL or not step.reads <= set(run.columns):
        return None
    try:
        found = step.select(run.table())
    except RecipeError:  # hashes of another kind
        return None
    pairs = int(found.counts.get(REPEATS, 0))
    return Repeated(pairs=pairs, groups=_here(found.facts.get("largest_groups", ())[:MOST], table))


def _here(told: Sequence[Mapping[str, Any]], table: Table) -> tuple[Group, ...]:
    found = []
    for group in told:
        rows = np.array(group["rows"][:MEMBERS], np.int64)
        if not rows.size or rows.max() >= len(table):
            continue
        uids = [format_uid(*halves) for halves in zip(*table.uids(rows), strict=True)]
        if uids == group["uids"][:MEMBERS]:
            found.append(Group(size=int(group["size"]), rows=tuple(rows.tolist())))
    return tuple(found)
