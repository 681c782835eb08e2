"""Exact and near duplicates by what images look like, without any model."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from tamis.core.arrays import U64, Float32s, Mask, Rows
from tamis.core.errors import RecipeError, check_effect
from tamis.core.files.scratch import temporary_file
from tamis.core.ids import scramble
from tamis.core.math.copies import COLOUR, LIGHT, Thumbnails, are_copies, leaders
from tamis.core.math.similarity import equal_before
from tamis.core.processes import prefetch_items
from tamis.recipes.steps.outcome import Blockwise, IfMissing, ReadsColumns, Rule, check_missing, rule_by
from tamis.recipes.steps.semdedup import copies_in
from tamis.recipes.steps.steps import clean_tag, rows_with_tag
from tamis.runs.expression import parse
from tamis.runs.table import Table
from tamis.runs.tags import TAGS

log = logging.getLogger(__name__)

#: Pairs of images whose thumbnails are in memory at once.
_CHUNK = 1 << 16

#: Words that are decoded at once.
_ROWS = 1 << 8

#: Columns of the index: small images may differ by more.
_SIDES = ("width", "height")


@dataclass(frozen=True)
class Looked:
    """What `distinct` reads: hashes (rows, m), thumbnails; the n rows to compare, the best first; rows without values.

    `first`: (n,) for each row of the order the index of the first row with identical strings.
    """

    hashes: U64
    images: Thumbnails
    order: Rows
    first: Rows
    missing: Mask


@dataclass(frozen=True, kw_only=True)
class Distinct(ReadsColumns, Blockwise):
    """Keeps one pair of each group whose images have hashes within a few bits, and agree as thumbnails.

    Rows are taken one by one, the best first; one is dropped if a kept one is a copy of it. Near hashes are not
    enough: objects on a white background have similar low frequencies, so thumbnails are compared too, cell by cell
    (`tamis.core.math.copies`). A flat image (one brightness, hash 0) is dropped only if a kept one has identical hash,
    colour and lightness strings.

    Attributes:
        hash: a column of hashes of 16 hex digits each, separated by spaces, as `image_hash` emits it: the first is of
            the complete image, others are of centre crops.
        distance: bits of 64 in which the first hash of one image may differ from a hash of the other, 0 to 15.
        colours: a column of bytes in hex, as `image_hash` emits it; None: colours do not matter.
        tolerance: max colour difference per cell, 0 to 255.
        lightness: a column of the lightness of 32 x 32 cells in hex, as `image_hash` emits it; None: it does not
            matter, and colours are compared cell by cell, which misses copies that were cropped.
        levels: max lightness difference per cell, 0 to 255. Images of less than 200 pixels a side may differ by more,
            in lightness and colour.
        best: an expression over score columns: the row with the highest value of each group stays. None: the first by
            scrambled uid.
        prefer: a tag: the row that has it stays, whatever `best` says. In `tamis explore` one click gives it.
        missing: what to do with rows without a hash (or without colours, or without a value of `best`).

    Cost: `benchmarks/copies.py`; copies cost no more than other images. Memory: 350 bytes a row. The lightness is in
        a temporary file, 1 kB a row, of which only images with near hashes are read.
    """

    name: ClassVar[str] = "distinct"
    words, scores = ("hash", "colours", "lightness"), ("best",)
    hash: str = "image_hash"
    distance: int = 8
    colours: str | None = "image_colours"
    tolerance: int = 3
    lightness: str | None = "image_lightness"
    levels: int = 3
    best: str | None = None
    prefer: str | None = None
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        for name, most in (("distance", 15), ("tolerance", 255), ("levels", 255)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be between 0 and {most}, got {getattr(self, name)}")
        if self.colours is None:
            check_effect(self, "tolerance", because="colours: null compares no colours")
        if self.lightness is None:
            check_effect(self, "levels", because="lightness: null compares no lightness")
        if self.best is not None:
            parse(self.best)
        if self.prefer is not None:
            clean_tag(self.prefer)
        super().__post_init__()

    @property
    def reads(self) -> frozenset[str]:
        return super().reads.union(_SIDES if self.lightness else (), [TAGS] if self.prefer else ())

    @property
    def described(self) -> str:
        return f"one of each image ({self.hash} within {self.distance} bits)"

    def fit(self, table: Table) -> Rule:
        looked, keep = self.look(table), np.zeros(len(table), bool)
        order, heads = looked.order, self.heads(looked)
        keep[order[heads == np.arange(order.size)]] = True
        facts, repeats = copies_in(table, [(order, heads)])
        masks = keep.__getitem__, looked.missing.__getitem__
        return rule_by(self, *masks, "repeats another", what=self._what, facts=facts, repeats=repeats)

    @property
    def _what(self) -> str:
        return " and ".join(self._values((*self.words, *self.scores)))

    def look(self, table: Table) -> Looked:
        """Reads and orders the candidates; raises what `select` raises."""
        self.check_columns(table)
        candidates = table.candidates
        numbers, missing = decode_column(table, self.hash)
        hashes = numbers.view(">u8").astype(np.uint64) if numbers.shape[1] else np.zeros((len(table), 1), np.uint64)
        images = Thumbnails(*(np.zeros((len(table), 0), np.uint8),) * 2, np.zeros(len(table), np.float32))
        words: list[NDArray[Any]] = [hashes]
        if self.colours is not None:
            colours, lacking = decode_column(table, self.colours, 2 * COLOUR**2 if self.lightness else None)
            images = replace(images, colours=colours)
            missing |= lacking
            words.append(colours)
        if self.lightness is not None:
            light, digests, lacking = _light(table, self.lightness)
            images = replace(images, light=light, side=_sides(table))
            missing |= lacking
            words.append(digests)
        order = np.flatnonzero(candidates & ~missing)
        high, low = table.uids(order)
        keys: list[Any] = [low, high, scramble(high, low)]
        if self.best is not None:
            score = parse(self.best).values(table)
            missing |= np.isnan(score)
            there = ~np.isnan(score[order])
            order, keys = order[there], [key[there] for key in keys]
            keys.append(-score[order])
        if self.prefer is not None:
            preferred = rows_with_tag(table, self.prefer)
            if not preferred.any():  # no error: in `tamis explore` the last such tag may have been undone
                log.warning("distinct: no pair has the tag %r, so 'prefer' has no effect", self.prefer)
            keys.append(~preferred[order])
        missing &= candidates
        check_missing(self, missing, candidates, self._what)
        order = order[np.lexsort(keys)]
        before = equal_before(_digests(words, order))
        return Looked(hashes, images, order, np.where(before < 0, np.arange(order.size), before), missing)

    def heads(self, looked: Looked) -> Rows:
        """Returns for each row of the order, best first, the index of its representative in it."""
        hashes, order, heads = looked.hashes, looked.order, np.arange(looked.order.size)
        # Only the first of several rows with identical strings is compared with others.
        shaped = np.flatnonzero((looked.first == heads) & (hashes[order, 0] != 0))  # flat images repeat identical ones
        rows = order[shaped]

        def same(left: Rows, right: Rows) -> Mask:
            found = np.ones(left.size, bool)
            for start in range(0, left.size, _CHUNK):
                some = slice(start, start + _CHUNK)
                found[some] = self._same(*(looked.images.of(rows[side[some]]) for side in (left, right)))
            return found

        heads[shaped] = shaped[leaders(hashes[rows], self.distance, same)]
        return heads[looked.first]

    def _same(self, left: Thumbnails, right: Thumbnails) -> Mask:
        """Returns which pairs of images agree as thumbnails."""
        if self.lightness is not None:
            return are_copies(left, right, levels=self.levels, tolerance=self.tolerance)
        near = np.abs(left.colours.astype(np.int16) - right.colours) <= self.tolerance
        return np.asarray(near.all(axis=1))


def _digests(words: list[NDArray[Any]], order: Rows) -> U64:
    """Returns a digest of 128 bits of each row's words, in the order: (n, 2)."""
    found = np.empty((order.size, 2), np.uint64)
    for start in range(0, order.size, _CHUNK):
        rows = order[start : start + _CHUNK]
        parts = [np.ascontiguousarray(each[rows]).view(np.uint8).reshape(rows.size, -1) for each in words]
        digests = b"".join(xxhash.xxh3_128_digest(row) for row in np.concatenate(parts, axis=1))
        found[start : start + _CHUNK] = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    return found


