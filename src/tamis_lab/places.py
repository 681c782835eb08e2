"""Draws the places, with one function each, on a page of 100 by 100 units.

Places are paler than objects and have no outlines, so that they are not mistaken for objects: the trees of the forest
are bare trunks and needles, unlike the class "tree". Every place has ground from about 62 units downwards.
"""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from tamis_lab.pen import Pen, blend
from tamis_lab.world import RGB

_SHADES_OF_TREE: tuple[RGB, ...] = ((120, 164, 128), (98, 146, 110), (78, 126, 92))


def gradient(width: int, height: int, colours: Sequence[RGB]) -> Image.Image:
    """Returns an image that fades through the colours from top to bottom, evenly spaced."""
    rows = np.linspace(0, len(colours) - 1, height)
    channels = [np.interp(rows, range(len(colours)), [c[k] for c in colours]) for k in range(3)]
    column = np.stack(channels, axis=-1).astype(np.uint8)  # (height, 3)
    return Image.fromarray(column[:, None]).resize((width, height), Image.Resampling.NEAREST)


def _hills(pen: Pen, rng: np.random.Generator, fill: RGB, top: float, height: float) -> None:
    """A smooth ridge between `top` and `top + height`, filled downwards."""
    n = 5
    ys = top + height * rng.random(n + 1)
    points = [(-20 + 140 * i / n, float(y)) for i, y in enumerate(ys)]
    pen.blob(fill, *points, (130, 110), (-30, 110))


def _cloud(pen: Pen, x: float, y: float, size: float, fill: RGB = (255, 255, 255)) -> None:
    for dx, dy, r in ((-9, 1, 5), (0, -2, 7), (9, 1, 5), (0, 3, 6)):
        pen.oval(fill, x + dx * size, y + dy * size, r * size * 1.2, r * size * 0.75)


def _clouds(pen: Pen, rng: np.random.Generator) -> None:
    for _ in range(int(rng.integers(1, 4))):
        _cloud(pen, float(rng.uniform(5, 95)), float(rng.uniform(6, 26)), float(rng.uniform(0.5, 1.0)))


def beach(pen: Pen, rng: np.random.Generator) -> None:
    _clouds(pen, rng)
    pen.disc((255, 243, 176), float(rng.uniform(10, 90)), 14, 7)
    shore = float(rng.uniform(56, 62))
    pen.box((98, 186, 214), -5, 40, 105, 80)
    for y in (45, 51):
        x = float(rng.uniform(5, 70))
        pen.stroke((150, 212, 230), 1.2, (x, y), (x + 18, y))
    pen.blob(
        (244, 250, 250), (-20, shore - 2), (25, shore - 4), (60, shore + 1), (120, shore - 5), (130, 120), (-30, 120)
    )
    pen.blob(
        (242, 221, 172), (-20, shore + 1), (25, shore - 1), (60, shore + 4), (120, shore - 2), (130, 120), (-30, 120)
    )
    for _ in range(9):
        pen.oval((226, 200, 148), float(rng.uniform(2, 98)), float(rng.uniform(68, 99)), 1.6, 0.7)


def forest(pen: Pen, rng: np.random.Generator) -> None:
    for row, fill in enumerate(_SHADES_OF_TREE):
        for i in range(6 - row):
            x = (i + 0.5 + float(rng.uniform(-0.3, 0.3))) * 100 / (6 - row)
            w, foot = 9 + 3 * row, 60 + 3 * row
            top = float(rng.uniform(4, 20))
            pen.box((134, 112, 90), x - 1.5, foot - 8, x + 1.5, foot + 4)
            for k in range(3):
                y = top + (foot - top) * k / 3.4
                pen.poly(fill, (x, y - 4), (x - w * (0.5 + 0.25 * k), y + 20), (x + w * (0.5 + 0.25 * k), y + 20))
    pen.blob((146, 170, 108), (-20, 66), (30, 62), (70, 66), (120, 62), (130, 120), (-30, 120))
    for _ in range(14):
        x, y = float(rng.uniform(0, 100)), float(rng.uniform(68, 99))
        pen.stroke((120, 148, 88), 0.9, (x, y), (x + 1, y - 3))


