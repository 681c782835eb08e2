"""Exact and near duplicates by what pictures look like, without any model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import U64
from tamis.errors import RecipeError
from tamis.math.hashing import leaders, near_pairs
from tamis.selectors.expression import parse
from tamis.selectors.outcome import Selection, verdict
from tamis.selectors.semdedup import groups
from tamis.store.table import Table
from tamis.uid import scramble


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """Keeps one pair of each group whose pictures have hashes within a few bits, and much the same colours.

    Rows are taken one by one, the best first; one goes where a kept one is near. A flat picture (of one brightness:
    its hash is 0) goes only where a kept one has the very same words.

    Attributes:
        hash: a column of hashes of 16 hex digits each, as `image_hash` emits it: the first of the whole picture,
            perhaps others of its inside, with spaces between them.
        distance: in how many of the 64 bits the first hash of one picture may differ from any of the other's, 0 to
            15.
        colours: a column of bytes in hex, as `image_hash` emits it; None: colours do not matter.
        tolerance: by how much any two of these bytes may differ, 0 to 255.
        best: an expression over score columns; of a group the row with the highest stays. None: any, by its uid.
        missing: what to do with rows without a hash (or without colours, or without a value of `best`).

    Cost: under a minute for 300 thousand different pictures at a distance of 8, on one core; quadratic beyond. Memory:
        the pairs that are near.
    """

    name: ClassVar[str] = "distinct"
    hash: str = "image_hash"
    distance: int = 8
    colours: str | None = "image_colours"
    tolerance: int = 16
    best: str | None = None
    missing: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        if not 0 <= self.distance <= 15:
            raise ValueError(f"distance lies between 0 and 15 bits of 64, got {self.distance}")
        if not 0 <= self.tolerance <= 255:
            raise ValueError(f"tolerance lies between 0 and 255 (of a byte), got {self.tolerance}")
        if self.best is not None:
            parse(self.best)

    @property
    def reads(self) -> frozenset[str]:
        words = frozenset({self.hash} | ({self.colours} if self.colours else set()))
        return words | (parse(self.best).columns if self.best else frozenset())

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"one of each picture ({self.hash} within {self.distance} bits)"

    def select(self, table: Table) -> Selection:
        alive = table.living()
        hashes, missing = _words(table, self.hash, _hashes)
        colours: NDArray[Any] = np.zeros((len(table), 0), np.uint8)
        if self.colours is not None:
            colours, lacking = _words(table, self.colours, _bytes)
            missing |= lacking
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
        what = " and ".join([self.hash, *([self.colours] if self.colours else []), *([self.best] if self.best else [])])
        if missing.any() and self.missing == "error":
            verdict(self, alive & ~missing, missing, alive, "", what=what)
        order = order[np.lexsort(keys)]
        heads = self._heads(hashes[order], colours[order])
        keep = np.zeros(len(table), bool)
        keep[order[heads == np.arange(order.size)]] = True
        facts = groups(table, order, heads) if order.size else {}
        return verdict(self, keep, missing, alive, "repeats another", what=what, facts=facts)

    def _heads(self, hashes: U64, colours: NDArray[Any]) -> NDArray[np.int64]:
        """Returns for each row, the best first, the one that stands for it."""
        if not len(hashes):
            return np.empty(0, np.int64)
        # Rows with the very same words are one: their first stands for them, and only first rows are compared.
        words = np.concatenate([hashes.view(np.uint8).reshape(len(hashes), -1), colours], axis=1)
        _, first, inverse = np.unique(words, axis=0, return_index=True, return_inverse=True)
        ranks = np.argsort(np.argsort(first))  # of each, by its first row
        firsts = np.sort(first)
        shaped = firsts[hashes[firsts, 0] != 0]
        place = np.searchsorted(firsts, shaped)
        near = (
            (place[left], place[right]) for left, right in self._near(hashes[shaped], colours[shaped].astype(np.int16))
        )
        return np.asarray(firsts[leaders(near, firsts.size)][ranks[inverse.reshape(-1)]], np.int64)

    def _near(self, hashes: U64, colours: NDArray[np.int16]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        for left, right in near_pairs(hashes, self.distance):
            same = (np.abs(colours[left] - colours[right]) <= self.tolerance).all(1)
            yield left[same], right[same]


def _hashes(text: str) -> list[int]:
    return [int(one, 16) for one in text.split()]


def _bytes(text: str) -> list[int]:
    return list(bytes.fromhex(text))


def _words(table: Table, column: str, read: Callable[[str], list[int]]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Returns the numbers that each row's word spells: (rows, m) uint64 or uint8, and which rows have no word."""
    if table.kind(column) != "word":
        raise RecipeError(f"distinct: {column!r} holds {table.kind(column)}s, expected hashes as words")
    kind = np.uint64 if read is _hashes else np.uint8
    missing = np.zeros(len(table), bool)
    found: dict[int, NDArray[Any]] = {}

    def work(place: slice, columns: dict[str, Any]) -> None:
        words = columns[column]
        words = words if words.type == pa.string() else words.cast(pa.string())
        missing[place] = pc.is_null(words).to_numpy(zero_copy_only=False)
        rows = []
        for text in words.to_pylist():
            try:
                rows.append(None if text is None else np.array(read(text), kind))
            except (ValueError, OverflowError) as error:
                raise RecipeError(
                    f"distinct: {column!r} holds {text!r}, expected hex digits as the scorer image_hash emits them"
                ) from error
        widths = sorted({row.size for row in rows if row is not None}) or [0]
        if len(widths) > 1:
            raise RecipeError(f"distinct: {column!r} holds words of {widths[0]} and of {widths[-1]} numbers")
        nothing = np.zeros(widths[0], kind)
        found[place.start] = np.array([nothing if row is None else row for row in rows]).reshape(len(rows), widths[0])

    for _ in table.map([column], work):
        pass
    width = max((each.shape[1] for each in found.values()), default=0)
    numbers = np.zeros((len(table), max(width, 1 if read is _hashes else 0)), kind)
    for start, each in found.items():
        if not each.shape[1]:
            continue  # no row of the block has a word
        if each.shape[1] == width:
            numbers[start : start + len(each)] = each
        else:
            raise RecipeError(f"distinct: {column!r} holds words of different lengths")
    return numbers, missing
