"""Perceptual hashes: 64 bits that hardly change when a picture is recompressed, scaled or made brighter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import U64, Mask, Rows

#: Side of the grey picture that is looked at, and how many of its slowest waves on each side count.
SIDE, WAVES = 32, 8

#: Waves below this share of the strongest count as absent: recompression turns their signs over. Waves within `_TIE` of
#: the median, as a share of the strongest, equal it: which is larger depends on how the processor adds.
_ABSENT, _TIE = 1e-2, 1e-9

#: Rows whose near ones are looked up together, at first and at most.
_FIRST, _MOST = 1 << 10, 1 << 16

#: Near pairs held together; rows of which more are found are taken fewer at a time.
_PAIRS = 1 << 17

#: Pairs whose bits are compared together, where many hashes lie under one key.
_CHUNK = 1 << 20

#: Hashes under one key that are taken one after the other, each for all that ask; more are taken at once.
_FEW = 16


def image_hash(grey: NDArray[np.floating[Any]]) -> int:
    """Returns the perceptual hash of a grey picture: which of its slow waves are stronger than their median.

    A wave below a hundredth of the strongest counts as 0, and its bit is 0: gradients, flags and stripes have few
    waves, and the others hold nothing but what rounding and recompression leave there.

    Args:
        grey: (32, 32) brightness, any scale: a linear change of it changes no bit, but for its sign.

    Returns:
        64 bits, the first of them 1. A picture of one colour: 0.

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
    strongest = float(np.abs(waves).max())
    if strongest < 1e-9 * max(float(np.abs(grey).max()), 1):
        return 0
    waves[np.abs(waves) < _ABSENT * strongest] = 0
    bits = (waves != 0) & (waves > np.median(waves[1:]) + _TIE * strongest)
    bits[0] = True  # so that no other picture has the hash of a flat one
    return int("".join("1" if bit else "0" for bit in bits), 2)


@lru_cache(maxsize=1)
def _cosines() -> NDArray[np.float64]:
    """Returns the slowest waves of the discrete cosine transform (type II): (WAVES, SIDE)."""
    places = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    return np.cos(np.arange(WAVES)[:, None] * places[None, :])


def distance(left: U64, right: U64) -> NDArray[np.uint8]:
    """Returns in how many bits each hash differs from its partner: (n,) uint8."""
    return _ones(left ^ right)


def _added(numbers: U64) -> NDArray[np.uint8]:
    """Returns how many bits of each number are set, by adding neighbours."""
    pairs, fours, eights = (np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F))
    ones = numbers - ((numbers >> np.uint64(1)) & pairs)
    ones = (ones & fours) + ((ones >> np.uint64(2)) & fours)
    ones = (ones + (ones >> np.uint64(4))) & eights
    with np.errstate(over="ignore"):  # the sum of all bytes ends in the highest one
        return np.asarray((ones * np.uint64(0x0101010101010101)) >> np.uint64(56), np.uint8)


_ones: Callable[[U64], NDArray[np.uint8]] = getattr(np, "bitwise_count", _added)  # NumPy counts them from 2.0 on


