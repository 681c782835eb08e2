"""Exact and near duplicates by what pictures look like, without any model."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from tamis.arrays import U64, Float32s, Mask, Rows
from tamis.errors import RecipeError, check_words, without_effect
from tamis.math.hashing import leaders
from tamis.math.likeness import COLOUR, LIGHT, Thumbnails, alike
from tamis.selectors.expression import parse
from tamis.selectors.outcome import Selection, verdict
from tamis.selectors.semdedup import groups
from tamis.store.table import Table
from tamis.uid import scramble

#: Pairs whose thumbnails are in memory at once.
_CHUNK = 1 << 16

#: Words that are read together.
_ROWS = 1 << 12

#: Columns of the index: pictures of few pixels may differ by more.
_SIDES = ("width", "height")

#: What a hex digit stands for, by its ASCII code; 255: it is none.
_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[list(b"0123456789abcdef")] = np.arange(16)
_DIGITS[list(b"ABCDEF")] = np.arange(10, 16)


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """Keeps one pair of each group whose pictures have hashes within a few bits, and agree as thumbnails.

    Rows are taken one by one, the best first; one goes where a kept one is a copy. Near hashes alone do not make a
    copy: things on white ground have much the same slow waves. So the thumbnails of such a pair are laid over each
    other (`tamis.math.likeness`), and every field has to agree. A flat picture (of one brightness: its hash is 0) goes
    only where a kept one has the very same words.

    Attributes:
        hash: a column of hashes of 16 hex digits each, as `image_hash` emits it: the first of the whole picture,
            perhaps others of its inside, with spaces between them.
        distance: in how many of the 64 bits the first hash of one picture may differ from any of the other's, 0 to
            15.
        colours: a column of bytes in hex, as `image_hash` emits it; None: colours do not matter.
        tolerance: by how many levels of 256 a field may differ in colour, 0 to 255.
        lightness: a column of the lightness of 32 x 32 fields in hex, as `image_hash` emits it; None: it does not
            matter, and colours are compared field by field, which loses copies that were cut.
        levels: by how many levels of 256 a field may differ in lightness, 0 to 255. Pictures of less than 200 pixels a
            side may differ by more, in lightness and colour.
        best: an expression over score columns; of a group the row with the highest stays. None: any, by its uid.
        missing: what to do with rows without a hash (or without colours, or without a value of `best`).

    Cost: `benchmarks/distinct.py`; copies cost no more than other pictures. Memory: 350 bytes a row. The lightness is
        in a temporary file, 1 kB a row, of which candidates alone are read.
    """

    name: ClassVar[str] = "distinct"
    hash: str = "image_hash"
    distance: int = 8
    colours: str | None = "image_colours"
    tolerance: int = 3
    lightness: str | None = "image_lightness"
    levels: int = 3
    best: str | None = None
    missing: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        if not 0 <= self.distance <= 15:
            raise ValueError(f"distance lies between 0 and 15 bits of 64, got {self.distance}")
        if not 0 <= self.tolerance <= 255:
            raise ValueError(f"tolerance lies between 0 and 255 (of a byte), got {self.tolerance}")
        if not 0 <= self.levels <= 255:
            raise ValueError(f"levels lies between 0 and 255 (of lightness), got {self.levels}")
        if self.colours is None:
            without_effect(self, "tolerance", because="colours: null compares no colours")
        if self.lightness is None:
            without_effect(self, "levels", because="lightness: null compares no lightness")
        if self.best is not None:
            parse(self.best)
        check_words(self)

    @property
    def _words(self) -> list[str]:
        return [self.hash, *(name for name in (self.colours, self.lightness) if name)]

    @property
    def reads(self) -> frozenset[str]:
        words = frozenset([*self._words, *(_SIDES if self.lightness else ())])
        return words | (parse(self.best).columns if self.best else frozenset())

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"one of each picture ({self.hash} within {self.distance} bits)"

    def select(self, table: Table) -> Selection:
        alive = table.living()
        hashes, missing = _hashes(table, self.hash)
        pictures = Thumbnails(*(np.zeros((len(table), 0), np.uint8),) * 2, np.zeros(len(table), np.float32))
        words: list[NDArray[Any]] = [hashes]
        if self.colours is not None:
            colours, lacking = _bytes(table, self.colours, 2 * COLOUR**2 if self.lightness else None)
            pictures = replace(pictures, colours=colours)
            missing |= lacking
            words.append(colours)
        if self.lightness is not None:
            light, digests, lacking = _light(table, self.lightness)
            pictures = replace(pictures, light=light, side=_sides(table))
            missing |= lacking
            words.append(digests)
        order = np.flatnonzero(alive & ~missing)
        high, low = table.uids(order)
        keys: list[Any] = [low, high, scramble(high, low)]
        if self.best is not None:
            for name in sorted(parse(self.best).columns):
                if table.kind(name) != "number":
                    raise RecipeError(
                        f"distinct: best is an expression over numbers, {name!r} holds {table.kind(name)}s"
                    )
            score = parse(self.best).values(table)
            missing |= np.isnan(score)
            there = ~np.isnan(score[order])
            order, keys = order[there], [key[there] for key in keys]
            keys.append(-score[order])
        missing &= alive
        what = " and ".join([*self._words, *([self.best] if self.best else [])])
        if missing.any() and self.missing == "error":
            verdict(self, alive & ~missing, missing, alive, "", what=what)
        order = order[np.lexsort(keys)]
        del high, low, keys  # 40 bytes a row, where the index needs most
        heads = self._heads(words, pictures, order)
        keep = np.zeros(len(table), bool)
        keep[order[heads == np.arange(order.size)]] = True
        facts = groups(table, order, heads) if order.size else {}
        return verdict(self, keep, missing, alive, "repeats another", what=what, facts=facts)

    def _heads(self, words: list[NDArray[Any]], pictures: Thumbnails, order: Rows) -> NDArray[np.int64]:
        """Returns for each row of the order, the best first, the place in it of the one that stands for it."""
        # Rows with the very same words are one: their first stands for them, and only first rows are compared.
        first, inverse = _firsts(_digests(words, order))
        shaped = np.flatnonzero(words[0][order[first], 0] != 0)
        rows = order[first[shaped]]

        def same(left: Rows, right: Rows) -> Mask:
            found = np.ones(left.size, bool)
            for start in range(0, left.size, _CHUNK):
                some = slice(start, start + _CHUNK)
                found[some] = self._same(pictures.of(rows[left[some]]), pictures.of(rows[right[some]]))
            return found

        heads = np.arange(first.size)
        heads[shaped] = shaped[leaders(words[0][rows], self.distance, same)]
        return np.asarray(first[heads][inverse], np.int64)

    def _same(self, left: Thumbnails, right: Thumbnails) -> Mask:
        """Returns which pairs of pictures are one, as far as their thumbnails are looked at."""
        if self.lightness is not None:
            return alike(left, right, levels=self.levels, tolerance=self.tolerance)
        near = np.abs(left.colours.astype(np.int16) - right.colours) <= self.tolerance
        return np.asarray(near.all(axis=1))


def _digests(words: list[NDArray[Any]], order: Rows) -> U64:
    """Returns 128 bits of each row's words, in the order: (n, 2). Other words have other bits, for all that happens."""
    found = np.empty((order.size, 2), np.uint64)
    for start in range(0, order.size, _CHUNK):
        rows = order[start : start + _CHUNK]
        parts = [np.ascontiguousarray(each[rows]).view(np.uint8).reshape(rows.size, -1) for each in words]
        digests = b"".join(xxhash.xxh3_128_digest(row) for row in np.concatenate(parts, axis=1))
        found[start : start + _CHUNK] = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    return found


