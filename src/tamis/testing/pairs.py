"""Drawn pairs to check signals with: seeded, small, all different."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tamis.data import Sample
from tamis.pool.images import fill_pixels
from tamis.uid import content_uid

#: A caption for each drawn image, in good English.
CAPTIONS = (
    "a small red boat on the beach",
    "Two old trees near the blue house",
    "three green dogs under a tree, in english",
    "The cat of the old house, near two boats",
    "a blue sale sign on the house",
    "two small cats",
    "The three old houses near the red beach",
    "a dog on the green boat",
)


def _image(seed: int, words: str) -> bytes:
    """Returns a JPEG: a smooth ground with a box and a disc on it, and perhaps words across the middle.

    It is 36 to 67 pixels wide, or four times that with words.
    """
    rng = np.random.default_rng(seed)
    width, height = rng.integers(36, 68, 2).tolist()
    ground = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    image = Image.fromarray(ground).resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for shape in (draw.rectangle, draw.ellipse):
        left, top = rng.integers(0, 24, 2).tolist()
        shape((left, top, left + 12, top + 12), fill=tuple(rng.integers(0, 256, 3).tolist()))
    if words:
        image = image.resize((4 * width, 4 * height))
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, height, 4 * width, 3 * height), fill=(245, 240, 225))
        draw.text((10, height + 10), words, fill=(20, 20, 60), font=ImageFont.load_default(40))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()


def files(seed: int) -> dict[str, bytes]:
    """Returns the files of one good pair by extension, as a tar holds them; every fifth image has words on it."""
    number = seed % len(CAPTIONS)
    facts = {"original_width": 480 + seed, "original_height": 320, "similarity": round(0.2 + 0.01 * seed, 2)}
    image = _image(seed, "SALE" if number == 4 else "")
    return {"jpg": image, "txt": CAPTIONS[number].encode(), "json": json.dumps(facts).encode()}


def pair(seed: int) -> Sample:
    """Returns one good pair as a reader gives it, decoded."""
    parts = files(seed)
    caption, facts = parts["txt"].decode(), json.loads(parts["json"])
    made = Sample(
        uid=content_uid(parts["jpg"], parts["txt"]),
        key=f"drawn-{seed}",
        caption=caption,
        shown_caption=caption,
        image=parts["jpg"],
        image_bytes=len(parts["jpg"]),
        original_width=facts["original_width"],
        original_height=facts["original_height"],
        given=facts,
    )
    fill_pixels(made, max_pixels=10**6)
    return made


def good_pairs() -> list[Sample]:
    """Returns five drawn pairs; the last image has words on it."""
    return [pair(seed) for seed in range(5)]


def without_caption(good: Sample) -> Sample:
    """Returns the pair as a reader gives it when its caption is missing."""
    made = _another(good, "silent")
    made.caption = made.shown_caption = None
    made.mark("caption_missing", "there is no .txt member")
    return made


def without_image(good: Sample) -> Sample:
    """Returns the pair as a reader gives it when its image cannot be decoded and its json has no size."""
    made = _another(good, "broken")
    made.image, made.pixels = b"no image", None
    made.image_bytes = len(made.image)
    made.width = made.height = made.original_width = made.original_height = 0
    made.mark("image_broken", "no image format is recognised")
    return made


def batch_of(good: Sequence[Sample]) -> list[Sample]:
    """Returns good pairs, then the first of them again, then odd ones.

    The odd ones: no caption, no image, neither, a caption of 3,000 letters, one in another script.
    """
    first, last = good[0], good[-1]
    long, foreign = _another(last, "long"), _another(first, "foreign")
    long.caption = long.shown_caption = "x" * 3000
    foreign.caption = foreign.shown_caption = "日本の庭園の写真です"
    return [
        *deepcopy(list(good)),
        deepcopy(first),
        without_caption(last),
        without_image(first),
        without_image(without_caption(last)),
        long,
        foreign,
    ]


def _another(good: Sample, key: str) -> Sample:
    """Returns a copy of a pair under another key and uid."""
    made = replace(deepcopy(good), key=f"{good.key}-{key}")
    made.uid = content_uid(f"{good.uid}".encode(), key.encode())
    return made
