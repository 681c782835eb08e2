"""Which rows the page shows, and in which order: filters and sortings as the page's URL has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Mask, Rows
from tamis.errors import RecipeError, check_words
from tamis.selectors.expression import parse
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.store.table import Table

#: So many rows of a view can be scrolled through; a brush, a word or another order brings up others.
MOST = 20_000

#: Characters of a caption's part that can be sought: in any case they make an automaton, which grows with them.
LONGEST = 1_000

Show = Literal["all", "kept", "dropped", "good", "bad", "labelled"]
Sort = Literal["random", "row", "cut", "score", "extremes"]


@dataclass(frozen=True, kw_only=True)
class View:
    """What the page asks to see.

    Attributes:
        show: which pairs.
        reason: only rows that the recipe drops for the reason of this code; 0: all.
        ranges: (column, low, high), both ends included; None where an end is open.
        words: (column, word).
        caption: part of the caption, in any case.
        sort: in which order. "cut": nearest to the last line that the recipe draws; "extremes": lowest and highest in
            turn.
        column: of "score" and "extremes".
        descending: whether the highest comes first.
        region: of the recipes that are compared, 1 for each that keeps the pair and 0 for each that drops it; (): any.
    """

    show: Show = "all"
    reason: int = 0
    ranges: tuple[tuple[str, float | None, float | None], ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    caption: str = ""
    sort: Sort = "random"
    column: str = ""
    descending: bool = True
    region: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_words(self)


def rows_of(
    view: View,
    run: Run,
    table: Table,
    subset: Subset,
    labels: NDArray[np.float32],
    order: NDArray[np.uint64],
    among: Mask | None = None,
    given: Rows | None = None,
) -> tuple[Rows, int]:
    """Returns the rows of a view, in its order, and how many there are in all: at most `MOST` are returned.

    Args:
        view: what is asked.
        run: for captions.
        table: the run's columns.
        subset: what the recipe keeps and why it drops the others.
        labels: (rows,) 1 good, 0 bad.
        order: (rows,) scrambled uids: the random order, and what decides ties.
        among: only these rows.
        given: only these, and with the sorting "row" in this order.

    Raises:
        RunError: a column is not there.
        RecipeError: a column holds no numbers where numbers are needed, or the recipe draws no line.
    """
    mask = _shown(view, subset, labels)
    if among is not None:
        mask &= among
    for column, low, high in view.ranges:
        _keep_range(table, mask, column, low, high)
    for column, word in view.words:
        _keep_word(table, mask, column, word)
    if view.caption:
        _keep_caption(run, table, mask, view.caption)
    rows = np.flatnonzero(mask) if given is None else given[mask[given]]
    total = int(rows.size)
    if view.sort == "row":
        return rows[:MOST].copy(), total  # a view would keep all of them in memory
    if view.sort == "random":
        return first(rows, order[rows], order), total
    values = np.full(len(table), np.nan)
    if view.sort == "cut":
        cut = subset.verdict.ranking
        if cut is None:
            raise RecipeError("the recipe draws no line on a score: nothing lies near its cut")
        values = np.abs(cut.distance(parse(cut.score).values(run.table(subset.verdict.names))))
        return first(rows, values[rows], order), total
    values = column_values(table, view.column)
    if view.sort == "score":
        return first(rows, (-values if view.descending else values)[rows], order), total
    lowest, highest = first(rows, values[rows], order), first(rows, -values[rows], order)
    both = np.empty(2 * min(lowest.size, MOST), np.int64)
    both[0::2], both[1::2] = lowest[: both.size // 2], highest[: both.size // 2]
    _, unique = np.unique(both, return_index=True)
    return both[np.sort(unique)[:MOST]], total


def first(rows: Rows, keys: NDArray[Any], order: NDArray[np.uint64], most: int = MOST) -> Rows:
    """Returns the rows of the smallest keys, those first, ties by the scrambled uid, NaN last."""
    if rows.size > most:
        limit = np.partition(keys, most - 1)[most - 1]  # NaN sorts last
        near = keys <= limit if not (keys.dtype.kind == "f" and np.isnan(limit)) else np.ones(keys.size, bool)
        rows, keys = rows[near], keys[near]
    return rows[np.lexsort((order[rows], keys))[:most]]


def column_values(table: Table, column: str) -> NDArray[np.float64]:
    """Returns a column of numbers: (rows,), NaN where it is missing.

    Raises:
        RecipeError: it holds none.
    """
    if table.kind(column) != "number":
        raise RecipeError(f"the column {column!r} holds {table.kind(column)}s, numbers are needed here")
    values = np.empty(len(table))

    def read(place: slice, columns: dict[str, Any]) -> None:
        values[place] = columns[column]

    for _ in table.map([column], read):
        pass
    return values


def _shown(view: View, subset: Subset, labels: NDArray[np.float32]) -> Mask:
    if view.reason and subset.verdict.dropped_by is not None:
        fell: Mask = subset.verdict.dropped_by == view.reason
        return fell
    masks: dict[str, Mask] = {"kept": subset.keep, "good": labels == 1, "bad": labels == 0, "labelled": labels >= 0}
    if view.show == "all":
        return np.ones(subset.keep.size, bool)
    return ~subset.keep if view.show == "dropped" else masks[view.show].copy()


def _keep_range(table: Table, mask: Mask, column: str, low: float | None, high: float | None) -> None:
    if table.kind(column) != "number":
        raise RecipeError(f"the column {column!r} holds {table.kind(column)}s, a range is of numbers")
    with np.errstate(over="ignore"):  # an end past float32's range is infinite
        bottom, top = np.float32(-np.inf if low is None else low), np.float32(np.inf if high is None else high)

    def look(place: slice, columns: dict[str, Any]) -> None:
        mask[place] &= (columns[column] >= bottom) & (columns[column] <= top)

    for _ in table.map([column], look):
        pass


def _keep_word(table: Table, mask: Mask, column: str, word: str) -> None:
    if table.kind(column) != "word":
        raise RecipeError(f"the column {column!r} holds {table.kind(column)}s, words are needed here")

    def look(place: slice, columns: dict[str, Any]) -> None:
        words = columns[column]
        words = words if words.type == pa.string() else words.cast(pa.string())
        mask[place] &= pc.equal(words, word).fill_null(False).to_numpy(zero_copy_only=False)

    for _ in table.map([column], look):
        pass


def _keep_caption(run: Run, table: Table, mask: Mask, text: str) -> None:
    for block, shard in enumerate(run.shards):
        place = slice(int(table.starts[block]), int(table.starts[block + 1]))
        if mask[place].any():
            captions = run.index(shard, ["caption"]).column("caption").combine_chunks()
            found = pc.match_substring(captions, text, ignore_case=True).fill_null(False)
            mask[place] &= found.to_numpy(zero_copy_only=False)
