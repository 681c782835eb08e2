"""A run whose columns stay in memory, so that recipes can be applied many times a second; its histograms and views.

A view is the filters and the order of the rows that the page shows.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.core.arrays import U64, Float64s, Mask, Rows
from tamis.core.errors import RecipeError, check_words
from tamis.core.types import Column
from tamis.reports.distributions import Histogram, bars_of, histogram, whole_column
from tamis.reports.page_pairs import first_by, random_order, smallest
from tamis.runs.expression import parse
from tamis.runs.reasons import blocks
from tamis.runs.run import Run, ScoreSet
from tamis.runs.subset import Subset
from tamis.runs.table import Table, as_numbers

#: Bytes of columns, and rows of uids, kept in memory; others are read from disk each time.
_CACHE_BYTES, _UIDS = 1 << 30, 1 << 21

#: The C library, and the number of glibc's setting for how many threads hold freed memory apart: see mallopt(3).
_LIBC, _ARENA_MAX = ctypes.CDLL(None), -8

#: The bar number of rows without a finite value.
NONE = 255


class CachedRun(Run):
    """A run that keeps the columns it has read, except embeddings, which are memory-mapped. Thread-safe."""

    def __init__(
        self, path: str | os.PathLike[str], *, partial: bool = False, most: int = _CACHE_BYTES,
        shards: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """`shards`: show only these, of a run that is being scored; None: all that are indexed."""
        super().__init__(path, partial=partial)
        if shards is not None:
            vars(self)["shards"] = tuple(sorted(shards))
        self._columns_read: dict[tuple[int, str, str], Any] = {}
        self._room = most
        self._guard = threading.Lock()
        if hasattr(_LIBC, "mallopt"):  # else each thread of the server would keep freed memory
            _LIBC.mallopt(_ARENA_MAX, 2)

    @cached_property
    def order(self) -> NDArray[np.uint32]:
        """The random order: (rows,) the place of each row."""
        rows = np.argsort(random_order(self.table()))
        places = np.empty(rows.size, np.uint32)
        places[rows] = np.arange(rows.size, dtype=np.uint32)
        return places

    @cached_property
    def _uids_of(self) -> Callable[[int], tuple[U64, U64]]:
        return lru_cache(max(2, len(self.shards) * _UIDS // max(len(self), 1)))(super().read_uids)

    def read_uids(self, block: int) -> tuple[U64, U64]:
        return self._uids_of(block)

    def _read(self, block: int, wanted: Mapping[str, tuple[str, ScoreSet | None, Column]]) -> dict[str, Any]:
        keys = {name: (block, group.folder.name if group else "", inner) for name, (inner, group, _) in wanted.items()}
        held = {name: self._columns_read.get(key) for name, key in keys.items()}
        missing = {name: wanted[name] for name, value in held.items() if value is None}
        read = super()._read(block, missing) if missing else {}
        for name, value in read.items():
            if wanted[name][2].kind != "vector":
                self._cache(keys[name], value)
        if read:
            release()
        return held | read

    def _cache(self, key: tuple[int, str, str], value: Any) -> None:
        with self._guard:
            if key not in self._columns_read and value.nbytes <= self._room:
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False  # it is shared
                self._columns_read[key] = value
                self._room -= value.nbytes

    def forget(self, folder: str) -> None:
        """Drops the cached scores of a folder after a write to it."""
        with self._guard:
            for key in [key for key in self._columns_read if key[1] == folder]:
                self._room += self._columns_read.pop(key).nbytes
            for name in ("scores", "columns"):
                self.__dict__.pop(name, None)


def release() -> None:
    """Returns memory to the system that Arrow and glibc hold after large temporaries were freed."""
    pa.default_memory_pool().release_unused()
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


@dataclass(frozen=True, kw_only=True)
class Binned:
    """A column binned as in the report: its distribution, and the bar of each row (`NONE` without a finite value).

    `whole`: all finite values are integers.
    """

    facts: Histogram
    bars: NDArray[np.uint8]
    whole: bool

    def count(self, among: Mask) -> NDArray[np.int64]:
        """Returns the number of rows of a mask in each bar: (bars,)."""
        total = np.zeros(256, np.int64)
        for span in blocks(self.bars.size, 1 << 17):  # bincount makes 8 bytes of each
            total += np.bincount(self.bars[span][among[span]], minlength=256)
        return total[: self.facts.pool.size]


def bin_column(table: Table, column: str) -> Binned:
    """Bins a number column. Memory: a byte per row."""
    values = whole_column(table, column)
    facts, bars = histogram(values, []), np.full(values.size, NONE, np.uint8)
    for span in blocks(values.size):
        there = np.isfinite(values[span])
        bars[span][there] = bars_of(values[span][there], facts.edges)
    finite = values[bars != NONE]
    return Binned(facts=facts, bars=bars, whole=bool(np.all(finite == np.rint(finite))))


def heat(x: Binned, y: Binned, among: Mask) -> NDArray[np.int64]:
    """Returns the number of rows of a mask in each cell of two columns: (bars of y, bars of x)."""
    across, down = x.facts.pool.size, y.facts.pool.size
    there = among & (x.bars != NONE) & (y.bars != NONE)
    cells = y.bars[there].astype(np.int64) * across + x.bars[there]
    return np.bincount(cells, minlength=across * down).reshape(down, across)


def count_words(table: Table, column: str) -> pa.Table:
    """Returns the distinct words of a column and their counts: `word` (large_string) and `n` (int64)."""

    def count(span: slice, columns: dict[str, Any]) -> pa.Table:
        found = pc.value_counts(_texts(columns[column]).drop_null())
        return pa.table({"word": found.field("values"), "n": found.field("counts")})

    none = pa.table({"word": pa.array([], pa.large_string()), "n": pa.array([], pa.int64())})
    together = pa.concat_tables([none, *table.map([column], count)]).group_by("word", use_threads=False)
    return together.aggregate([("n", "sum")]).select(["word", "n_sum"]).rename_columns(["word", "n"])


def words_containing(words: pa.Table, part: str) -> pa.Table:
    """Returns the counted words that contain a text, ignoring case."""
    return words.filter(pc.match_substring(words.column("word"), part, ignore_case=True))


def count_words_among(table: Table, column: str, words: pa.ChunkedArray, among: Mask) -> NDArray[np.int64]:
    """Returns how often each word occurs in the rows of a mask: (words,)."""
    few = words.combine_chunks()

    def count(span: slice, columns: dict[str, Any]) -> NDArray[np.int64]:
        here = _texts(columns[column].filter(pa.array(among[span])))
        return np.bincount(np.asarray(pc.index_in(here, value_set=few).drop_null()), minlength=len(few))

    return sum(table.map([column], count), np.zeros(len(few), np.int64))


def word_codes(table: Table, column: str, words: pa.ChunkedArray, *, other: int) -> NDArray[np.uint8]:
    """Returns the place of each row's word in `words`; `other` for other words, `NONE` for null: (rows,)."""
    few = words.combine_chunks()

    def look(span: slice, columns: dict[str, Any]) -> NDArray[np.uint8]:
        here = _texts(columns[column])
        found = pc.if_else(pc.is_null(here), NONE, pc.fill_null(pc.index_in(here, value_set=few), other))
        return np.asarray(found).astype(np.uint8)

    return np.concatenate([np.zeros(0, np.uint8), *table.map([column], look)])


