"""The page's drawings: SVG shapes without text, so that they stretch to any width; labels are HTML around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tamis.reporting.formats import count, number
from tamis.reporting.histogram import Counts, Histogram
from tamis.reporting.html import Markup, join, tag

_HEIGHT = 100.0

#: Bars of fewer pairs are joined with their neighbours for the lines: the share of three pairs says nothing.
JOINED = 12


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What a subset keeps of each bar.

    Attributes:
        colour: the class of its colour.
        kept: (bars,) rows.
        marks: the values it was cut at.
    """

    colour: str
    kept: Counts
    marks: Sequence[float]


def histogram_chart(histogram: Histogram, curves: Sequence[Curve], *, describe: str) -> Markup:
    """Returns the bars of the pool, in front of them a line per subset: the share that it keeps of each bar.

    Args:
        histogram: the pool's. Its bars are drawn twice, by rows and by log(1 + rows): the page shows one of them.
        curves: of the subsets; the top of the chart is all of a bar, its foot none. Neighbours of fewer than `JOINED`
            pairs share a step of the lines, unless somebody cuts there.
        describe: what a screen reader says.
    """
    edges = histogram.edges
    places = 100 * (edges - edges[0]) / (edges[-1] - edges[0])
    shapes = []
    for scale in ("lin", "log"):
        heights = _scaled(histogram.pool, scale == "log")
        top = float(heights.max(initial=0)) or 1.0
        shapes.append(tag("path", class_=f"pool {scale}", d=_steps(places, heights / top)))
    starts = _joined(histogram, [mark for curve in curves for mark in curve.marks])
    rows = np.add.reduceat(histogram.pool, starts)
    ends = places[[*starts, -1]]
    for curve in curves:
        shares = np.add.reduceat(curve.kept, starts) / np.maximum(rows, 1)
        shapes.append(tag("path", class_=f"share {curve.colour}", d=_line(ends, shares, rows > 0)))
        for mark in curve.marks:
            x = f"{100 * histogram.place(mark):.2f}"
            shapes.append(tag("line", class_=f"cut {curve.colour}", x1=x, x2=x, y1=0, y2=100))
    return tag("svg", *shapes, viewBox="0 0 100 100", preserveAspectRatio="none", role="img", aria_label=describe)


def _joined(histogram: Histogram, marks: Sequence[float]) -> list[int]:
    """Returns the first bar of each group of neighbours that share a step of the lines."""
    cut = {int(np.searchsorted(histogram.edges, mark, side="right")) - 1 for mark in marks}
    starts, rows = [0], 0
    for bar_, count_ in enumerate(histogram.pool):
        if bar_ and (rows >= JOINED or bar_ in cut or bar_ - 1 in cut):
            starts.append(bar_)
            rows = 0
        rows += int(count_)
    return starts


def _scaled(counts: Counts, log: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.log1p(counts.astype(np.float64)) if log else counts.astype(np.float64)


def _steps(
    places: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    heights: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> str:
    """Returns the outline of bars as a path; a bar of any rows at all is at least a hair high."""
    moves = []
    for left, right, height in zip(places[:-1], places[1:], heights, strict=True):
        if height > 0:
            y = _HEIGHT - max(1.2, 97 * float(height))
            moves.append(f"M{left:.2f} 100V{y:.2f}H{right:.2f}V100Z")
    return "".join(moves)


def _line(
    places: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    shares: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    there: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> str:
    """Returns a line in steps over the bars that have rows, as a path."""
    moves, drawn = [], False
    for left, right, share_, some in zip(places[:-1], places[1:], shares, there, strict=True):
        if some:
            y = f"{_HEIGHT - 97 * float(share_):.2f}"
            moves.append(f"V{y}H{right:.2f}" if drawn else f"M{left:.2f} {y}H{right:.2f}")
        drawn = bool(some)
    return "".join(moves)


def bar(part: int, whole: int, *, before: int | None = None) -> Markup:
    """Returns a bar as long as `part` of `whole`, with what a step took (`before` it) in a paler tone behind."""
    pieces = []
    if before is not None:
        pieces.append(tag("i", class_="took", style=f"width:{_percent(before, whole)}"))
    pieces.append(tag("i", class_="left", style=f"width:{_percent(part, whole)}"))
    return tag("span", *pieces, class_="bar", aria_hidden="true")


def interval(
    low: float, value: float, high: float, *, ends: tuple[float, float], mark: float | None, describe: str
) -> Markup:
    """Returns a measured number and its interval on a scale.

    Args:
        low, value, high: the interval's ends and the number.
        ends: of the scale.
        mark: where a dashed line stands, such as 0 among differences; None: nowhere.
        describe: what a screen reader says.
    """
    width = ends[1] - ends[0] or 1.0
    left, middle, right = (f"{2 + 96 * (one - ends[0]) / width:.2f}" for one in (low, value, high))
    shapes = [tag("line", class_="range", x1=left, x2=right, y1=50, y2=50)]
    shapes += [tag("line", class_="range", x1=x, x2=x, y1=30, y2=70) for x in (left, right)]
    shapes.append(tag("line", class_="point", x1=middle, x2=middle, y1=8, y2=92))
    if mark is not None:
        x = f"{2 + 96 * (mark - ends[0]) / width:.2f}"
        shapes.append(tag("line", class_="cut", x1=x, x2=x, y1=0, y2=100))
    return tag(
        "svg",
        *shapes,
        class_="interval",
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=describe,
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:.3f}%"


def axis(histogram: Histogram) -> Markup:
    """Returns the labels below a histogram: its ends, marked where a tail is drawn as one bar."""
    first, last = float(histogram.edges[0]), float(histogram.edges[-1])
    low = histogram.low if not histogram.below else first
    high = histogram.high if not histogram.above else last
    return join(
        tag("span", ("≤ " if histogram.below else "") + number(low, 3)),
        tag("span", f"tallest bar {count(int(histogram.pool.max(initial=0)))}"),
        tag("span", ("≥ " if histogram.above else "") + number(high, 3)),
    )
