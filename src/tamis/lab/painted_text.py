"""Text on images as on the web: bands, plates, outlines, shadows, sometimes slanted or turned."""

from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, sin
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tamis.lab.pen import Point
from tamis.lab.world import RGB

Quad = tuple[Point, Point, Point, Point]
Where = Literal["top", "middle", "bottom", "anywhere"]

# Drawn this many times larger and averaged, so that turned and slanted letters stay smooth.
_LARGER = 2
# In pixels at 128; the capitals of Pillow's own font are 0.7 of it, so never below 9.1 pixels.
_SMALLEST, _LARGEST = 13.0, 19.0

# (letters, what is behind or around them): pairs with a luminance contrast of at least 4.5 to 1.
PAIRS: tuple[tuple[RGB, RGB], ...] = (
    ((255, 255, 255), (20, 20, 24)),
    ((20, 20, 24), (255, 255, 255)),
    ((255, 255, 255), (176, 24, 34)),
    ((255, 232, 60), (24, 34, 90)),
    ((24, 34, 90), (255, 236, 130)),
    ((255, 255, 255), (24, 92, 60)),
    ((120, 12, 40), (252, 236, 214)),
    ((255, 255, 255), (70, 40, 120)),
    ((20, 50, 110), (222, 238, 250)),
    ((255, 214, 90), (52, 34, 26)),
)


@dataclass(frozen=True)
class PaintedText:
    """An image with text on it."""

    image: Image.Image
    lines: tuple[str, ...]  # the words as painted (perhaps in capitals, perhaps not all)
    quads: tuple[Quad, ...]  # of each line the four corners around its letters, clockwise from the top left, in pixels

    @property
    def text(self) -> str:
        """The painted words; "" where there are none."""
        return " ".join(self.lines)


def paint_text(
    image: Image.Image, text: str, rng: np.random.Generator, *, where: Where = "anywhere", most_lines: int = 2
) -> PaintedText:
    """Paints the text on a copy of the image, as large as fits in `most_lines` lines.

    If even the smallest readable letters need more lines, the text ends after the last word that fits.
    """
    words = text.split()
    if not words or min(image.size) < 96:
        raise ValueError(f"need words and an image of at least 96 pixels a side, got {text!r} on {image.size}")
    unit = min(image.size) / 128
    # Only short texts: a sentence in capitals would need too many lines.
    if len(text) <= 22 and rng.random() < 0.3:
        words = [word.upper() for word in words]
    turn = float(rng.uniform(-6, 6)) if rng.random() < 0.3 else 0.0
    slant = 0.22 if rng.random() < 0.2 else 0.0
    bold = bool(rng.random() < 0.5)
    style = ("band", "plate", "outline", "shadow")[int(rng.integers(4))]
    # Long texts stay small, or they would hide the image.
    wanted = float(rng.uniform(_SMALLEST + 1, _LARGEST if most_lines <= 2 else _LARGEST - 3.5))
    colour, around = PAIRS[int(rng.integers(len(PAIRS)))]

    width = image.width * _LARGER - (24 if turn or slant else 12) * unit * _LARGER
    # Only a word longer than a line makes letters smaller than the smallest size.
    longest = max(font_of(100).getlength(word) for word in words) / 100
    size = min(wanted, width / longest / (unit * _LARGER) * 0.98)
    while True:
        font = font_of(max(1, round(size * unit * _LARGER)))
        lines = _wrapped(words, font, width)
        if len(lines) <= most_lines or size <= _SMALLEST:
            break
        size = max(_SMALLEST, size - 1.5)
    lines = lines[:most_lines]

    block = _Block(lines, font, centred=bool(rng.random() < 0.7))
    placed = _Placement(block, image.size, rng, where=where, turn=turn, slant=slant)
    stroke = max(1, round(0.45 * unit * _LARGER)) if bold else 0
    canvas = image.copy()
    if style in ("band", "plate"):
        _paste(canvas, around, placed.plate(band=style == "band"), opacity=float(rng.uniform(0.82, 1.0)))
    elif style == "outline":
        _paste(canvas, around, placed.letters(stroke + round(2.0 * unit * _LARGER)))
    else:
        # A shadow alone is unreadable on a busy place, so a thin line surrounds the letters.
        _paste(canvas, around, placed.letters(stroke + round(0.9 * unit * _LARGER)))
        _paste(canvas, around, placed.letters(stroke, shift=1.6 * unit * _LARGER))
    _paste(canvas, colour, placed.letters(stroke))
    return PaintedText(canvas, tuple(lines), placed.quads(margin=stroke + _LARGER))


class _Block:
    """Lines of text on a page of their own, in enlarged pixels."""

    def __init__(self, lines: list[str], font: ImageFont.FreeTypeFont, *, centred: bool) -> None:
        self.lines, self.font = lines, font
        ascent, descent = font.getmetrics()
        self.leading = (ascent + descent) * 0.98
        lengths = [font.getlength(line) for line in lines]
        self.width, self.height = max(lengths), self.leading * len(lines)
        # Top left corner of each line.
        self.starts = [
            ((self.width - length) / 2 if centred else 0.0, i * self.leading) for i, length in enumerate(lengths)
        ]


