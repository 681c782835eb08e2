"""A pen that draws on a page of 100 by 100 units, which is placed anywhere on the image."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, pi, sin

from PIL import ImageDraw

from tamis_lab.world import RGB

Point = tuple[float, float]

# 32 corners: at the largest radius (about 130 pixels before the reduction by three) the polygon is off by 0.6 pixels.
_CIRCLE: tuple[Point, ...] = tuple((cos(2 * pi * i / 32), sin(2 * pi * i / 32)) for i in range(32))
# Every other corner of each quarter, from the right by way of the bottom, for rounded boxes.
_QUARTERS: tuple[tuple[Point, ...], ...] = tuple(
    tuple(_CIRCLE[i % 32] for i in range(quarter * 8, quarter * 8 + 9, 2)) for quarter in range(4)
)


@dataclass(frozen=True)
class Shades:
    """A colour with its shadow, highlight and two contrasting colours."""

    base: RGB  # the colour of most of the object
    dark: RGB  # shadow; dark grey if the colour is black
    light: RGB  # highlight
    mark: RGB  # for details on top: dark, but light on black
    rim: RGB  # outline: dark, but light around black, which would vanish at night


def shades(colour: RGB) -> Shades:
    """Derive shadow, highlight, detail and outline colours from one colour."""
    brightness = (299 * colour[0] + 587 * colour[1] + 114 * colour[2]) / 1000
    if brightness < 55:  # black
        return Shades(
            base=colour,
            dark=blend(colour, (255, 255, 255), 0.16),
            light=blend(colour, (255, 255, 255), 0.28),
            mark=(205, 205, 210),
            rim=(225, 225, 230),
        )
    return Shades(
        base=colour,
        dark=blend(colour, (0, 0, 0), 0.17 if brightness > 225 else 0.24),
        light=blend(colour, (255, 255, 255), 0.3),
        mark=blend(colour, (0, 0, 0), 0.72),
        rim=blend(colour, (0, 0, 0), 0.72),
    )


@cache
def at(points: str) -> tuple[Point, ...]:
    """Parses points as in an SVG polygon: "x,y x,y"."""
    return tuple((float(x), float(y)) for x, y in (point.split(",") for point in points.split()))


def blend(a: RGB, b: RGB, share: float) -> RGB:
    """The colour `share` of the way from `a` to `b`."""
    return (
        round(a[0] + (b[0] - a[0]) * share),
        round(a[1] + (b[1] - a[1]) * share),
        round(a[2] + (b[2] - a[2]) * share),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """A filled polygon, or a thick line if it has a width. In pixels."""

    points: list[Point]
    fill: RGB
    width: float = 0.0
    smooth: bool = True


class Pen:
    """Collects shapes in units of its page (0 to 100, y downwards), then puts them on an image.

    `outline` draws every shape larger and in one colour, then `paint` draws the shapes on top. A line around the whole
    object remains, and none between its parts.

    Args:
        at: pixel position of the page's centre.
        scale: pixels per unit.
        turn: clockwise rotation in degrees.
        mirror: whether left and right are exchanged.
    """

    def __init__(self, *, at: Point, scale: float, turn: float = 0.0, mirror: bool = False) -> None:
        self._shapes: list[_Shape] = []
        self._scale = scale
        c, s = cos(turn * pi / 180) * scale, sin(turn * pi / 180) * scale
        flip = -1.0 if mirror else 1.0
        self._xx, self._xy, self._yx, self._yy = c * flip, -s, s * flip, c
        self._x0 = at[0] - 50 * self._xx - 50 * self._xy
        self._y0 = at[1] - 50 * self._yx - 50 * self._yy

    def paint(self, draw: ImageDraw.ImageDraw, gains: Sequence[float] = (1.0, 1.0, 1.0)) -> None:
        """Puts the shapes on the image, each colour channel multiplied by its gain."""
        tinted: dict[RGB, RGB] = {}
        for shape in self._shapes:
            fill = tinted.get(shape.fill)
            if fill is None:
                fill = tinted[shape.fill] = brighten(shape.fill, gains)
            if shape.width:
                _line(draw, shape.points, fill, shape.width)
            else:
                draw.polygon(shape.points, fill=fill)

    def outline(self, draw: ImageDraw.ImageDraw, colour: RGB, reach: float) -> None:
        """Puts the shapes on the image in one colour, `reach` pixels larger."""
        for shape in self._shapes:
            if shape.width:
                _line(draw, shape.points, colour, shape.width + 2 * reach)
                continue
            draw.polygon(shape.points, fill=colour)
            draw.line([*shape.points, shape.points[0]], fill=colour, width=max(1, round(2 * reach)))
            if not shape.smooth:  # wide lines leave notches at sharp corners
                for x, y in shape.points:
                    draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=colour)

    def _pixels(self, points: Sequence[Point]) -> list[Point]:
        xx, xy, yx, yy, x0, y0 = self._xx, self._xy, self._yx, self._yy, self._x0, self._y0
        return [(x0 + xx * x + xy * y, y0 + yx * x + yy * y) for x, y in points]

    def _fill(self, points: Sequence[Point], fill: RGB, *, smooth: bool) -> None:
        self._shapes.append(_Shape(self._pixels(points), fill, 0.0, smooth))

    def _circle(self, r: float) -> Sequence[Point]:
        return _CIRCLE if r * self._scale > 9 else _CIRCLE[::2]

    def poly(self, fill: RGB, *points: Point) -> None:
        """A polygon with sharp corners."""
        self._fill(points, fill, smooth=False)

    def box(self, fill: RGB, x0: float, y0: float, x1: float, y1: float, round_by: float = 0.0) -> None:
        """A rectangle, its corners rounded by `round_by` units."""
        if round_by <= 0:
            self.poly(fill, (x0, y0), (x1, y0), (x1, y1), (x0, y1))
            return
        r = min(round_by, (x1 - x0) / 2, (y1 - y0) / 2)
        points: list[Point] = []
        for quarter, (cx, cy) in enumerate(((x1 - r, y1 - r), (x0 + r, y1 - r), (x0 + r, y0 + r), (x1 - r, y0 + r))):
            points += [(cx + r * u, cy + r * v) for u, v in _QUARTERS[quarter]]
        self._fill(points, fill, smooth=True)

    def oval(self, fill: RGB, x: float, y: float, rx: float, ry: float, turn: float = 0.0) -> None:
        """An ellipse around (x, y), turned clockwise by `turn` degrees."""
        c, s = cos(turn * pi / 180), sin(turn * pi / 180)
        circle = self._circle(max(rx, ry))
        points = [(x + rx * u * c - ry * v * s, y + rx * u * s + ry * v * c) for u, v in circle]
        self._fill(points, fill, smooth=True)

    def disc(self, fill: RGB, x: float, y: float, r: float) -> None:
        """A circle around (x, y)."""
        self._fill([(x + r * u, y + r * v) for u, v in self._circle(r)], fill, smooth=True)

    def pie(self, fill: RGB, x: float, y: float, rx: float, ry: float, start: float, end: float) -> None:
        """The part of an ellipse between two angles (degrees, clockwise from the right), with its chord."""
        self._fill(_arc(x, y, rx, ry, start, end), fill, smooth=True)

    def blob(self, fill: RGB, *points: Point) -> None:
        """A closed smooth curve through the points (Catmull-Rom)."""
        self._fill(_smooth(points, closed=True), fill, smooth=True)

    def stroke(self, fill: RGB, width: float, *points: Point) -> None:
        """A thick line with round ends through the points."""
        self._shapes.append(_Shape(self._pixels(points), fill, max(1.0, width * self._scale)))

    def curve(self, fill: RGB, width: float, *points: Point) -> None:
        """A thick smooth line with round ends through the points (Catmull-Rom)."""
        self.stroke(fill, width, *_smooth(points, closed=False))

    def arc(self, fill: RGB, width: float, x: float, y: float, rx: float, ry: float, start: float, end: float) -> None:
        """A thick part of an ellipse between two angles (degrees, clockwise from the right)."""
        self.stroke(fill, width, *_arc(x, y, rx, ry, start, end))

    def eye(self, white: RGB, x: float, y: float, r: float) -> None:
        """An eye with a pupil, visible on any colour."""
        self.disc(white, x, y, r)
        self.disc((25, 25, 30), x + 0.2 * r, y, 0.62 * r)


def brighten(colour: RGB, gains: Sequence[float]) -> RGB:
    """The colour with each channel multiplied by its gain."""
    r, g, b = (min(255, round(channel * gain)) for channel, gain in zip(colour, gains, strict=True))
    return r, g, b


def _line(draw: ImageDraw.ImageDraw, points: list[Point], fill: RGB, width: float) -> None:
    """A line with round joints and ends."""
    draw.line(points, fill=fill, width=max(1, round(width)))
    if width >= 3:
        r = width / 2
        for x, y in points:
            draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)


def _arc(x: float, y: float, rx: float, ry: float, start: float, end: float) -> list[Point]:
    steps = max(3, round(abs(end - start) / 12))
    angles = [(start + (end - start) * i / steps) * pi / 180 for i in range(steps + 1)]
    return [(x + rx * cos(a), y + ry * sin(a)) for a in angles]


def _smooth(points: Sequence[Point], *, closed: bool) -> list[Point]:
    """Points along the Catmull-Rom curve through `points`, closer together where they are far apart."""
    n = len(points)
    out: list[Point] = []
    for i in range(n if closed else n - 1):
        x1, y1 = p1 = points[i]
        x2, y2 = p2 = points[(i + 1) % n]
        x0, y0 = points[i - 1] if closed or i > 0 else p1
        x3, y3 = points[(i + 2) % n] if closed or i + 2 < n else p2
        weights = _FINE if abs(x2 - x1) + abs(y2 - y1) > 14 else _COARSE
        out += [(a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3) for a, b, c, d in weights]
    if not closed:
        out.append(points[-1])
    return out


def _catmull_rom(steps: int) -> tuple[tuple[float, float, float, float], ...]:
    """Weights of the four nearest points at `steps` equal steps from the second to the third."""
    return tuple(
        (
            (-t + 2 * t * t - t**3) / 2,
            (2 - 5 * t * t + 3 * t**3) / 2,
            (t + 4 * t * t - 3 * t**3) / 2,
            (t**3 - t * t) / 2,
        )
        for t in (k / steps for k in range(steps))
    )


_COARSE, _FINE = _catmull_rom(3), _catmull_rom(6)
