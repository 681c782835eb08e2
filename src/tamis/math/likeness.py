"""Whether two pictures are one, by their thumbnails: also where a copy was scaled, saved again or cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float32s, Floats, Mask, Rows

#: Fields on each side of a thumbnail: of its lightness, and of its colours (blue and red difference).
LIGHT, COLOUR = 32, 8

#: By how much a field may differ beside the levels allowed, as a share of the contrast around it: of lightness, of
#: colours, which many formats store at half the size, and of both where fields fall elsewhere because a copy was cut.
#: In pictures that have contrast everywhere, as photographs have, it is the median contrast over `_BUSY`, at most
#: `_SHARE_MOST`: their hashes tell them apart, and careless scaling changes much of them.
_SHARE, _SHARE_COLOUR, _SHARE_MOVED, _SHARE_MOST = 0.12, 0.25, 0.4, 0.6
_BUSY = 75

#: So many fields have to differ: compression changes a single one here and there by much.
_STRAY = 2

#: From this side in pixels on, a field is the mean of many pixels, and what compression changes of them averages out.
_LARGE = 200

#: How far a picture may be moved or scaled against the other, in halves of a side; more where contrast is everywhere,
#: so that its share is above `_PLAIN`. Below `_LEAST` it is hardly moved, and hardly more is allowed for it.
_MOST_PLAIN, _MOST, _PLAIN, _LEAST = 0.14, 0.25, 0.3, 0.02

#: How much brighter a copy may be, lowest and highest.
_GAIN = (0.87, 1.15)

#: Passes that align one thumbnail with the other: (fields on a side, how often smoothed, steps).
_PASSES = ((16, 3, 5), (16, 0, 4), (32, 0, 3))

#: Pairs compared together: their thumbnails stay in the processor's cache.
_CHUNK = 128


@dataclass(frozen=True)
class Thumbnails:
    """Small versions of n pictures.

    Attributes:
        light: (n, 1024) lightness of 32 x 32 fields.
        colours: (n, 128) blue and red difference of 8 x 8 fields; (n, 0): not looked at.
        side: (n,) the shorter side of each picture in pixels.
    """

    light: NDArray[np.uint8]
    colours: NDArray[np.uint8]
    side: Float32s

    def of(self, rows: Rows) -> Thumbnails:
        """Returns those of some pictures."""
        return Thumbnails(self.light[rows], self.colours[rows], self.side[rows])


def alike(left: Thumbnails, right: Thumbnails, *, levels: int, tolerance: int) -> Mask:
    """Returns which pairs of pictures are one: no field of one differs from the place of the other that it shows.

    A field may differ by the levels, and by a share of the contrast around it: saving again blurs edges. Where pictures
    differ by more, the place of one in the other is looked for: how far it is moved and scaled along each axis, and how
    much brighter it is. They are one where it lies inside the other and agrees with it.

    Args:
        left, right: pairs of pictures.
        levels: of lightness, of 256.
        tolerance: levels of colour, of 256.
    """
    found = np.zeros(len(left.light), bool)
    for start in range(0, found.size, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, found.size))
        one, two = _planes(left.of(rows)), _planes(right.of(rows))
        coarse = np.maximum(_LARGE / np.maximum(np.minimum(left.side[rows], right.side[rows]), 1), 1)
        limits = coarse[:, None] * np.array([levels, tolerance, tolerance][: len(one)])
        share = np.zeros(rows.size)
        for agree in (_equal, _agree, _moved):
            same = agree(one, two, share, limits)
            found[rows[same]] = True
            rows, share, coarse, limits = rows[~same], share[~same], coarse[~same], limits[~same]
            one, two = ([plane[~same] for plane in planes] for planes in (one, two))
            if not rows.size:
                break
            if agree is _equal:
                busy = np.minimum(_busy(one[0]), _busy(two[0]))
                share = np.clip(np.maximum(_SHARE * coarse, busy / _BUSY), 0, _SHARE_MOST)
    return found


def _planes(pictures: Thumbnails) -> list[Float32s]:
    """Returns the lightness (m, 32, 32) and, where they are looked at, two colours (m, 8, 8) of pictures."""
    light = pictures.light.astype(np.float32).reshape(-1, LIGHT, LIGHT)
    if not pictures.colours.shape[1]:
        return [light]
    colours = pictures.colours.astype(np.float32).reshape(-1, COLOUR, COLOUR, 2)
    return [light, np.ascontiguousarray(colours[..., 0]), np.ascontiguousarray(colours[..., 1])]


def _busy(light: Float32s) -> Floats:
    """Returns the median contrast of each picture."""
    return np.asarray(np.median(_contrast(light).reshape(len(light), -1), axis=1), np.float64)


def _equal(one: list[Float32s], two: list[Float32s], share: Floats, limits: Floats) -> Mask:
    """Returns which pairs differ nowhere by more than the limits: most copies, and quickly seen."""
    apart = [np.abs(mine - other).max(axis=(1, 2)) for mine, other in zip(one, two, strict=True)]
    return np.asarray((np.stack(apart, axis=1) <= limits).all(axis=1))


def _agree(
    one: list[Float32s], two: list[Float32s], share: Floats, limits: Floats, there: list[Mask] | None = None
) -> Mask:
    """Returns of which pairs less than two fields of each plane differ by more than the limits."""
    found = np.ones(len(share), bool)
    for place, (mine, other) in enumerate(zip(one, two, strict=True)):
        contrast = np.maximum(_contrast(mine), _contrast(other))
        beyond = np.abs(mine - other) - np.maximum(share, _SHARE_COLOUR if place else 0)[:, None, None] * contrast
        beyond = np.where(there[place], beyond, 0) if there is not None else beyond
        flat = beyond.reshape(len(beyond), -1)
        found &= np.partition(flat, flat.shape[1] - _STRAY, axis=1)[:, -_STRAY] <= limits[:, place]
    return found


def _moved(one: list[Float32s], two: list[Float32s], share: Floats, limits: Floats) -> Mask:
    """Returns which pairs are one where the place of one picture in the other is found."""
    place = _place(one[0], two[0])
    shift, scale, gain = place[:, (0, 2)], place[:, (1, 3)], place[:, 4, None, None]
    far = np.abs(place[:, :4]).max(axis=1)
    most = np.where(share > _PLAIN, _MOST, _MOST_PLAIN)
    inside = (np.abs(shift) <= -scale + _LEAST).all(axis=1) | (np.abs(shift) <= scale + _LEAST).all(axis=1)
    seen, there = zip(*(_seen(plane, place, smooth=True) for plane in two), strict=True)
    share = np.maximum(share, np.clip(far / _LEAST * _SHARE_MOVED, 0, _SHARE_MOVED))
    found: Mask = inside & (far < most) & _agree(one, [seen[0] * gain, *seen[1:]], share, limits, list(there))
    return found


def _contrast(plane: Float32s) -> Float32s:
    """Returns how far the lightest and darkest of each field and its eight neighbours are apart: (m, n, n)."""
    low, high = plane, plane
    for axis in (1, 2):
        low = np.minimum(np.minimum(*_neighbours(low, axis)), low)
        high = np.maximum(np.maximum(*_neighbours(high, axis)), high)
    return high - low


def _neighbours(plane: Float32s, axis: int) -> tuple[Float32s, Float32s]:
    """Returns the fields before and after each field along an axis; a field at the rim is its own neighbour."""
    wide = np.pad(plane, [(0, 0), (axis == 1,) * 2, (axis == 2,) * 2], mode="edge")
    return (wide[:, :-2], wide[:, 2:]) if axis == 1 else (wide[:, :, :-2], wide[:, :, 2:])


def _place(one: Float32s, two: Float32s) -> Float32s:
    """Aligns each picture with its partner: returns (m, 5), shift and growth across, shift and growth down, gain.

    A place u across the first picture, from -1 to 1, shows (1 + growth) u + shift of the second, gain times as bright.

    Source: Lucas and Kanade 1981, "An iterative image registration technique with an application to stereo vision".
    """
    place = np.zeros((len(one), 5), np.float32)
    place[:, 4] = 1
    for side, smooth, steps in _PASSES:
        mine, other = (_smoothed(_shrunk(plane, side), smooth) for plane in (one, two))
        across = _centres(side)
        for _ in range(steps):
            seen, there = _seen(other, place)
            slope_y, slope_x = (np.gradient(seen, axis=axis) * (side / 2 * place[:, 4, None, None]) for axis in (1, 2))
            slopes = [slope_x, slope_x * across, slope_y, slope_y * across[:, None], seen]
            turns = np.stack([slope * there for slope in slopes], axis=1).reshape(len(one), 5, -1)
            error = ((mine - seen * place[:, 4, None, None]) * there).reshape(len(one), -1, 1)
            normal = turns @ turns.transpose(0, 2, 1)
            normal[:, range(5), range(5)] *= 1.001
            normal[:, range(5), range(5)] += 1  # a flat picture has no place
            place += np.linalg.solve(normal, turns @ error)[:, :, 0]
            np.clip(place[:, :4], -_MOST, _MOST, out=place[:, :4])
            np.clip(place[:, 4], *_GAIN, out=place[:, 4])
    return place


def _centres(side: int) -> Float32s:
    """Returns the middle of each field along a side, from -1 to 1."""
    return np.asarray((np.arange(side) + 0.5) / side * 2 - 1, np.float32)


def _seen(plane: Float32s, place: Float32s, *, smooth: bool = False) -> tuple[Float32s, Mask]:
    """Returns what each field of the first picture shows of the second, and which fields show something of it.

    Fields at the rim show none: what is next to them is unknown.
    """
    side, inside = plane.shape[1], []
    for axis, (shift, growth) in ((2, (0, 1)), (1, (2, 3))):
        at = (_centres(side) * (1 + place[:, growth, None]) + place[:, shift, None] + 1) * (side / 2) - 0.5
        inside.append((at >= 0) & (at <= side - 1))
        low = np.clip(at.astype(np.int64), 0, side - 2)
        part = np.clip(at - low, 0, 1).astype(np.float32)
        seen: Float32s | None = None
        for step, weight in zip(*_weights(part, smooth), strict=True):
            picked = np.clip(low + step, 0, side - 1)
            picked, weight = (picked[:, None], weight[:, None]) if axis == 2 else (picked[..., None], weight[..., None])
            taken = np.take_along_axis(plane, picked, axis) * weight
            seen = taken if seen is None else seen + taken
        assert seen is not None
        plane = seen
    there = inside[1][:, :, None] & inside[0][:, None, :]
    there[:, [0, -1]] = there[:, :, [0, -1]] = False
    return np.asarray(plane, np.float32), there


def _weights(part: Float32s, smooth: bool) -> tuple[tuple[int, ...], tuple[Float32s, ...]]:
    """Returns which fields count for a place a part of the way to the next, and how much: of a line or of a cubic."""
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