def decode_column(table: Table, column: str, expected: int | None = None) -> tuple[NDArray[np.uint8], Mask]:
    """Returns the bytes that each row's word spells in hex, (rows, m), zeros for none; and which rows have no word."""
    blocks = list(table.map([column], lambda span, columns: decode(columns[column], column)))
    width = _width(column, {rows.shape[1] for rows, _ in blocks}, expected)
    missing = np.concatenate([np.zeros(0, bool), *(none for _, none in blocks)])
    found = np.zeros((len(table), width), np.uint8)
    while blocks:  # from the last block, each freed as it is copied
        rows, _ = blocks.pop()
        if rows.shape[1]:
            start = table.starts[len(blocks)]
            found[start : start + len(rows)] = rows
    return found, missing


def _light(table: Table, column: str) -> tuple[NDArray[np.uint8], U64, Mask]:
    """Returns each row's lightness, (rows, 1024) in a temporary file; a digest of it; and which rows have none."""
    width = LIGHT**2
    digests, missing = np.zeros(len(table), np.uint64), np.zeros(len(table), bool)
    if not len(table):
        return np.zeros((0, width), np.uint8), digests, missing
    # One block is read while another is decoded; more would take too much memory.
    read = prefetch_items(lambda: (table.read(block, [column]) for block in range(len(table.sizes))), depth=1)
    with temporary_file(len(table) * width) as file, closing(read) as blocks:
        for span, columns in zip(table.row_ranges(), blocks, strict=True):
            rows, missing[span] = decode(columns[column], column)
            if not _width(column, {rows.shape[1]}, width):
                rows = np.zeros((len(rows), width), np.uint8)
            digests[span] = [xxhash.xxh3_64_intdigest(row) for row in rows]
            rows.tofile(file)
        return np.memmap(file, np.uint8, "r", shape=(len(table), width)), digests, missing


