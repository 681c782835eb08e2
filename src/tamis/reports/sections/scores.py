"""Distributions of the scores over pool and subsets, example pairs from low to high, and rank correlations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from tamis.core.arrays import Mask
from tamis.core.math.statistics import rank_correlations
from tamis.core.types import INDEX_NUMBERS, Column
from tamis.reports.context import Context, Facts, Marks
from tamis.reports.distributions import Histogram, histogram, whole_column
from tamis.reports.page_pairs import first_of_each
from tamis.runs.table import MemoryTable, Table, as_numbers

#: The quantiles at which a pair is shown.
LEVELS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


def gather(context: Context) -> Facts:
    """Returns the distributions of score columns, index columns with a threshold, and scores that recipes compute.

    `also`: other signals with identical values; `marks`: thresholds of each subset; `strip`: pairs from low to high.
    """
    return {"subsets": context.names, "distributions": _columns(context) + _computed_scores(context)}


def _columns(context: Context) -> list[Facts]:
    run, (marks, _) = context.run, context.marks
    found: dict[str, Facts] = {}

    def alike(one: str, other: str) -> bool:
        table = context.table
        return np.array_equal(whole_column(table, one), whole_column(table, other), equal_nan=True)

    for name in (*context.numbers, *(name for name in INDEX_NUMBERS if name in marks)):
        inner, group, column = run.columns[name]
        label, here = group.label if group else "", context.histograms[name]
        cuts = list(marks.get(name, [()] * len(context.subsets)))
        same = (each for other, each in found.items() if run.columns[other][0] == inner and alike(other, name))
        twin = next(same, None)
        if twin is None:
            found[name] = _distribution(column, label, here, cuts)
        else:
            twin["also"].append(label)
            twin["marks"] = [[*mine, *theirs] for mine, theirs in zip(twin["marks"], cuts, strict=True)]
    _add_strips(context, context.table, found)
    return list(found.values())


def _computed_scores(context: Context) -> list[Facts]:
    found = []
    for (text, names), marks in context.marks[1].items():
        values = context.values(text, dict(names))
        if values is None:  # the run lacks what it needs
            continue
        column = Column(name=text, unit="", better="high", about="a score that a recipe computes of columns")
        rounded = values.astype(np.float32)
        drawn = histogram(rounded, context.keeps, [mark for each in marks for mark in each])
        found.append(_distribution(column, "", drawn, marks))
        _add_strips(context, MemoryTable({text: rounded}), {text: found[-1]})
    return found


def _distribution(column: Column, label: str, histogram: Histogram, marks: Marks) -> Facts:
    about = {"column": asdict(column), "signal": label, "also": []}
    return {**about, "histogram": histogram, "marks": marks, "strip": []}


def _add_strips(context: Context, table: Table, drawn: Mapping[str, Facts]) -> None:
    """Adds to each distribution a pair per distinct value at the levels: the first by uid with that value."""
    levels: dict[str, dict[float, list[float]]] = {name: {} for name in drawn}
    for name, each in drawn.items():
        for level in LEVELS if each["histogram"].judged else ():
            levels[name].setdefault(each["histogram"].quantiles[level], []).append(level)

    def masks(_: slice, columns: Mapping[str, Any]) -> dict[tuple[str, float], Mask]:
        return {
            (name, value): as_numbers(columns[name]).astype(np.float32) == np.float32(value)
            for name in columns
            for value in levels[name]
        }

    names = [name for name, values in levels.items() if values]
    rows = first_of_each(table, names, masks, context.order, 1) if names else {}
    for name, values in levels.items():
        drawn[name]["strip"] = [
            {"levels": at, "value": value, "pair": context.pair(rows[name, value][1][0])}
            for value, at in values.items()
        ]


#: Maximum number of scores in the correlation matrix.
_COMPARED = 24


def correlation(context: Context) -> Facts | None:
    """Correlates the scores that have finite values; None with fewer than two scores.

    `matrix`: Spearman's rank correlations over pairs that have both scores; NaN if one of them is constant.
    """
    rows = context.sample
    columns = {name: whole_column(context.table, name)[rows] for name in context.numbers}
    names: dict[tuple[str, bytes], str] = {}
    for name, column in columns.items():
        if np.isfinite(column).any():
            names.setdefault((context.run.columns[name][0], column.tobytes()), name)
    kept = list(names.values())[:_COMPARED]
    if len(kept) < 2:
        return None
    matrix = rank_correlations(np.stack([columns[name] for name in kept], axis=1))
    return {"names": kept, "matrix": matrix, "looked_at": rows.size, "rows": context.rows}
