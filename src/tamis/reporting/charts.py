"""The page's drawings: SVG shapes without text, so that they stretch to any width; labels are HTML around them."""

from __future__ import annotations

import numpy as np

from tamis.reporting.formats import count, number, share
from tamis.reporting.histogram import Counts, Histogram
from tamis.reporting.html import Markup, join, tag

_HEIGHT = 100.0


def histogram_chart(
    histogram: Histogram, kept: Counts | None, marks: list[float], *, describe: str, log: bool
) -> Markup:
    """Returns the bars of the pool, those of a subset in front of them, and the lines where it was cut.

    Args:
        histogram: the pool's.
        kept: the subset's rows per bar; None draws the pool alone.
        marks: values to draw a line at.
        describe: what a screen reader says.
        log: makes heights proportional to log(1 + rows).
    """
    edges = histogram.edges
    places = 100 * (edges - edges[0]) / (edges[-1] - edges[0])
    top = float(_scaled(histogram.pool, log).max(initial=0)) or 1.0
    shapes = [tag("path", class_="pool", d=_steps(places, _scaled(histogram.pool, log) / top))]
    if kept is not None:
        shapes.append(tag("path", class_="kept", d=_steps(places, _scaled(kept, log) / top)))
    for mark in marks:
        x = f"{100 * histogram.place(mark):.2f}"
        shapes.append(tag("line", class_="cut", x1=x, x2=x, y1=0, y2=100))
    return tag(
        "svg",
        *shapes,
        class_="log" if log else "lin",
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=describe + (" (logarithmic)" if log else ""),
    )


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


def chart_words(name: str, who: str, kept: int, rows: int, marks: list[float]) -> str:
    """Returns what a screen reader says of a histogram."""
    cuts = f"; cut at {' and '.join(number(mark) for mark in marks)}" if marks else ""
    return f"Histogram of {name} over the pool; {who} keeps {count(kept)} pairs, {share(kept, rows)}{cuts}"