def _sides(table: Table) -> Float32s:
    """Returns each image's shorter side in pixels; infinite where the index has none."""
    blocks = table.map(_SIDES, lambda span, columns: np.minimum(columns["width"], columns["height"]))
    sides = np.concatenate([np.zeros(0, np.float32), *blocks])
    sides[np.isnan(sides)] = np.inf
    return sides


def decode(words: Any, column: str) -> tuple[NDArray[np.uint8], Mask]:
    """Returns the bytes that a block's words spell in hex, (rows, m), and which rows have no word."""
    words = words if words.type == pa.string() else words.cast(pa.string())
    here = pc.is_valid(words).to_numpy(zero_copy_only=False)
    words = words.drop_null()
    _width(column, {length // 2 for length in pc.unique(pc.binary_length(words)).to_pylist()})
    _, ends, letters = words.buffers()
    ends = np.frombuffer(ends or b"", np.int32)[words.offset :][: len(words) + 1]
    spelt = bytearray()
    for start in range(0, len(words), _ROWS):
        stop = min(start + _ROWS, len(words))
        try:
            text = str(memoryview(letters or b"")[ends[start] : ends[stop]], "ascii")
            data = bytes.fromhex(text)  # it skips the spaces between hashes
        except ValueError:
            data = b""
        if not data or len(data) % (stop - start):
            raise RecipeError(
                f"distinct: {column!r} holds {words[start].as_py()!r}, expected hex digits as the signal image_hash "
                "emits them"
            )
        spelt += data
    rows = np.zeros((here.size, len(spelt) // max(len(words), 1)), np.uint8)
    rows[here] = np.frombuffer(spelt, np.uint8).reshape(len(words), rows.shape[1])
    return rows, ~here


def _width(column: str, widths: set[int], expected: int | None = None) -> int:
    """Returns the width in bytes of a column's words, 0 where there are none; RecipeError for two, or another."""
    found = sorted(widths - {0})
    if len(found) > 1 or (found and expected not in (None, found[0])):
        raise RecipeError(
            f"distinct: {column!r} holds words of {' and '.join(map(str, found))} bytes, expected "
            f"{expected or 'one length'}: score the run with image_hash again"
        )
    return found[0] if found else 0
