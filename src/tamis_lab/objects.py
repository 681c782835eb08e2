"""Draws each object class on a page of 100 by 100 units.

Most of an object has the given colour, so that "a blue teapot" is clearly blue; parts with fixed colours (wheels, wood,
leaves) are small. Animals and vehicles face right. Objects stand at the bottom of the page. Most are lists of shapes in
objects.yaml; objects with calculated shapes have a function here.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from math import cos, pi, sin
from typing import Any

from tamis_lab.pen import Pen, Shades, at
from tamis_lab.world import RGB, table

_FILE = table("objects.yaml")
_PALETTE: Mapping[str, RGB] = _FILE["palette"]

#: Shapes that take points; the others take coordinates as numbers.
_OF_POINTS = ("poly", "blob", "stroke", "curve")


def _draw(name: str, pen: Pen, colours: Shades) -> None:
    fills = {**_PALETTE, **vars(colours), **contrasts(colours)}
    for shape, colour, numbers in _shapes(name):
        fill = fills.get(colour) or tuple(int(channel) for channel in colour.split("/"))
        getattr(pen, shape)(fill, *numbers)


@cache
def _shapes(name: str) -> list[tuple[str, str, list[Any]]]:
    """Reads an object's shapes: (method of the pen, colour, the method's other arguments)."""
    shapes = []
    for line in _FILE["drawings"][name]:
        drawn, _, moves = line.partition(" + ")
        shape, colour, *words = drawn.split()
        for dx, dy in ((0.0, 0.0), *at(moves)):
            numbers: list[Any] = []
            for word in words:
                if "," not in word:
                    numbers.append(float(word))
                    continue
                ((x, y),) = at(word)
                numbers += [(x + dx, y + dy)] if shape in _OF_POINTS else [x + dx, y + dy]
            shapes.append((shape, colour, numbers))
    return shapes


def contrasts(colours: Shades) -> dict[str, RGB]:
    """Colours of parts that must differ from the object's colour."""
    red, green, blue = colours.base
    return {
        "collar": (220, 60, 60) if red < 180 else (50, 90, 190),
        "middle": (110, 66, 32) if red > 235 and 190 < green < 240 else (250, 200, 50),  # in a flower
        "band": (60, 50, 54) if red + green + blue > 200 else (190, 60, 60),  # on a hat
        "seed": (255, 226, 130) if blue < 120 or red < 200 else (120, 90, 40),
        "dot": colours.dark if blue > 240 and red > 240 else (255, 255, 255),  # on a mushroom
    }


def flower(pen: Pen, c: Shades) -> None:
    pen.curve(_PALETTE["leaf"], 5, (50, 40), (51, 70), (48, 96))
    pen.blob(_PALETTE["leaf"], (49, 84), (64, 68), (80, 66), (70, 82))
    pen.blob(_PALETTE["leaf"], (49, 90), (36, 74), (20, 72), (30, 87))
    for i in range(8):
        a = 2 * pi * (i + 0.5) / 8
        pen.oval(c.base, 50 + 20 * cos(a), 32 + 20 * sin(a), 15, 9.5, a * 180 / pi)
    for i in range(8):
        a = 2 * pi * (i + 0.5) / 8
        pen.stroke(c.dark, 2, (50 + 12 * cos(a), 32 + 12 * sin(a)), (50 + 26 * cos(a), 32 + 26 * sin(a)))
        pen.stroke(
            c.dark,
            2,
            (50 + 12 * cos(a + 0.39), 32 + 12 * sin(a + 0.39)),
            (50 + 24 * cos(a + 0.39), 32 + 24 * sin(a + 0.39)),
        )
    pen.disc(contrasts(c)["middle"], 50, 32, 9.5)
    pen.disc((150, 92, 30), 50, 32, 5)


