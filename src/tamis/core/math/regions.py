"""Quadrilaterals on a pixel grid: the pixels that they cover, and painting over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Mask, Pixels

Quad = NDArray[np.floating[Any]]


def quad_mask(quads: Sequence[Quad], width: int, height: int) -> Mask:
    """Marks the pixels whose centre is inside at least one convex quadrilateral: (height, width) bool.

    A quadrilateral has (4, 2) corners (x, y) in pixels, in order around it, in either direction; parts outside the
    image are ignored.
    """
    mask = np.zeros((height, width), bool)
    for quad in quads:
        corners = np.asarray(quad, np.float64)
        left, top = np.maximum(np.floor(corners.min(axis=0)).astype(int), 0)
        right = min(int(np.ceil(corners[:, 0].max())), width)
        bottom = min(int(np.ceil(corners[:, 1].max())), height)
        if left >= right or top >= bottom:
            continue
        x = np.arange(left, right) + 0.5
        y = (np.arange(top, bottom) + 0.5)[:, None]
        edges = np.roll(corners, -1, axis=0) - corners
        # A centre is inside if it is on the same side of all four edges.
        left_of_all = right_of_all = np.ones((bottom - top, right - left), bool)
        for corner, edge in zip(corners, edges, strict=True):
            down, across = edge[0] * (y - corner[1]), edge[1] * (x - corner[0])  # (h, 1), (w,)
            left_of_all, right_of_all = left_of_all & (down <= across), right_of_all & (down >= across)
        mask[top:bottom, left:right] |= left_of_all | right_of_all
    return mask


def covered_share(quads: Sequence[Quad], width: int, height: int) -> float:
    """Returns the share of an image of at least one pixel that `quad_mask` covers, in [0, 1]; overlaps count once."""
    return float(quad_mask(quads, width, height).mean()) if quads else 0.0


def fill_around(image: Pixels, quads: Sequence[Quad], *, ring: int = 4) -> Pixels:
    """Paints every quadrilateral in the mean colour of the pixels around it; of two that overlap, the later one wins.

    Around means outside all quadrilaterals and within `ring` pixels, at least 1. Without such pixels the colour is the
    mean of all uncovered pixels; if everything is covered, the mean of the image. Returns a copy of the (height, width,
    3) uint8 image, or the image itself where nothing is covered. See `quad_mask` for the corners.

    Source: Maini et al. 2024 (T-MARS), section 4.1: text regions are filled with the average colour of their
    surroundings.
    """
    import cv2

    height, width = image.shape[:2]
    covered = quad_mask(quads, width, height)
    if not covered.any():
        return image
    filled = image.copy()
    for quad in quads:
        corners = np.asarray(quad, np.float64)
        low = np.floor(corners.min(axis=0)).astype(int) - ring
        high = np.ceil(corners.max(axis=0)).astype(int) + ring
        left, top = max(int(low[0]), 0), max(int(low[1]), 0)
        right, bottom = min(int(high[0]), width), min(int(high[1]), height)
        if left >= right or top >= bottom:
            continue
        own = quad_mask([corners - (left, top)], right - left, bottom - top)
        near = cv2.dilate(own.astype(np.uint8), np.ones((2 * ring + 1, 2 * ring + 1), np.uint8)).astype(bool)
        around = near & ~covered[top:bottom, left:right]
        if around.any():
            colour = image[top:bottom, left:right][around].mean(0)
        else:
            colour = image[~covered if not covered.all() else covered].mean(0)
        filled[top:bottom, left:right][own] = np.rint(colour).astype(np.uint8)
    return filled


def fill_inside(image: Pixels, quads: Sequence[Quad]) -> Pixels:
    """Paints every quadrilateral in the mean colour of its own pixels, text included. See `fill_around`.

    Source: what the authors of T-MARS say that they ran (issue 4 of github.com/locuslab/T-MARS).
    """
    height, width = image.shape[:2]
    filled = image
    for quad in quads:
        inside = quad_mask([quad], width, height)
        if inside.any():
            filled = image.copy() if filled is image else filled
            filled[inside] = np.rint(image[inside].mean(0)).astype(np.uint8)
    return filled


def inpaint(image: Pixels, quads: Sequence[Quad], *, radius: int = 3) -> Pixels:
    """Paints the quadrilaterals from their rims inwards, by pixels at most `radius` away. See `fill_around`.

    Source: Telea 2004, "An image inpainting technique based on the fast marching method", as in OpenCV.
    """
    import cv2

    covered = quad_mask(quads, image.shape[1], image.shape[0])
    if not covered.any():
        return image
    painted = cv2.inpaint(np.ascontiguousarray(image), covered.astype(np.uint8), radius, cv2.INPAINT_TELEA)
    return np.asarray(painted, np.uint8)
