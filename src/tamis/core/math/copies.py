"""Copies of an image: perceptual hashes, the search for near ones, and the comparison of thumbnails.

A hash is 64 bits that hardly change when an image is recompressed, scaled or made brighter. Thumbnails tell copies from
images that only have near hashes, also after cropping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import combinations, pairwise
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import U64, Float32s, Floats, Mask, Rows
from tamis.core.machine import cores

#: Side of the grey thumbnail, and number of its lowest DCT frequencies along each side.
SIDE, WAVES = 32, 8

#: DCT coefficients below this share of the largest count as 0, since recompression flips their signs. Those within
#: `_TIE` of the median, as a share of the largest, equal it: they differ only within float noise.
_ABSENT, _TIE = 1e-2, 1e-9

_ROWS, _MOST_ROWS = 1 << 10, 1 << 17  # rows looked up together, at first and at most
_PAIRS = 1 << 18  # limit on near pairs in memory; beyond it fewer rows are looked up together
_HASHES = 1 << 20  # pairs whose bits are compared together, for keys with many hashes


def image_hash(grey: NDArray[np.floating[Any]]) -> int:
    """Returns the perceptual hash of a (32, 32) grey image: which low DCT coefficients are above their median.

    64 bits, the first of them 1; 0 for an image of one colour. A coefficient below a hundredth of the largest counts as
    0, and so does its bit: gradients, flags and stripes have few coefficients, and the others are noise from rounding
    and recompression. Scaling and shifting the brightness changes no bit.

    Source: the usual "pHash" by the discrete cosine transform, Zauner 2010, "Implementation and benchmarking of
    perceptual image hash functions", section 3.2; here without the 7 x 7 mean filter.
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
    median = np.sort(waves[1:])[(waves.size - 2) // 2]  # of 63 numbers; np.median takes ten times as long
    bits = (waves != 0) & (waves > median + _TIE * strongest)
    bits[0] = True  # only a flat image has hash 0
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


@lru_cache(maxsize=1)
def _cosines() -> NDArray[np.float64]:
    """The lowest frequencies of the discrete cosine transform (type II): (WAVES, SIDE)."""
    places = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    return np.cos(np.arange(WAVES)[:, None] * places[None, :])


def leaders(hashes: U64, radius: int, same: Callable[[Rows, Rows], Mask] | None = None) -> Rows:
    """Returns the row of the kept image that each image repeats, itself where it is kept, processing images in order.

    An image is dropped if it is near an earlier kept one, but not for being near a dropped one. Two images are near if
    the first hash of one differs from any hash of the other in at most `radius` bits, and `same` agrees. The first hash
    is of the complete image, the others are of centre crops, so that a cropped copy is found. An image belongs to the
    first kept image whose first hash is near any of its hashes, else to the first that contains it as a crop. Only kept
    images are looked up: n copies of one image cost n comparisons, not n^2.

    Args:
        hashes: (n, m), m hashes of each image.
        radius: in bits, 0 to 15: above, unrelated images would be near.
        same: from (p,) rows and (p,) others with near hashes, the earlier ones first, to (p,) bool.

    Cost: at a radius of 8, 285 look-ups of every kept row in tables of m million hashes, with less than m / 2
    comparisons of two numbers each if hashes are spread evenly. Images with near hashes that `same` rejects are all
    kept and compared with one another. Memory: about 30 m bytes a row and, with many rows, 60 MiB.

    Source: Norouzi, Punjani and Fleet 2012, "Fast search in Hamming space with multi-index hashing", section 3.1.
    """
    if not 0 <= radius <= 15:
        raise ValueError(f"the radius must be from 0 to 15 bits of 64, got {radius}")
    head = np.arange(len(hashes), dtype=np.int64)
    pending, size = head.copy(), _ROWS
    index = _Index(hashes, pending, radius)
    dropped = 0  # rows of the index
    while pending.size:
        if dropped > index.rows.size // 4:
            rows, dropped = index.rows[head[index.rows] == index.rows], 0
            del index  # first, or two of them would be in memory
            index = _Index(hashes, rows, radius)
        queries, later = pending[:size], pending[size:]
        pairs = _near(index, queries, head, _PAIRS if size > 1 else None)
        if pairs is None:  # many copies of one image: look up fewer rows, and the first copy drops the others
            size = max(size // 16, 1)
            continue
        _drop(head, *pairs, same)
        pending = later[head[later] == later]
        dropped += later.size - pending.size + int(np.count_nonzero(head[queries] != queries))
        size = min(2 * size, _MOST_ROWS)
    return head


class NearTo:
    """Finds the images of one set that are near those of another, by the rule of `leaders`: `others` are (k, m), m
    hashes of each image of the other set, the first of the whole image.
    """

    def __init__(self, others: U64, radius: int) -> None:
        owners, count = np.arange(len(others), dtype=np.uint32), others.shape[1]
        self._others, self._radius = others, radius
        self._bands = _bands(radius, max(others.size, 1))
        self._every = [_Table(others.reshape(-1), np.repeat(owners, count), *band) for band in self._bands]
        self._first = [_Table(np.ascontiguousarray(others[:, 0]), owners, *band) for band in self._bands]

    def pairs(self, hashes: U64) -> Iterator[tuple[Rows, Rows, Rows]]:
        """Yields each near pair of (n, m) hashes and the others once: rows, rows of the others, bits that differ."""
        for start in range(0, len(hashes), _ROWS):
            block, parts = hashes[start : start + _ROWS], [np.empty(0, np.int64)]
            for column in range(block.shape[1]):  # only one of two near hashes may be of a crop
                for number, table in enumerate(self._first if column else self._every):
                    flips = _flips(self._bands[number][1], (self._radius - number) // len(self._bands))
                    for place, row, _ in table.near(np.ascontiguousarray(block[:, column]), flips, self._radius):
                        parts.append(place * len(self._others) + row)
            place, row = np.divmod(np.unique(np.concatenate(parts)), max(len(self._others), 1))
            mine, theirs = block[place], self._others[row]
            bits = [
                np.bitwise_count(one ^ other).min(axis=1)
                for one, other in ((mine[:, :1], theirs), (mine, theirs[:, :1]))
            ]
            yield start + place, row, np.minimum(*bits).astype(np.int64)


def _near(index: _Index, queries: Rows, head: Rows, most: int | None) -> tuple[Rows, Rows] | None:
    """Returns near pairs of queries and kept rows, skipping pairs the other query will find; None if about `most` pairs
    have near hashes, or more.
    """
    threads = min(cores(), max(1, queries.size // _ROWS))

    def look_up(queries: Rows) -> list[tuple[Rows, Rows]] | None:
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        count = 0
        for rows, others in index.near(queries):
            kept = head[others] == others
            rows, others = rows[kept], others[kept]
            new = others > rows
            new[~new] = ~index.finds(others[~new], rows[~new])
            parts.append((rows[new], others[new]))
            count += parts[-1][0].size
            if most is not None and count > most // threads:
                return None
        return parts

    with ThreadPoolExecutor(threads) as pool:  # NumPy releases the GIL
        parts: list[tuple[Rows, Rows]] = []
        for found in pool.map(look_up, (queries[number::threads] for number in range(threads))):
            if found is None:
                return None
            parts += found
    query, near = (np.concatenate(side) for side in zip(*parts, strict=True))
    return query, near


def _drop(head: Rows, query: Rows, near: Rows, same: Callable[[Rows, Rows], Mask] | None) -> None:
    """Drops rows in `head`, which is final before the first query: each for the first earlier row that is kept and the
    same, those first that found it by their own query. Rows wait for the verdict on their next one, so that copies are
    compared with no row that is dropped.
    """
    low, high = np.minimum(query, near), np.maximum(query, near)
    order = np.lexsort((low, query != low, high))
    low, high = low[order], high[order]
    rows, place = np.unique(high, return_index=True)
    ends = np.append(place[1:], high.size)
    number = np.searchsorted(rows, low)  # of the earlier row, if there is a verdict to come on it
    number[np.append(rows, -1)[number] != low] = rows.size
    waiting = np.arange(rows.size + 1) < rows.size
    left = np.arange(rows.size)
    while left.size:
        pair = place[left]
        here = ~waiting[number[pair]]
        left_now, pair = left[here], pair[here]
        agree = head[low[pair]] == low[pair]
        if same is not None and agree.any():
            agree[agree] = same(low[pair[agree]], high[pair[agree]])
        head[rows[left_now[agree]]] = low[pair[agree]]
        place[left_now] += 1
        waiting[left_now[agree | (place[left_now] == ends[left_now])]] = False
        left = left[waiting[left]]


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
            near |= np.bitwise_count(first ^ self._hashes[others, column]) <= self._radius
        return near

    def _found_before(self, rows: Rows, others: Rows, theirs: U64, number: int) -> Mask:
        """Returns which pairs, of near hash `theirs`, an earlier hash of the other row or an earlier band found."""
        first = self._hashes[rows, 0]
        before = np.zeros(rows.size, bool)
        for column in range(self._hashes.shape[1]):
            earlier = (self._hashes[others, : column + 1] != theirs[:, None]).all(axis=1)
            before |= earlier & (np.bitwise_count(first ^ self._hashes[others, column]) <= self._radius)
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
            for place, hit in _expand(query, low, self._starts.take(wanted + 1) - low):
                (close,) = (np.bitwise_count(hashes.take(place) ^ self._hashes.take(hit)) <= radius).nonzero()
                if close.size:
                    yield place[close], self._rows[hit[close]].astype(np.int64), self._hashes[hit[close]]


def _expand(query: Rows, low: Rows, counts: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Yields (query, low + 0), (query, low + 1), ... for every query, about `_HASHES` at a time."""
    edges = np.concatenate([[0], np.cumsum(counts)])
    start = 0
    while start < counts.size:
        stop = max(int(np.searchsorted(edges, edges[start] + _HASHES, side="right")) - 1, start + 1)
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

#: Drawings (charts, screenshots) have one lightness in more than this share of their fields. Two of them may differ
#: in a few words, and copies differ a little at all edges. So the allowed share is at most `_TIMES` the pair's mean
#: over fields with more contrast than `_EDGE` (but `_SHARE_DRAWN`), without an outlier.
_DRAWN, _EDGE, _TIMES, _SHARE_DRAWN = 0.2, 8, 8, 0.02

#: A shift below this, an eighth of a field, leaves the edges of a drawing visible: charts have their labels there.
_STILL = 0.008

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


def are_copies(left: Thumbnails, right: Thumbnails, *, levels: int, tolerance: int) -> Mask:
    """Returns which pairs of images are copies. `levels` and `tolerance`: allowed differences of lightness and colour,
    of 256.

    A field may differ by the levels, and by a share of the contrast around it, since recompression blurs edges. For
    images that differ by more, one is aligned with the other: shift and growth along each axis, and brightness. They
    are copies if it is inside the other and agrees with it there.
    """
    copies = np.zeros(len(left.light), bool)
    for start in range(0, copies.size, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, copies.size))
        one, two = _planes(left.of(rows)), _planes(right.of(rows))
        coarse = np.maximum(_LARGE / np.maximum(np.minimum(left.side[rows], right.side[rows]), 1), 1)
        limits = coarse[:, None] * np.array([levels, tolerance, tolerance][: len(one)])
        share, drawn = np.zeros(rows.size), np.zeros(rows.size, bool)
        for agree in (_equal, _agree, _agree_aligned):
            same = agree(one, two, share, limits, drawn)
            copies[rows[same]] = True
            rows, share, coarse, limits = rows[~same], share[~same], coarse[~same], limits[~same]
            drawn = drawn[~same]
            one, two = ([plane[~same] for plane in planes] for planes in (one, two))
            if not rows.size:
                break
            if agree is _equal:
                busy = np.minimum(_busy(one[0]), _busy(two[0]))
                share = np.clip(np.maximum(_SHARE * coarse, busy / _BUSY), 0, _SHARE_MOST)
                drawn = np.minimum(_uniform(one[0]), _uniform(two[0])) > _DRAWN
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


def _uniform(light: Float32s) -> Floats:
    """Returns the share of each image's fields that have its most common lightness, within one level."""
    levels = light.reshape(len(light), -1).astype(np.int64) + 258 * np.arange(len(light))[:, None]
    counts = np.bincount(levels.reshape(-1), minlength=258 * len(light)).reshape(-1, 258)
    return np.asarray((counts[:, :-2] + counts[:, 1:-1] + counts[:, 2:]).max(axis=1) / LIGHT**2, np.float64)


def _equal(one: list[Float32s], two: list[Float32s], share: Floats, limits: Floats, drawn: Mask) -> Mask:
    """Returns which pairs differ nowhere by more than the limits. Fast, and true of most copies."""
    differences = [np.abs(a - b).max(axis=(1, 2)) for a, b in zip(one, two, strict=True)]
    return np.asarray((np.stack(differences, axis=1) <= limits).all(axis=1))


def _agree(
    one: list[Float32s],
    two: list[Float32s],
    share: Floats,
    limits: Floats,
    drawn: Mask,
    visible: Sequence[Mask] | None = None,
) -> Mask:
    """Returns which pairs have fewer than two fields of each plane (drawings: of lightness none) beyond the limits."""
    agree = np.ones(len(share), bool)
    for place, (a, b) in enumerate(zip(one, two, strict=True)):
        contrast, difference = np.maximum(_contrast(a), _contrast(b)), np.abs(a - b)
        if visible is not None:
            difference *= visible[place]
        allowed = np.maximum(share, _SHARE_COLOUR if place else 0)
        if not place and drawn.any():
            shares = difference[drawn] / np.maximum(contrast[drawn], _EDGE)
            edges = contrast[drawn] > _EDGE if visible is None else (contrast[drawn] > _EDGE) & visible[place][drawn]
            mean = (shares * edges).sum(axis=(1, 2)) / np.maximum(edges.sum(axis=(1, 2)), 1)
            allowed[drawn] = np.clip(_TIMES * mean, _SHARE_DRAWN, allowed[drawn])
        beyond = difference - allowed[:, None, None] * contrast
        flat = beyond.reshape(len(beyond), -1)
        most = np.partition(flat, flat.shape[1] - _STRAY, axis=1)[:, -_STRAY:]
        agree &= np.where(drawn & (place == 0), most.max(axis=1), most[:, 0]) <= limits[:, place]
    return agree


def _agree_aligned(one: list[Float32s], two: list[Float32s], share: Floats, limits: Floats, drawn: Mask) -> Mask:
    """Returns which pairs agree after one image is aligned with the other."""
    place = _place(one[0], two[0])
    shift, scale, gain = place[:, (0, 2)], place[:, (1, 3)], place[:, 4, None, None]
    far = np.abs(place[:, :4]).max(axis=1)
    most = np.where(share > _PLAIN, _MOST, _MOST_PLAIN)
    inside = (np.abs(shift) <= -scale + _LEAST).all(axis=1) | (np.abs(shift) <= scale + _LEAST).all(axis=1)
    warped, visible = zip(*(_warp(plane, place, smooth=True) for plane in two), strict=True)
    still = drawn & (far < _STILL)
    seen = [each | still[:, None, None] for each in visible]
    share = np.maximum(share, np.clip(far / _LEAST * _SHARE_MOVED, 0, _SHARE_MOVED))
    agree: Mask = inside & (far < most) & _agree(one, [warped[0] * gain, *warped[1:]], share, limits, drawn, seen)
    return agree


def _contrast(plane: Float32s) -> Float32s:
    """Returns the range of each field and its eight neighbours: (m, n, n)."""
    low, high = plane.copy(), plane.copy()
    for of, found in ((np.minimum, low), (np.maximum, high)):
        for axis in (1, 2):
            fields, each = found.swapaxes(1, axis), found.copy().swapaxes(1, axis)
            of(fields[:, 1:], each[:, :-1], out=fields[:, 1:])
            of(fields[:, :-1], each[:, 1:], out=fields[:, :-1])
    return high - low


def _place(one: Float32s, two: Float32s) -> Float32s:
    """Aligns each image with its partner: returns (m, 5), shift and growth in x, shift and growth in y, gain. Position
    u of the first image, from -1 to 1, shows (1 + growth) u + shift of the second, gain times as bright.

    Source: Lucas and Kanade 1981, "An iterative image registration technique with an application to stereo vision".
    """
    place = np.zeros((len(one), 5), np.float32)
    place[:, 4] = 1
    for side, smooth, steps in _PASSES:
        first, second = (_smooth(_shrink(plane, side), smooth) for plane in (one, two))
        x = _centres(side)
        for _ in range(steps):
            warped, visible = _warp(second, place)
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


def _warp(plane: Float32s, place: Float32s, *, smooth: bool = False) -> tuple[Float32s, Mask]:
    """Returns the second image as aligned with the first, and the fields where it is visible: none at its edge, where
    their neighbours are unknown.
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


def _shrink(plane: Float32s, side: int) -> Float32s:
    parts = plane.shape[1] // side
    return np.asarray(plane.reshape(len(plane), side, parts, side, parts).mean(axis=(2, 4))) if parts > 1 else plane


def _smooth(plane: Float32s, times: int) -> Float32s:
    for _ in range(times):
        for axis in (1, 2):
            each = plane.swapaxes(1, axis)
            low = np.concatenate([each[:, :1], each[:, :-1]], axis=1)  # a field at the edge is its own neighbour
            high = np.concatenate([each[:, 1:], each[:, -1:]], axis=1)
            plane = np.asarray((low + 2 * each + high) / 4, np.float32).swapaxes(1, axis)
    return plane
