"""Perceptual hashes: 64 bits that hardly change when an image is recompressed, scaled or made brighter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations, pairwise
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import U64, Mask, Rows

#: Side of the grey thumbnail, and number of its lowest DCT frequencies along each side.
SIDE, WAVES = 32, 8

#: DCT coefficients below this share of the largest count as 0, since recompression flips their signs. Those within
#: `_TIE` of the median, as a share of the largest, equal it: they differ only within float noise.
_ABSENT, _TIE = 1e-2, 1e-9

_FIRST, _MOST = 1 << 10, 1 << 16  # rows looked up together, at first and at most
_PAIRS = 1 << 17  # limit on near pairs in memory; beyond it fewer rows are looked up together
_CHUNK = 1 << 20  # pairs whose bits are compared together, for keys with many hashes


def image_hash(grey: NDArray[np.floating[Any]]) -> int:
    """Returns the perceptual hash of a grey image: which low DCT coefficients are above their median.

    A coefficient below a hundredth of the largest counts as 0, and so does its bit: gradients, flags and stripes have
    few coefficients, and the others are noise from rounding and recompression.

    Args:
        grey: (32, 32) brightness in any unit: scaling and shifting it change no bit.

    Returns:
        64 bits, the first of them 1; 0 for an image of one colour.

    Source: the usual "pHash" by the discrete cosine transform, Zauner 2010, "Implementation and benchmarking of
        perceptual image hash functions", section 3.2; here without the 7 x 7 mean filter.

    Raises:
        ValueError: the image has another size.
    """
    if grey.shape != (SIDE, SIDE):
        raise ValueError(f"expected a grey image of {SIDE} x {SIDE}, got {grey.shape}")
    cosines = _cosines()
    waves = (cosines @ np.asarray(grey, np.float64) @ cosines.T).reshape(-1)  # (64,)
    waves[0] = 0  # the mean brightness
    strongest = float(np.abs(waves).max())
    if strongest < 1e-9 * max(float(np.abs(grey).max()), 1):
        return 0
    waves[np.abs(waves) < _ABSENT * strongest] = 0
    bits = (waves != 0) & (waves > np.median(waves[1:]) + _TIE * strongest)
    bits[0] = True  # only a flat image has hash 0
    return int("".join("1" if bit else "0" for bit in bits), 2)


@lru_cache(maxsize=1)
def _cosines() -> NDArray[np.float64]:
    """The lowest frequencies of the discrete cosine transform (type II): (WAVES, SIDE)."""
    places = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    return np.cos(np.arange(WAVES)[:, None] * places[None, :])


def distance(left: U64, right: U64) -> NDArray[np.uint8]:
    """Returns the number of bits in which each hash differs from its partner: (n,) uint8."""
    bits: NDArray[np.uint8] = np.bitwise_count(left ^ right)
    return bits


def leaders(hashes: U64, radius: int, same: Callable[[Rows, Rows], Mask] | None = None) -> Rows:
    """Returns the kept image that each image repeats, processing images in order.

    An image is dropped if it is near an earlier kept one, but not for being near a dropped one. Two images are near if
    the first hash of one differs from any hash of the other in at most `radius` bits, and `same` agrees. The first hash
    is of the complete image, the others are of centre crops, so that a cropped copy is found. An image belongs to the
    first kept image whose first hash is near any of its hashes, else to the first that contains it as a crop.

    Only kept images are looked up, and those that they drop never are: n copies of one image cost n comparisons, not
    n^2.

    Args:
        hashes: (n, m), m hashes of each image.
        radius: in bits, 0 to 15.
        same: from (p,) rows and (p,) others with near hashes, the earlier ones first, to (p,) bool.

    Returns:
        (n,) row numbers; the row itself where it is kept.

    Cost: at a radius of 8, 285 look-ups of every kept row in tables of m million hashes, with less than m / 2
        comparisons of two numbers each if hashes are spread evenly. Images with near hashes that `same` rejects are
        all kept and compared with one another. Memory: about 30 m bytes a row and, with many rows, 30 MiB.

    Raises:
        ValueError: the radius is out of range; above 15 unrelated images would be near.

    Source: Norouzi, Punjani and Fleet 2012, "Fast search in Hamming space with multi-index hashing", section 3.1.
    """
    if not 0 <= radius <= 15:
        raise ValueError(f"the radius must be from 0 to 15 bits of 64, got {radius}")
    head = np.arange(len(hashes), dtype=np.int64)
    pending, size = head.copy(), _FIRST
    index = _Index(hashes, pending, radius)
    dropped = 0  # rows of the index
    while pending.size:
        if dropped > index.rows.size // 4:
            rows, dropped = index.rows[head[index.rows] == index.rows], 0
            del index  # first, or two of them would be in memory
            index = _Index(hashes, rows, radius)
        queries, later = pending[:size], pending[size:]
        pairs = _near(index, queries, head, same, _PAIRS if size > 1 else None)
        if pairs is None:  # many copies of one image: look up fewer rows, and the first copy drops the others
            size = max(size // 16, 1)
            continue
        _drop(head, *pairs)
        pending = later[head[later] == later]
        dropped += later.size - pending.size + int(np.count_nonzero(head[queries] != queries))
        size = min(2 * size, _MOST)
    return head


def _near(
    index: _Index, queries: Rows, head: Rows, same: Callable[[Rows, Rows], Mask] | None, most: int | None
) -> tuple[Rows, Rows] | None:
    """Returns near pairs of queries and kept rows, skipping pairs the other query will find.

    Returns None, before the slow `same` is called, if more than `most` pairs have near hashes.
    """
    parts = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    count = 0
    for rows, others in index.near(queries):
        kept = head[others] == others
        rows, others = rows[kept], others[kept]
        new = others > rows
        new[~new] = ~index.finds(others[~new], rows[~new])
        parts.append((rows[new], others[new]))
        count += parts[-1][0].size
        if most is not None and count > most:
            return None
    query, near = (np.concatenate(side) for side in zip(*parts, strict=True))
    if same is not None and query.size:
        agree = same(np.minimum(query, near), np.maximum(query, near))
        query, near = query[agree], near[agree]
    return query, near


def _drop(head: Rows, query: Rows, near: Rows) -> None:
    """Drops rows in `head`, which is final before the first query.

    A query is dropped for the first earlier row that is still kept; without one, it drops the later rows.
    """
    order = np.argsort(query, kind="stable")
    query, near = query[order], near[order]
    starts = np.flatnonzero(np.diff(query, prepend=-1)).tolist()
    for start, stop in pairwise([*starts, query.size]):
        row, others = query[start], near[start:stop]
        if head[row] == row:
            others = others[head[others] == others]
            earlier = others[others < row]
            if earlier.size:
                head[row] = earlier.min()
            else:
                head[others] = row


class _Index:
    """Finds the rows (ascending) with hashes near given ones, by a table for each band of the hashes.

    A hash is cut into k bands. Two hashes at a distance of at most r agree within (r - band) // k bits in at least one
    band: if all differed by one bit more, the sum would be r + 1. So each band is looked up by its own value and its
    neighbours' in a table of the rows by this band.
    """

    def __init__(self, hashes: U64, rows: Rows, radius: int) -> None:
        self.rows = rows
        self._hashes, self._radius = hashes, radius
        count = hashes.shape[1]
        self._bands = _bands(radius, rows.size * count)
        flat, owners = hashes[rows].reshape(-1), np.repeat(rows.astype(np.uint32), count)
        self._tables = [_Table(flat, owners, *band) for band in self._bands]

    def near(self, queries: Rows) -> Iterator[tuple[Rows, Rows]]:
        """Yields pairs of a query and another row with a hash near the query's first, once (but for equal hashes)."""
        first = self._hashes[queries, 0]
        for number, (band, table) in enumerate(zip(self._bands, self._tables, strict=True)):
            order = np.argsort(_band(first, *band))  # look-ups in ascending order stay in the processor's cache
            flips = _flips(band[1], (self._radius - number) // len(self._bands))
            for place, others, theirs in table.near(first[order], flips, self._radius):
                rows = queries[order[place]]
                other = np.flatnonzero(others != rows)
                if other.size:
                    rows, others = rows[other], others[other]
                    new = ~self._found_before(rows, others, theirs[other], number)
                    yield rows[new], others[new]

    def finds(self, rows: Rows, others: Rows) -> Mask:
        """Returns whether the first hash of each row is near any of its partner's."""
        first, near = self._hashes[rows, 0], np.zeros(rows.size, bool)
        for column in range(self._hashes.shape[1]):
            near |= distance(first, self._hashes[others, column]) <= self._radius
        return near

    def _found_before(self, rows: Rows, others: Rows, theirs: U64, number: int) -> Mask:
        """Returns which pairs, of near hash `theirs`, an earlier hash of the other row or an earlier band found."""
        first = self._hashes[rows, 0]
        before = np.zeros(rows.size, bool)
        for column in range(self._hashes.shape[1]):
            earlier = (self._hashes[others, : column + 1] != theirs[:, None]).all(axis=1)
            before |= earlier & (distance(first, self._hashes[others, column]) <= self._radius)
        differing = first ^ theirs
        for place, band in enumerate(self._bands[:number]):
            bits = np.bitwise_count(_band(differing, *band))
            before |= bits <= (self._radius - place) // len(self._bands)
        return before


class _Table:
    """Hashes sorted by one of their bands, with their rows."""

    def __init__(self, hashes: U64, rows: NDArray[np.uint32], first: int, width: int) -> None:
        keys = _band(hashes, first, width)
        order = np.argsort(keys, kind="stable")
        self._first, self._width = first, width
        self._hashes, self._rows = hashes[order], rows[order]
        counts = np.bincount(keys, minlength=1 << width)
        self._starts = np.zeros(counts.size + 1, np.uint32)
        np.cumsum(counts, out=self._starts[1:])
        self._used = counts > 0  # most look-ups find nothing: they read one byte

    def near(self, hashes: U64, flips: tuple[np.int32, ...], radius: int) -> Iterator[tuple[Rows, Rows, U64]]:
        """Yields (position of the query, row, hash) for near hashes that differ in the band by one of the flips."""
        keys = _band(hashes, self._first, self._width).astype(np.intp)  # or NumPy would convert at each look-up
        for flip in flips:
            wanted = keys ^ flip
            (query,) = self._used.take(wanted).nonzero()
            if not query.size:
                continue
            wanted = wanted.take(query)
            low = self._starts.take(wanted).astype(np.int64)
            for place, hit in _expanded(query, low, self._starts.take(wanted + 1) - low):
                (close,) = (distance(hashes.take(place), self._hashes.take(hit)) <= radius).nonzero()
                if close.size:
                    yield place[close], self._rows[hit[close]].astype(np.int64), self._hashes[hit[close]]


def _expanded(query: Rows, low: Rows, counts: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Yields (query, low + 0), (query, low + 1), ... for every query, about `_CHUNK` at a time."""
    edges = np.concatenate([[0], np.cumsum(counts)])
    start = 0
    while start < counts.size:
        stop = max(int(np.searchsorted(edges, edges[start] + _CHUNK, side="right")) - 1, start + 1)
        shift = low[start:stop] - (edges[start:stop] - edges[start])
        hit = np.arange(edges[stop] - edges[start]) + np.repeat(shift, counts[start:stop])
        yield np.repeat(query[start:stop], counts[start:stop]), hit
        start = stop


def _bands(radius: int, n: int) -> list[tuple[int, int]]:
    """Returns the bands (first bit, width) that make look-ups in n hashes fastest."""

    def cost(k: int) -> float:
        # Comparing two hashes takes about three times as long as an empty look-up.
        return sum(
            sum(comb(width, bits) for bits in range((radius - number) // k + 1)) * (1 + 3 * n / (1 << width))
            for number, (_, width) in enumerate(_cut(k))
        )

    return _cut(min(range(3, 10), key=cost))


def _cut(k: int) -> list[tuple[int, int]]:
    edges = [64 * band // k for band in range(k + 1)]
    return [(start, stop - start) for start, stop in pairwise(edges)]


def _band(hashes: U64, first: int, width: int) -> NDArray[np.int32]:
    return ((hashes >> np.uint64(first)) & np.uint64((1 << width) - 1)).astype(np.int32)


@lru_cache(maxsize=64)
def _flips(width: int, bits: int) -> tuple[np.int32, ...]:
    """Returns the numbers of `width` bits with at most `bits` set; none if `bits` is negative."""
    places = (chosen for count in range(bits + 1) for chosen in combinations(range(width), count))
    return tuple(np.int32(sum(1 << place for place in chosen)) for chosen in places)
