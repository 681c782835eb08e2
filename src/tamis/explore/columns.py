"""A run whose columns stay in memory, so that recipes can be applied many times a second; its histograms and views.

A view is which rows the page shows, and in which order: the filters and orders of its URL.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import U64, Float32s, Mask, Rows
from tamis.errors import RecipeError, check_words
from tamis.reporting.distributions import Histogram, bars_of, histogram, whole_column
from tamis.selectors.expression import parse
from tamis.store.reasons import blocks
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.store.table import Table

#: Bytes of columns that are kept; further ones are read from disk each time.
_HELD = 1 << 30

#: The bar of a row that is in no bar: its value is missing or infinite.
NONE = 255


class HeldRun(Run):
    """A run that remembers the columns it has read, except embeddings, which are mapped. Threads may share it."""

    def __init__(self, path: str | os.PathLike[str], *, partial: bool = False, most: int = _HELD) -> None:
        super().__init__(path, partial=partial)
        self._held: dict[tuple[int, str, str], Any] = {}
        self._held_uids: dict[int, tuple[U64, U64]] = {}
        self._room = most
        self._guard = threading.Lock()

    def table(self, aliases: Mapping[str, str] | None = None) -> Table:
        plain, names = super().table(aliases), dict(aliases or {})

        def key(block: int, name: str) -> tuple[int, str, str]:
            inner, group, _ = self.locate(names.get(name, name))
            return block, group.folder.name if group is not None else "", inner

        def read(block: int, wanted: Sequence[str]) -> dict[str, Any]:
            held = {name: self._held.get(key(block, name)) for name in wanted}
            missing = [name for name, value in held.items() if value is None]
            found = plain.read(block, missing) if missing else {}
            for name in missing:
                if plain.kind(name) != "vector":
                    self._hold(key(block, name), found[name])
            return {name: found[name] if name in found else held[name] for name in wanted}

        def read_uids(block: int) -> tuple[U64, U64]:
            if block not in self._held_uids:
                self._held_uids[block] = plain.read_uids(block)
            return self._held_uids[block]

        return dataclasses.replace(plain, read=read, read_uids=read_uids)

    def _hold(self, key: tuple[int, str, str], value: Any) -> None:
        with self._guard:
            if key not in self._held and value.nbytes <= self._room:
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False  # it is shared
                self._held[key] = value
                self._room -= value.nbytes

    def forget(self, folder: str) -> None:
        """Drops the scores of one folder after it was written to; they are read again when needed."""
        with self._guard:
            for key in [key for key in self._held if key[1] == folder]:
                self._room += self._held.pop(key).nbytes
            for name in ("scores", "columns"):
                self.__dict__.pop(name, None)


@dataclass(frozen=True, kw_only=True)
class Binned:
    """Column binned as in the report: its distribution over the pool, and the bar of each row, `NONE` if it has none.
    `whole`: all finite values are integers.
    """

    facts: Histogram
    bars: NDArray[np.uint8]
    whole: bool

    def count(self, among: Mask) -> NDArray[np.int64]:
        """Returns the number of some rows in each bar: (bars,)."""
        total = np.zeros(256, np.int64)
        for place in blocks(self.bars.size):
            total += np.bincount(self.bars[place][among[place]], minlength=256)
        return total[: self.facts.pool.size]


def binned(table: Table, column: str) -> Binned:
    """Cuts a column of numbers into bars. Memory: a byte per row."""
    values = whole_column(table, column)
    facts, bars = histogram(values, []), np.full(values.size, NONE, np.uint8)
    for place in blocks(values.size):
        there = np.isfinite(values[place])
        bars[place][there] = bars_of(values[place][there], facts.edges)
    finite = values[bars != NONE]
    return Binned(facts=facts, bars=bars, whole=bool(np.all(finite == np.rint(finite))))


def heat(x: Binned, y: Binned, among: Mask) -> NDArray[np.int64]:
    """Returns the number of some rows in each cell of two columns: (bars of y, bars of x)."""
    across, down = x.facts.pool.size, y.facts.pool.size
    there = among & (x.bars != NONE) & (y.bars != NONE)
    cells = y.bars[there].astype(np.int64) * across + x.bars[there]
    return np.bincount(cells, minlength=across * down).reshape(down, across)


#: Words beyond ASCII that become Python's at once.
_CHUNK = 1 << 16


def counted(table: Table, column: str) -> pa.Table:
    """Returns the different words of a column and how often each occurs: `word` (large_string) and `n` (int64)."""

    def count(place: slice, columns: dict[str, Any]) -> pa.Table:
        found = pc.value_counts(_texts(columns[column]).drop_null())
        return pa.table({"word": found.field("values"), "n": found.field("counts")})

    none = pa.table({"word": pa.array([], pa.large_string()), "n": pa.array([], pa.int64())})
    together = pa.concat_tables([none, *table.map([column], count)]).group_by("word", use_threads=False)
    return together.aggregate([("n", "sum")]).select(["word", "n_sum"]).rename_columns(["word", "n"])


def containing(words: pa.Table, part: str) -> pa.Table:
    """Returns the rows of counted words that contain a text, in any case (Python's `casefold`)."""
    sought = part.casefold()
    if not sought:
        return words
    column = words.column("word")
    found = np.array(pc.match_substring(pc.ascii_lower(column), sought))
    others = np.flatnonzero(~np.array(pc.string_is_ascii(column)))
    for start in range(0, others.size, _CHUNK):
        rows = others[start : start + _CHUNK]
        found[rows] = [sought in word.casefold() for word in column.take(pa.array(rows)).to_pylist()]
    return words.filter(pa.array(found))


def most_frequent(words: pa.Table, most: int) -> pa.Table:
    """Returns the most frequent of counted words; those that sort first come first among equals."""
    return words.take(pc.select_k_unstable(words, most, [("n", "descending"), ("word", "ascending")]))


def counted_among(table: Table, column: str, words: pa.ChunkedArray, among: Mask) -> NDArray[np.int64]:
    """Returns how often each of some words occurs in a column's rows of a mask: (words,)."""
    few = words.combine_chunks()

    def count(place: slice, columns: dict[str, Any]) -> NDArray[np.int64]:
        here = _texts(columns[column].filter(pa.array(among[place])))
        return np.bincount(np.asarray(pc.index_in(here, value_set=few).drop_null()), minlength=len(few))

    return sum(table.map([column], count), np.zeros(len(few), np.int64))


def _texts(words: Any) -> Any:
    """Returns words as large strings, so that those of a whole pool fit into one array."""
    return (words.cast(pa.string()) if pa.types.is_dictionary(words.type) else words).cast(pa.large_string())


#: Max rows listed.
LISTED = 20_000

#: Characters of a caption that can be searched for.
LONGEST = 1_000


@dataclass(frozen=True, kw_only=True)
class View:
    """What the page asks to see: pairs by a reason's code (0: all), ranges (ends included), words, part of a caption.

    Of the orders, "cut" has the pairs nearest to the recipe's last threshold first, "extremes" the lowest and highest
    in turn. `region` has 1 for each compared recipe that keeps a pair and 0 for each that drops it; (): any.
    """

    show: Literal["all", "kept", "dropped", "good", "bad", "labelled"] = "all"
    reason: int = 0
    ranges: tuple[tuple[str, float | None, float | None], ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    caption: str = ""
    sort: Literal["random", "row", "cut", "score", "extremes"] = "random"
    column: str = ""
    descending: bool = True
    region: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_words(self)
        for text in (self.caption, *(text for entry in self.words for text in entry)):
            if not isinstance(text, str):
                raise ValueError(f"caption and words are texts, got {text!r}")
        if len(self.caption) > LONGEST:
            raise RecipeError(f"at most {LONGEST:,} characters of a caption can be searched for: leave some out")


def rows_of(
    view: View,
    run: Run,
    subset: Subset,
    labels: Float32s,
    order: U64,
    among: Mask | None = None,
    chosen: Rows | None = None,
) -> tuple[Rows, int]:
    """Returns the rows of a view in its order, at most `LISTED`, and how many there are in all.

    `order` are (rows,) scrambled uids: the random order, which also decides ties. Only rows `among` and `chosen` are
    in it; with the order "row" chosen ones stay in theirs.
    """
    table = run.table()
    mask = _shown(view, subset, labels)
    if among is not None:
        mask &= among
    for column, low, high in view.ranges:
        _keep_range(table, mask, column, low, high)
    for column, word in view.words:
        _keep_word(table, mask, column, word)
    if view.caption:
        _keep_caption(run, mask, view.caption)
    rows = np.flatnonzero(mask) if chosen is None else chosen[mask[chosen]]
    total = int(rows.size)
    if view.sort == "row":
        return rows[:LISTED].copy(), total  # a view would keep all of them in memory
    if view.sort == "random":
        return first(rows, order[rows], order), total
    if view.sort == "cut":
        cut = subset.verdict.ranking
        if cut is None:
            raise RecipeError("the recipe has no threshold on a score, so nothing is near it")
        distance = np.abs(cut.distance(parse(cut.score).values(run.table(subset.verdict.names))))
        return first(rows, distance[rows], order), total
    _check_kind(table, view.column, "number")
    values = whole_column(table, view.column)[rows]
    if view.sort == "score":
        return first(rows, -values if view.descending else values, order), total
    both = np.stack([first(rows, values, order), first(rows, -values, order)], axis=1).reshape(-1)
    _, unique = np.unique(both, return_index=True)
    return both[np.sort(unique)[:LISTED]], total


def first(rows: Rows, keys: Any, order: U64) -> Rows:
    """Returns at most `LISTED` rows, those of the smallest keys first, ties by the scrambled uid, NaN last."""
    if rows.size > LISTED:
        limit = np.partition(keys, LISTED - 1)[LISTED - 1]  # NaN sorts last
        near = keys <= limit if limit == limit else np.ones(keys.size, bool)
        rows, keys = rows[near], keys[near]
    return rows[np.lexsort((order[rows], keys))[:LISTED]]


def _check_kind(table: Table, column: str, kind: str) -> None:
    if table.kind(column) != kind:
        raise RecipeError(f"the column {column!r} holds {table.kind(column)}s, {kind}s are needed here")


def _shown(view: View, subset: Subset, labels: Float32s) -> Mask:
    if view.reason and subset.verdict.dropped_by is not None:
        return np.asarray(subset.verdict.dropped_by == view.reason)
    if view.show == "all":
        return np.ones(subset.keep.size, bool)
    if view.show in ("kept", "dropped"):
        return subset.keep.copy() if view.show == "kept" else ~subset.keep
    return np.asarray(labels == {"good": 1, "bad": 0}[view.show] if view.show != "labelled" else labels >= 0)


def _keep_range(table: Table, mask: Mask, column: str, low: float | None, high: float | None) -> None:
    _check_kind(table, column, "number")
    with np.errstate(over="ignore"):  # an end beyond float32's range is infinite
        bottom, top = np.float32(-np.inf if low is None else low), np.float32(np.inf if high is None else high)
    values = whole_column(table, column)
    mask &= (values >= bottom) & (values <= top)


def _keep_word(table: Table, mask: Mask, column: str, word: str) -> None:
    _check_kind(table, column, "word")

    def look(place: slice, columns: dict[str, Any]) -> None:
        words = columns[column].cast(pa.string())
        mask[place] &= pc.equal(words, word).fill_null(False).to_numpy(zero_copy_only=False)

    list(table.map([column], look))


def _keep_caption(run: Run, mask: Mask, text: str) -> None:
    for shard, place in run.row_ranges.items():
        if mask[place].any():
            captions = run.index(shard, ["caption"]).column("caption").combine_chunks()
            found = pc.match_substring(captions, text, ignore_case=True).fill_null(False)
            mask[place] &= found.to_numpy(zero_copy_only=False)