def bicycle(pen: Pen, c: Shades) -> None:
    for x in (22, 78):
        pen.arc(_PALETTE["tyre"], 4, x, 70, 20, 20, 0, 360)
        pen.arc(c.base, 4, x, 70, 16, 16, 0, 360)
        for k in range(4):
            a = k * pi / 4
            pen.stroke(_PALETTE["steel"], 1, (x - 14 * cos(a), 70 - 14 * sin(a)), (x + 14 * cos(a), 70 + 14 * sin(a)))
    pen.stroke(c.base, 7.5, (22, 70), (48, 72), (70, 38), (36, 40), (22, 70))
    pen.stroke(c.base, 7.5, (48, 72), (33, 28))
    pen.stroke(c.base, 7.5, (78, 70), (68, 28))
    pen.blob(_PALETTE["ink"], (22, 25), (34, 24), (44, 27), (34, 31))  # saddle
    pen.curve(_PALETTE["dark-steel"], 5, (68, 27), (78, 20), (86, 26), (80, 33))  # handlebar
    pen.disc(_PALETTE["dark-steel"], 48, 72, 6)
    pen.stroke(_PALETTE["ink"], 3, (48, 72), (54, 84), (60, 84))


def clock(pen: Pen, c: Shades) -> None:
    pen.stroke(c.dark, 7, (28, 84), (20, 94))
    pen.stroke(c.dark, 7, (72, 84), (80, 94))
    pen.stroke(_PALETTE["dark-steel"], 4, (50, 20), (50, 6))
    pen.pie(c.base, 26, 22, 16, 14, 140, 320)  # bells
    pen.pie(c.base, 74, 22, 16, 14, 220, 400)
    pen.disc(c.base, 50, 55, 39)
    pen.disc(_PALETTE["cream"], 50, 55, 24)
    for k in range(12):
        a = k * pi / 6
        pen.disc(_PALETTE["ink"], 50 + 20 * cos(a), 55 + 20 * sin(a), 1.7 if k % 3 else 2.5)
    pen.stroke(_PALETTE["ink"], 3, (50, 55), (50, 40))
    pen.stroke(_PALETTE["ink"], 3, (50, 55), (61, 61))


def pencil(pen: Pen, c: Shades) -> None:
    # Drawn along the diagonal: (1, -1) / sqrt 2 is forwards.
    def at(along: float, across: float) -> tuple[float, float]:
        return (6 + 0.7071 * (along + across) + 4, 94 - 0.7071 * (along - across) - 4)

    def band(fill: RGB, start: float, end: float, low: float, high: float) -> None:
        pen.poly(fill, at(start, low), at(end, low), at(end, high), at(start, high))

    pen.poly((236, 200, 150), at(0, 0), at(22, -11), at(22, 11))
    pen.poly(_PALETTE["ink"], at(0, 0), at(8, -4), at(8, 4))
    band(c.base, 22, 96, -11, 11)
    band(c.light, 22, 96, -11, -7)
    band(c.dark, 22, 96, 7, 11)
    band(_PALETTE["steel"], 96, 104, -11, 11)
    band((244, 150, 160), 104, 116, -11, 11)


def snail(pen: Pen, c: Shades) -> None:
    pen.stroke(_PALETTE["skin"], 3.4, (82, 58), (80, 34))
    pen.stroke(_PALETTE["skin"], 3.4, (88, 58), (94, 36))
    pen.disc(_PALETTE["ink"], 80, 33, 3.4)
    pen.disc(_PALETTE["ink"], 94, 35, 3.4)
    pen.blob(_PALETTE["skin"], *at("3,93 22,80 60,82 74,74 76,56 88,50 97,60 95,82 82,95 40,95"))
    pen.stroke((150, 110, 80), 1.8, (95, 70), (88, 72))
    pen.disc(c.base, 42, 52, 36)
    spiral = [(42 + (30 - 2.1 * k) * cos(0.5 + 0.62 * k), 52 + (30 - 2.1 * k) * sin(0.5 + 0.62 * k)) for k in range(14)]
    pen.curve(c.dark, 4.6, *spiral)


DRAWINGS: dict[str, Callable[[Pen, Shades], None]] = {
    **{name: partial(_draw, name) for name in _FILE["drawings"]},
    **{drawing.__name__: drawing for drawing in (flower, bicycle, clock, pencil, snail)},
}
