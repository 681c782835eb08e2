"""How the scores are distributed over the pool, and what part of each bar the subsets keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tamis.data import Column
from tamis.reporting.charts import axis, chart_words, histogram_chart
from tamis.reporting.context import ComputedScore, Context
from tamis.reporting.formats import count, number, plural, share
from tamis.reporting.histogram import Histogram, histograms
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.subset_names import SubsetName, colour, swatched
from tamis.store.run import INDEX_NUMBERS
from tamis.store.table import Table

#: The quantiles that stand above a chart, with their names.
_LEVELS: Mapping[float, str] = {0.05: "5 %", 0.25: "25 %", 0.5: "median", 0.75: "75 %", 0.95: "95 %"}


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """One number column, or one score that a recipe computes of columns.

    Attributes:
        scorer: the label of the scorer it is from; "" for columns of the index and for computed scores.
        marks: where the steps of each subset cut it.
    """

    column: Column
    scorer: str
    histogram: Histogram
    marks: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class ScoresFacts:
    """What is drawn: score columns, columns of the index that recipes cut, then the scores that recipes compute."""

    subsets: Sequence[SubsetName]
    distributions: Sequence[Distribution]


def gather(context: Context) -> ScoresFacts:
    """Reads the distributions; those of computed scores in two passes each."""
    run, marks = context.run, context.marks
    uncut: Sequence[Sequence[float]] = [()] * len(context.subsets)
    distributions = []
    for name in (*context.numbers, *(name for name in INDEX_NUMBERS if name in marks.columns)):
        _, group, column = run.columns[name]
        distributions.append(
            Distribution(
                column=column,
                scorer=group.label if group is not None else "",
                histogram=context.histograms[name],
                marks=marks.columns.get(name, uncut),
            )
        )
    for score, cuts in marks.computed.items():
        if (histogram := _computed(context, score, cuts)) is not None:
            about = "a score that a recipe computes of columns"
            column = Column(name=score.text, unit="", better="high", about=about)
            distributions.append(Distribution(column=column, scorer="", histogram=histogram, marks=cuts))
    return ScoresFacts(subsets=context.names, distributions=distributions)


def _computed(context: Context, score: ComputedScore, marks: Sequence[Sequence[float]]) -> Histogram | None:
    table, found = context.table, context.values(score.text, dict(score.names))
    if found is None:
        return None
    values = found.astype(np.float32)

    def read(block: int, names: Sequence[str]) -> dict[str, Any]:
        return {score.text: values[table.starts[block] : table.starts[block + 1]]}

    whole = Table(table.sizes, read, table.read_uids, lambda _: "number")
    cuts = {score.text: [mark for each in marks for mark in each]}
    return histograms(whole, [score.text], context.keeps, cuts)[score.text]


def draw(facts: ScoresFacts) -> Markup:
    """Draws a card per column, a chart in it per subset."""
    if not facts.distributions:
        return tag("p", "The run holds no number scores.", class_="quiet")
    legend = tag(
        "p",
        tag("i", class_="swatch pale"),
        "the pool",
        tag("i", class_="swatch ink"),
        "what the subset keeps",
        tag("i", class_="dash"),
        "a cut",
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
    title = tag(
        "h3",
        tag("code", column.name),
        tag("small", column.unit) if column.unit not in ("", column.name) else None,
        tag("small", f"from {each.scorer}") if each.scorer not in ("", column.name) else None,
    )
    nulls = f"{plural(histogram.null, 'pair')} without a value" if histogram.null else "every pair has a value"
    infinite = f" · {count(histogram.infinite)} infinite" if histogram.infinite else ""
    head = [title, tag("p", column.about, class_="quiet") if column.about else None]
    if not histogram.judged:
        return tag("article", head, tag("p", f"No pair has a finite value ({nulls}{infinite})."), class_="card")
    values = [
        ("least", histogram.low),
        *((name, histogram.quantiles[level]) for level, name in _LEVELS.items()),
        ("most", histogram.high),
    ]
    strip = [tag("div", tag("dt", name), tag("dd", number(value))) for name, value in values]
    charts = [_chart(each, subset) for subset in subsets] or [_chart_of_pool(each)]
    return tag(
        "article",
        head,
        tag("dl", strip, class_="strip"),
        tag("div", charts, class_="charts"),
        tag("p", nulls + infinite, class_="quiet"),
        class_="card",
    )


def _chart(each: Distribution, subset: SubsetName) -> Markup:
    histogram, kept, marks = each.histogram, each.histogram.kept[subset.place], [*each.marks[subset.place]]
    inside = int(kept.sum())
    cut = tag("em", f"cut {' to '.join(number(mark) for mark in marks)}") if marks else None
    words = chart_words(each.column.name, subset.label, inside, histogram.judged, marks)
    return tag(
        "figure",
        tag("figcaption", swatched(subset), tag("span", cut, " ", share(inside, histogram.judged))),
        _plot([histogram_chart(histogram, kept, marks, describe=words, log=log) for log in (False, True)]),
        tag("div", axis(histogram), class_="axis", aria_hidden="true"),
        class_=colour(subset),
    )


def _chart_of_pool(each: Distribution) -> Markup:
    words = f"Histogram of {each.column.name} over the pool"
    return tag(
        "figure",
        _plot([histogram_chart(each.histogram, None, [], describe=words, log=log) for log in (False, True)]),
        tag("div", axis(each.histogram), class_="axis", aria_hidden="true"),
        class_="c1",
    )


def _plot(charts: Sequence[Markup]) -> Markup:
    return tag("div", charts, class_="plot")
