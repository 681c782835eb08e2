"""Whether two pictures are light and dark in the same places: what tells them apart where a hash cannot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float32s, Mask

#: Fields on each side of a picture whose lightness is compared.
FIELDS = 16

#: A picture is plain where so many of its fields (half of them) lie within so many levels of each other.
_PLAIN_FIELDS, _PLAIN_LEVELS = 127, 8

#: How much the weaker contrast of two pictures is raised at most.
_CONTRAST = 1.25

#: Pairs compared together.
_CHUNK = 1 << 13


def plain(fields: NDArray[np.uint8]) -> Mask:
    """Returns which pictures are mostly of one lightness: things on white ground, screens, drawings.

    A perceptual hash keeps the slow waves of a picture; where half of it is one level they tell little more than
    where the rest is.

    Args:
        fields: (n, 256) lightness of 16 x 16 fields.
    """
    ordered = np.sort(fields, axis=1)
    return np.asarray((ordered[:, _PLAIN_FIELDS:] - ordered[:, :-_PLAIN_FIELDS]).min(axis=1) <= _PLAIN_LEVELS)


def lightness_differs(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Float32s:
    """Returns by how much two pictures differ where they differ most, in levels of 256.

    Brightness is made equal first, and contrast where it differs by less than a quarter. A field is compared with the
    field at its place and the eight around it, and counts by how far it lies outside their range: scaling and small
    shifts move edges by less than a field.

    Args:
        left, right: (n, 256) lightness of 16 x 16 fields.

    Returns:
        (n,) the largest such difference of any field of either picture; 0 for equal ones.
    """
    found = np.zeros(len(left), np.float32)
    for start in range(0, len(left), _CHUNK):
        one, two = (fields[start : start + _CHUNK].astype(np.float32) for fields in (left, right))
        spreads = one.std(axis=1, keepdims=True), two.std(axis=1, keepdims=True)
        larger = np.maximum(*spreads)
        one, two = (
            (fields - fields.mean(axis=1, keepdims=True)) * np.minimum(larger / np.maximum(spread, 1e-6), _CONTRAST)
            for fields, spread in zip((one, two), spreads, strict=True)
        )
        found[start : start + _CHUNK] = np.maximum(_outside(one, two), _outside(two, one))
    return found


def _outside(fields: Float32s, others: Float32s) -> Float32s:
    """Returns how far the farthest field lies outside the range of those around its place in the other picture."""
    square = others.reshape(-1, FIELDS, FIELDS)
    low, high = _around(square, np.minimum), _around(square, np.maximum)
    mine = fields.reshape(-1, FIELDS, FIELDS)
    beyond: Float32s = np.maximum(low - mine, mine - high).max(axis=(1, 2)).clip(min=0)
    return beyond


def _around(square: Float32s, choose: np.ufunc) -> Float32s:
    """Returns the least (or largest) of each field and its eight neighbours: (n, 16, 16)."""
    wide = square.copy()
    choose(wide[:, 1:], square[:, :-1], out=wide[:, 1:])
    choose(wide[:, :-1], square[:, 1:], out=wide[:, :-1])
    found = wide.copy()
    choose(found[:, :, 1:], wide[:, :, :-1], out=found[:, :, 1:])
    choose(found[:, :, :-1], wide[:, :, 1:], out=found[:, :, :-1])
    return found
