"""How the scores are distributed over the pool, what part of each bar the subsets keep, and what lies where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tamis.data import Column
from tamis.reporting.cards import card, cards
from tamis.reporting.charts import JOINED, Curve, axis, histogram_chart
from tamis.reporting.context import ComputedScore, Context
from tamis.reporting.formats import count, number, plural, share
from tamis.reporting.histogram import Histogram, histograms
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.pairs import Pair
from tamis.reporting.picking import rows_at
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.store.run import INDEX_NUMBERS
from tamis.store.table import Table

#: The levels at which a pair is shown.
LEVELS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True, kw_only=True)
class AtQuantile:
    """A pair at a quantile of a score.

    Attributes:
        levels: one, or several that have the same value.
    """

    levels: Sequence[float]
    value: float
    pair: Pair


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """One number column, or one score that a recipe computes of columns.

    Attributes:
        scorer: the label of the scorer it is from; "" for columns of the index and for computed scores.
        also: labels of other scorers that give the very same column.
        marks: where the steps of each subset cut it.
        strip: pairs from low to high; their uids decide which of equal ones.
    """

    column: Column
    scorer: str
    also: Sequence[str] = ()
    histogram: Histogram
    marks: Sequence[Sequence[float]]
    strip: Sequence[AtQuantile] = ()


@dataclass(frozen=True, kw_only=True)
class ScoresFacts:
    """What is drawn: score columns, columns of the index that recipes cut, then the scores that recipes compute."""

    subsets: Sequence[SubsetName]
    distributions: Sequence[Distribution]


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A distribution, and the row of the run at each of its quantiles' values."""

    about: Distribution
    rows: Mapping[float, int]


def gather(context: Context) -> ScoresFacts:
    """Reads the distributions; those of computed scores in three passes each."""
    placed = [*_columns(context), *_computed_scores(context)]
    context.read([row for each in placed for row in each.rows.values()])
    return ScoresFacts(
        subsets=context.names,
        distributions=[replace(each.about, strip=_strip(context, each)) for each in placed],
    )


def _columns(context: Context) -> list[_Placed]:
    run, marks = context.run, context.marks
    uncut: Sequence[Sequence[float]] = [()] * len(context.subsets)
    found: list[Distribution] = []
    names: list[str] = []
    for name in (*context.numbers, *(name for name in INDEX_NUMBERS if name in marks.columns)):
        inner, group, column = run.columns[name]
        label = group.label if group is not None else ""
        here = Distribution(
            column=column,
            scorer=label,
            histogram=context.histograms[name],
            marks=marks.columns.get(name, uncut),
        )
        twin = next(
            (
                place
                for place, known in enumerate(names)
                if run.columns[known][0] == inner and _same(found[place], here)
            ),
            None,
        )
        if twin is None:
            found.append(here)
            names.append(name)
        else:
            both = [[*mine, *theirs] for mine, theirs in zip(found[twin].marks, here.marks, strict=True)]
            found[twin] = replace(found[twin], also=(*found[twin].also, label), marks=both)
    wanted = {name: _values(each.histogram) for name, each in zip(names, found, strict=True)}
    rows = rows_at(context.table, wanted, context.order)
    return [_Placed(about=each, rows=rows[name]) for name, each in zip(names, found, strict=True)]


def _same(one: Distribution, other: Distribution) -> bool:
    """Returns whether two columns of one name hold the same, for all that their distributions tell."""
    left, right = one.histogram, other.histogram
    counts = [(left.pool, right.pool), *zip(left.kept, right.kept, strict=True)]
    return (
        (left.judged, left.null, left.infinite) == (right.judged, right.null, right.infinite)
        and all(np.array_equal(mine, theirs) for mine, theirs in counts)
        and np.array_equal([*left.quantiles.values()], [*right.quantiles.values()], equal_nan=True)
    )


def _computed_scores(context: Context) -> list[_Placed]:
    found = []
    for score, cuts in context.marks.computed.items():
        whole = _table_of(context, score)
        if whole is None:
            continue
        marks = {score.text: [mark for each in cuts for mark in each]}
        histogram = histograms(whole, [score.text], context.keeps, marks)[score.text]
        about = "a score that a recipe computes of columns"
        column = Column(name=score.text, unit="", better="high", about=about)
        rows = rows_at(whole, {score.text: _values(histogram)}, context.order)[score.text]
        found.append(_Placed(about=Distribution(column=column, scorer="", histogram=histogram, marks=cuts), rows=rows))
    return found


