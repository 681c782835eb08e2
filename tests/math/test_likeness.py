"""Thumbnails of two images, compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from tamis.math.likeness import Thumbnails, _place, alike

Array = np.ndarray[Any, Any]


def photograph(seed: int) -> Array:
    """A image with detail everywhere, of 300 x 300 pixels."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 240, (10, 10), dtype=np.uint8))
    return np.asarray(coarse.resize((300, 300), Image.Resampling.BICUBIC))


def thumbnail(grey: Array) -> Array:
    return np.asarray(Image.fromarray(grey).resize((32, 32), Image.Resampling.BICUBIC))


def thumbnails(*light: Array, colours: Array | None = None, side: float = 256) -> Thumbnails:
    hues = np.full((len(light), 128), 128, np.uint8) if colours is None else colours
    return Thumbnails(np.stack(light).reshape(len(light), 1024), hues, np.full(len(light), side, np.float32))


def same(one: Thumbnails, two: Thumbnails) -> list[bool]:
    return alike(one, two, levels=3, tolerance=3).tolist()


def test_a_cropped_copy_is_aligned_and_found() -> None:
    # Columns 12 to 285 and rows 6 to 300: the middle is moved by (12 - 15) / 300 to the left, the width is 273 of 300.
    for seed in range(5):
        whole = photograph(seed)
        part = np.asarray(np.clip(whole[6:, 12:285] * 0.95, 0, 255), np.uint8)
        place = _place(*(thumbnail(each).astype(np.float32)[None] for each in (part, whole)))
        assert place[0] == pytest.approx([-3 / 300, -27 / 300, 6 / 300, -6 / 300, 0.95], abs=0.01)
        assert same(thumbnails(thumbnail(part)), thumbnails(thumbnail(whole))) == [True]
        assert same(thumbnails(thumbnail(whole)), thumbnails(thumbnail(part))) == [True]
    assert same(thumbnails(thumbnail(photograph(0))), thumbnails(thumbnail(photograph(1)))) == [False]


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_cropped_copy_with_hard_edges_may_differ_by_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = np.full((300, 300), 230, np.uint8)
    for _ in range(6):
        (x, y), (width, height) = rng.integers(20, 220, 2), rng.integers(30, 70, 2)
        whole[y : y + height, x : x + width] = rng.integers(0, 200)
    assert same(thumbnails(thumbnail(whole[4:, 9:288])), thumbnails(thumbnail(whole))) == [True]


def test_two_fields_have_to_differ_by_more_than_the_levels_and_more_than_their_surroundings() -> None:
    ground = np.full((32, 32), 200, np.uint8)
    ground[:, :4] = 20  # so that it can be aligned
    found = []
    for fields, levels in ((20, 3), (1, 9), (2, 9), (20, 9)):
        other = ground.copy()
        other[6 : 6 + fields, 20] -= levels
        found += same(thumbnails(ground), thumbnails(other))
    assert found == [True, True, False, False]
    edge = ground.copy()
    edge[:, 4] -= 9  # next to a step of 180 levels
    assert same(thumbnails(ground), thumbnails(edge)) == [True]


def test_colours_alone_tell_images_apart() -> None:
    light = thumbnail(photograph(0))
    colours = np.full((1, 128), 128, np.uint8)
    colours[0, 54:58] += 8
    assert same(thumbnails(light), thumbnails(light, colours=colours)) == [False]
    none = np.zeros((1, 0), np.uint8)
    assert same(thumbnails(light, colours=none), thumbnails(light, colours=none)) == [True]
