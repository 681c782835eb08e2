"""Paints text as on web images: on bands and plates, with outlines or shadows, sometimes slanted or turned.

Also large titles and watermarks, which mislead T-MARS's text detectors. They look for lines of text and limit the
height of a region, so that they do not take a dog for a letter; so they miss a title. A watermark they may find,
although the image is fine.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import atan2, cos, degrees, pi, sin
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from tamis_lab.pen import Point
from tamis_lab.world import RGB, WATERMARKS

Quad = tuple[Point, Point, Point, Point]
Where = Literal["top", "middle", "bottom", "anywhere"]

# Of large text, by its look: letter height / longer side of the image, smallest and largest.
_HEIGHTS = {"title": (0.2, 0.4), "poster": (0.4, 0.9), "stacked": (0.25, 0.42), "logo": (0.4, 0.9)}

# We draw this many times larger and average, so that turned and slanted letters stay smooth.
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
    lines: tuple[str, ...]  # the painted words, perhaps in capitals, perhaps without the last ones
    quads: tuple[Quad, ...]  # per line the corners around its letters, clockwise from the top left, in pixels


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
        lines = _wrap(words, font, width)
        if len(lines) <= most_lines or size <= _SMALLEST:
            break
        size = max(_SMALLEST, size - 1.5)
    lines = lines[:most_lines]

    centred = bool(rng.random() < 0.7)
    placed = _Placement(lines, font, image.size, rng, centred=centred, where=where, turn=turn, slant=slant)
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


def paint_large_text(
    image: Image.Image, word: str, rng: np.random.Generator
) -> tuple[PaintedText, dict[str, str | float]]:
    """Writes a word across the image. Letters are as high as 0.2 to 0.9 of the longer side.

    - `title`: the word from side to side. `poster`: the same with narrow, high letters.
    - `stacked`: the word in two halves, one above the other; words of less than four letters become posters.
    - `logo`: its first letter on a disc or a square.
    """
    look = list(_HEIGHTS)[int(rng.integers(len(_HEIGHTS)))]
    if look == "stacked" and len(word) < 4:
        look = "poster"
    word = word.upper() if rng.random() < 0.7 else word.capitalize()
    half = (len(word) + 1) // 2
    lines = {"stacked": [word[:half], word[half:]], "logo": [word[0].upper()]}.get(look, [word])
    width, height = image.size
    low, high = _HEIGHTS[look]
    tall = round(float(rng.uniform(low, high)) * max(image.size))
    tall = min(tall, round(height * 0.94) // len(lines))  # a low image leaves less
    letter, around = PAIRS[int(rng.integers(len(PAIRS)))]
    masks = [_stretch(line, tall, round(width * 0.94), rng) for line in lines]

    gap = round(0.04 * height) if len(lines) > 1 else 0
    block = tall * len(lines) + gap
    free = height - block
    top = round(free * float(rng.uniform(0.05, 0.95)))
    wide = max(mask.width for mask in masks)
    left = round((width - wide) * float(rng.uniform(0, 1)))
    corners = [(left + (wide - mask.width) // 2, top + number * (tall + gap)) for number, mask in enumerate(masks)]
    canvas = image.copy()
    if look == "logo":
        _plate(canvas, corners[0], masks[0].size, around, round_one=bool(rng.random() < 0.5))
    elif rng.random() < 0.4:
        band = Image.new("L", image.size)
        ImageDraw.Draw(band).rectangle((0, top - gap, width, top + block + gap), fill=round(255 * rng.uniform(0.75, 1)))
        _paste(canvas, around, band)
    rim = 2 * max(1, round(min(image.size) / 128 * float(rng.uniform(0.6, 2)))) + 1
    for mask, corner in zip(masks, corners, strict=True):
        whole = Image.new("L", image.size)
        whole.paste(mask, corner)
        _paste(canvas, around, whole.filter(ImageFilter.MaxFilter(rim)))
        _paste(canvas, letter, whole)
    edges = [(x, y, x + mask.width, y + mask.height) for mask, (x, y) in zip(masks, corners, strict=True)]
    quads: tuple[Quad, ...] = tuple(((x0, y0), (x1, y0), (x1, y1), (x0, y1)) for x0, y0, x1, y1 in edges)
    return PaintedText(canvas, tuple(lines), quads), {"look": look, "glyph_height": round(tall / max(image.size), 3)}


def paint_watermark(image: Image.Image, rng: np.random.Generator) -> tuple[PaintedText, dict[str, str | float]]:
    """Puts a faint text over the image: `tiled` and turned, once `across` it, or small in a `corner`."""
    text = WATERMARKS[int(rng.integers(len(WATERMARKS)))]
    look = ("tiled", "tiled", "across", "corner")[int(rng.integers(4))]
    width, height = image.size
    unit = min(image.size) / 128
    turn = 0.0
    centre = (width / 2, height / 2)
    if look == "across":
        diagonal = degrees(atan2(height, width))
        turn = float(rng.uniform(0.6, 1.0)) * diagonal
        size = 0.8 * (width**2 + height**2) ** 0.5 / font_of(100).getlength(text) * 100
        size = min(size, 30 * unit)
        centres = [centre]
    elif look == "tiled":
        turn = float(rng.uniform(20, 40))
        size = float(rng.uniform(10, 14)) * unit
        step = font_of(100).getlength(text) * size / 100 + 14 * unit
        rows = size * float(rng.uniform(2.0, 2.8))
        centres = [
            (centre[0] + (i + 0.5 * (j % 2)) * step, centre[1] + j * rows) for j in range(-6, 7) for i in range(-4, 5)
        ]
    else:
        size = float(rng.uniform(10, 13)) * unit
        half = font_of(100).getlength(text) * size / 200 + 3 * unit
        right, low = rng.random(2) < 0.65
        centres = [(width - half if right else half, height - size if low else size)]
    if look != "corner" and rng.random() < 0.5:
        turn = -turn
    opacity = float(rng.uniform(0.3, 0.5) if look == "corner" else rng.uniform(0.15, 0.35))
    colour: RGB = (255, 255, 255) if rng.random() < 0.7 else (20, 20, 24)
    mask, quads = _lay(image.size, text, round(size * _LARGER), centres, turn)
    canvas = image.copy()
    _paste(canvas, colour, mask, opacity)
    return PaintedText(canvas, (text,) * len(quads), quads), {"look": look, "opacity": round(opacity, 3)}


def _stretch(line: str, tall: int, widest: int, rng: np.random.Generator) -> Image.Image:
    """Returns a mask of the line's letters, `tall` pixels high and at most `widest` wide."""
    font = font_of(max(1, round(tall * 1.4)))
    left, top, right, bottom = (round(edge) for edge in font.getbbox(line))
    drawn = Image.new("L", (right - left, bottom - top))
    stroke = round(tall / 40) if rng.random() < 0.5 else 0
    ImageDraw.Draw(drawn).text((-left, -top), line, fill=255, font=font, stroke_width=stroke)
    natural = max(1, round(drawn.width * tall / drawn.height))
    return drawn.resize((min(natural, widest), tall), Image.Resampling.LANCZOS)