def _firsts(digests: U64) -> tuple[Rows, Rows]:
    """Returns the first place of each different digest, ascending, and for every place the number of its digest."""
    order = np.lexsort((np.arange(len(digests)), digests[:, 0], digests[:, 1]))
    ordered = digests[order]
    new = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])[: len(order)]
    first = order[new]
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    inverse = np.empty(order.size, np.int64)
    inverse[order] = rank[np.cumsum(new) - 1]
    return np.sort(first), inverse


def _hashes(table: Table, column: str) -> tuple[U64, Mask]:
    """Returns each row's hashes, (rows, m), and which rows have none."""
    numbers, missing = _numbers(table, column, 8)
    found = np.ascontiguousarray(numbers).view(">u8").astype(np.uint64)
    return (found if found.shape[1] else np.zeros((len(table), 1), np.uint64)), missing


def _bytes(table: Table, column: str, expected: int | None = None) -> tuple[NDArray[np.uint8], Mask]:
    """Returns each row's bytes, (rows, m), and which rows have none."""
    numbers, missing = _numbers(table, column, None)
    if expected is not None and numbers.shape[1] not in (0, expected):
        raise _outdated(column, numbers.shape[1], expected)
    return numbers, missing


def _light(table: Table, column: str) -> tuple[NDArray[np.uint8], U64, Mask]:
    """Returns each row's lightness, (rows, 1024) in a temporary file, a digest of it, and which rows have none."""
    width = LIGHT**2
    digests, missing = np.zeros(len(table), np.uint64), np.zeros(len(table), bool)
    if not len(table):
        return np.zeros((0, width), np.uint8), digests, missing
    _check_words(table, column)
    with tempfile.TemporaryFile() as file:
        for block in range(len(table.sizes)):  # one after the other: they are large
            place = slice(table.starts[block], table.starts[block + 1])
            rows, missing[place] = _block(table.read(block, [column])[column], column, None)
            if rows.shape[1] not in (0, width):
                raise _outdated(column, rows.shape[1], width)
            rows = rows if rows.shape[1] else np.zeros((len(rows), width), np.uint8)
            digests[place] = [xxhash.xxh3_64_intdigest(row) for row in rows]
            rows.tofile(file)
        file.flush()
        return np.memmap(file, np.uint8, "r", shape=(len(table), width)), digests, missing


