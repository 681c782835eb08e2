"""Checks that a selector keeps its promises."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Rows
from tamis.errors import RecipeError
from tamis.selectors.outcome import Selection, Step
from tamis.selectors.steps import AllOf, AnyOf, NoneOf, describe
from tamis.store.table import Table
from tamis.testing.records import check_record

Kind = Literal["number", "word", "vector"]

_ROWS = 23  # of the table that is drawn


def check_selector(step: Step, *, columns: Mapping[str, Kind | Sequence[Any] | NDArray[Any]] | None = None) -> None:
    """Checks a selector on a drawn table: its choice depends on values and uids only, and all rows are counted.

    Args:
        step: the selector. One with the setting `missing` is checked with `missing="drop"`.
        columns: what it reads: a kind, of which values are drawn ("number": with ties and NaN; "word": with None;
            "vector": (rows, 3) float16 with a row of NaN and two equal rows), or the values, equally many of each
            column. A column that it reads and that is not named here has drawn numbers.

    Raises:
        AssertionError: a promise is broken; the message says which.
        DependencyError: a package that it needs is not installed.
    """
    title = check_record(step, in_recipes=not isinstance(step, AllOf | AnyOf | NoneOf))  # recipes write these as lists
    if getattr(step, "missing", None) == "error":
        step = dataclasses.replace(step, missing="drop")  # type: ignore[type-var]  # the drawn table has such rows
    assert isinstance(step, Step), f"{title} lacks name, reads or select(table)"
    assert isinstance(step.reads, frozenset), f"{title}: reads must be a frozenset of column names, got {step.reads!r}"
    line = describe(step)
    assert line.strip() and "\n" not in line, f"{title}: `described` must be one line, got {line!r}"  # noqa: PT018

    values = _values(step, columns or {})
    rows = len(next(iter(values.values())))
    seen: set[str] = set()
    table = _table(values, seen=seen)
    before = table.living().copy()
    found = step.select(table)
    _check_selection(found, table, title)
    assert np.array_equal(table.living(), before), f"{title} changes which rows of the table are candidates"
    assert seen == step.reads, f"{title} reads {sorted(seen)}, and its `reads` names {sorted(step.reads)}"
    try:
        json.dumps([dict(found.counts), dict(found.facts), found.cut and float(found.cut)])
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{title}: counts, cut and facts cannot be written as JSON ({error})") from error

    order, straight = np.random.default_rng(3).permutation(rows), np.arange(rows)
    for how, other, places, block in (
        ("a second time", step, straight, 5),
        ("after pickling", pickle.loads(pickle.dumps(step)), straight, 5),
        *(("in another order or in other blocks", step, order, block) for block in (1, 4, 100)),
    ):
        again = other.select(_table(values, places, block))
        differing = sorted(places[again.keep != found.keep[places]].tolist())
        assert not differing, f"{title} decides differently about the rows {differing} {how}"
        assert (again.counts, again.cut) == (found.counts, found.cut), f"{title}: counts or cut change {how}"
    for empty in (_table(values, straight[:0]), _table(values).among(np.zeros(rows, bool))):
        _check_selection(step.select(empty), empty, title)
    if hasattr(step, "missing"):
        _check_missing(step, values, found, title)


def _values(step: Step, columns: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Returns the values of each column that the step reads, and of one that it does not; words as objects."""
    given = {name: value for name, value in columns.items() if not isinstance(value, str)}
    values = {
        name: value if isinstance(value, np.ndarray) else np.array(value, object) for name, value in given.items()
    }
    rows = len(next(iter(values.values()))) if values else _ROWS
    kinds = dict.fromkeys(sorted({*step.reads, "unread"}), "number") | dict(columns)
    rng = np.random.default_rng(2)
    for name in [name for name in kinds if name not in values]:
        if kinds[name] == "word":
            values[name] = np.array([None, "en", "en", "de", "fr"], object)[rng.integers(0, 5, rows)]
        elif kinds[name] == "vector":
            values[name] = np.round(rng.normal(size=(rows, 3)), 1).astype(np.float16)
            values[name][5], values[name][4] = values[name][6], np.nan
        else:
            values[name] = np.round(rng.normal(size=rows), 1).astype(np.float32)
            values[name][rng.choice(rows, max(rows // 5, 1), replace=False)] = np.nan
            values[name][rows // 2 : rows // 2 + 4] = 0.5  # ties
    return values


def _table(
    values: Mapping[str, NDArray[Any]], rows: Rows | None = None, block: int = 5, seen: set[str] | None = None
) -> Table:
    """Returns a table of some rows, about four in five in question; `seen` gets the columns that are read."""
    count = len(next(iter(values.values())))
    rows = np.arange(count) if rows is None else rows
    rng = np.random.default_rng(3)
    high, low = rng.integers(0, 2**64, (2, count), dtype=np.uint64)[:, rows]
    taken = {name: value[rows].tolist() if value.dtype == object else value[rows] for name, value in values.items()}
    table = Table.of(taken, uids=(high, low), block=block).among((rng.random(count) < 0.8)[rows])

    def noted(number: int, names: Sequence[str]) -> dict[str, Any]:
        if seen is not None:
            seen.update(names)
        return table.read(number, names)

    return dataclasses.replace(table, read=noted)


def _check_selection(found: Selection, table: Table, title: str) -> None:
    assert isinstance(found, Selection), f"{title}: select() must return a Selection, not a {type(found).__name__}"
    keep, alive, counts = found.keep, table.living(), dict(found.counts)
    right = keep.dtype == bool and keep.shape == (len(table),)
    assert right, f"{title}: keep must be ({len(table)},) bool, got {keep.shape} {keep.dtype}"
    stray = np.flatnonzero(keep & ~alive).tolist()
    assert not stray, f"{title} keeps the rows {stray}, which are not in question"
    kept, total = int(keep.sum()), int(alive.sum())
    right = counts.get("kept") == kept and "missing" in counts and sum(counts.values()) == total
    assert right, f"{title}: it keeps {kept} of {total} candidates, and its counts do not add up to that: {counts}"
    fell = np.array_equal(found.dropped_by > 0, alive & ~keep) and found.dropped_by.max(initial=0) <= len(found.reasons)
    assert fell, f"{title}: dropped_by must have the code of a reason for exactly the rows that are dropped"


def _check_missing(step: Any, values: Mapping[str, NDArray[Any]], found: Selection, title: str) -> None:
    """A step with the setting `missing` raises for rows that lack a value, or counts them as missing."""
    lacking = np.zeros(found.keep.size, bool)
    for name in step.reads:
        lacking |= [value is None or bool(np.any(value != value)) for value in values[name]]
    lacking &= _table(values).living()
    if not lacking.any():
        return
    kept = np.flatnonzero(found.keep & lacking).tolist()
    right = not kept and found.counts["missing"] > 0
    assert right, f"{title}: with `missing: drop` it keeps or does not count rows that lack a value: keeps {kept}"
    try:
        dataclasses.replace(step, missing="error").select(_table(values))
    except RecipeError:
        return
    raise AssertionError(f"{title}: with `missing: error` it must raise a RecipeError, as `verdict` does")