def street(pen: Pen, rng: np.random.Generator) -> None:
    walls: tuple[RGB, ...] = ((222, 190, 170), (206, 206, 198), (214, 178, 152), (196, 204, 214), (230, 214, 180))
    x = -float(rng.uniform(0, 14))
    while x < 100:
        w, top = float(rng.uniform(20, 30)), float(rng.uniform(4, 24))
        wall = walls[int(rng.integers(len(walls)))]
        pen.box(wall, x, top, x + w, 66)
        pen.box(blend(wall, (0, 0, 0), 0.12), x, top, x + w, top + 2.5)
        pane: RGB = blend(wall, (120, 150, 180), 0.6)
        for row in range(4):
            for col in range(3):
                x0 = x + 2.5 + col * (w - 4) / 3
                pen.box(pane, x0, top + 6 + row * 11, x0 + (w - 4) / 3 - 2, top + 13 + row * 11)
        x += w + 0.6
    pen.box((200, 198, 194), -5, 60, 105, 68)
    pen.box((176, 174, 172), -5, 67, 105, 69)
    pen.box((150, 152, 158), -5, 69, 105, 105)
    shift = float(rng.uniform(0, 20))
    for i in range(6):
        pen.box((236, 236, 226), i * 22 - shift, 84, i * 22 - shift + 11, 86.5)


def kitchen(pen: Pen, rng: np.random.Generator) -> None:
    tile: RGB = (226, 236, 236)
    shift = float(rng.uniform(0, 10))
    for row in range(0, 64, 11):
        pen.stroke(tile, 0.9, (-5, row), (105, row))
    for i in range(12):
        pen.stroke(tile, 0.9, (i * 11 - shift, 0), (i * 11 - shift, 64))
    front: RGB = ((214, 186, 150), (176, 202, 196), (206, 206, 216))[int(rng.integers(3))]
    for x0, x1 in ((-2, 30), (70, 102)):
        pen.box(front, x0, -4, x1, 24, 1)
        pen.box(blend(front, (255, 255, 255), 0.3), x0 + 3, 1, x1 - 3, 20, 1)
        pen.disc((140, 140, 146), x1 - 5 if x0 < 50 else x0 + 5, 15, 1.3)
    pen.box((238, 246, 250), 36, 2, 64, 26, 1)  # window
    pen.box((190, 222, 242), 38, 4, 62, 24)
    pen.stroke((238, 246, 250), 1.6, (50, 3), (50, 25))
    pen.box((186, 142, 100), -5, 61, 105, 66)  # table
    pen.box((206, 164, 120), -5, 65, 105, 105)
    for _ in range(6):
        x, y = float(rng.uniform(-5, 80)), float(rng.uniform(70, 98))
        pen.stroke((192, 148, 104), 0.8, (x, y), (x + 22, y + 0.6))


def snow(pen: Pen, rng: np.random.Generator) -> None:
    _hills(pen, rng, (196, 212, 228), 42, 10)
    for _ in range(6):
        x, y = float(rng.uniform(0, 100)), float(rng.uniform(50, 60))
        for k in range(3):
            w = 2.5 + 1.5 * k
            pen.poly((132, 164, 162), (x, y - 14 + 4 * k), (x - w, y - 6 + 4 * k), (x + w, y - 6 + 4 * k))
    _hills(pen, rng, (232, 239, 246), 56, 6)
    pen.blob((243, 247, 251), (-20, 74), (30, 68), (70, 74), (120, 68), (130, 120), (-30, 120))
    for _ in range(26):
        pen.disc((255, 255, 255), float(rng.uniform(0, 100)), float(rng.uniform(0, 66)), float(rng.uniform(0.5, 1.1)))


