"""MetaCLIP's balance: fewer captions about what is frequent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import check_fraction
from tamis.core.ids import uniforms
from tamis.core.math.balance import effective_number, keep_chances, tail_limit, tail_share
from tamis.recipes.steps.outcome import Blockwise, IfMissing, ReadsPool, Rule
from tamis.recipes.steps.steps import Of, groups_of
from tamis.runs.reasons import Codes, DropReason, codes_in
from tamis.runs.table import Table

#: Points of the curve, and groups, in the facts.
_POINTS, _GROUPS = 24, 20

#: The number of a group, and an entry.
_Entry = tuple[int, str]


@dataclass(frozen=True, kw_only=True)
class Balance(ReadsPool, Blockwise):
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

    Cost: 3 µs per caption. Memory: entries and groups with their counts, and a byte per row (of many rows in a file).
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

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        groups: Sequence[Any] = ["all"]
        codes_of: Callable[[Any], Rows] | None = None
        if self.per:
            groups, _, codes_of = groups_of(table, self.per)

        def matches(columns: dict[str, Any], rows: int) -> _Matches:
            group = codes_of(columns[str(self.per)]) if codes_of else np.zeros(rows, np.int64)
            return _matches(columns[self.entries], group)

        def count(span: slice, columns: dict[str, Any], candidates: Mask) -> Counter[_Entry]:
            found = matches(columns, candidates.size)
            return found.counts(candidates | (self.of == "pool"))

        before: Counter[_Entry] = Counter()
        for some in table.scan(sorted(self.reads), count):
            before.update(some)
        group_of, numbers = np.array([group for group, _ in before], np.int64), np.array([*before.values()], np.int64)
        own = [numbers[group_of == group] for group in range(len(groups))]
        t = [self.t if self.t is not None else tail_limit(each, self.tail or 0.0) for each in own]

        def draw(span: slice, columns: dict[str, Any], candidates: Mask) -> tuple[slice, Codes, Counter[_Entry]]:
            found, rows = matches(columns, candidates.size), np.flatnonzero(candidates)
            draws = np.ones(candidates.size)
            high, low = (half[rows] for half in table.block_uids(span))
            draws[rows] = uniforms(high, low, seed=self.seed, counters=[np.ones(rows.size, np.uint64)])
            chance = np.array([min(1.0, t[pair[0]] / before[pair]) if before[pair] else 1.0 for pair in found.names])
            keep = (draws < keep_chances(found.ids, found.lengths, chance)) & ~found.missing
            codes = np.select([found.missing, found.lengths == 0, ~keep], [3, 1, 2]).astype(np.uint8)
            return span, codes, found.counts(keep)

        known, after = codes_in(len(table)), Counter[_Entry]()
        for span, codes, some in table.scan(sorted(self.reads), draw):
            known[span] = codes
            after.update(some)
        limits: list[dict[str, Any]] = [
            {"group": str(name), "t": limit, "tail": tail_share(each, limit), "pairs": int(each.sum())}
            for name, limit, each in zip(groups, t, own, strict=True)
        ]
        limits.sort(key=lambda each: (-each["pairs"], each["group"]))
        alone = {"t": limits[0]["t"], "share_of_tail": limits[0]["tail"]} if limits and self.per is None else {}
        what = f"{self.entries} and {self.per}" if self.per else self.entries
        reasons = ["contains no entry", "its entries are frequent", f"no value for {what}"]
        return Rule(
            decide=lambda span, columns, candidates: known[span],
            reasons=[DropReason(text=text) for text in reasons],
            lacking=what,
            facts={**alone, **_curve(before, after), "limits": limits[:_GROUPS] if self.per else []},
        )


def _curve(before: Counter[_Entry], after: Counter[_Entry]) -> dict[str, Any]:
    """Returns the number of entries, exp(entropy) of their counts, and the counts of some by their rank."""
    order = sorted((pair for pair, count in before.items() if count), key=lambda pair: (-before[pair], pair[1]))
    ranks = np.unique(np.geomspace(1, max(len(order), 1), _POINTS).astype(int))[: len(order)].tolist()
    some = [(rank, order[rank - 1]) for rank in ranks]
    numbers = [np.array([*counts.values()], np.int64) for counts in (before, after)]
    return {
        "entries": len(order),
        "effective_entries_before": round(effective_number(numbers[0]), 1),
        "effective_entries_kept": round(effective_number(numbers[1]), 1),
        "curve": [{"rank": rank, "entry": pair[1], "pairs": before[pair], "kept": after[pair]} for rank, pair in some],
    }


@dataclass(frozen=True)
class _Matches:
    """The entries of a block's rows: numbers of all rows one after the other, how many each row has, (rows,), which
    rows have no value, and the group and the entry of each number.
    """

    ids: NDArray[np.integer[Any]]
    lengths: NDArray[np.int32]
    missing: Mask
    names: list[_Entry]

    def counts(self, rows: Mask) -> Counter[_Entry]:
        """Returns how many of some rows have each entry."""
        inside = np.repeat(rows & ~self.missing, self.lengths)
        counts = np.bincount(self.ids[inside], minlength=len(self.names))
        return Counter(dict(zip(self.names, counts.tolist(), strict=True)))


def _matches(cells: Any, group: Rows) -> _Matches:
    cells = cells.cast(pa.string())
    missing = cells.is_null().to_numpy(zero_copy_only=False) | (group < 0)
    lists = pc.split_pattern(pc.if_else(pc.equal(cells, ""), None, cells), "\t")
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    coded = lists.flatten().dictionary_encode()
    words, own = coded.dictionary.to_pylist(), np.repeat(np.maximum(group, 0), lengths)
    keys, ids = np.unique(own * (len(words) + 1) + coded.indices.to_numpy(), return_inverse=True)
    pairs = zip(*(part.tolist() for part in np.divmod(keys, len(words) + 1)), strict=True)
    return _Matches(ids, lengths, missing, [(group, words[word]) for group, word in pairs])
