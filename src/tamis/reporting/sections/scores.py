"""How the scores are distributed over the pool, what part of each bar the subsets keep, and pairs from low to high."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tamis.arrays import Mask
from tamis.data import Column
from tamis.reporting.context import Context, Facts
from tamis.reporting.histogram import Histogram, histograms
from tamis.reporting.picking import first_of_each
from tamis.store.run import INDEX_NUMBERS
from tamis.store.table import Table

#: The levels at which a pair is shown.
LEVELS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)

#: A column and one of its values.
At = tuple[str, float]


def gather(context: Context) -> Facts:
    """Reads the distributions; those of computed scores in three passes each.

    Returns:
        `subsets` and `distributions`: of score columns, of index columns that recipes cut, then of scores that recipes
        compute. Each has its `column`, the label of its `signal` ("" where it has none), `also` (others that give the
        very same column), the `histogram`, `marks` (where each subset cuts it) and a `strip` of pairs from low to
        high: `levels`, their common `value`, and the `pair`.
    """
    return {"subsets": context.names, "distributions": [*_columns(context), *_computed(context)]}


def _columns(context: Context) -> list[Facts]:
    run, (marks, _) = context.run, context.marks
    uncut: list[Sequence[float]] = [()] * len(context.subsets)
    found: dict[str, Facts] = {}
    for name in (*context.numbers, *(name for name in INDEX_NUMBERS if name in marks)):
        inner, group, column = run.columns[name]
        label, here, cuts = group.label if group else "", context.histograms[name], [*marks.get(name, uncut)]
        same = (each for other, each in found.items() if run.columns[other][0] == inner)
        twin = next((each for each in same if _equal(each["histogram"], here)), None)
        if twin is None:
            found[name] = _distribution(column, label, here, cuts)
        else:
            twin["also"].append(label)
            twin["marks"] = [[*mine, *theirs] for mine, theirs in zip(twin["marks"], cuts, strict=True)]
    wanted = [(name, value) for name, each in found.items() for value in _values(each["histogram"])]
    rows = _rows_at(context, context.table, wanted)
    for name, each in found.items():
        each["strip"] = _strip(context, name, each["histogram"], rows)
    return list(found.values())


def _distribution(column: Column, label: str, histogram: Histogram, marks: Sequence[Sequence[float]]) -> Facts:
    about = {"column": asdict(column), "signal": label, "also": []}
    return {**about, "histogram": histogram, "marks": marks, "strip": []}


def _equal(one: Histogram, other: Histogram) -> bool:
    """Whether two columns of one name hold the same values, as far as their distributions can say."""
    counts = [(one.pool, other.pool), *zip(one.kept, other.kept, strict=True)]
    return (
        (one.judged, one.null, one.infinite) == (other.judged, other.null, other.infinite)
        and all(np.array_equal(mine, theirs) for mine, theirs in counts)
        and np.array_equal([*one.quantiles.values()], [*other.quantiles.values()], equal_nan=True)
    )


def _computed(context: Context) -> list[Facts]:
    found = []
    _, scores = context.marks
    for (text, names), marks in scores.items():
        values = context.values(text, dict(names))
        if values is None:  # the run lacks what it needs
            continue
        table = Table.of({text: values.astype(np.float32)})
        cuts = {text: [mark for each in marks for mark in each]}
        histogram = histograms(table, [text], context.keeps, cuts)[text]
        column = Column(name=text, unit="", better="high", about="a score that a recipe computes of columns")
        rows = _rows_at(context, table, [(text, value) for value in _values(histogram)])
        each = _distribution(column, "", histogram, marks)
        found.append({**each, "strip": _strip(context, text, histogram, rows)})
    return found


def _rows_at(context: Context, table: Table, wanted: Sequence[At]) -> Mapping[At, tuple[int, list[int]]]:
    """Returns for each column and value how many rows have it, and the one of them of lowest order."""

    def masks(columns: Mapping[str, Any]) -> dict[At, Mask]:
        return {(name, value): columns[name] == np.float32(value) for name, value in wanted}

    names = list(dict.fromkeys(name for name, _ in wanted))
    return first_of_each(table, names, masks, context.order, 1) if wanted else {}


def _values(histogram: Histogram) -> list[float]:
    """Returns the different values at the levels, ascending."""
    return list(dict.fromkeys(histogram.quantiles[level] for level in LEVELS)) if histogram.judged else []


def _strip(context: Context, name: str, histogram: Histogram, rows: Mapping[At, tuple[int, list[int]]]) -> list[Facts]:
    return [
        {
            "levels": [level for level in LEVELS if histogram.quantiles[level] == value],
            "value": value,
            "pair": context.pair(rows[name, value][1][0]),
        }
        for value in _values(histogram)
    ]