def desert(pen: Pen, rng: np.random.Generator) -> None:
    pen.disc((255, 246, 206), float(rng.uniform(12, 88)), 16, 8)
    _hills(pen, rng, (226, 172, 118), 44, 14)
    _hills(pen, rng, (236, 188, 128), 54, 10)
    x = float(rng.uniform(20, 80))
    pen.poly((214, 160, 104), (x, 58), (x + 30, 66), (x - 20, 66))
    pen.blob((243, 203, 146), (-20, 68), (30, 62), (70, 68), (120, 62), (130, 120), (-30, 120))
    for _ in range(5):
        x, y = float(rng.uniform(-5, 80)), float(rng.uniform(72, 97))
        pen.curve((226, 180, 120), 1.0, (x, y), (x + 9, y - 1.6), (x + 18, y), (x + 27, y - 1.6))


def night(pen: Pen, rng: np.random.Generator) -> None:
    for _ in range(30):
        pen.disc((236, 236, 210), float(rng.uniform(0, 100)), float(rng.uniform(0, 62)), float(rng.uniform(0.3, 0.9)))
    x = float(rng.uniform(12, 88))
    pen.disc((250, 244, 208), x, 14, 8)
    pen.disc((24, 30, 66), x + 4, 12, 7)
    _hills(pen, rng, (34, 44, 84), 54, 10)
    pen.blob((48, 62, 92), (-20, 72), (30, 66), (70, 72), (120, 66), (130, 120), (-30, 120))


def meadow(pen: Pen, rng: np.random.Generator) -> None:
    _clouds(pen, rng)
    _hills(pen, rng, (166, 208, 134), 48, 10)
    pen.blob((144, 198, 108), (-20, 64), (30, 58), (70, 63), (120, 58), (130, 120), (-30, 120))
    for _ in range(24):
        x, y = float(rng.uniform(0, 100)), float(rng.uniform(66, 99))
        pen.stroke((116, 174, 84), 0.9, (x, y), (x + 0.8, y - 3.4))
    for _ in range(10):
        x, y = float(rng.uniform(0, 100)), float(rng.uniform(66, 99))
        pen.disc((250, 250, 236), x, y, 1.0)


def mountains(pen: Pen, rng: np.random.Generator) -> None:
    for base, fill, low, high in ((62, (174, 186, 206), 10, 24), (66, (146, 160, 186), 20, 36)):
        for i in range(3):
            x = (i + 0.5 + float(rng.uniform(-0.35, 0.35))) * 34
            top, w = float(rng.uniform(low, high)), float(rng.uniform(26, 36))
            pen.poly(fill, (x, top), (x + w, base), (x - w, base))
            t = 0.32
            pen.poly(
                (246, 248, 252), (x, top), (x + w * t, top + (base - top) * t),
                (x + w * 0.1, top + (base - top) * 0.24), (x - w * 0.1, top + (base - top) * 0.34),
                (x - w * t, top + (base - top) * t),
            )  # fmt: skip
    pen.blob((166, 190, 140), (-20, 64), (30, 61), (70, 65), (120, 61), (130, 120), (-30, 120))
    for _ in range(8):
        pen.oval((158, 160, 156), float(rng.uniform(0, 100)), float(rng.uniform(70, 99)), 2.4, 1.3)