def _texts(words: Any) -> Any:
    """Returns words as large strings, so that the words of a whole pool fit into one array."""
    return (words.cast(pa.string()) if pa.types.is_dictionary(words.type) else words).cast(pa.large_string())


#: Maximum number of rows that a view lists.
LISTED = 20_000

#: Maximum length of the text that captions are searched for.
LONGEST = 1_000


@dataclass(frozen=True, kw_only=True)
class View:
    """Filters and order of the rows to show: code of a reason (0: any), ranges (ends included), words, captions.

    A row passes if it passes all of them; of several words of one column it has any. `captions`: texts that its caption
    contains, each with its alternatives between "|". `tags`: tags ("": any tag) that rows have (True) or lack (False).
    The order "cut" alternates kept and dropped pairs, those nearest to the threshold that drops most first, "extremes"
    lowest and highest. `region` has 1 for each compared recipe that keeps a pair and 0 for each that drops it; () for
    any.
    """

    show: Literal["all", "kept", "dropped"] = "all"
    reason: int = 0
    ranges: tuple[tuple[str, float | None, float | None], ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    tags: tuple[tuple[str, bool], ...] = ()
    captions: tuple[str, ...] = ()
    sort: Literal["random", "row", "cut", "score", "extremes"] = "random"
    column: str = ""
    descending: bool = True
    region: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_words(self)
        for text in (*self.captions, *(text for entry in self.words for text in entry), *(tag for tag, _ in self.tags)):
            if not isinstance(text, str):
                raise ValueError(f"captions, words and tags are texts, got {text!r}")
        if sum(map(len, self.captions)) > LONGEST:
            raise RecipeError(f"at most {LONGEST:,} characters of a caption can be searched for: leave some out")


def mask_of(view: View, run: Run, subset: Subset | None, having: Callable[[str], Mask], mask: Mask) -> Mask:
    """Returns the rows of a mask that pass a view's filters except `show` and `region`; the mask is changed.

    `having` returns the rows with a tag. `subset`: whose reason it asks for.
    """
    if subset is not None and subset.verdict.dropped_by is not None:
        mask &= subset.verdict.dropped_by == view.reason
    for tag, there in view.tags:
        mask &= having(tag) == bool(there)
    for column, low, high in view.ranges:
        _keep_range(run.table(), mask, column, low, high)
    for column in dict.fromkeys(column for column, _ in view.words):
        _keep_words(run.shown, mask, column, [word for name, word in view.words if name == column])
    if view.captions:
        _keep_captions(run, mask, view.captions)
    return mask


def rows_of(
    view: View,
    run: Run,
    subset: Subset,
    order: NDArray[np.uint32],
    mask: Mask | None = None,
    chosen: Rows | None = None,
    most: int | None = None,
) -> tuple[Rows, int]:
    """Returns the first `LISTED` rows of a view in its order, or `most` in the order "row", and the number of all.

    `order`: (rows,) the random order, which also breaks ties. The view is limited to a `mask`, see `mask_of`, and to
    the rows `chosen`, which keep their order if the view's order is "row".
    """
    table = run.table()
    if view.show == "all" or (view.reason and subset.verdict.dropped_by is not None):
        mask = np.ones(len(table), bool) if mask is None else mask.copy()
    else:
        shown = subset.keep == (view.show == "kept")
        mask = shown if mask is None else shown & mask
    total = int(np.count_nonzero(mask)) if chosen is None else int(np.count_nonzero(mask[chosen]))
    if view.sort == "row":
        if chosen is None:  # by blocks: eight bytes for each row of the run would be much
            firsts = [np.flatnonzero(mask[span])[: most or LISTED] + span.start for span in blocks(mask.size)]
            return np.concatenate([np.empty(0, np.int64), *firsts])[: most or LISTED], total
        rows = chosen[mask[chosen]]
        return rows[: most or LISTED].copy(), total  # a copy: a view would keep all rows in memory
    if chosen is not None:
        some = np.zeros(mask.size, bool)
        some[chosen] = True
        mask &= some
    if view.sort == "random":
        return first_by(order, LISTED, mask), total
    if view.sort == "cut":
        keys = distance_from_cut(run, subset)
        sides = (_lowest(keys, order, mask & (subset.keep == side)) for side in (True, False))
        return alternate(*sides)[:LISTED], total
    check_kind(table, view.column, "number")
    values = whole_column(table, view.column)
    if view.sort == "score":
        return _lowest(-values if view.descending else values, order, mask), total
    both = alternate(_lowest(values, order, mask), _lowest(-values, order, mask))
    _, unique = np.unique(both, return_index=True)
    return both[np.sort(unique)[:LISTED]], total


def _lowest(keys: NDArray[Any], order: NDArray[np.uint32], among: Mask) -> Rows:
    """Returns the `LISTED` rows of a mask with the lowest keys, sorted; ties by `order`, NaN last. By blocks."""
    rows = np.empty(0, np.int64)
    for span in blocks(among.size):
        inside = among[span]
        if rows.size == LISTED and (limit := keys[rows[-1]]) == limit:
            inside = inside & (keys[span] <= limit)
        rows = np.concatenate([rows, np.flatnonzero(inside) + span.start])
        rows = smallest(rows, keys[rows], order.__getitem__, LISTED)
    return rows


def alternate(one: Rows, other: Rows) -> Rows:
    """Returns the rows of two lists in turn; the rest of the longer list follows."""
    n = min(one.size, other.size)
    return np.concatenate([np.stack([one[:n], other[:n]], axis=1).reshape(-1), one[n:], other[n:]])


def distance_from_cut(run: Run, subset: Subset) -> Float64s:
    """Returns each row's distance from the threshold that drops most (0 without); infinite if another step drops it."""
    cut, codes = subset.verdict.ranking, subset.verdict.dropped_by
    if cut is None:
        return np.zeros(subset.keep.size)
    values = parse(cut.score).values(run.table(subset.verdict.names))
    for span in blocks(values.size):  # in place: a whole copy would be large
        values[span] = np.abs(cut.distance(values[span]))
        if codes is not None:
            values[span][~subset.keep[span] & (codes[span] != cut.code)] = np.inf
    return values


def check_kind(table: Table, column: str, kind: str) -> None:
    if not table.holds(column, kind):
        raise RecipeError(f"the column {column!r} holds {table.kind(column)}s, {kind}s are needed here")


def _keep_range(table: Table, mask: Mask, column: str, low: float | None, high: float | None) -> None:
    check_kind(table, column, "number")
    with np.errstate(over="ignore"):  # an end beyond float32's range is infinite
        bottom, top = np.float32(-np.inf if low is None else low), np.float32(np.inf if high is None else high)

    def look(span: slice, columns: dict[str, Any]) -> None:
        values = as_numbers(columns[column])
        mask[span] &= (values >= bottom) & (values <= top)

    list(table.map([column], look))


def _keep_words(table: Table, mask: Mask, column: str, words: Sequence[str]) -> None:
    check_kind(table, column, "word")

    def look(span: slice, columns: dict[str, Any]) -> None:
        found = pc.is_in(columns[column].cast(pa.string()), value_set=pa.array(words, pa.string()))
        mask[span] &= found.to_numpy(zero_copy_only=False)

    list(table.map([column], look))


def _keep_captions(run: Run, mask: Mask, texts: Sequence[str]) -> None:
    choices = [[part.strip() for part in text.split("|") if part.strip()] or [text] for text in texts]
    for shard, span in run.row_ranges.items():
        if mask[span].any():
            captions = run.index(shard, ["caption"]).column("caption").combine_chunks()
            mask[span] &= ~run.hidden[span]
            for parts in choices:
                found = [pc.match_substring(captions, part, ignore_case=True).fill_null(False) for part in parts]
                mask[span] &= reduce(pc.or_, found).to_numpy(zero_copy_only=False)
