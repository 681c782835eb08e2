"""Whether two images are copies, by their thumbnails: also after scaling, recompression or cropping."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float32s, Floats, Mask, Rows

#: Fields along each side of a thumbnail: of its lightness, and of its colours (blue and red difference).
LIGHT, COLOUR = 32, 8

#: Allowed difference of a field beyond the given levels, as a share of the contrast around it: of lightness, of colours
#: (which many formats store at half the size), and of both where a crop has moved the fields. In images with contrast
#: everywhere, such as photographs, it is the median contrast over `_BUSY`, at most `_SHARE_MOST`: their hashes tell
#: them apart, and cheap resampling changes them a lot.
_SHARE, _SHARE_COLOUR, _SHARE_MOVED, _SHARE_MOST = 0.12, 0.25, 0.4, 0.6
_BUSY = 75

_STRAY = 2  # fields that must differ: allow one outlier cell, from compression
_LARGE = 200  # pixels; from this side on, a field averages so many pixels that compression hardly changes it

#: Limits on shift and growth of one image against the other, in units of half the image side: for plain images, and
#: for those with contrast everywhere (a share above `_PLAIN`). Up to `_LEAST`, the shift widens the allowed difference.
_MOST_PLAIN, _MOST, _PLAIN, _LEAST = 0.14, 0.25, 0.3, 0.02

_GAIN = (0.87, 1.15)  # lowest and highest brightness of a copy

#: Passes of the alignment: (fields along a side, times smoothed, steps).
_PASSES = ((16, 3, 5), (16, 0, 4), (32, 0, 3))

_CHUNK = 128  # pairs compared together: their thumbnails stay in the processor's cache


@dataclass(frozen=True)
class Thumbnails:
    """Small versions of n images."""

    light: NDArray[np.uint8]  # (n, 1024) lightness of 32 x 32 fields
    colours: NDArray[np.uint8]  # (n, 128) blue and red difference of 8 x 8 fields; (n, 0) to ignore colours
    side: Float32s  # (n,) shorter side of each image in pixels

    def of(self, rows: Rows) -> Thumbnails:
        """Returns the thumbnails of some images."""
        return Thumbnails(self.light[rows], self.colours[rows], self.side[rows])


def alike(left: Thumbnails, right: Thumbnails, *, levels: int, tolerance: int) -> Mask:
    """Returns which pairs of images are copies.

    A field may differ by the levels, and by a share of the contrast around it, since recompression blurs edges. For
    images that differ by more, one is aligned with the other: shift and growth along each axis, and brightness. They
    are copies if it is inside the other and agrees with it there.

    Args:
        left, right: n thumbnails each, the pairs.
        levels: allowed difference of lightness, of 256.
        tolerance: allowed difference of colour, of 256.

    Returns:
        (n,) bool.
    """
    copies = np.zeros(len(left.light), bool)
    for start in range(0, copies.size, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, copies.size))
        one, two = _planes(left.of(rows)), _planes(right.of(rows))
        coarse = np.maximum(_LARGE / np.maximum(np.minimum(left.side[rows], right.side[rows]), 1), 1)
        limits = coarse[:, None] * np.array([levels, tolerance, tolerance][: len(one)])
        share = np.zeros(rows.size)
        for agree in (_equal, _agree, _moved):
            same = agree(one, two, share, limits)
            copies[rows[same]] = True
            rows, share, coarse, limits = rows[~same], share[~same], coarse[~same], limits[~same]
            one, two = ([plane[~same] for plane in planes] for planes in (one, two))
            if not rows.size:
                break
            if agree is _equal:
                busy = np.minimum(_busy(one[0]), _busy(two[0]))
                share = np.clip(np.maximum(_SHARE * coarse, busy / _BUSY), 0, _SHARE_MOST)
    return copies


def _planes(images: Thumbnails) -> list[Float32s]:
    """Returns the lightness (m, 32, 32) and, unless ignored, two colours (m, 8, 8)."""
    light = images.light.astype(np.float32).reshape(-1, LIGHT, LIGHT)
    if not images.colours.shape[1]:
        return [light]
    colours = images.colours.astype(np.float32).reshape(-1, COLOUR, COLOUR, 2)
    return [light, np.ascontiguousarray(colours[..., 0]), np.ascontiguousarray(colours[..., 1])]


def _busy(light: Float32s) -> Floats:
    """Returns the median contrast of each image."""
    return np.asarray(np.median(_contrast(light).reshape(len(light), -1), axis=1), np.float64)


def _equal(one: list[Float32s], two: list[Float32s], share: Floats, limits: Floats) -> Mask:
    """Returns which pairs differ nowhere by more than the limits. Fast, and true of most copies."""
    differences = [np.abs(a - b).max(axis=(1, 2)) for a, b in zip(one, two, strict=True)]
    return np.asarray((np.stack(differences, axis=1) <= limits).all(axis=1))


def _agree(
    one: list[Float32s], two: list[Float32s], share: Floats, limits: Floats, visible: list[Mask] | None = None
) -> Mask:
    """Returns which pairs have fewer than two fields of each plane that differ by more than the limits."""
    agree = np.ones(len(share), bool)
    for place, (a, b) in enumerate(zip(one, two, strict=True)):
        contrast = np.maximum(_contrast(a), _contrast(b))
        beyond = np.abs(a - b) - np.maximum(share, _SHARE_COLOUR if place else 0)[:, None, None] * contrast
        beyond = np.where(visible[place], beyond, 0) if visible is not None else beyond
        flat = beyond.reshape(len(beyond), -1)
        agree &= np.partition(flat, flat.shape[1] - _STRAY, axis=1)[:, -_STRAY] <= limits[:, place]
    return agree


def _moved(one: list[Float32s], two: list[Float32s], share: Floats, limits: Floats) -> Mask:
    """Returns which pairs agree after one image is aligned with the other."""
    place = _place(one[0], two[0])
    shift, scale, gain = place[:, (0, 2)], place[:, (1, 3)], place[:, 4, None, None]
    far = np.abs(place[:, :4]).max(axis=1)
    most = np.where(share > _PLAIN, _MOST, _MOST_PLAIN)
    inside = (np.abs(shift) <= -scale + _LEAST).all(axis=1) | (np.abs(shift) <= scale + _LEAST).all(axis=1)
    warped, visible = zip(*(_warped(plane, place, smooth=True) for plane in two), strict=True)
    share = np.maximum(share, np.clip(far / _LEAST * _SHARE_MOVED, 0, _SHARE_MOVED))
    agree: Mask = inside & (far < most) & _agree(one, [warped[0] * gain, *warped[1:]], share, limits, list(visible))
    return agree


def _contrast(plane: Float32s) -> Float32s:
    """Returns the range of each field and its eight neighbours: (m, n, n)."""
    low, high = plane, plane
    for axis in (1, 2):
        low = np.minimum(np.minimum(*_neighbours(low, axis)), low)
        high = np.maximum(np.maximum(*_neighbours(high, axis)), high)
    return high - low


def _neighbours(plane: Float32s, axis: int) -> tuple[Float32s, Float32s]:
    """Returns the fields before and after each field along an axis; a field at the edge is its own neighbour."""
    wide = np.pad(plane, [(0, 0), (axis == 1,) * 2, (axis == 2,) * 2], mode="edge")
    return (wide[:, :-2], wide[:, 2:]) if axis == 1 else (wide[:, :, :-2], wide[:, :, 2:])


def _place(one: Float32s, two: Float32s) -> Float32s:
    """Aligns each image with its partner: returns (m, 5), shift and growth in x, shift and growth in y, gain.

    Position u of the first image, from -1 to 1, shows (1 + growth) u + shift of the second, gain times as bright.

    Source: Lucas and Kanade 1981, "An iterative image registration technique with an application to stereo vision".
    """
    place = np.zeros((len(one), 5), np.float32)
    place[:, 4] = 1
    for side, smooth, steps in _PASSES:
        first, second = (_smoothed(_shrunk(plane, side), smooth) for plane in (one, two))
        x = _centres(side)
        for _ in range(steps):
            warped, visible = _warped(second, place)
            scale = side / 2 * place[:, 4, None, None]
            slope_y, slope_x = (np.gradient(warped, axis=axis) * scale for axis in (1, 2))
            slopes = [slope_x, slope_x * x, slope_y, slope_y * x[:, None], warped]
            jacobian = np.stack([slope * visible for slope in slopes], axis=1).reshape(len(one), 5, -1)
            error = ((first - warped * place[:, 4, None, None]) * visible).reshape(len(one), -1, 1)
            normal = jacobian @ jacobian.transpose(0, 2, 1)
            normal[:, range(5), range(5)] *= 1.001
            normal[:, range(5), range(5)] += 1  # or a flat image would have no solution
            place += np.linalg.solve(normal, jacobian @ error)[:, :, 0]
            np.clip(place[:, :4], -_MOST, _MOST, out=place[:, :4])
            np.clip(place[:, 4], *_GAIN, out=place[:, 4])
    return place


def _centres(side: int) -> Float32s:
    """Returns the centre of each field along a side, from -1 to 1."""
    return np.asarray((np.arange(side) + 0.5) / side * 2 - 1, np.float32)


def _warped(plane: Float32s, place: Float32s, *, smooth: bool = False) -> tuple[Float32s, Mask]:
    """Returns the second image as aligned with the first, and the fields where it is visible.

    Fields at the edge are not: their neighbours are unknown.
    """
    side, inside = plane.shape[1], []
    for axis, (shift, growth) in ((2, (0, 1)), (1, (2, 3))):
        at = (_centres(side) * (1 + place[:, growth, None]) + place[:, shift, None] + 1) * (side / 2) - 0.5
        inside.append((at >= 0) & (at <= side - 1))
        low = np.clip(at.astype(np.int64), 0, side - 2)
        part = np.clip(at - low, 0, 1).astype(np.float32)
        terms: list[Float32s] = []
        for step, weight in zip(*_weights(part, smooth), strict=True):
            index = np.clip(low + step, 0, side - 1)
            index, weight = (index[:, None], weight[:, None]) if axis == 2 else (index[..., None], weight[..., None])
            terms.append(np.take_along_axis(plane, index, axis) * weight)
        plane = reduce(np.add, terms)
    visible = inside[1][:, :, None] & inside[0][:, None, :]
    visible[:, [0, -1]] = visible[:, :, [0, -1]] = False
    return np.asarray(plane, np.float32), visible


def _weights(part: Float32s, smooth: bool) -> tuple[tuple[int, ...], tuple[Float32s, ...]]:
    """Returns offsets and weights of the fields that interpolate between two: linear, or cubic."""
    if not smooth:
        return (0, 1), (1 - part, part)
    square = part * part
    cube = square * part
    weights = (-cube + 2 * square - part, 3 * cube - 5 * square + 2, -3 * cube + 4 * square + part, cube - square)
    return (-1, 0, 1, 2), tuple(np.asarray(weight / 2, np.float32) for weight in weights)


def _shrunk(plane: Float32s, side: int) -> Float32s:
    parts = plane.shape[1] // side
    return np.asarray(plane.reshape(len(plane), side, parts, side, parts).mean(axis=(2, 4))) if parts > 1 else plane


def _smoothed(plane: Float32s, times: int) -> Float32s:
    for _ in range(times):
        for axis in (1, 2):
            low, high = _neighbours(plane, axis)
            plane = np.asarray((low + 2 * plane + high) / 4, np.float32)
    return plane