def _table_of(context: Context, score: ComputedScore) -> Table | None:
    """Returns the values of a computed score as a table of one column; None where the run lacks what it needs."""
    table, found = context.table, context.values(score.text, dict(score.names))
    if found is None:
        return None
    values = found.astype(np.float32)

    def read(block: int, names: Sequence[str]) -> dict[str, Any]:
        return {score.text: values[table.starts[block] : table.starts[block + 1]]}

    return Table(table.sizes, read, table.read_uids, lambda _: "number")


def _values(histogram: Histogram) -> list[float]:
    """Returns the different values at the levels, ascending."""
    return list(dict.fromkeys(histogram.quantiles[level] for level in LEVELS)) if histogram.judged else []


def _strip(context: Context, placed: _Placed) -> list[AtQuantile]:
    at = placed.about.histogram.quantiles
    return [
        AtQuantile(
            levels=[level for level in LEVELS if at[level] == value],
            value=value,
            pair=context.pair(placed.rows[value]),
        )
        for value in _values(placed.about.histogram)
        if value in placed.rows
    ]


def draw(facts: ScoresFacts) -> Markup:
    """Draws a card per column: one chart of the pool with a line per subset, then pairs from low to high."""
    if not facts.distributions:
        return tag("p", "The run holds no number scores.", class_="quiet")
    legend = tag(
        "p",
        tag("span", tag("i", class_="swatch pale"), "pairs of the pool"),
        tag("span", tag("i", class_="stroke"), f"share that a subset keeps (bars of under {JOINED} pairs joined)"),
        tag("span", tag("i", class_="dash"), "its cut"),
        class_="legend",
    )
    return join(
        tag("input", type="checkbox", id="log-scale", class_="toggle"),
        tag("label", "Logarithmic counts", for_="log-scale"),
        legend if facts.subsets else None,
        tag("div", [_distribution(each, facts.subsets) for each in facts.distributions], class_="scores"),
    )


def _distribution(each: Distribution, subsets: Sequence[SubsetName]) -> Markup:
    histogram, column = each.histogram, each.column
    scorers = " and ".join([each.scorer, *each.also])
    title = tag(
        "h3",
        tag("code", column.name),
        tag("small", column.unit) if column.unit not in ("", column.name) else None,
        tag("small", f"from {scorers}") if scorers not in ("", column.name) else None,
    )
    nulls = f"{plural(histogram.null, 'pair')} without a value" if histogram.null else "every pair has a value"
    infinite = f" · {count(histogram.infinite)} infinite" if histogram.infinite else ""
    about = tag("p", column.about, class_="quiet") if column.about else None
    if not histogram.judged:
        said = tag("p", f"No pair has a finite value ({nulls}{infinite}).")
        return tag("article", title, about, said, class_="card")
    keys = [_key(each, subset) for subset in subsets]
    return tag(
        "article",
        tag(
            "div",
            tag("div", title, about, tag("ul", keys, class_="keys"), tag("p", nulls + infinite, class_="quiet")),
            _chart(each, subsets),
            class_="distribution",
        ),
        cards([_at(one) for one in each.strip], "seven"),
        class_="card",
    )


def _key(each: Distribution, subset: SubsetName) -> Markup:
    """What the line of a subset stands for: its colour, its share of the judged pairs, its cuts."""
    marks, inside = each.marks[subset.place], int(each.histogram.kept[subset.place].sum())
    cut = tag("em", f"cut {' and '.join(number(mark) for mark in marks)}") if marks else None
    return tag("li", swatched(subset), tag("span", cut, " ", share(inside, each.histogram.judged)))


def _chart(each: Distribution, subsets: Sequence[SubsetName]) -> Markup:
    histogram = each.histogram
    curves = [Curve(colour=colour(one), kept=histogram.kept[one.place], marks=each.marks[one.place]) for one in subsets]
    ends = f"{number(histogram.low)} to {number(histogram.high)}, median {number(histogram.quantiles[0.5])}"
    words = f"Histogram of {each.column.name} over the pool: {ends}"
    if subsets:
        words += "; the share of each bar that the subsets keep as lines"
    scale = tag(
        "div", tag("span", "100 %"), tag("span", "kept"), tag("span", "0 %"), class_="scale", aria_hidden="true"
    )
    return tag(
        "figure",
        tag("div", histogram_chart(histogram, curves, describe=words), scale if subsets else None, class_="plot"),
        tag("div", axis(histogram), class_="axis", aria_hidden="true"),
    )


def _at(one: AtQuantile) -> Markup:
    percent = [f"{100 * level:.0f}" for level in one.levels]
    ends = percent[0] if len(percent) == 1 else f"{percent[0]} to {percent[-1]}"
    return card(one.pair, score=one.value, mark=f"{ends} %")
