"""Covered pixels against point-in-polygon, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.math.area import covered_share, quad_mask

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


def test_the_direction_and_the_first_corner_do_not_matter() -> None:
    quad = np.array([[1.2, 0.3], [8.9, 2.2], [7.7, 7.1], [0.4, 5.5]])
    mask = quad_mask([quad], WIDTH, HEIGHT)
    np.testing.assert_array_equal(mask, quad_mask([quad[::-1]], WIDTH, HEIGHT))
    np.testing.assert_array_equal(mask, quad_mask([np.roll(quad, 1, 0)], WIDTH, HEIGHT))


def test_an_image_without_pixels_is_an_error() -> None:
    for size in ((0, 5), (5, 0), (-1, 3)):
        with pytest.raises(ValueError, match="has no area"):
            covered_share([], *size)
