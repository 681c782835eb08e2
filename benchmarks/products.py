"""Draws product photographs on white: variants of one object, of which no two are the same product.

Seven families: switches with one to four rockers or buttons, devices of one outline in another grey, bottles with
another label, bulbs with another tint or mark, boxes with other words, sensors with another detail, remote
controls with another number of keys. Variants of one object have the same outline and place. Each is saved as a shop
saves it, as JPEG or WebP at its own quality.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

Grey = int
Colour = tuple[int, int, int]

#: Side of the images while they are drawn; they are made smaller when they are saved.
SIDE = 1024

_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ0123456789"


class Canvas:
    """A white page on which an object is drawn."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (SIDE, SIDE), "white")
        self.pen = ImageDraw.Draw(self.image)

    def shadow(self, mask: Image.Image, strength: Grey) -> None:
        """Darkens the ground around a shape softly."""
        page = (
            ImageChops.offset(mask, 14)
            .filter(ImageFilter.GaussianBlur(24))
            .point(lambda level: level * strength // 255)
        )
        self.image.paste(Image.new("RGB", (SIDE, SIDE), "black"), mask=page)
        self.pen = ImageDraw.Draw(self.image)

    def shaded(self, mask: Image.Image, colour: Colour, fall: float) -> None:
        """Fills a shape with a colour that grows darker from left to right."""
        light = np.linspace(1, 1 - fall, SIDE)[None, :, None] * np.ones((SIDE, 1, 1))
        pixels = np.clip(light * np.array(colour), 0, 255).astype(np.uint8)
        self.image.paste(Image.fromarray(pixels), mask=mask)
        self.pen = ImageDraw.Draw(self.image)

    def text(self, where: tuple[float, float], words: str, size: int, colour: Colour) -> None:
        self.pen.text(where, words, fill=colour, font=ImageFont.load_default(size), anchor="mm")


def _mask(draw: Callable[[ImageDraw.ImageDraw], None]) -> Image.Image:
    page = Image.new("L", (SIDE, SIDE), 0)
    draw(ImageDraw.Draw(page))
    return page


def _grey(level: float) -> Colour:
    return (int(level), int(level), int(level))


def _sizes(number: int, first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float, bool]:
    """Returns two sizes of an object, three of each that are well apart, and which of two sorts it is of."""
    one, two = (low + (high - low) * (number // each % 3) / 2 for each, (low, high) in ((1, first), (3, second)))
    return one, two, number // 9 % 2 == 1


def _word(rng: np.random.Generator, letters: int) -> str:
    return "".join(rng.choice(list(_LETTERS), letters))


def switches(number: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    """One frame with one to four rockers, beside each other or above each other, or two with a light."""
    margin, frame, dark = _sizes(number, (60, 260), (30, 140))
    light = rng.integers(180, 200) if dark else rng.integers(225, 250)
    line = light - rng.integers(35, 75)
    radius, width = int(rng.integers(5, 60)), int(rng.integers(5, 9))
    outer = (margin, margin, SIDE - margin, SIDE - margin)
    low, high = margin + frame, SIDE - margin - frame

    def plate() -> Canvas:
        canvas = Canvas()
        mask = _mask(lambda pen: pen.rounded_rectangle(outer, radius, fill=255))
        canvas.shadow(mask, 70)
        canvas.shaded(mask, _grey(light), 0.05)
        canvas.pen.rounded_rectangle((low, low, high, high), radius // 2, outline=_grey(line), width=width)
        return canvas

    for rockers, upright in ((1, True), (2, True), (3, True), (4, True), (2, False), (3, False)):
        canvas = plate()
        for cut in range(1, rockers):
            at = low + (high - low) * cut / rockers
            ends = (at, low, at, high) if upright else (low, at, high, at)
            canvas.pen.line(ends, fill=_grey(line), width=width)
        yield canvas.image
    lit = plate()
    lit.pen.ellipse((SIDE / 2 - 14, high - 60, SIDE / 2 + 14, high - 32), fill=(60, 130, 220))
    yield lit.image
    touch = plate()
    for at in (0.3, 0.7):
        centre = low + (high - low) * at
        touch.pen.ellipse((centre - 36, SIDE / 2 - 36, centre + 36, SIDE / 2 + 36), outline=_grey(line), width=width)
    yield touch.image


def devices(number: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    """One outline in five greys, white to black, and twice with a display."""
    width, height, round_ = _sizes(number, (380, 860), (300, 860))
    box = ((SIDE - width) / 2, (SIDE - height) / 2, (SIDE + width) / 2, (SIDE + height) / 2)
    radius, fall = 140 if round_ else 20, rng.uniform(0.03, 0.3)
    mask = _mask(lambda pen: pen.rounded_rectangle(box, radius, fill=255))
    levels = [*rng.permutation([25, 75, 125, 175, 225]), 225, 225]
    shown = rng.integers(10, 60)
    for variant, level in enumerate(levels):
        canvas = Canvas()
        canvas.shadow(mask, 90)
        canvas.shaded(mask, _grey(level), fall)
        if variant >= 5:
            inner = (box[0] + width * 0.25, box[1] + height * 0.2, box[2] - width * 0.25, box[1] + height * 0.5)
            canvas.pen.rectangle(inner, fill=(40, 48, 44))
            canvas.text((SIDE / 2, (inner[1] + inner[3]) / 2), str(shown + 38 * (variant - 5)), 110, (220, 240, 230))
        yield canvas.image


def bottles(number: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    """One bottle with six labels: other words, another ground, an image on it."""
    wide, shoulder, green = _sizes(number, (220, 440), (220, 440))
    glass, neck = (30, 90, 50) if green else (110, 70, 30), rng.integers(70, 120)
    top, foot = 70, 970
    middle = SIDE / 2

    def shape(pen: ImageDraw.ImageDraw) -> None:
        pen.rounded_rectangle((middle - wide / 2, shoulder, middle + wide / 2, foot), 50, fill=255)
        pen.rectangle((middle - neck / 2, top, middle + neck / 2, shoulder + 60), fill=255)

    mask, size = _mask(shape), int(wide / 4.4)
    for variant in range(6):
        canvas = Canvas()
        canvas.shaded(mask, glass, 0.5)
        label = (middle - wide / 2, shoulder + 150, middle + wide / 2, foot - 150)
        ground, ink = ((245, 240, 228), (40, 30, 30)) if variant < 4 else ((70, 20, 30), (240, 230, 210))
        canvas.pen.rectangle(label, fill=ground)
        canvas.text((middle, label[1] + 90), _word(rng, 5), size, ink)
        canvas.text((middle, label[1] + 190), _word(rng, 6), int(size * 0.7), ink)
        if variant in (3, 5):
            canvas.pen.ellipse((middle - 50, label[3] - 130, middle + 50, label[3] - 30), fill=(180, 60, 40))
        yield canvas.image


def bulbs(number: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    """One bulb in seven tints, of about one brightness."""
    radius, foot, thin = _sizes(number, (140, 300), (620, 890))
    middle, base = SIDE / 2, 0.3 if thin else 0.6
    centre = 90 + radius

    def shape(pen: ImageDraw.ImageDraw) -> None:
        pen.ellipse((middle - radius, centre - radius, middle + radius, centre + radius), fill=255)
        half = radius * base
        low = centre + radius * 0.4
        ends = [
            (middle - radius * 0.9, low),
            (middle + radius * 0.9, low),
            (middle + half, foot),
            (middle - half, foot),
        ]
        pen.polygon(ends, fill=255)

    mask = _mask(shape)
    for tint in ((235, 235, 235), (250, 232, 190), (205, 240, 235), (245, 225, 240), (150, 190, 240), (240, 180, 90)):
        canvas = Canvas()
        canvas.shaded(mask, tint, 0.15)
        for turn in range(5):
            y = foot + turn * 22
            canvas.pen.rounded_rectangle(
                (middle - radius * base, y, middle + radius * base, y + 18), 8, fill=_grey(150)
            )
        yield canvas.image
        if tint == (235, 235, 235):
            canvas.text((middle, centre + radius * 0.5), _word(rng, 4), 56, _grey(120))
            yield canvas.image


def boxes(number: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    """One box in three colours, with words and an image that change."""
    width, height, dull = _sizes(number, (480, 860), (480, 860))
    left, top = (SIDE - width) / 2, (SIDE - height) / 2
    box = (left, top, left + width, top + height)
    brand, base = _word(rng, 4), np.array((90, 110, 150) if dull else (40, 30, 200))
    mask = _mask(lambda pen: pen.rectangle(box, fill=255))
    for variant in range(6):
        canvas = Canvas()
        canvas.shadow(mask, 80)
        turned = np.roll(base, variant) if variant < 3 else base
        canvas.shaded(mask, tuple(int(part) for part in turned), 0.15)
        canvas.text((left + width * 0.5, top + 80), brand, 100, (250, 250, 250))
        inner = (left + width * 0.3, top + height * 0.4, left + width * 0.7, top + height * 0.75)
        (canvas.pen.rectangle if variant == 3 else canvas.pen.ellipse)(inner, fill=(240, 240, 240))
        words = _word(rng, 6) if variant >= 4 else "SMART " + brand
        canvas.text((left + width * 0.5, top + height * 0.87), words, 76, (250, 250, 250))
        yield canvas.image


def sensors(number: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    """One round or square body, plain, with a ring, a hole, a light at two places, a word, a grille."""
    radius, level, square = _sizes(number, (220, 460), (170, 245))
    middle = SIDE / 2
    line = _grey(level - 50)
    corner = radius * (0.3 if square else 1)

    def around(share: float) -> tuple[float, float, float, float]:
        return (middle - radius * share, middle - radius * share, middle + radius * share, middle + radius * share)

    mask = _mask(lambda pen: pen.rounded_rectangle(around(1), corner, fill=255))
    for kind in ("plain", "ring", "wide ring", "hole", "light", "light below", "word", "grille"):
        canvas = Canvas()
        canvas.shadow(mask, 80)
        canvas.shaded(mask, _grey(level), 0.12)
        if "ring" in kind:
            canvas.pen.ellipse(around(0.75 if "wide" in kind else 0.45), outline=line, width=8)
        elif kind == "hole":
            canvas.pen.ellipse(around(0.14), fill=_grey(60))
        elif "light" in kind:
            y = middle + radius * (0.6 if "below" in kind else -0.6)
            canvas.pen.ellipse((middle - 20, y - 20, middle + 20, y + 20), fill=(70, 190, 90))
        elif kind == "word":
            canvas.text((middle, middle), _word(rng, 6), 72, line)
        elif kind == "grille":
            for row in range(-2, 3):
                y = middle + row * radius * 0.13
                canvas.pen.line((middle - radius * 0.4, y, middle + radius * 0.4, y), fill=line, width=8)
        yield canvas.image


def remotes(number: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    """One body with two to five round keys, and with signs on them."""
    width, height, dark = _sizes(number, (200, 440), (600, 920))
    box = ((SIDE - width) / 2, (SIDE - height) / 2, (SIDE + width) / 2, (SIDE + height) / 2)
    body, line = (_grey(45), _grey(120)) if dark else (_grey(238), _grey(165))
    mask = _mask(lambda pen: pen.rounded_rectangle(box, 70, fill=255))
    for keys, signs in ((2, "  "), (3, "   "), (4, "    "), (5, "     "), (4, "1234"), (4, "+-OI")):
        canvas = Canvas()
        canvas.shadow(mask, 80)
        canvas.shaded(mask, body, 0.1)
        for key in range(keys):
            y, side = box[1] + height * (key + 0.5) / keys, width * 0.26
            if keys == 5:
                side *= 0.8
            canvas.pen.ellipse((SIDE / 2 - side, y - side, SIDE / 2 + side, y + side), outline=line, width=7)
            canvas.text((SIDE / 2, y), signs[key], int(side), line)
        yield canvas.image


FAMILIES: tuple[Callable[[int, np.random.Generator], Iterator[Image.Image]], ...] = (
    switches,
    devices,
    bottles,
    bulbs,
    boxes,
    sensors,
    remotes,
)


def products(objects: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yields (name, image file) of every variant of some objects of each family.

    Args:
        objects: of each family, up to 18 that differ in size or sort; six to eight variants of each.
        seed: another one draws others.
    """
    for place, family in enumerate(FAMILIES):
        for number in range(objects):
            rng = np.random.default_rng([seed, place, number])
            side = int(rng.choice([256, 300, 400, 500]))
            for variant, picture in enumerate(family(number, rng)):
                small = picture.resize((side, side), Image.Resampling.LANCZOS)
                out, how = io.BytesIO(), rng.random()
                quality: dict[str, Any] = {"quality": int(rng.integers(75, 96))}
                small.save(out, "JPEG" if how < 0.7 else "WEBP", **quality)
                yield f"{family.__name__}-{number:03d}-{variant}", out.getvalue()
