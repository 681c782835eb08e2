"""The best rows of a pool that is read block by block; only once, if a sample of it shows about where the cut is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tamis.core.arrays import U64, Float64s, Mask, Rows
from tamis.core.files.scratch import put, stored
from tamis.core.ids import scramble
from tamis.core.math.order import HELD, nth_largest, number_of, ordered_bits
from tamis.runs.reasons import Codes, blocks
from tamis.runs.table import Table

#: A sample has one of so many blocks.
_EVERY = 16

#: The codes of more rows, one byte for each, are not kept.
_CODES = 1 << 26

#: Of the n rows of a block: keys (n,) float64 or uint64, the best with the highest; groups (n,), -1 for none, or None
#: for a single group; which rows take part (n,).
Ranked = tuple[Float64s | U64, Rows | None, Mask]

#: Gives other keys to rows with equal ones, from the slice of the block and their numbers in it.
Ties = Callable[[slice, Rows], U64]


class Best:
    """Which rows are the n best of their group; rows with equal keys go by further keys.

    Attributes:
        n: (groups,) how many it keeps.
        codes: (rows,) 0 for the n best, 1 for others, 2 for rows that do not take part; None: only `kept` knows.
    """

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
            ranked: returns the keys of a block's rows from its slice, columns and candidates.
            wanted: returns how many of each group, (groups,), from how many take part. For a sample it is asked with
                `rows`.
            rows: how many take part in all, or more.
            ties: further keys, in turn; the last must differ between any two rows.
            groups: their number.
        """
        self._ties, self._cuts = ties, list[U64]()
        self.codes: Codes | None = None

        def last(span: slice, read: dict[str, Any], candidates: Mask) -> Ranked:
            (*_, found) = self._levels(span, *ranked(span, read, candidates))
            return found

        def scan(work: Callable[[U64, Rows], Any]) -> Iterator[Any]:
            def block(span: slice, read: dict[str, Any], candidates: Mask) -> Any:
                keys, of, inside = last(span, read, candidates)
                rows = np.flatnonzero(inside)
                return work(_bits(keys[rows]), rows * 0 if of is None else of[rows])

            return table.scan(columns, block, in_chunks=groups == 1)

        def find(wanted: Callable[[Rows], Rows], rows: int) -> tuple[U64, Rows, Rows, Rows]:
            sampled = self._near_sample(table, columns, last, wanted, rows) if groups == 1 and rows > HELD else None
            return sampled or nth_largest(scan, wanted, rows, groups)

        cut, self.n, above, equal = find(wanted, rows)
        self._cuts.append(cut)
        n = self.n - above
        for _tie in ties:
            if (n >= equal).all():
                break
            cut, _, above, equal = find(partial(_same, n), int(equal.sum()))
            self._cuts.append(cut)
            n -= above
            self.codes = None

    def _near_sample(
        self,
        table: Table,
        columns: Sequence[str],
        ranked: Callable[..., Ranked],
        wanted: Callable[..., Rows],
        rows: int,
    ) -> tuple[U64, Rows, Rows, Rows] | None:
        """Returns what `nth_largest` does if the key is near that of a sample of blocks, and not too many keys are."""
        stride = -(-rows // (_EVERY * HELD))

        def draw(span: slice, read: dict[str, Any], candidates: Mask) -> U64:
            keys, _, inside = ranked(span, read, candidates)
            return _bits(keys[np.flatnonzero(inside)[::stride]])

        some = table.scan(columns, draw, in_chunks=True, every=_EVERY)
        sample = np.concatenate([np.empty(0, np.uint64), *some])
        if not sample.size:
            return None
        guess = sample.size - round(sample.size * int(wanted(np.array([rows]))[0]) / rows)
        margin = max(sample.size * HELD // rows // 4, 1)
        ends = np.clip([guess - margin, guess + margin], 0, sample.size - 1)
        sample.partition(ends)  # in place: a copy has 32 MB
        ends = sample[ends]
        del sample
        codes = np.empty(len(table), np.uint8) if len(table) <= _CODES and table.run_on_cluster is None else None

        def look(span: slice, read: dict[str, Any], candidates: Mask) -> tuple[int, int, U64, Rows]:
            keys, _, inside = ranked(span, read, candidates)
            first, last = (_limit(end, keys, None) for end in ends[:, None])
            below = keys <= last
            if codes is not None:
                codes[span] = np.where(inside, below.view(np.uint8), np.uint8(2))
            below &= inside
            near = np.flatnonzero(below & (keys >= first))
            count = int(np.count_nonzero(inside))
            larger = count - int(np.count_nonzero(below))
            return count, larger, _bits(keys[near]), near[: None if codes is not None else 0] + span.start

        count, above, held, near = 0, 0, 0, [(np.empty(0, np.uint64), np.empty(0, np.int64))]
        for size, larger, found, places in table.scan(columns, look, in_chunks=True):
            count, above, held = count + size, above + larger, held + found.size
            if held <= HELD:
                near.append((found, places))
            else:
                near.clear()
        n = wanted(np.array([count]))
        if not near or not above < n[0] <= above + held:
            return None
        keys, rows_near = (np.concatenate(side) for side in zip(*near, strict=True))
        cut = np.partition(keys, place := held - int(n[0] - above))[[place]]
        if codes is not None:
            codes[rows_near[keys >= cut]] = 0
            self.codes = codes
        return cut, n, np.array([above + np.count_nonzero(keys > cut)]), np.array([np.count_nonzero(keys == cut)])

    def _levels(self, span: slice, keys: Float64s | U64, groups: Rows | None, inside: Mask) -> Iterator[Ranked]:
        """Yields the rows, then for each cut those that lie at it, with their next keys."""
        yield keys, groups, inside
        for cut, tie in zip(self._cuts, [*self._ties, by_row], strict=False):  # after the last cut no key matters
            inside = inside & (keys == _limit(cut, keys, groups))
            rows = np.flatnonzero(inside)
            keys = np.zeros(keys.size, np.uint64)
            keys[rows] = tie(span, rows) if rows.size else 0
            yield keys, groups, inside

    @property
    def cuts(self) -> U64:
        """(groups,) the lowest key that is kept; the highest possible if none is."""
        return self._cuts[0]

    def kept(self, span: slice, keys: Float64s | U64, groups: Rows | None, inside: Mask) -> Mask:
        """Returns which rows of a block are among the best: (rows of the block,) bool. Arguments: see `Ranked`."""
        *above, (_, _, keep) = self._levels(span, keys, groups, inside)
        for cut, (keys, _, inside) in zip(self._cuts, above, strict=True):
            keep = keep | (inside & (keys > _limit(cut, keys, groups)))
        return keep


def _bits(keys: Any) -> U64:
    return ordered_bits(keys) if keys.dtype == np.float64 else np.asarray(keys)


def _limit(cut: U64, keys: Float64s | U64, groups: Rows | None) -> Any:
    """Returns the cut of each row's group, to compare with its key; any number for rows without a group."""
    values: Any = number_of(cut) if keys.dtype == np.float64 else cut
    return values[0] if groups is None else np.append(values, values.dtype.type(0))[groups]  # an int makes it float64


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


#: What `first_places` chooses from.
PLACES = [("row", "i8"), ("key", "u8"), ("tie", "u8")]


def first_places(found: Any, n: int) -> tuple[U64, Callable[[slice], Mask]]:
    """Returns the n-th largest key of a long array, and which places are among the n of largest key, by slices.

    `found` is (m,) `PLACES`, an array or `stored`. Of equal keys the lowest `tie` goes first, then the first place.
    """

    def scan(keys: Callable[[Any], U64]) -> Callable[[Callable[[U64, Rows], Any]], Iterator[Any]]:
        def run(work: Callable[[U64, Rows], Any]) -> Iterator[Any]:
            for rows in blocks(len(found)):
                yield work(some := keys(found[rows]), np.zeros(some.size, np.int64))

        return run

    cut, wanted, above, _ = nth_largest(scan(lambda some: some["key"]), lambda many: np.minimum(many, n), len(found))
    tied = scan(lambda some: ~some["tie"][some["key"] == cut])
    lowest, _, higher, _ = nth_largest(tied, lambda _: wanted - above, len(found))
    last, left = -1, int((wanted - above - higher)[0])  # of places with the same tie, too

    def levels(rows: slice) -> tuple[Mask, Mask, Mask]:
        """Returns where the key is above the cut, or at it with a lower tie than the last, or with the same."""
        some = found[rows]
        equal, tie = some["key"] == cut, ~some["tie"]
        return some["key"] > cut, equal & (tie > lowest), equal & (tie == lowest)

    for rows in blocks(len(found)):
        places = rows.start + np.flatnonzero(levels(rows)[2])[:left]
        last, left = max([last, *places[-1:].tolist()]), left - places.size

    def kept(rows: slice) -> Mask:
        above, ahead, same = levels(rows)
        return np.asarray(above | ahead | (same & (rows.start + np.arange(same.size) <= last)))

    return cut, kept


def rows_at(table: Table, found: Any, kept: Callable[[slice], Mask]) -> Any:
    """Returns which rows of a table are at kept places of `PLACES`: (rows,) bool, array or `stored`."""
    stays = stored(len(table), bool)
    for places in blocks(len(found), 1 << 22):
        put(stays, found[places]["row"], kept(places))
    return stays
