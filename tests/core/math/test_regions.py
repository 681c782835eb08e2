"""Covered pixels against point-in-polygon, and painting over them by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.core.math.regions import covered_share, fill_around, fill_inside, inpaint, quad_mask

WIDTH, HEIGHT = 13, 9


def box(left: float, top: float, right: float, bottom: float) -> NDArray[np.float64]:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float64)


def contains(quad: NDArray[np.float64], x: float, y: float) -> bool:
    """Ray casting: how often a ray to the right crosses the outline."""
    crossings = 0
    for (x1, y1), (x2, y2) in zip(quad, np.roll(quad, -1, axis=0), strict=True):
        if (y1 > y) != (y2 > y) and x < x1 + (y - y1) / (y2 - y1) * (x2 - x1):
            crossings += 1
    return crossings % 2 == 1


@st.composite
def rotated_boxes(draw: st.DrawFn) -> NDArray[np.float64]:
    """Rotated rectangles, partly outside the image; odd sizes, so that no pixel's centre lies on an edge."""
    centre = np.array([draw(st.floats(-3, WIDTH + 3)), draw(st.floats(-3, HEIGHT + 3))])
    half = np.array([draw(st.floats(0.3, 7)), draw(st.floats(0.3, 7))]) + 0.0137
    angle = draw(st.floats(0.01, 1.5))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    corners = (np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half) @ turn.T + centre
    return corners[::-1] if draw(st.booleans()) else corners


@given(st.lists(rotated_boxes(), max_size=3))
def test_the_mask_equals_point_in_polygon(quads: list[NDArray[np.float64]]) -> None:
    wanted = [[any(contains(quad, x + 0.5, y + 0.5) for quad in quads) for x in range(WIDTH)] for y in range(HEIGHT)]
    differing = quad_mask(quads, WIDTH, HEIGHT) != np.array(wanted, bool).reshape(HEIGHT, WIDTH)
    for y, x in np.argwhere(differing):  # only centres on an edge may fall either way
        distances = [
            abs(np.cross([*(b - a), 0], [*(np.array([x + 0.5, y + 0.5]) - a), 0])[2]) / np.linalg.norm(b - a)
            for quad in quads
            for a, b in zip(quad, np.roll(quad, -1, axis=0), strict=True)
        ]
        assert min(distances) < 1e-6


@pytest.mark.parametrize(
    ("quads", "share"),
    [
        ([box(1, 1, 5, 4)], 12 / 117),
        ([box(0, 0, 2, 2), box(1, 0, 3, 2), box(0, 0, 3, 2)], 6 / 117),  # overlaps count once
        ([], 0),
        ([box(-5, -5, -1, -1), box(20, 0, 30, 4), box(2, 2, 2, 2), box(-9, 3, -0.1, 5)], 0),  # outside, or no area
        ([box(-5, -5, 50, 50)], 1),
    ],
)
def test_boxes_by_hand(quads: list[NDArray[np.float64]], share: float) -> None:
    assert covered_share(quads, WIDTH, HEIGHT) == pytest.approx(share)


def test_the_means_around_and_inside_by_hand() -> None:
    image = np.zeros((5, 5, 3), np.uint8)
    image[:, :2], image[2, 2], image[:, 3:] = 40, 255, 100
    # Around the middle pixel: three of 40, two of 0 and three of 100.
    filled = fill_around(image, [box(2, 2, 3, 3)], ring=1)
    assert filled[2, 2].tolist() == [round((3 * 40 + 3 * 100) / 8)] * 3
    assert image[2, 2].tolist() == [255] * 3
    inside = fill_inside(image, [box(1, 2, 4, 3)])
    assert inside[2, 2].tolist() == [round((40 + 255 + 100) / 3)] * 3
    # Other regions are not surroundings.
    image = np.full((20, 20, 3), 50, np.uint8)
    image[5:10, 5:10], image[5:10, 10:15] = 255, 0
    assert (fill_around(image, [box(5, 5, 10, 10), box(10, 5, 15, 10)]) == 50).all()


def test_inpainting_continues_the_surroundings() -> None:
    image = np.zeros((40, 40, 3), np.uint8)
    image[:, 20:] = 200
    clean = image.copy()
    image[15:25, 10:30] = (255, 0, 0)
    painted = inpaint(image, [box(10, 15, 30, 25)])
    assert np.abs(painted.astype(int) - clean).mean() < 10


@pytest.mark.parametrize("fill", [fill_around, fill_inside, inpaint])
def test_images_without_text_are_returned_unchanged(fill: Any) -> None:
    image = np.random.default_rng(2).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    assert fill(image, []) is image
    assert fill(image, [box(40, 40, 50, 50)]) is image
    regions = [box(-5, 3, 9, 8), box(28, 15, 40, 30)]
    filled, covered = fill(image, regions), quad_mask(regions, 30, 20)
    assert (filled[~covered] == image[~covered]).all()
    assert (filled[covered] != image[covered]).any()
    assert fill(np.full((1, 1, 3), 7, np.uint8), [box(0, 0, 1, 1)]).tolist() == [[[7, 7, 7]]] or fill is inpaint