class _Placement:
    """The position of a block on the image: a slant and a turn about its centre, then a shift."""

    def __init__(
        self, block: _Block, size: tuple[int, int], rng: np.random.Generator, *, where: Where, turn: float, slant: float
    ) -> None:
        self.block, self.size = block, size
        self.canvas = (size[0] * _LARGER, size[1] * _LARGER)
        c, s = cos(turn * pi / 180), sin(turn * pi / 180)
        # Columns of the matrix that takes block coordinates (about its centre) to the canvas.
        self.xx, self.xy, self.yx, self.yy = c, -s - slant * c, s, c - slant * s
        self.straight = turn == 0 and slant == 0
        half_w = (abs(self.xx) * block.width + abs(self.xy) * block.height) / 2 + 4 * _LARGER
        half_h = (abs(self.yx) * block.width + abs(self.yy) * block.height) / 2 + 3 * _LARGER
        free_x, free_y = max(0.0, self.canvas[0] / 2 - half_w), max(0.0, self.canvas[1] / 2 - half_h)
        along = {"top": (-1.0, -0.8), "middle": (-0.25, 0.25), "bottom": (0.8, 1.0), "anywhere": (-1.0, 1.0)}[where]
        self.x = self.canvas[0] / 2 + float(rng.uniform(-1, 1)) * free_x
        self.y = self.canvas[1] / 2 + float(rng.uniform(*along)) * free_y

    def at(self, x: float, y: float) -> Point:
        """From block coordinates to the canvas."""
        dx, dy = x - self.block.width / 2, y - self.block.height / 2
        return self.x + self.xx * dx + self.xy * dy, self.y + self.yx * dx + self.yy * dy

    def letters(self, stroke: int, shift: float = 0.0) -> Image.Image:
        """A mask of the letters, thickened by `stroke`, at the image's own size."""
        mask = Image.new("L", self.canvas)
        draw = ImageDraw.Draw(mask)
        if self.straight:
            x0, y0 = self.at(0, 0)
            for line, (x, y) in zip(self.block.lines, self.block.starts, strict=True):
                at = (x0 + x + shift, y0 + y + shift)
                draw.text(at, line, fill=255, font=self.block.font, stroke_width=stroke)
            return mask.reduce(_LARGER)
        # Drawn upright about the canvas's centre, then slanted and turned; Pillow wants the inverse map.
        left, top = (self.canvas[0] - self.block.width) / 2, (self.canvas[1] - self.block.height) / 2
        for line, (x, y) in zip(self.block.lines, self.block.starts, strict=True):
            draw.text((left + x, top + y), line, fill=255, font=self.block.font, stroke_width=stroke)
        det = self.xx * self.yy - self.xy * self.yx
        a, b, d, e = self.yy / det, -self.xy / det, -self.yx / det, self.xx / det
        cx, cy, x0, y0 = self.canvas[0] / 2, self.canvas[1] / 2, self.x + shift, self.y + shift
        inverse = (a, b, cx - a * x0 - b * y0, d, e, cy - d * x0 - e * y0)
        return mask.transform(self.canvas, Image.Transform.AFFINE, inverse, resample=Image.Resampling.BILINEAR).reduce(
            _LARGER
        )

    def plate(self, *, band: bool) -> Image.Image:
        """A mask of the area behind the block: around it, or a band across the whole image."""
        mask = Image.new("L", self.canvas)
        dx, dy = (self.canvas[0], 1.5 * _LARGER) if band else (3 * _LARGER, 1.5 * _LARGER)
        w, h = self.block.width, self.block.height
        corners = [self.at(-dx, -dy), self.at(w + dx, -dy), self.at(w + dx, h + dy), self.at(-dx, h + dy)]
        ImageDraw.Draw(mask).polygon(corners, fill=255)
        return mask.reduce(_LARGER)

    def quads(self, margin: float) -> tuple[Quad, ...]:
        """Corners around the letters of each line, in pixels of the image, never outside it."""
        out: list[Quad] = []
        for line, (x, y) in zip(self.block.lines, self.block.starts, strict=True):
            left, top, right, bottom = self.block.font.getbbox(line)
            x0, y0, x1, y1 = x + left - margin, y + top - margin, x + right + margin, y + bottom + margin
            out.append((self._pixel(x0, y0), self._pixel(x1, y0), self._pixel(x1, y1), self._pixel(x0, y1)))
        return tuple(out)

    def _pixel(self, x: float, y: float) -> Point:
        u, v = self.at(x, y)
        return (round(min(max(u / _LARGER, 0), self.size[0]), 1), round(min(max(v / _LARGER, 0), self.size[1]), 1))


@lru_cache(maxsize=64)
def font_of(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own font, the only one that is the same on every machine.

    With libraqm, which not every Pillow has, letters would be placed slightly differently.
    """
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "this Pillow was built without FreeType"
    return font.font_variant(layout_engine=ImageFont.Layout.BASIC)


def _wrapped(words: list[str], font: ImageFont.FreeTypeFont, width: float) -> list[str]:
    """Fills lines greedily; a word wider than a line gets its own."""
    lines: list[str] = []
    for word in words:
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _paste(canvas: Image.Image, colour: RGB, mask: Image.Image, opacity: float = 1.0) -> None:
    canvas.paste(
        colour, (0, 0, *canvas.size), mask if opacity >= 1 else mask.point([round(i * opacity) for i in range(256)])
    )
