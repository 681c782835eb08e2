"""Which rows the page shows, and in which order: the filters and orders of the page's URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.arrays import U64, Float32s, Mask, Rows
from tamis.errors import RecipeError, check_words
from tamis.reporting.distributions import whole_column
from tamis.selectors.expression import parse
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.store.table import Table

#: Max rows listed.
MOST = 20_000

#: Characters of a caption that can be searched for.
LONGEST = 1_000


@dataclass(frozen=True, kw_only=True)
class View:
    """What the page asks to see.

    Attributes:
        show: which pairs.
        reason: only rows that the recipe drops for the reason of this code; 0: all.
        ranges: (column, low, high), both ends included; None where an end is open.
        words: (column, word).
        caption: part of the caption, in any case.
        sort: the order. "cut": nearest to the recipe's last threshold first; "extremes": lowest and highest in turn.
        column: of "score" and "extremes".
        descending: whether the highest comes first.
        region: for each compared recipe 1 if it keeps the pair and 0 if it drops it; (): any.
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
    """Returns the rows of a view in its order, at most `MOST`, and how many there are in all.

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
        return rows[:MOST].copy(), total  # a view would keep all of them in memory
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
    return both[np.sort(unique)[:MOST]], total


def first(rows: Rows, keys: Any, order: U64) -> Rows:
    """Returns at most `MOST` rows, those of the smallest keys first, ties by the scrambled uid, NaN last."""
    if rows.size > MOST:
        limit = np.partition(keys, MOST - 1)[MOST - 1]  # NaN sorts last
        near = keys <= limit if limit == limit else np.ones(keys.size, bool)
        rows, keys = rows[near], keys[near]
    return rows[np.lexsort((order[rows], keys))[:MOST]]


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
    for shard, place in run.places.items():
        if mask[place].any():
            captions = run.index(shard, ["caption"]).column("caption").combine_chunks()
            found = pc.match_substring(captions, text, ignore_case=True).fill_null(False)
            mask[place] &= found.to_numpy(zero_copy_only=False)
