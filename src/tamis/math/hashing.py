"""Perceptual hashes: 64 bits that hardly change when a picture is recompressed, scaled or made brighter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import U64, Rows

#: Side of the grey picture that is looked at, and how many of its slowest waves on each side count.
SIDE, WAVES = 32, 8

#: The hash is cut into so many bands. Two hashes at distance r agree within (r - band) // _BANDS bits in at least one
#: of them: if all differed by one bit more, the sum would be r + 1.
_BANDS = 4
_BAND_BITS = 16

#: Pairs looked at together.
_CHUNK = 1 << 22


def image_hash(grey: NDArray[np.floating[Any]]) -> int:
    """Returns the perceptual hash of a grey picture: which of its slow waves are stronger than their median.

    Args:
        grey: (32, 32) brightness, any scale: a linear change of it changes no bit, but for its sign.

    Returns:
        64 bits. A picture of one colour: 0.

    Source: the usual "pHash" by the discrete cosine transform, Zauner 2010, "Implementation and benchmarking of
        perceptual image hash functions", section 3.2; here without the 7 x 7 mean filter.

    Raises:
        ValueError: the picture is of another size.
    """
    if grey.shape != (SIDE, SIDE):
        raise ValueError(f"expected a grey picture of {SIDE} x {SIDE}, got {grey.shape}")
    cosines = _cosines()
    waves = (cosines @ np.asarray(grey, np.float64) @ cosines.T).reshape(-1)  # (64,)
    waves[0] = 0  # the mean brightness says nothing of the picture
    if np.abs(waves).max() < 1e-9 * max(float(np.abs(grey).max()), 1):
        return 0
    bits = waves > np.median(waves[1:])
    return int("".join("1" if bit else "0" for bit in bits), 2)


@lru_cache(maxsize=1)
def _cosines() -> NDArray[np.float64]:
    """Returns the slowest waves of the discrete cosine transform (type II): (WAVES, SIDE)."""
    places = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    return np.cos(np.arange(WAVES)[:, None] * places[None, :])


def distance(left: U64, right: U64) -> NDArray[np.uint8]:
    """Returns in how many bits each hash differs from its partner: (n,) uint8."""
    return _ones(left ^ right)


def _ones(numbers: U64) -> NDArray[np.uint8]:
    """Returns how many bits of each number are set, by adding neighbours (NumPy counts them itself from 2.0 on)."""
    pairs, fours, eights = (np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F))
    ones = numbers - ((numbers >> np.uint64(1)) & pairs)
    ones = (ones & fours) + ((ones >> np.uint64(2)) & fours)
    ones = (ones + (ones >> np.uint64(4))) & eights
    with np.errstate(over="ignore"):  # the sum of all bytes ends in the highest one
        return np.asarray((ones * np.uint64(0x0101010101010101)) >> np.uint64(56), np.uint8)


def near_pairs(hashes: U64, radius: int) -> Iterator[tuple[Rows, Rows]]:
    """Yields the pairs of pictures that are near, each at least once, lower row first.

    Two pictures are near where the first hash of one differs from any hash of the other in at most `radius` bits: a
    picture's first hash is of the whole of it, the others of its inside, so that a copy that lost its rim is found.
    Every first hash is looked up by each of its four bands of 16 bits and their neighbours: two hashes that near
    agree within (radius - band) // 4 bits in one of the bands (0 to 3) at least.

    Args:
        hashes: (n, m), m hashes of each picture.
        radius: in bits, 0 to 15.

    Cost: at a radius of 8, 188 m look-ups of every row; each meets n / 65,536 others where hashes are spread evenly.
        Quadratic in the end.

    Raises:
        ValueError: the radius is out of range: above 15 unrelated pictures meet.

    Source: Norouzi, Punjani and Fleet 2012, "Fast search in Hamming space with multi-index hashing", section 3.1.
    """
    if not 0 <= radius <= 15:
        raise ValueError(f"the radius must lie between 0 and 15 bits of 64, got {radius}")
    for column in range(hashes.shape[1] if len(hashes) > 1 else 0):
        for band in range(_BANDS):
            asked, ordered = _keys(hashes[:, 0], band), _keys(hashes[:, column], band)
            order = np.argsort(ordered, kind="stable")
            starts = np.searchsorted(ordered[order], np.arange((1 << _BAND_BITS) + 1))  # of each key in the order
            for flip in _flips((radius - band) // _BANDS):
                low = starts[asked ^ flip]
                counts = starts[(asked ^ flip) + 1] - low
                asking = np.flatnonzero(counts)
                for some, place in _expanded(low[asking], counts[asking]):
                    left, right = asking[some], order[place]
                    near = (left != right) & (distance(hashes[left, 0], hashes[right, column]) <= radius)
                    if near.any():
                        yield np.minimum(left[near], right[near]), np.maximum(left[near], right[near])


def _keys(hashes: U64, band: int) -> Rows:
    return ((hashes >> np.uint64(band * _BAND_BITS)) & np.uint64(0xFFFF)).astype(np.int64)


def _flips(bits: int) -> list[int]:
    """Returns the numbers of 16 bits of which at most `bits` are set."""
    flips = np.arange(1 << _BAND_BITS, dtype=np.uint64)
    return [int(flip) for flip in flips[_ones(flips) <= bits]]


def _expanded(low: Rows, counts: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Yields (row, low[row] + 0), (row, low[row] + 1), ... for every row, `_CHUNK` or so at a time."""
    edges = np.concatenate([[0], np.cumsum(counts)])
    start = 0
    while start < counts.size:
        stop = max(int(np.searchsorted(edges, edges[start] + _CHUNK, side="right")) - 1, start + 1)
        rows = np.repeat(np.arange(start, stop), counts[start:stop])
        yield rows, low[rows] + np.arange(rows.size) - (edges[rows] - edges[start])
        start = stop


def leaders(pairs: Iterator[tuple[Rows, Rows]], n: int) -> Rows:
    """Returns for each row the one that stands for it, rows taken in their order.

    A row is dropped where a kept row before it is near; it belongs to the first of those. So no row is dropped for
    its nearness to one that is dropped itself.

    Args:
        pairs: (i, j) with i < j of rows that are near; repeats do not matter.
        n: rows.

    Returns:
        (n,) row numbers; itself where a row stays.
    """
    head = np.arange(n, dtype=np.int64)
    found = list(pairs)
    if not found:
        return head
    edges = np.unique(np.stack([np.concatenate([j for _, j in found]), np.concatenate([i for i, _ in found])]), axis=1)
    for later, earlier in edges.T.tolist():  # by the later row, then by the earlier
        if head[later] == later and head[earlier] == earlier:
            head[later] = earlier
    return head
