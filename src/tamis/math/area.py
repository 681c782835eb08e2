"""Areas of polygons on a pixel grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Quad = NDArray[np.floating[Any]]


def quad_mask(quads: Sequence[Quad], width: int, height: int) -> NDArray[np.bool_]:
    """Marks the pixels whose centre is inside at least one convex quadrilateral.

    Args:
        quads: (4, 2) corners (x, y) in pixels, in order around the quadrilateral, in either direction; parts outside
            the image are ignored.
        width, height: of the image, in pixels.

    Returns:
        (height, width) bool.
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
        sides = np.stack(
            [edge[0] * (y - corner[1]) - edge[1] * (x - corner[0]) for corner, edge in zip(corners, edges, strict=True)]
        )  # (4, h, w)
        inside = (sides >= 0).all(axis=0) | (sides <= 0).all(axis=0)
        mask[top:bottom, left:right] |= inside
    return mask


def covered_share(quads: Sequence[Quad], width: int, height: int) -> float:
    """Returns the share of an image that quadrilaterals cover together, in [0, 1]; overlaps count once.

    Args:
        quads, width, height: as for `quad_mask`.

    Raises:
        ValueError: the image has no pixels.
    """
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width} x {height} pixels has no area")
    if not quads:
        return 0.0
    return float(quad_mask(quads, width, height).mean())