def living_room(pen: Pen, rng: np.random.Generator) -> None:
    stripe: RGB = ((226, 206, 190), (208, 216, 204), (222, 208, 224))[int(rng.integers(3))]
    for i in range(8):
        pen.box(stripe, i * 14, -5, i * 14 + 6, 64)
    x = float(rng.uniform(8, 60))
    pen.box((170, 132, 96), x, 8, x + 26, 30)  # an image on the wall
    pen.box((240, 240, 230), x + 2.4, 10.4, x + 23.6, 27.6)
    pen.poly((178, 196, 186), (x + 3, 27), (x + 11, 17), (x + 17, 23), (x + 20, 20), (x + 23, 27))
    pen.box((250, 248, 244), -5, 61, 105, 65)
    pen.box((204, 168, 132), -5, 65, 105, 105)
    for y in (72, 81, 91):
        pen.stroke((186, 150, 114), 0.8, (-5, y), (105, y))
    rug: RGB = ((208, 150, 146), (150, 172, 196), (176, 190, 150))[int(rng.integers(3))]
    pen.oval(rug, 50, 88, 46, 11)
    pen.oval(blend(rug, (255, 255, 255), 0.3), 50, 88, 40, 8.5)


def library(pen: Pen, rng: np.random.Generator) -> None:
    spines: tuple[RGB, ...] = ((190, 140, 128), (148, 160, 150), (150, 152, 176), (206, 184, 142), (172, 150, 136))
    pen.box((146, 112, 84), -5, -5, 105, 66)
    for shelf in range(3):
        y, x = 1 + shelf * 21, -float(rng.uniform(0, 4))
        pen.box((118, 90, 68), -5, y, 105, y + 17)
        while x < 100:
            w, h = float(rng.uniform(3, 6)), float(rng.uniform(11, 15.5))
            pen.box(spines[int(rng.integers(len(spines)))], x, y + 17 - h, x + w - 0.5, y + 17)
            x += w
    pen.box((196, 176, 156), -5, 64, 105, 105)
    pen.box((176, 152, 130), -5, 64, 105, 66)
    for foot in range(-10, 110, 20):
        pen.stroke((182, 160, 140), 0.8, (foot, 105), (30 + foot * 0.4, 66))


def lake(pen: Pen, rng: np.random.Generator) -> None:
    _clouds(pen, rng)
    _hills(pen, rng, (150, 184, 168), 34, 8)
    pen.box((128, 178, 206), -5, 46, 105, 80)
    for _ in range(7):
        x, y = float(rng.uniform(0, 85)), float(rng.uniform(48, 62))
        pen.stroke((176, 210, 228), 0.9, (x, y), (x + 12, y))
    pen.blob((186, 196, 142), (-20, 68), (30, 62), (70, 67), (120, 62), (130, 120), (-30, 120))
    for side in (4, 92):
        for k in range(5):
            x = side + 1.4 * k
            pen.stroke((112, 144, 88), 1.0, (x, 72), (x + (k - 2) * 1.2, 48 + 3 * abs(k - 2)))
    for _ in range(7):
        pen.oval((206, 206, 190), float(rng.uniform(0, 100)), float(rng.uniform(72, 99)), 2.2, 1.1)


# (function, colours of the background from top to bottom)
BACKDROPS: dict[str, tuple[Callable[[Pen, np.random.Generator], None], tuple[RGB, ...]]] = {
    "beach": (beach, ((150, 208, 240), (214, 236, 246), (230, 240, 240))),
    "forest": (forest, ((196, 220, 206), (168, 200, 178), (140, 176, 150))),
    "street": (street, ((192, 214, 234), (222, 230, 238))),
    "kitchen": (kitchen, ((250, 246, 234), (246, 240, 224))),
    "snow": (snow, ((176, 196, 218), (212, 224, 236), (230, 238, 244))),
    "desert": (desert, ((170, 212, 236), (238, 226, 200), (250, 226, 180))),
    "night": (night, ((14, 18, 48), (24, 30, 66), (46, 52, 96))),
    "meadow": (meadow, ((142, 202, 242), (206, 232, 246))),
    "mountains": (mountains, ((164, 202, 236), (220, 234, 244))),
    "living room": (living_room, ((242, 228, 212), (236, 222, 206))),
    "library": (library, ((146, 112, 84), (146, 112, 84))),
    "lake": (lake, ((172, 212, 240), (226, 240, 246))),
}
