"""Checks that a selector keeps its promises."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.errors import RecipeError
from tamis.selectors.outcome import Selection, Step
from tamis.selectors.steps import AllOf, AnyOf, NoneOf, describe
from tamis.store.table import Table
from tamis.testing.records import check_record

Kind = Literal["number", "word", "vector"]

_ROWS = 23  # of the table that is drawn


def check_selector(step: Step, *, columns: Mapping[str, Kind | Sequence[Any] | NDArray[Any]] | None = None) -> None:
    """Checks a selector on a drawn table: rows are judged by values and uids, wherever they are, and all are counted.

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
    names = isinstance(step.reads, frozenset) and all(isinstance(name, str) for name in step.reads)
    assert names, f"{title}: reads must be a frozenset of column names, got {step.reads!r}"
    line = describe(step)
    assert line.strip(), f"{title}: `described` is empty"
    assert "\n" not in line, f"{title}: `described` must be one line, got {line!r}"

    values = _values(step, columns or {})
    rows = len(next(iter(values.values())))
    seen: set[str] = set()
    table = _table(values, seen=seen)
    before = table.living().copy()
    found = step.select(table)
    _check_selection(found, table, title)
    assert np.array_equal(table.living(), before), f"{title} changes which rows of the table are in question"
    assert seen == step.reads, f"{title} reads {sorted(seen)}, and its `reads` names {sorted(step.reads)}"
    assert found.cut is None or isinstance(found.cut, float | int), f"{title}: cut must be a number or None"
    try:
        json.dumps([dict(found.counts), dict(found.facts), found.cut])
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{title}: counts and facts cannot be written as JSON ({error})") from error

    order = np.random.default_rng(3).permutation(rows)
    straight = np.arange(rows)
    for how, other, places, block in (
        ("a second time", step, straight, 5),
        ("after pickling", pickle.loads(pickle.dumps(step)), straight, 5),
        *(("in another order or in other blocks", step, order, block) for block in (1, 4, 100)),
    ):
        again = other.select(_table(values, places.tolist(), block))
        differing = sorted(places[again.keep != found.keep[places]].tolist())
        assert not differing, f"{title} judges the rows {differing} differently {how}"
        assert (again.counts, again.cut) == (found.counts, found.cut), f"{title}: counts or cut change {how}"
    for empty in (Table.of(_taken(values, [])), _table(values).among(np.zeros(rows, bool))):
        _check_selection(step.select(empty), empty, title)
    if hasattr(step, "missing"):
        _check_missing(step, values, found, title)


def _values(step: Step, columns: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in columns.items() if not isinstance(value, str)}
    rows = len(next(iter(values.values()))) if values else _ROWS
    rng = np.random.default_rng(2)
    kinds = {name: value for name, value in columns.items() if isinstance(value, str)}
    kinds |= dict.fromkeys(sorted({*step.reads, "unread"} - {*columns}), "number")
    return values | {name: _drawn(rng, kind, rows) for name, kind in kinds.items()}


def _drawn(rng: np.random.Generator, kind: str, rows: int) -> Any:
    if kind == "word":
        return [[None, "en", "en", "de", "fr"][number] for number in rng.integers(0, 5, rows)]
    if kind == "vector":
        vectors = np.round(rng.normal(size=(rows, 3)), 1).astype(np.float16)
        vectors[5], vectors[4] = vectors[6], np.nan
        return vectors
    assert kind == "number", f"the kind of a column is number, word or vector, not {kind!r}"
    numbers = np.round(rng.normal(size=rows), 1).astype(np.float32)
    numbers[rng.choice(rows, max(rows // 5, 1), replace=False)] = np.nan
    numbers[rows // 2 : rows // 2 + 4] = 0.5  # ties
    return numbers


def _table(
    values: Mapping[str, Any], order: Sequence[int] | None = None, block: int = 5, seen: set[str] | None = None
) -> Table:
    """Returns the table, with about four in five rows in question; `seen` gets the columns that are read."""
    count = len(next(iter(values.values())))
    rng = np.random.default_rng(3)
    high, low = rng.integers(0, 2**64, (2, count), dtype=np.uint64)
    alive = rng.random(count) < 0.8
    rows = list(range(count)) if order is None else list(order)
    table = Table.of(_taken(values, rows), uids=(high[rows], low[rows]), block=block).among(alive[rows])
    inner = table.read

    def read(number: int, names: Sequence[str]) -> dict[str, Any]:
        if seen is not None:
            seen.update(names)
        return inner(number, names)

    table.read = read
    return table


def _taken(values: Mapping[str, Any], rows: list[int]) -> dict[str, Any]:
    return {
        name: value[rows] if isinstance(value, np.ndarray) else [value[row] for row in rows]
        for name, value in values.items()
    }


def _check_selection(found: Selection, table: Table, title: str) -> None:
    assert isinstance(found, Selection), f"{title}: select() must return a Selection, not a {type(found).__name__}"
    keep, alive = np.asarray(found.keep), table.living()
    right = keep.dtype == bool and keep.shape == (len(table),)
    assert right, f"{title}: keep must be ({len(table)},) bool, got {keep.shape} {keep.dtype}"
    stray = np.flatnonzero(keep & ~alive).tolist()
    assert not stray, f"{title} keeps the rows {stray}, which are not in question"
    counts, total = dict(found.counts), int(alive.sum())
    assert {"kept", "missing"} <= counts.keys(), f"{title}: counts must have 'kept' and 'missing', got {counts}"
    assert counts["kept"] == int(keep.sum()), f"{title} keeps {int(keep.sum())} rows, and its counts are {counts}"
    right = min(counts.values()) >= 0 and sum(counts.values()) == total
    assert right, f"{title}: the counts {counts} do not add up to {total} rows in question"
    fell = np.array_equal(np.asarray(found.dropped_by) > 0, alive & ~keep)
    assert fell, f"{title}: dropped_by must have a code for exactly the rows that are dropped"
    most = int(np.max(found.dropped_by, initial=0))
    assert most <= len(found.reasons), f"{title}: dropped_by has the code {most}, of {len(found.reasons)} reasons"


def _check_missing(step: Any, values: Mapping[str, Any], found: Selection, title: str) -> None:
    """A step with the setting `missing` raises for rows that lack a value, or counts them as missing."""
    lacking = np.zeros(found.keep.size, bool)
    for name in step.reads:
        lacking |= [value is None or bool(np.any(value != value)) for value in values[name]]
    lacking &= _table(values).living()
    if not lacking.any():
        return
    kept = np.flatnonzero(found.keep & lacking).tolist()
    assert not kept, f"{title}: with `missing: drop` it keeps the rows {kept}, which lack a value"
    assert found.counts["missing"] > 0, f"{title} counts no missing rows, and some lack a value"
    message = ""
    try:
        dataclasses.replace(step, missing="error").select(_table(values))
    except RecipeError as error:
        message = str(error)
    right = "have no value for" in message
    assert right, f"{title}: with `missing: error` it must raise a RecipeError, as `verdict` does; it said {message!r}"
