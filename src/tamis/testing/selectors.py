"""Checks that a selector keeps its promises."""

from __future__ import annotations

import dataclasses
import inspect
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
from tamis.testing.records import check_record, title_of

Kind = Literal["number", "word", "vector"]

_ROWS = 23  # of the table that is drawn


def check_selector(
    step: Step,
    *,
    columns: Mapping[str, Kind | Sequence[Any] | NDArray[Any]] | None = None,
    documented: bool = False,
) -> None:
    """Checks a selector on a drawn table: rows are judged by values and uids, wherever they stand, and all are counted.

    Args:
        step: the selector. One with the setting `missing` is checked with `missing="drop"`.
        columns: what it reads: a kind, of which values are drawn ("number": with ties and NaN; "word": with None;
            "vector": (rows, 3) float16 with a row of NaN and two equal rows), or the values, equally many of each
            column. A column that it reads and that is not named here holds drawn numbers.
        documented: whether the docstring must begin with "Keeps".

    Raises:
        AssertionError: a promise is broken; the sentence says how.
        DependencyError: a package that it needs is not here.
    """
    check_record(step, False, in_recipes=not isinstance(step, AllOf | AnyOf | NoneOf))  # recipes write these as lists
    if getattr(step, "missing", None) == "error":
        step = dataclasses.replace(step, missing="drop")  # type: ignore[type-var]  # the drawn table has such rows
    title = title_of(step)
    assert isinstance(step, Step), f"{title} has no name, reads or select(table)"
    names = isinstance(step.reads, frozenset) and all(isinstance(name, str) for name in step.reads)
    assert names, f"{title}: reads must be a frozenset of column names, got {step.reads!r}"
    line = describe(step)
    assert line.strip() and "\n" not in line, f"{title}: `described` must be one line of a funnel, got {line!r}"  # noqa: PT018
    text = inspect.getdoc(type(step)) or ""
    assert not documented or text.startswith("Keeps "), f"the docstring of {title} must begin with 'Keeps '"

    values = _values(step, columns or {})
    rows = len(next(iter(values.values())))
    seen: set[str] = set()
    asked = _table(values, seen=seen)
    before = asked.living().copy()
    straight = step.select(asked)
    _check_verdict(straight, asked, title)
    assert np.array_equal(asked.living(), before), f"{title} changes which rows of the table are in question"
    assert seen <= step.reads, f"{title} reads {sorted(seen - step.reads)}, which `reads` does not name"
    assert step.reads <= seen, f"`reads` of {title} names {sorted(step.reads - seen)}, which it does not look at"
    assert straight.cut is None or isinstance(straight.cut, float | int), f"{title}: cut must be a number or None"
    try:
        json.dumps([dict(straight.counts), dict(straight.facts), straight.cut])
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{title}: counts and facts must be what JSON holds ({error})") from error
    again = pickle.loads(pickle.dumps(step))
    for how, keep in (
        ("a second time", step.select(asked).keep),
        ("after pickling", again.select(_table(values)).keep),
    ):
        other = np.flatnonzero(keep != straight.keep).tolist()
        assert not other, f"{title} judges the rows {other} otherwise {how}"
    order = np.random.default_rng(3).permutation(rows).tolist()
    for block in (1, 4, 100):
        moved = step.select(_table(values, order, block))
        back = np.empty(rows, bool)
        back[order] = moved.keep
        other = np.flatnonzero(back != straight.keep).tolist()
        assert not other, f"{title} judges the rows {other} otherwise in another order, in blocks of {block}"
        told, was = (dict(moved.counts), moved.cut), (dict(straight.counts), straight.cut)
        assert told == was, f"{title}: in another order counts and cut are {told}, were {was}"
    for empty in (Table.of(_taken(values, [])), _table(values).among(np.zeros(rows, bool))):
        _check_verdict(step.select(empty), empty, title)
    if hasattr(step, "missing"):
        _check_missing(step, values, straight, title)