def leaders(hashes: U64, radius: int, same: Callable[[Rows, Rows], Mask] | None = None) -> Rows:
    """Returns for each picture the one that stands for it, pictures taken in their order.

    A picture is dropped where a kept one before it is near; so none is dropped for its nearness to one that is dropped
    itself. Two pictures are near where the first hash of one differs from any hash of the other in at most `radius`
    bits, and `same` says so too: a picture's first hash is of the whole of it, the others of its inside, so that a
    copy that lost its rim is found. It belongs to the first kept picture that is near any of its hashes as a whole;
    where there is none, to the first of whose inside it is a copy.

    Only kept pictures are ever looked up, and what they drop is looked up no more: n copies of one picture cost n
    comparisons, not n^2.

    Args:
        hashes: (n, m), m hashes of each picture.
        radius: in bits, 0 to 15.
        same: gets (p,) rows and (p,) others whose hashes are near, the earlier ones first, and returns (p,) bool.

    Returns:
        (n,) row numbers; itself where a row stays.

    Cost: at a radius of 8, 285 look-ups of every kept row in tables of m million hashes, and less than m / 2
        comparisons of two numbers for each where hashes are spread evenly. Pictures whose hashes are near but which
        `same` tells apart all stay, and are compared with each other. Memory: about 30 m bytes a row and, with many
        rows, 30 MiB.

    Raises:
        ValueError: the radius is out of range: above 15 unrelated pictures meet.

    Source: Norouzi, Punjani and Fleet 2012, "Fast search in Hamming space with multi-index hashing", section 3.1.
    """
    if not 0 <= radius <= 15:
        raise ValueError(f"the radius must lie between 0 and 15 bits of 64, got {radius}")
    head = np.arange(len(hashes), dtype=np.int64)
    waiting, size = head.copy(), _FIRST
    index = _Index(hashes, waiting, radius)
    gone = 0  # rows of the index that are dropped
    while waiting.size:
        if gone > index.rows.size // 4:
            rows, gone = index.rows[head[index.rows] == index.rows], 0
            del index  # before the next one is made: together they would be the most memory that is held
            index = _Index(hashes, rows, radius)
        asked, later = waiting[:size], waiting[size:]
        found = _near(index, asked, head, same, _PAIRS if size > 1 else None)
        if found is None:  # many copies of one picture among them: their first will drop the others
            size = max(size // 16, 1)
            continue
        _drop(head, *found)
        waiting = later[head[later] == later]
        gone += later.size - waiting.size + int(np.count_nonzero(head[asked] != asked))
        size = min(2 * size, _MOST)
    return head


def _drop(head: Rows, ahead: _Pairs, behind: _Pairs) -> None:
    """Enters in `head` what becomes of the rows that were asked for, and of what they drop.

    Args:
        head: whole before the first row that was asked for.
        ahead: (asked, later): each asked row that stays drops the later ones that still stand.
        behind: (asked, earlier): an asked row that still stands goes for the first earlier one that does.
    """
    drops, goes = ahead.by_row(), behind.by_row()
    for row in sorted(drops.keys() | goes.keys()):
        if head[row] != row:
            continue
        earlier = goes.get(row)
        if earlier is not None:
            earlier = earlier[head[earlier] == earlier]
        if earlier is not None and earlier.size:
            head[row] = earlier.min()
        elif row in drops:
            near = drops[row]
            head[near[head[near] == near]] = row


@dataclass(frozen=True)
class _Pairs:
    """Rows that were asked for, (p,), and what is near each, (p,)."""

    asked: Rows
    near: Rows

    def by_row(self) -> dict[int, Rows]:
        """Returns what is near each row, by the row."""
        order = np.argsort(self.asked, kind="stable")
        asked, near = self.asked[order], self.near[order]
        starts = np.flatnonzero(np.diff(asked, prepend=-1)).tolist()
        return {int(asked[start]): near[start:stop] for start, stop in pairwise([*starts, asked.size])}

    def those(self, which: Mask) -> _Pairs:
        return _Pairs(self.asked[which], self.near[which])


def _near(
    index: _Index, asked: Rows, head: Rows, same: Callable[[Rows, Rows], Mask] | None, most: int | None
) -> tuple[_Pairs, _Pairs] | None:
    """Returns the near pairs of rows that are asked for and others that still stand: later ones, and earlier ones.

    An earlier one is left out where its own look-up finds the pair: it has dropped the row, or is dropped itself.

    None where more than `most` have hashes that are near. It is told before `same`, which costs far more, is asked.
    """
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    held = 0
    for rows, others in index.near(asked):
        stands = head[others] == others
        rows, others = rows[stands], others[stands]
        new = others > rows
        new[~new] = ~index.finds(others[~new], rows[~new])
        found.append((rows[new], others[new]))
        held += found[-1][0].size
        if most is not None and held > most:
            return None
    pairs = _Pairs(np.concatenate([one for one, _ in found]), np.concatenate([two for _, two in found]))
    if same is not None and pairs.asked.size:
        pairs = pairs.those(same(np.minimum(pairs.asked, pairs.near), np.maximum(pairs.asked, pairs.near)))
    later = pairs.near > pairs.asked
    return pairs.those(later), pairs.those(~later)


class _Index:
    """A table for each band of their hashes in which the rows are looked up that are near given ones.

    A hash is cut into k bands. Two hashes at a distance of at most r agree within (r - band) // k bits in at least one
    of them: if all differed by one bit more, the sum would be r + 1. So each band is looked up by its own value and
    those of its neighbours, each in a table of the rows by this band.
    """

    def __init__(self, hashes: U64, rows: Rows, radius: int) -> None:
        """Sorts the rows by each band of each of their hashes.

        Args:
            hashes: (n, m) of all rows.
            rows: which of them can be found, ascending.
            radius: in bits.
        """
        self.rows = rows
        self._hashes, self._radius = hashes, radius
        count = hashes.shape[1]
        self._bands = _bands(radius, rows.size * count)
        every, whose = hashes[rows].reshape(-1), np.repeat(rows.astype(np.uint32), count)
        self._tables = [_Table(every, whose, *band) for band in self._bands]

    def near(self, asked: Rows) -> Iterator[tuple[Rows, Rows]]:
        """Yields pairs of a row asked for and another of whose hashes one is near its first.

        Each pair comes once (but for rows with equal hashes).
        """
        given = self._hashes[asked, 0]
        for number, (band, table) in enumerate(zip(self._bands, self._tables, strict=True)):
            order = np.argsort(_band(given, *band))  # look-ups in ascending order stay in the processor's cache
            flips = _flips(band[1], (self._radius - number) // len(self._bands))
            for place, others, theirs in table.near(given[order], flips, self._radius):
                rows = asked[order[place]]
                other = np.flatnonzero(others != rows)
                if other.size:
                    rows, others = rows[other], others[other]
                    new = ~self._found_before(rows, others, theirs[other], number)
                    yield rows[new], others[new]

    def finds(self, rows: Rows, others: Rows) -> Mask:
        """Returns of which of the rows the first hash is near any of the other's."""
        given, found = self._hashes[rows, 0], np.zeros(rows.size, bool)
        for column in range(self._hashes.shape[1]):
            found |= distance(given, self._hashes[others, column]) <= self._radius
        return found

    def _found_before(self, rows: Rows, others: Rows, theirs: U64, number: int) -> Mask:
        """Returns which pairs were found by another of their hashes or by another band before.

        Args:
            rows, others: that are near.
            theirs: the hash of the other that is near.
            number: of the band by which it was found.
        """
        mine = self._hashes[rows, 0]
        found = np.zeros(rows.size, bool)
        for column in range(self._hashes.shape[1]):
            before = (self._hashes[others, : column + 1] != theirs[:, None]).all(axis=1)
            found |= before & (distance(mine, self._hashes[others, column]) <= self._radius)
        differing = mine ^ theirs
        for place, band in enumerate(self._bands[:number]):
            bits = _ones(_band(differing, *band).astype(np.uint64))
            found |= bits <= (self._radius - place) // len(self._bands)
        return found


class _Table:
    """Hashes by one band of them, and whose they are."""

    def __init__(self, hashes: U64, rows: NDArray[np.uint32], first: int, width: int) -> None:
        keys = _band(hashes, first, width)
        order = np.argsort(keys, kind="stable")
        self._first, self._width = first, width
        self._hashes, self._rows = hashes[order], rows[order]
        counts = np.bincount(keys, minlength=1 << width)
        self._starts = np.zeros(counts.size + 1, np.uint32)
        np.cumsum(counts, out=self._starts[1:])
        # Most look-ups find nothing: they read one byte. 255 stands for all larger counts.
        self._counts = np.minimum(counts, 255).astype(np.uint8)

    def near(self, hashes: U64, flips: tuple[np.int32, ...], radius: int) -> Iterator[tuple[Rows, Rows, U64]]:
        """Yields (which of the hashes, whose, it) of every near hash that differs in the band by one of the flips."""
        keys = _band(hashes, self._first, self._width).astype(np.intp)  # others NumPy would convert at each look-up
        for flip in flips:
            wanted = keys ^ flip
            (asking,) = self._counts.take(wanted).nonzero()
            if not asking.size:
                continue
            for place, hit in self._hits(asking, wanted.take(asking)):
                (close,) = (_ones(hashes.take(place) ^ self._hashes.take(hit)) <= radius).nonzero()
                if close.size:
                    yield place[close], self._rows[hit[close]].astype(np.int64), self._hashes[hit[close]]

    def _hits(self, asking: Rows, wanted: Rows) -> Iterator[tuple[Rows, Rows]]:
        """Yields (asking, place in the table) of everything that lies under the keys wanted."""
        low, counts = self._starts.take(wanted).astype(np.int64), self._counts.take(wanted)
        crowded = counts > _FEW
        if crowded.any():
            found = wanted[crowded]
            yield from _expanded(asking[crowded], low[crowded], self._starts[found + 1] - low[crowded])
            asking, low, counts = asking[~crowded], low[~crowded], counts[~crowded]
        while asking.size:
            yield asking, low
            (more,) = (counts > 1).nonzero()
            asking, low, counts = asking.take(more), low.take(more) + 1, counts.take(more) - 1


def _expanded(asking: Rows, low: Rows, counts: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Yields (asking, low + 0), (asking, low + 1), ... for every one asking, about `_CHUNK` at a time."""
    edges = np.concatenate([[0], np.cumsum(counts)])
    start = 0
    while start < counts.size:
        stop = max(int(np.searchsorted(edges, edges[start] + _CHUNK, side="right")) - 1, start + 1)
        shift = low[start:stop] - (edges[start:stop] - edges[start])
        hit = np.arange(edges[stop] - edges[start]) + np.repeat(shift, counts[start:stop])
        yield np.repeat(asking[start:stop], counts[start:stop]), hit
        start = stop


def _bands(radius: int, n: int) -> list[tuple[int, int]]:
    """Returns the bands (first bit, width) in which n hashes are found soonest."""

    def cost(k: int) -> float:
        # Comparing two hashes takes about three times as long as a look-up that finds nothing.
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
    """Returns the numbers of `width` bits of which at most `bits` are set; none where `bits` is below 0."""
    places = (chosen for count in range(bits + 1) for chosen in combinations(range(width), count))
    return tuple(np.int32(sum(1 << place for place in chosen)) for chosen in places)
