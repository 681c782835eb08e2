"""The best rows of a pool that is read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tamis.core.arrays import U64, Mask, Rows
from tamis.core.ids import scramble
from tamis.core.math.order import nth_largest, of_group
from tamis.runs.table import Table

#: Keys (m,) uint64 of some rows, the best with the highest; their groups (m,); and their numbers in the block (m,).
Ranked = tuple[U64, Rows, Rows]

#: Gives other keys to rows with equal ones, from the slice of the block and their numbers in it.
Ties = Callable[[slice, Rows], U64]


class Best:
    """Which rows are the n best of their group; rows with equal keys go by further keys."""

    def __init__(
        self,
        table: Table,
        columns: Sequence[str],
        ranked: Callable[[slice, dict[str, Any], Mask], Ranked],
        wanted: Callable[[Rows], Rows],
        rows: int,
        ties: Sequence[Ties],
        groups: int = 1,
    ) -> None:
        """Finds the cuts: a few scans of the table.

        Args:
            table: the pool's rows.
            columns: what `ranked` reads.
            ranked: returns the rows of a block that take part, from its slice, columns and candidates.
            wanted: returns how many of each group, (groups,), from how many take part.
            rows: how many take part in all, or more.
            ties: further keys, in turn; the last must differ between any two rows.
            groups: their number.
        """
        self._ties, self._cuts = ties, list[U64]()  # n: (groups,) how many it keeps

        def scan(work: Callable[[U64, Rows], Any], every: int) -> Iterator[Any]:
            def block(span: slice, read: dict[str, Any], candidates: Mask) -> Any:
                (*_, last) = self._levels(span, *ranked(span, read, candidates))
                return work(*last[:2])

            return table.scan(columns, block, in_chunks=groups == 1, every=every)

        cut, self.n, above, equal = nth_largest(scan, wanted, rows, groups)
        self._cuts.append(cut)
        n = self.n - above
        for _tie in ties:
            if (n >= equal).all():
                break
            cut, _, above, equal = nth_largest(scan, partial(_same, n), int(equal.sum()), groups)
            self._cuts.append(cut)
            n -= above

    def _levels(self, span: slice, keys: U64, groups: Rows, rows: Rows) -> Iterator[Ranked]:
        """Yields the rows, then for each cut those that lie at it, with their next keys."""
        yield keys, groups, rows
        for cut, tie in zip(self._cuts, [*self._ties, by_row], strict=False):  # after the last cut no key matters
            tied = keys == of_group(cut, groups)
            groups, rows = groups[tied], rows[tied]
            keys = tie(span, rows) if rows.size else np.empty(0, np.uint64)  # not a view, which would hold all keys
            yield keys, groups, rows

    @property
    def cuts(self) -> U64:
        """(groups,) the lowest key that is kept; the highest possible if none is."""
        return self._cuts[0]

    def kept(self, span: slice, keys: U64, groups: Rows, rows: Rows) -> Mask:
        """Returns which rows of a block are among the best: (rows of the block,) bool."""
        keep = np.zeros(span.stop - span.start, bool)
        *above, (_, _, tied) = self._levels(span, keys, groups, rows)
        for cut, (keys, groups, some) in zip(self._cuts, above, strict=True):
            keep[some] = keys > of_group(cut, groups)
        keep[tied] = True
        return keep


def _same(n: Rows, counts: Rows) -> Rows:
    return n


def by_uid(table: Table, seed: int = 0) -> Ties:
    """Returns keys that are high for rows whose scrambled uid is low."""

    def keys(span: slice, rows: Rows) -> U64:
        high, low = table.block_uids(span)
        return np.asarray(~scramble(high[rows], low[rows], seed))

    return keys


def by_row(span: slice, rows: Rows) -> U64:
    """Returns keys that are high for the first rows."""
    return np.asarray(~(rows + span.start).astype(np.uint64))
