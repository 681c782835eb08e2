"""Which groups of pairs (languages, domains, classes) a subset keeps more or less often than others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.arrays import Mask
from tamis.core.errors import RecipeError
from tamis.core.math.statistics import Estimate, chance_of_share, false_discovery_rates, share_interval
from tamis.runs.run import Run

#: Rate of false discoveries, and the ratio below which a group counts as shrunk (the "four-fifths rule" of US
#: employment law, 29 CFR 1607.4 D).
RATE, SHRUNK = 0.05, 0.8

#: Smaller groups are not tested: random subsets differ too much on them.
LEAST = 20

_HOST = r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/@]*@)?([^/:?#]*).*"


@dataclass(frozen=True, kw_only=True)
class Group:
    """The pairs with one value of a column, and what a subset keeps of them.

    Attributes:
        column, value: what they have in common; of URLs the host.
        rows, kept: how many there are, and how many are kept, each once.
        ratio: the group's share of the subset over its share of the pool, with Wilson's interval: 1 for a fair share.
        chance: the p-value of the share under random selection.
        rate: the Benjamini-Hochberg rate of false discoveries among all groups of the audit.
    """

    column: str
    value: str
    rows: int
    kept: int
    ratio: Estimate
    chance: float
    rate: float

    @property
    def shrinks(self) -> bool:
        """Whether it is kept clearly less often than others."""
        return self.rate <= RATE and self.ratio.high < SHRUNK

    def cells(self) -> dict[str, str]:
        """Returns a line of a table."""
        low, high = f"{self.ratio.low:.2f}", f"{self.ratio.high:.2f}"
        return {
            "column": self.column, "value": self.value, "pool": f"{self.rows:,}", "kept": f"{self.kept:,}",
            "share / pool's share": f"{self.ratio.value:.2f} [{low}, {high}]", "": "shrinks" if self.shrinks else "",
        }  # fmt: skip


def audited_columns(run: Run) -> list[str]:
    """Returns the columns that an audit looks at by default, where all shards have them."""
    scores = [
        name
        for name in run.score_names()
        if (name.endswith(("language", "_class")) or name in ("script", "cluster"))
        and run.is_complete(run.columns[name][1])
    ]
    return [*(name for name in run.facts["pool"]["fields"] if name in run.columns), *scores]


def audit(run: Run, keeps: Sequence[Mask], by: Sequence[str] = ()) -> list[list[Group]]:
    """Does what `Subset.audit` does for each of several subsets; reads each column once."""
    table = run.table()
    masks = {"pool": np.ones(len(run), bool), **{str(number): keep for number, keep in enumerate(keeps)}}
    nothing = pa.schema([("value", pa.large_string()), *((name, pa.uint64()) for name in masks)]).empty_table()
    found: list[list[tuple[str, str, int, int, int, int]]] = [[] for _ in keeps]
    for column in by or audited_columns(run):
        if table.kind(column) == "vector":
            raise RecipeError(f"audit: {column!r} holds embeddings: name a column of words or numbers, such as cluster")

        def count(span: slice, columns: dict[str, Any], column: str = column) -> pa.Table:
            return _sums(pa.table({"value": _values(columns[column])} | {name: masks[name][span] for name in masks}))

        counts = pa.concat_tables([nothing, *table.map([column], count)]).filter(pc.field("value").is_valid())
        values, rows, *of_subsets = (sums.to_pylist() for sums in _sums(counts).columns)
        large = [n for n in range(len(rows)) if rows[n] >= LEAST]
        if by or 2 * sum(rows[n] for n in large) >= sum(rows):  # else they are ids or free text
            for groups, kept in zip(found, of_subsets, strict=True):
                totals = sum(rows), sum(kept)
                groups += [(column, values[n], rows[n], kept[n], *totals) for n in large if totals[1]]
    return [_compare(groups) for groups in found]


def _sums(table: pa.Table) -> pa.Table:
    """Returns the sums of the other columns for each value of the first."""
    first, *names = table.column_names
    return table.group_by(first).aggregate([(name, "sum") for name in names]).rename_columns(table.column_names)


def _compare(found: Sequence[tuple[str, str, int, int, int, int]]) -> list[Group]:
    """Compares groups: (column, value, rows, kept) of each, then rows and kept of all with a value."""
    chances = [chance_of_share(kept, rows, all_kept, all_rows) for *_, rows, kept, all_rows, all_kept in found]
    groups = []
    for each, chance, rate in zip(found, chances, false_discovery_rates(chances).tolist(), strict=True):
        column, value, rows, kept, all_rows, all_kept = each
        share, fair = share_interval(kept, rows), all_kept / all_rows
        ratio = Estimate(share.value / fair, share.low / fair, share.high / fair, rows)
        groups.append(Group(column=column, value=value, rows=rows, kept=kept, ratio=ratio, chance=chance, rate=rate))
    return sorted(
        groups, key=lambda group: (not group.shrinks, group.ratio.value, -group.rows, group.column, group.value)
    )


def _values(column: Any) -> Any:
    """Returns a block's values as words: whole numbers without decimals, the host of a URL."""
    if isinstance(column, np.ndarray):
        numbers = pa.array(column.astype(np.float64) + 0, mask=np.isnan(column))  # + 0: no negative zero
        return pc.replace_substring_regex(numbers.cast(pa.large_string()), r"\.0$", "")
    words = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
    return pc.replace_substring_regex(words.cast(pa.large_string()), _HOST, r"\1")