def _plate(canvas: Image.Image, corner: Point, size: tuple[int, int], fill: RGB, *, round_one: bool) -> None:
    """Draws a disc or a square behind a letter."""
    side = max(size) * (1.3 if round_one else 1.15)
    x, y = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    larger = Image.new("L", (canvas.width * _LARGER, canvas.height * _LARGER))
    box = [(at + sign * side / 2) * _LARGER for sign in (-1, 1) for at in (x, y)]
    draw = ImageDraw.Draw(larger)
    (draw.ellipse if round_one else draw.rectangle)(box, fill=255)
    _paste(canvas, fill, larger.reduce(_LARGER))


def _lay(
    size: tuple[int, int], text: str, font_size: int, centres: list[Point], turn: float
) -> tuple[Image.Image, tuple[Quad, ...]]:
    """A mask with copies of the text around the centres, all turned about the image's middle by `turn` degrees."""
    font = font_of(max(1, font_size))
    # Twice as large as the image in each direction: text outside the image may turn into it.
    page = Image.new("L", (size[0] * 2 * _LARGER, size[1] * 2 * _LARGER))
    draw = ImageDraw.Draw(page)
    middle = (size[0] / 2, size[1] / 2)
    left, top, right, bottom = font.getbbox(text)
    half_w, half_h = (right - left) / 2 / _LARGER, (bottom - top) / 2 / _LARGER
    c, s = cos(turn * pi / 180), sin(turn * pi / 180)
    quads: list[Quad] = []

    def turned(x: float, y: float) -> Point:
        dx, dy = x - middle[0], y - middle[1]
        return middle[0] + dx * c + dy * s, middle[1] - dx * s + dy * c

    def inside(x: float, y: float) -> Point:
        u, v = turned(x, y)
        return round(min(max(u, 0.0), size[0]), 1), round(min(max(v, 0.0), size[1]), 1)

    for x, y in centres:
        at = ((x - half_w + middle[0]) * _LARGER - left, (y - half_h + middle[1]) * _LARGER - top)
        draw.text(at, text, fill=255, font=font)
        u, v = turned(x, y)
        if 0 <= u <= size[0] and 0 <= v <= size[1]:
            x0, y0, x1, y1 = x - half_w - 1, y - half_h - 1, x + half_w + 1, y + half_h + 1
            quads.append((inside(x0, y0), inside(x1, y0), inside(x1, y1), inside(x0, y1)))
    page = page.rotate(turn, resample=Image.Resampling.BICUBIC)
    start = (round(middle[0] * _LARGER), round(middle[1] * _LARGER))
    cropped = page.crop((*start, start[0] + size[0] * _LARGER, start[1] + size[1] * _LARGER))
    return cropped.reduce(_LARGER), tuple(quads)


