"""Text that text detectors are not made for: titles and logos as large as the image, and faint watermarks.

T-MARS's detectors look for lines of text, and their limit on the height of regions, which keeps them from taking a dog
for a letter, also hides a title from them. A watermark is the opposite: a detector may find it, but the image is fine.
"""

from math import atan2, cos, degrees, pi, sin
from typing import Literal, get_args

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from tamis.lab.painted_text import PAIRS, PaintedText, Quad, font_of
from tamis.lab.pen import Point
from tamis.lab.world import RGB, WATERMARKS

LargeLook = Literal["title", "poster", "stacked", "logo"]
WatermarkLook = Literal["tiled", "across", "corner"]

# Height of the letters as a share of the image's longer side.
_HEIGHTS: dict[LargeLook, tuple[float, float]] = {
    "title": (0.2, 0.4),
    "poster": (0.4, 0.9),
    "stacked": (0.25, 0.42),
    "logo": (0.4, 0.9),
}
_LARGER = 2  # as in painted_text: drawn larger and averaged


def paint_large_text(
    image: Image.Image, word: str, rng: np.random.Generator
) -> tuple[PaintedText, dict[str, str | float]]:
    """Writes one word across the image, with letters of 0.2 to 0.9 of its longer side.

    - `title`: the word from side to side. `poster`: the same, as narrow and high letters.
    - `stacked`: the word in two halves, one above the other; words of less than four letters become posters.
    - `logo`: its first letter on a disc or a square.
    """
    looks = get_args(LargeLook)
    look: LargeLook = looks[int(rng.integers(len(looks)))]
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
    masks = [_stretched(line, tall, round(width * 0.94), rng) for line in lines]

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
        _fill(canvas, (0, top - gap, width, top + block + gap), around, opacity=float(rng.uniform(0.75, 1)))
    rim = 2 * max(1, round(min(image.size) / 128 * float(rng.uniform(0.6, 2)))) + 1
    for mask, corner in zip(masks, corners, strict=True):
        whole = Image.new("L", image.size)
        whole.paste(mask, corner)
        canvas.paste(around, (0, 0, *image.size), whole.filter(ImageFilter.MaxFilter(rim)))
        canvas.paste(letter, (0, 0, *image.size), whole)
    quads = tuple(_box(x, y, x + mask.width, y + mask.height) for mask, (x, y) in zip(masks, corners, strict=True))
    return PaintedText(canvas, tuple(lines), quads), {"look": look, "glyph_height": round(tall / max(image.size), 3)}


def paint_watermark(image: Image.Image, rng: np.random.Generator) -> tuple[PaintedText, dict[str, str | float]]:
    """Puts a faint text over the image: `tiled` and turned, once `across` it, or small in a `corner`."""
    text = WATERMARKS[int(rng.integers(len(WATERMARKS)))]
    look: WatermarkLook = ("tiled", "tiled", "across", "corner")[int(rng.integers(4))]
    width, height = image.size
    unit = min(image.size) / 128
    turn = 0.0
    centre = (width / 2, height / 2)
    if look == "across":
        diagonal = degrees(atan2(height, width))
        turn = float(rng.uniform(0.6, 1.0)) * diagonal
        size = 0.8 * (width**2 + height**2) ** 0.5 / font_of(100).getlength(text) * 100
        size = min(size, 30 * unit)
        places = [centre]
    elif look == "tiled":
        turn = float(rng.uniform(20, 40))
        size = float(rng.uniform(10, 14)) * unit
        step = font_of(100).getlength(text) * size / 100 + 14 * unit
        rows = size * float(rng.uniform(2.0, 2.8))
        places = [
            (centre[0] + (i + 0.5 * (j % 2)) * step, centre[1] + j * rows) for j in range(-6, 7) for i in range(-4, 5)
        ]
    else:
        size = float(rng.uniform(10, 13)) * unit
        half = font_of(100).getlength(text) * size / 200 + 3 * unit
        right, low = rng.random(2) < 0.65
        places = [(width - half if right else half, height - size if low else size)]
    if look != "corner" and rng.random() < 0.5:
        turn = -turn
    opacity = float(rng.uniform(0.3, 0.5) if look == "corner" else rng.uniform(0.15, 0.35))
    colour: RGB = (255, 255, 255) if rng.random() < 0.7 else (20, 20, 24)
    mask, quads = _laid(image.size, text, round(size * _LARGER), places, turn)
    canvas = image.copy()
    canvas.paste(colour, (0, 0, *image.size), mask.point([round(i * opacity) for i in range(256)]))
    return PaintedText(canvas, (text,) * len(quads), quads), {"look": look, "opacity": round(opacity, 3)}


def _stretched(line: str, tall: int, widest: int, rng: np.random.Generator) -> Image.Image:
    """A mask of the line's letters, as high as asked for and at most as wide."""
    font = font_of(max(1, round(tall * 1.4)))
    left, top, right, bottom = (round(edge) for edge in font.getbbox(line))
    drawn = Image.new("L", (right - left, bottom - top))
    stroke = round(tall / 40) if rng.random() < 0.5 else 0
    ImageDraw.Draw(drawn).text((-left, -top), line, fill=255, font=font, stroke_width=stroke)
    natural = max(1, round(drawn.width * tall / drawn.height))
    return drawn.resize((min(natural, widest), tall), Image.Resampling.LANCZOS)


def _plate(canvas: Image.Image, corner: Point, size: tuple[int, int], fill: RGB, *, round_one: bool) -> None:
    """A disc or a square behind a letter, as large as the image allows."""
    side = max(size) * (1.3 if round_one else 1.15)
    x, y = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    larger = Image.new("L", (canvas.width * _LARGER, canvas.height * _LARGER))
    box = [(at + sign * side / 2) * _LARGER for sign in (-1, 1) for at in (x, y)]
    draw = ImageDraw.Draw(larger)
    (draw.ellipse if round_one else draw.rectangle)(box, fill=255)
    canvas.paste(fill, (0, 0, *canvas.size), larger.reduce(_LARGER))


def _fill(canvas: Image.Image, box: tuple[int, int, int, int], fill: RGB, *, opacity: float) -> None:
    mask = Image.new("L", canvas.size)
    ImageDraw.Draw(mask).rectangle(box, fill=round(255 * opacity))
    canvas.paste(fill, (0, 0, *canvas.size), mask)


def _laid(
    size: tuple[int, int], text: str, font_size: int, places: list[Point], turn: float
) -> tuple[Image.Image, tuple[Quad, ...]]:
    """A mask with copies of the text around the places, all turned about the image's middle by `turn` degrees."""
    font = font_of(max(1, font_size))
    # Twice as large as the image in each direction: what is turned into it is outside before.
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

    for x, y in places:
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


def _box(x0: float, y0: float, x1: float, y1: float) -> Quad:
    return (x0, y0), (x1, y0), (x1, y1), (x0, y1)
