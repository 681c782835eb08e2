"""The shapes of the page's charts: SVG without text, so that it stretches to any width; labels are HTML around it.

A shape is a dictionary of SVG attributes: a path has `d`, a line `x1`, `x2`, `y1` and `y2`; both have a `class`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.reports.distributions import Histogram
from tamis.reports.formats import fixed

Shapes = list[dict[str, Any]]

#: A subset's line joins adjacent bars until they hold this many pairs: the share of three pairs is noise.
JOINED = 12


def histogram_shapes(histogram: Histogram, marks: Sequence[Sequence[float]], colours: Sequence[str]) -> Shapes:
    """Returns the pool's bars, then for each subset a line (the share it keeps of each bar) and its thresholds `marks`.

    Bars come twice, by rows and by log(1 + rows); the page shows one.
    """
    edges = histogram.edges
    start, width = float(edges[0]), float(edges[-1] - edges[0])
    places = 100 * (edges - start) / width
    shapes: Shapes = []
    for scale, heights in (("lin", histogram.pool.astype(np.float64)), ("log", np.log1p(histogram.pool))):
        top = float(heights.max(initial=0)) or 1.0
        shapes.append({"class": f"pool {scale}", "d": _bars(places, heights / top)})
    starts = _steps(histogram, [mark for each in marks for mark in each])
    rows, ends = np.add.reduceat(histogram.pool, starts), places[[*starts, -1]]
    for colour, kept, cuts in zip(colours, histogram.kept, marks, strict=True):
        shares = np.add.reduceat(kept, starts) / np.maximum(rows, 1)
        shapes.append({"class": f"share {colour}", "d": _line(ends, shares, rows > 0)})
        shapes += [_upright(f"cut {colour}", 100 * min(1.0, max(0.0, (cut - start) / width))) for cut in cuts]
    return shapes


def _steps(histogram: Histogram, marks: Sequence[float]) -> list[int]:
    """Returns the first bar of each group of joined bars; a threshold ends a group."""
    cut = {int(np.searchsorted(histogram.edges, mark, side="right")) - 1 for mark in marks}
    starts, rows = [0], 0
    for bar, pairs in enumerate(histogram.pool):
        if bar and (rows >= JOINED or bar in cut or bar - 1 in cut):
            starts.append(bar)
            rows = 0
        rows += int(pairs)
    return starts


def _bars(places: NDArray[np.float64], heights: NDArray[np.float64]) -> str:
    """Returns the outlines of the bars; a bar with rows is high enough to be seen."""
    return "".join(
        f"M{left:.2f} 100V{100 - max(1.2, 97 * float(height)):.2f}H{right:.2f}V100Z"
        for left, right, height in zip(places[:-1], places[1:], heights, strict=True)
        if height > 0
    )


def _line(places: NDArray[np.float64], shares: NDArray[np.float64], present: NDArray[np.bool_]) -> str:
    """Returns a stepped line with gaps where there are no rows."""
    moves, drawn = [], False
    for left, right, share, some in zip(places[:-1], places[1:], shares, present, strict=True):
        if some:
            y = f"{100 - 97 * float(share):.2f}"
            moves.append(f"V{y}H{right:.2f}" if drawn else f"M{left:.2f} {y}H{right:.2f}")
        drawn = bool(some)
    return "".join(moves)


def _upright(class_: str, x: float, top: int = 0, foot: int = 100) -> dict[str, Any]:
    return {"class": class_, "x1": f"{x:.2f}", "x2": f"{x:.2f}", "y1": top, "y2": foot}


def interval_shapes(
    estimate: Mapping[str, float], column: Sequence[Mapping[str, float] | None], mark: float | None
) -> Shapes:
    """Draws an estimate with its interval, on one scale for all intervals of a `column`.

    `mark`: value of a dashed line, such as 0 for differences; None for no line.
    """
    ends = [end for each in column if each for end in (each["low"], each["high"])] + ([] if mark is None else [mark])
    start, width = min(ends), (max(ends) - min(ends)) or 1.0

    def position(value: float) -> float:
        return 2 + 96 * (value - start) / width

    left, right = position(estimate["low"]), position(estimate["high"])
    shapes: Shapes = [{"class": "range", "x1": f"{left:.2f}", "x2": f"{right:.2f}", "y1": 50, "y2": 50}]
    shapes += [_upright("range", x, 30, 70) for x in (left, right)]
    shapes.append(_upright("point", position(estimate["value"]), 8, 92))
    return shapes if mark is None else [*shapes, _upright("cut", position(mark))]


def axis(values: Sequence[float], *, log: bool = False, turned: bool = False) -> Callable[[float], float]:
    """Returns what gives a value's place on an axis with room for all `values`; `turned`: the highest comes first."""
    shape = math.log if log else float
    ends = [shape(min(values)), shape(max(values))]
    return lambda value: round(float(np.interp(shape(value), ends, (96, 4) if turned else (4, 96))), 2)


def ticks(values: Sequence[float], place: Callable[[float], float]) -> list[tuple[float, str]]:
    """Returns at most nine round numbers within `values`: the place and the text of each."""
    low, high = min(values), max(values)
    rough = ((high - low) or 1.0) / 8
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    found = [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(place(value), fixed(value + 0.0, f".{digits}f")) for value in found]


def curve_shapes(class_: str, points: Sequence[tuple[float, float, float]], y: Callable[[float], float]) -> Shapes:
    """Returns a line through points (x, mean, standard error), each with a dot and a bar; `y`: the place of a mean."""
    line = "L".join(f"{x:.2f} {y(mean):.2f}" for x, mean, _ in points)
    shapes: Shapes = [{"class": f"share {class_}", "d": f"M{line}"}]
    for x, mean, error in points:
        shapes.append({"class": f"range {class_}", "x1": x, "x2": x, "y1": y(mean + error), "y2": y(mean - error)})
        shapes.append({"class": f"dot {class_}", "d": f"M{x:.2f} {y(mean):.2f}h.01"})  # round on any scale
    return shapes


def area(class_: str, left: float, right: float, top: float = 0) -> dict[str, Any]:
    """Returns a rectangle that reaches down to the axis."""
    return {"class": class_, "d": f"M{left:.2f} {top:.2f}H{right:.2f}V100H{left:.2f}Z"}


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Returns places in [0, 100] for labels: near the given ones and in their order, but at least a `gap` apart."""
    order, steps = np.argsort(places, kind="stable"), gap * np.arange(len(places))
    free, found = np.array(places)[order] - steps, np.empty(len(places))
    middle = (np.maximum.accumulate(free) + np.minimum.accumulate(free[::-1])[::-1]) / 2  # pushed down, pushed up
    found[order] = np.clip(middle, 0, 100 - steps[-1]) + steps
    return [round(place, 2) for place in found.tolist()]