class _Placement:
    """A block of lines on the image: laid out in enlarged pixels, slanted and turned about its centre, then shifted."""

    def __init__(
        self, lines: list[str], font: ImageFont.FreeTypeFont, size: tuple[int, int], rng: np.random.Generator, *,
        centred: bool, where: Where, turn: float, slant: float,
    ) -> None:  # fmt: skip
        self.lines, self.font, self.size = lines, font, size
        leading = sum(font.getmetrics()) * 0.98
        lengths = [font.getlength(line) for line in lines]
        self.width, self.height = max(lengths), leading * len(lines)
        # Top left corner of each line in the block.
        self.starts = [((self.width - length) / 2 if centred else 0.0, i * leading) for i, length in enumerate(lengths)]
        self.canvas = (size[0] * _LARGER, size[1] * _LARGER)
        c, s = cos(turn * pi / 180), sin(turn * pi / 180)
        # Matrix from block coordinates (relative to its centre) to the canvas.
        self.xx, self.xy, self.yx, self.yy = c, -s - slant * c, s, c - slant * s
        self.straight = turn == 0 and slant == 0
        half_w = (abs(self.xx) * self.width + abs(self.xy) * self.height) / 2 + 4 * _LARGER
        half_h = (abs(self.yx) * self.width + abs(self.yy) * self.height) / 2 + 3 * _LARGER
        free_x, free_y = max(0.0, self.canvas[0] / 2 - half_w), max(0.0, self.canvas[1] / 2 - half_h)
        along = {"top": (-1.0, -0.8), "middle": (-0.25, 0.25), "bottom": (0.8, 1.0), "anywhere": (-1.0, 1.0)}[where]
        self.x = self.canvas[0] / 2 + float(rng.uniform(-1, 1)) * free_x
        self.y = self.canvas[1] / 2 + float(rng.uniform(*along)) * free_y

    def at(self, x: float, y: float) -> Point:
        """Converts block coordinates to canvas coordinates."""
        dx, dy = x - self.width / 2, y - self.height / 2
        return self.x + self.xx * dx + self.xy * dy, self.y + self.yx * dx + self.yy * dy

    def letters(self, stroke: int, shift: float = 0.0) -> Image.Image:
        """Returns a mask of the letters, thickened by `stroke`, in the image's size."""
        mask = Image.new("L", self.canvas)
        draw = ImageDraw.Draw(mask)
        if self.straight:
            x0, y0 = self.at(0, 0)
            for line, (x, y) in zip(self.lines, self.starts, strict=True):
                at = (x0 + x + shift, y0 + y + shift)
                draw.text(at, line, fill=255, font=self.font, stroke_width=stroke)
            return mask.reduce(_LARGER)
        # Drawn upright about the canvas's centre, then slanted and turned; Pillow wants the inverse map.
        left, top = (self.canvas[0] - self.width) / 2, (self.canvas[1] - self.height) / 2
        for line, (x, y) in zip(self.lines, self.starts, strict=True):
            draw.text((left + x, top + y), line, fill=255, font=self.font, stroke_width=stroke)
        det = self.xx * self.yy - self.xy * self.yx
        a, b, d, e = self.yy / det, -self.xy / det, -self.yx / det, self.xx / det
        cx, cy, x0, y0 = self.canvas[0] / 2, self.canvas[1] / 2, self.x + shift, self.y + shift
        inverse = (a, b, cx - a * x0 - b * y0, d, e, cy - d * x0 - e * y0)
        return mask.transform(self.canvas, Image.Transform.AFFINE, inverse, resample=Image.Resampling.BILINEAR).reduce(
            _LARGER
        )

    def plate(self, *, band: bool) -> Image.Image:
        """Returns a mask of the area behind the block: around it, or a band across the image."""
        mask = Image.new("L", self.canvas)
        dx, dy = (self.canvas[0], 1.5 * _LARGER) if band else (3 * _LARGER, 1.5 * _LARGER)
        w, h = self.width, self.height
        corners = [self.at(-dx, -dy), self.at(w + dx, -dy), self.at(w + dx, h + dy), self.at(-dx, h + dy)]
        ImageDraw.Draw(mask).polygon(corners, fill=255)
        return mask.reduce(_LARGER)

    def quads(self, margin: float) -> tuple[Quad, ...]:
        """Returns the corners around each line's letters, in pixels inside the image."""
        out: list[Quad] = []
        for line, (x, y) in zip(self.lines, self.starts, strict=True):
            left, top, right, bottom = self.font.getbbox(line)
            x0, y0, x1, y1 = x + left - margin, y + top - margin, x + right + margin, y + bottom + margin
            out.append((self._pixel(x0, y0), self._pixel(x1, y0), self._pixel(x1, y1), self._pixel(x0, y1)))
        return tuple(out)

    def _pixel(self, x: float, y: float) -> Point:
        u, v = self.at(x, y)
        return (round(min(max(u / _LARGER, 0), self.size[0]), 1), round(min(max(v / _LARGER, 0), self.size[1]), 1))


@lru_cache(maxsize=64)
def font_of(size: int) -> ImageFont.FreeTypeFont:
    """Returns Pillow's built-in font, the only font that is the same on every machine.

    With libraqm, which not every Pillow has, letters would be placed slightly differently.
    """
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "this Pillow was built without FreeType"
    return font.font_variant(layout_engine=ImageFont.Layout.BASIC)


def _wrap(words: list[str], font: ImageFont.FreeTypeFont, width: float) -> list[str]:
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
