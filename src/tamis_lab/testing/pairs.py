"""Drawn pairs to check signals with: seeded, small, all different."""

from __future__ import annotations

import io
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tamis.core.ids import content_uid
from tamis.core.types import Sample
from tamis.pools.images import fill_pixels

#: A caption for each drawn image, in good English.
CAPTIONS = (
    "a small red boat on the beach",
    "Two old trees near the blue house",
    "three green dogs under a tree, in english",
    "The cat of the old house, near two boats",
    "a blue sale sign on the house",
)


def _image(seed: int) -> bytes:
    """Returns a JPEG of 36 to 67 pixels: a smooth background, a box and a disc. The fifth is larger, with words."""
    rng = np.random.default_rng(seed)
    width, height = rng.integers(36, 68, 2).tolist()
    ground = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    image = Image.fromarray(ground).resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for shape in (draw.rectangle, draw.ellipse):
        left, top = rng.integers(0, 24, 2).tolist()
        shape((left, top, left + 12, top + 12), fill=tuple(rng.integers(0, 256, 3).tolist()))
    if seed == 4:
        image = image.resize((4 * width, 4 * height))
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, height, 4 * width, 3 * height), fill=(245, 240, 225))
        draw.text((10, height + 10), "SALE", fill=(20, 20, 60), font=ImageFont.load_default(40))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()


def good_pairs() -> list[Sample]:
    """Returns five good pairs as a reader gives them, decoded; the last image has words on it."""
    made = []
    for seed, caption in enumerate(CAPTIONS):
        image = _image(seed)
        given = {"original_width": 480 + seed, "original_height": 320, "similarity": round(0.2 + 0.01 * seed, 2)}
        sample = Sample(
            uid=content_uid(image, caption.encode()), key=f"drawn-{seed}", caption=caption, shown_caption=caption,
            image=image, image_bytes=len(image), original_width=480 + seed, original_height=320, given=given,
        )  # fmt: skip
        fill_pixels(sample, max_pixels=10**6)
        made.append(sample)
    return made


def without(good: Sample, *parts: str) -> Sample:
    """Returns the pair as a reader yields it if its "caption" or "image" is missing, or both."""
    made = _another(good, f"without-{'-'.join(parts)}")
    if "caption" in parts:
        made.caption = made.shown_caption = None
        made.mark("caption_missing", "there is no .txt member")
    if "image" in parts:
        made.image, made.image_bytes, made.pixels = b"no image", 8, None
        made.width = made.height = made.original_width = made.original_height = 0
        made.mark("image_broken", "no format that trainers read is recognised")
    return made


def batch_of(good: Sequence[Sample]) -> list[Sample]:
    """Returns good pairs, the first one twice, and odd ones: without caption, image or both, long, foreign."""
    first, last = good[0], good[-1]
    long, foreign = _another(last, "long"), _another(first, "foreign")
    long.caption = long.shown_caption = "x" * 3000
    foreign.caption = foreign.shown_caption = "日本の庭園の写真です"
    odd = [without(last, "caption"), without(first, "image"), without(last, "caption", "image"), long, foreign]
    return [*deepcopy(list(good)), deepcopy(first), *odd]


def _another(good: Sample, key: str) -> Sample:
    """Returns a copy of a pair under another key and uid."""
    uid = content_uid(f"{good.uid}".encode(), key.encode())
    return replace(deepcopy(good), key=f"{good.key}-{key}", uid=uid)
