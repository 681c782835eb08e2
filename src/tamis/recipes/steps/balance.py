"""MetaCLIP's balance: fewer captions about what is frequent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import check_fraction
from tamis.core.ids import uniforms
from tamis.core.math.balance import Counts, effective_number, keep_chances, tail_limit, tail_share
from tamis.recipes.steps.outcome import Drops, IfMissing, ReadsPool, Selection, check_missing
from tamis.recipes.steps.steps import Of, group_codes
from tamis.runs.table import Table

#: Points of the curve, and groups, in the facts.
_POINTS, _GROUPS = 24, 20


@dataclass(frozen=True, kw_only=True)
class Balance(ReadsPool):
    """Keeps fewer captions about frequent entries: each entry draws about t of its captions.

    A caption stays with the probability 1 - Π (1 - min(1, t / count)) over its entries, so captions with a rare entry
    always stay, and captions without an entry are dropped. It is usually the last step.

    Facts of the funnel: each group's t and tail, the effective number of entries and counts by rank, before and after.

    Attributes:
        t: captions that each entry draws; MetaCLIP: 20,000 for 400 million pairs, 170,000 for 2.5 billion.
        tail: instead of t: the share of all matches that entries with up to t of them have, t included. For small
            pools, and with `per` for languages of different size: each group gets its own t.
        entries: a column of entries separated by tabs, from the derived signal `entries`.
        per: a column, such as `top_language`: entries are counted in each of its groups.
        of: counts are over "survivors" or the whole "pool".
        seed: another seed draws others.
        missing: what to do with rows without a caption (or without a value of `per`).

    Cost: 2.5 µs per caption. Memory: 20 bytes per match and 60 per row.
    Source: Xu et al. 2024, MetaCLIP (arXiv 2309.16671); per language: Chuang et al. 2025, MetaCLIP 2
        (arXiv 2507.22062).
    """

    name: ClassVar[str] = "balance"
    words, groups = ("entries",), ("per",)
    t: float | None = None
    tail: float | None = None
    entries: str = "entries"
    per: str | None = None
    of: Of = "survivors"
    seed: int = 0
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        if (self.t is None) == (self.tail is None):
            raise ValueError("balance needs t (captions per entry) or tail (share of rare entries), and not both")
        if self.t is not None and not 1 <= self.t < np.inf:
            raise ValueError(f"t must be at least 1, got {self.t:g}")
        if self.tail is not None:
            check_fraction(self.tail, "tail")
        super().__post_init__()

    @property
    def described(self) -> str:
        limit = f"t {self.t:,g}" if self.t is not None else f"tail {100 * (self.tail or 0):g} %"
        return f"balanced {self.entries} ({limit}{f' per {self.per}' if self.per else ''})"

    def select(self, table: Table) -> Selection:
        self.check_columns(table)
        candidates, pool = table.candidates, np.ones(len(table), bool)
        group, groups = group_codes(table, self.per) if self.per else (np.zeros(len(table), np.int64), ["all"])
        ids, lengths, missing, names = _matches(table, self.entries, group)
        group_of = np.array([number for number, _ in names], np.int64)
        missing |= group < 0

        def counts(rows: Mask) -> Counts:
            return np.bincount(ids[np.repeat(rows & ~missing, lengths)], minlength=group_of.size)

        before, drops = counts(pool if self.of == "pool" else candidates), Drops(candidates)
        own = [before[group_of == number] for number in range(len(groups))]
        t = np.array([self.t if self.t is not None else tail_limit(each, self.tail or 0.0) for each in own])
        chance = np.minimum(1.0, np.append(t, 1.0)[group_of] / np.maximum(before, 1))  # the last: of no group, -1
        draws = uniforms(*table.uids(np.arange(len(table))), seed=self.seed, counters=[np.ones(len(table), np.uint64)])
        keep = (draws < keep_chances(ids, lengths, chance)) & candidates & ~missing
        what = f"{self.entries} and {self.per}" if self.per else self.entries
        check_missing(self, missing & candidates, candidates, what)
        drops.drop(missing, f"no value for {what}", counted="missing")
        drops.drop(lengths > 0, "contains no entry", others=True)
        drops.drop(keep, "its entries are frequent", others=True)
        limits = [
            {"group": str(name), "t": limit, "tail": tail_share(each, limit), "pairs": int(each.sum())}
            for name, limit, each in zip(groups, t.tolist(), own, strict=True)
        ]
        limits.sort(key=lambda each: (-each["pairs"], each["group"]))
        alone = {"t": limits[0]["t"], "share_of_tail": limits[0]["tail"]} if limits and self.per is None else {}
        curve = _curve(before, counts(keep), [name for _, name in names])
        return drops.selection(None, {**alone, **curve, "limits": limits[:_GROUPS] if self.per else []})


def _curve(before: Counts, after: Counts, names: Sequence[str]) -> dict[str, Any]:
    """Returns the number of entries, exp(entropy) of their counts, and the counts of some by their rank."""
    order = sorted(np.flatnonzero(before).tolist(), key=lambda row: (-before[row], names[row]))
    ranks = np.unique(np.geomspace(1, max(len(order), 1), _POINTS).astype(int))[: len(order)].tolist()
    some = [(rank, order[rank - 1]) for rank in ranks]
    return {
        "entries": len(order),
        "effective_entries_before": round(effective_number(before), 1),
        "effective_entries_kept": round(effective_number(after), 1),
        "curve": [
            {"rank": rank, "entry": names[row], "pairs": int(before[row]), "kept": int(after[row])}
            for rank, row in some
        ],
    }


def _matches(
    table: Table, column: str, group: Rows
) -> tuple[NDArray[np.int32], NDArray[np.int32], Mask, list[tuple[int, str]]]:
    """Numbers the entries of each group.

    Returns the numbers of all rows one after the other, how many each row has, (rows,), which rows have no value, and
    the group and the entry of each number.
    """
    ids, lengths, missing = [np.zeros(0, np.int32)], np.zeros(len(table), np.int32), np.zeros(len(table), bool)
    numbers: dict[tuple[int, str], int] = {}
    for span, cells in table.map([column], lambda span, columns: (span, columns[column].cast(pa.string()))):
        missing[span] = cells.is_null().to_numpy(zero_copy_only=False)
        lists = pc.split_pattern(pc.if_else(pc.equal(cells, ""), None, cells), "\t")
        lengths[span] = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        coded = lists.flatten().dictionary_encode()
        names, own = coded.dictionary.to_pylist(), np.repeat(np.maximum(group[span], 0), lengths[span])
        keys, inside = np.unique(own * (len(names) + 1) + coded.indices.to_numpy(), return_inverse=True)
        pairs = ((key // (len(names) + 1), names[key % (len(names) + 1)]) for key in keys.tolist())
        ids.append(np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], np.int32)[inside])
    return np.concatenate(ids), lengths, missing, list(numbers)