def _values(step: Step, columns: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in columns.items() if not isinstance(value, str)}
    rows = len(next(iter(given.values()))) if given else _ROWS
    rng = np.random.default_rng(2)
    kinds = {name: value for name, value in columns.items() if isinstance(value, str)}
    kinds |= dict.fromkeys(sorted({*step.reads, "unread"} - {*columns}), "number")
    return given | {name: _drawn(rng, kind, rows) for name, kind in kinds.items()}


def _drawn(rng: np.random.Generator, kind: str, rows: int) -> Any:
    if kind == "word":
        return [[None, "en", "en", "de", "fr"][number] for number in rng.integers(0, 5, rows)]
    if kind == "vector":
        vectors = np.round(rng.normal(size=(rows, 3)), 1).astype(np.float16)
        vectors[5], vectors[4] = vectors[6], np.nan
        return vectors
    assert kind == "number", f"columns are of the kind number, word or vector, not {kind!r}"
    numbers = np.round(rng.normal(size=rows), 1).astype(np.float32)
    numbers[rng.choice(rows, max(rows // 5, 1), replace=False)] = np.nan
    numbers[rows // 2 : rows // 2 + 4] = 0.5  # ties
    return numbers


def _table(
    values: Mapping[str, Any], order: Sequence[int] | None = None, block: int = 5, seen: set[str] | None = None
) -> Table:
    """Returns the table, of which about four in five rows are in question; `seen` gets the columns that are read."""
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


def _taken(values: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    return {
        name: value[list(rows)] if isinstance(value, np.ndarray) else [value[row] for row in rows]
        for name, value in values.items()
    }


def _check_verdict(found: Selection, asked: Table, title: str) -> None:
    assert isinstance(found, Selection), f"{title}: select() must return a Selection, not a {type(found).__name__}"
    keep, alive = np.asarray(found.keep), asked.living()
    right = keep.dtype == bool and keep.shape == (len(asked),)
    assert right, f"{title}: keep must be ({len(asked)},) bool, got {keep.shape} {keep.dtype}"
    stray = np.flatnonzero(keep & ~alive).tolist()
    assert not stray, f"{title} keeps the rows {stray}, which are not in question"
    for word in ("kept", "missing"):
        assert word in found.counts, f"the counts of {title} lack {word!r}: {dict(found.counts)}"
    kept, total, of = int(keep.sum()), sum(found.counts.values()), int(alive.sum())
    assert found.counts["kept"] == kept, f"{title} keeps {kept} rows and counts {found.counts['kept']} as kept"
    assert total == of, f"the counts {dict(found.counts)} of {title} add up to {total}, of {of} rows in question"
    assert min(found.counts.values()) >= 0, f"{title} counts fewer than no rows: {dict(found.counts)}"
    fell = np.array_equal(np.asarray(found.dropped_by) > 0, alive & ~keep)
    assert fell, f"{title}: dropped_by must have a code for exactly the rows that fall"
    most = int(np.max(found.dropped_by, initial=0))
    assert most <= len(found.reasons), f"{title}: dropped_by has the code {most}, of {len(found.reasons)} reasons"


def _check_missing(step: Any, values: Mapping[str, Any], straight: Selection, title: str) -> None:
    """A step with the setting `missing` raises at rows that lack a value, or counts them as missing."""
    lacking = np.zeros(straight.keep.size, bool)
    for name in step.reads:
        lacking |= [value is None or bool(np.any(value != value)) for value in values[name]]
    lacking &= _table(values).living()
    if not lacking.any():
        return
    kept = np.flatnonzero(straight.keep & lacking).tolist()
    assert not kept, f"{title} keeps the rows {kept}, which lack a value, and was told to drop them"
    assert straight.counts["missing"] > 0, f"rows lack a value, and {title} counts none: {dict(straight.counts)}"
    try:
        dataclasses.replace(step, missing="error").select(_table(values))
    except RecipeError as error:
        said = str(error)
    else:
        said = "nothing"
    assert "have no value for" in said, (
        f"{title}: with `missing: error` it must raise a RecipeError that tells which value rows lack, as "
        f"tamis.selectors.verdict does; it said: {said}"
    )
