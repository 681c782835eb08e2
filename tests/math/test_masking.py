"""Painting over text: by hand, and never outside the regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.math.area import quad_mask
from tamis.math.masking import fill_around, fill_inside, inpaint


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def test_the_mean_around_by_hand() -> None:
    image = np.zeros((5, 5, 3), np.uint8)
    image[:, :2], image[2, 2], image[:, 3:] = 40, 255, 100
    # Around the middle pixel: three of 40, two of 0 and three of 100.
    filled = fill_around(image, [box(2, 2, 3, 3)], ring=1)
    assert filled[2, 2].tolist() == [round((3 * 40 + 3 * 100) / 8)] * 3
    assert image[2, 2].tolist() == [255] * 3
    # Other regions are not surroundings.
    image = np.full((20, 20, 3), 50, np.uint8)
    image[5:10, 5:10], image[5:10, 10:15] = 255, 0
    assert (fill_around(image, [box(5, 5, 10, 10), box(10, 5, 15, 10)]) == 50).all()


def test_the_mean_inside_by_hand() -> None:
    image = np.full((6, 6, 3), 200, np.uint8)
    image[2:4, 2:4] = [[[0, 0, 0], [10, 20, 30]], [[0, 0, 0], [10, 20, 30]]]
    filled = fill_inside(image, [box(2, 2, 4, 4)])
    assert filled[3, 3].tolist() == [5, 10, 15]
    assert (filled[:2] == 200).all()


def test_inpainting_continues_the_surroundings() -> None:
    pytest.importorskip("cv2")
    image = np.zeros((40, 40, 3), np.uint8)
    image[:, 20:] = 200
    clean = image.copy()
    image[15:25, 10:30] = (255, 0, 0)
    painted = inpaint(image, [box(10, 15, 30, 25)])
    assert np.abs(painted.astype(int) - clean).mean() < 10
    assert painted[20, 12].max() < 40
    assert painted[20, 28].min() > 160


def test_an_image_that_is_covered_completely_gets_its_mean() -> None:
    image = np.arange(75, dtype=np.uint8).reshape(5, 5, 3)
    assert (fill_around(image, [box(-3, -3, 9, 9)]) == np.rint(image.reshape(-1, 3).mean(0))).all()


quads = st.lists(st.tuples(*[st.floats(-8, 30) for _ in range(8)]).map(lambda c: np.array(c).reshape(4, 2)), max_size=4)


@settings(max_examples=60, deadline=None)
@given(quads, st.integers(1, 6))
def test_only_pixels_in_a_region_change(regions: list[np.ndarray], ring: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (17, 23, 3), dtype=np.uint8)
    filled = fill_around(image, regions, ring=ring)
    outside = ~quad_mask(regions, 23, 17)
    assert filled.shape == image.shape
    assert (filled[outside] == image[outside]).all()


@pytest.mark.parametrize("fill", [fill_around, fill_inside, inpaint])
def test_images_without_text_are_returned_unchanged(fill: Any) -> None:
    pytest.importorskip("cv2")
    image = np.random.default_rng(2).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    assert fill(image, []) is image
    assert fill(image, [box(40, 40, 50, 50)]) is image
    regions = [box(-5, 3, 9, 8), box(28, 15, 40, 30)]
    filled, covered = fill(image, regions), quad_mask(regions, 30, 20)
    assert (filled[~covered] == image[~covered]).all()
    assert (filled[covered] != image[covered]).any()
    assert fill(np.full((1, 1, 3), 7, np.uint8), [box(0, 0, 1, 1)]).tolist() == [[[7, 7, 7]]] or fill is inpaint