def _sides(table: Table) -> Float32s:
    """Returns each picture's shorter side in pixels; infinite where the index does not say."""
    found = np.empty(len(table), np.float32)

    def work(place: slice, columns: dict[str, Any]) -> None:
        found[place] = np.minimum(columns["width"], columns["height"])

    for _ in table.map(_SIDES, work):
        pass
    found[np.isnan(found)] = np.inf
    return found


def _outdated(column: str, width: int, expected: int) -> RecipeError:
    return RecipeError(
        f"distinct: {column!r} holds words of {width} bytes, expected {expected}: "
        "score the run with image_hash again, its thumbnails are finer now"
    )


def _numbers(table: Table, column: str, group: int | None) -> tuple[NDArray[np.uint8], Mask]:
    """Returns the bytes that each row's word spells, (rows, m), and which rows have no word.

    Args:
        table: whose rows.
        column: of words of hex digits, all of one length.
        group: bytes between two spaces; None: the words have no spaces.
    """
    _check_words(table, column)
    missing = np.zeros(len(table), bool)
    found: dict[int, NDArray[np.uint8]] = {}

    def work(place: slice, columns: dict[str, Any]) -> None:
        found[place.start], missing[place] = _block(columns[column], column, group)

    for _ in table.map([column], work):
        pass
    widths = sorted({each.shape[1] for each in found.values()} - {0})
    if len(widths) > 1:
        raise _uneven(column, widths, group)
    numbers = np.zeros((len(table), max(widths, default=0)), np.uint8)
    for start in sorted(found):
        each = found.pop(start)
        if each.shape[1]:  # else no row of the block has a word
            numbers[start : start + len(each)] = each
    return numbers, missing


def _check_words(table: Table, column: str) -> None:
    if table.kind(column) != "word":
        raise RecipeError(f"distinct: {column!r} holds {table.kind(column)}s, expected hashes as words")


def _block(words: Any, column: str, group: int | None) -> tuple[NDArray[np.uint8], Mask]:
    """Returns the bytes that the words of a block spell, (rows, m), and which rows have no word."""
    words = words if words.type == pa.string() else words.cast(pa.string())
    here = pc.is_valid(words).to_numpy(zero_copy_only=False)
    spelt = _spelt(words.drop_null(), column, group)
    rows = np.zeros((here.size, spelt.shape[1]), np.uint8)
    rows[here] = spelt
    return rows, ~here


def _spelt(words: Any, column: str, group: int | None) -> NDArray[np.uint8]:
    """Returns the bytes that words spell, (words, m)."""
    lengths = np.unique(pc.binary_length(words).to_numpy(zero_copy_only=False))
    if not lengths.size:
        return np.zeros((0, 0), np.uint8)
    digits = lengths if group is None else lengths - lengths // (2 * group + 1)
    if lengths.size == 1 and digits[0]:
        words = words.combine_chunks() if isinstance(words, pa.ChunkedArray) else words
        _, starts, data = words.buffers()
        start = np.frombuffer(starts, np.int32)[words.offset]
        text = np.frombuffer(data, np.uint8)[start : start + len(words) * lengths[0]].reshape(len(words), -1)
        if group is not None:
            spaces = np.arange(text.shape[1]) % (2 * group + 1) == 2 * group
            text, between = text[:, ~spaces], text[:, spaces]
        else:
            between = text[:, :0]
        whole = text.shape[1] % (2 * group if group is not None else 2) == 0 and (between == ord(" ")).all()
        spelt = np.empty((len(text), text.shape[1] // 2), np.uint8)
        for start in range(0, len(text) if whole else 0, _ROWS):
            values = _DIGITS[text[start : start + _ROWS]]
            whole = whole and bool((values != 255).all())
            spelt[start : start + _ROWS] = values[:, ::2] << 4 | values[:, 1::2]
        if whole:
            return spelt
    good = re.compile("[0-9a-fA-F]{16}( [0-9a-fA-F]{16})*" if group is not None else "([0-9a-fA-F]{2})+")
    for text in words.to_pylist():
        if not good.fullmatch(text):
            raise RecipeError(
                f"distinct: {column!r} holds {text!r}, expected hex digits as the scorer image_hash emits them"
            )
    raise _uneven(column, [int(each) // 2 for each in digits[[0, -1]]], group)


def _uneven(column: str, widths: list[int], group: int | None) -> RecipeError:
    low, high = (width // (group or 1) for width in (widths[0], widths[-1]))
    return RecipeError(f"distinct: {column!r} holds words of {low} and of {high} numbers")
