"""How often each word of a column occurs: counted and searched without a Python object per word.

A column of addresses has about as many different words as the pool has pairs. They are never all in memory: the column
is gone through once for each share of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Mask
from tamis.store.table import Table

#: Words beyond ASCII that are looked at as Python's at once.
_CHUNK = 1 << 16

#: Bytes of the words of one share, and bytes of words that are hashed at once.
_ROOM, _HASHED = 32 << 20, 4 << 20

#: What a byte adds to the hash of its word.
_CODES = np.random.default_rng(0).integers(0, 1 << 32, 256, dtype=np.uint32)


class Words:
    """The different words of a column. All that it tells is exact, however many there are.

    A column whose words fit into one share is counted once, for all searches; others are gone through again for each.

    Args:
        table: the run's columns.
        column: of words.
        most: how many words a search tells.

    Attributes:
        different: how many there are.

    Memory: a byte per row, and some times the bytes of a share (32 MiB, or of 255 shares the largest): 330 MiB for 3
    million addresses of 62 bytes, which take 10 s, and 2 to 8 s for each search.
    """

    def __init__(self, table: Table, column: str, most: int) -> None:
        self._table, self._column, self._most = table, column, most
        self._classes, weight = classes(table, column)
        self._shares = max(1, min(255, -(-weight // _ROOM)))
        self._all = self._counted(0) if self._shares == 1 else None
        self.different, self._top = self._told("")

    def search(self, part: str) -> tuple[int, pa.Table]:
        """Returns how many of the words contain a text, in any case, and the most frequent of those as `counted`."""
        return self._told(part) if part.casefold() else (self.different, self._top)

    def _told(self, part: str) -> tuple[int, pa.Table]:
        number, tops = 0, []
        parts: Iterable[pa.Table] = (
            (self._counted(share, part) for share in range(self._shares))
            if self._all is None
            else [containing(self._all, part)]
        )
        for words in parts:
            number += words.num_rows
            tops.append(most_frequent(words, self._most))
        return number, most_frequent(pa.concat_tables(tops), self._most)

    def _counted(self, share: int, part: str = "") -> pa.Table:
        low, high = (-(-256 * end // self._shares) for end in (share, share + 1))
        return counted(self._table, self._column, (self._classes >= low) & (self._classes < high), part)


def classes(table: Table, column: str) -> tuple[NDArray[np.uint8], int]:
    """Returns the class of each row's word, (rows,), and about how many bytes the different words have.

    Equal words are of one class. Words that are in several blocks are weighed in each.
    """
    found = np.zeros(len(table), np.uint8)

    def work(place: slice, columns: dict[str, Any]) -> int:
        words = _texts(columns[column])
        found[place] = hashes(words) >> 24
        return int(words.unique().nbytes)

    return found, sum(table.map([column], work))


def counted(table: Table, column: str, among: Mask, part: str = "") -> pa.Table:
    """Returns the different words of some rows that contain a text, and how often each occurs in those rows.

    Returns:
        `word` (large_string) and `n` (int64).
    """

    def count(place: slice, columns: dict[str, Any]) -> pa.Table:
        found = pc.value_counts(_texts(columns[column].filter(pa.array(among[place]))).drop_null())
        return containing(pa.table({"word": found.field("values"), "n": found.field("counts")}), part)

    none = pa.table({"word": pa.array([], pa.large_string()), "n": pa.array([], pa.int64())})
    blocks = pa.concat_tables([none, *table.map([column], count)])
    together = blocks.group_by("word", use_threads=False).aggregate([("n", "sum")])
    return together.select(["word", "n_sum"]).rename_columns(["word", "n"])


def hashes(words: Any) -> NDArray[np.uint32]:
    """Returns a number per word: (words,). Words of the same letters have the same one, in whatever order they stand.

    It is the sum of a fixed random number per byte, modulo 2 ** 32, so that it takes no Python object per word.

    Args:
        words: large_string; a null is as "".
    """
    texts = words.fill_null("")
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    _, offsets, data = texts.buffers()
    found = np.zeros(len(texts), np.uint32)
    if data is None or not len(texts):
        return found
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    letters = np.frombuffer(data, np.uint8)
    start = 0
    while start < len(texts):
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + _HASHED, side="right")) - 1)
        places = ends[start : stop + 1] - ends[start]
        sums = np.zeros(int(places[-1]) + 1, np.uint32)
        np.cumsum(_CODES[letters[ends[start] : ends[stop]]], dtype=np.uint32, out=sums[1:])
        found[start:stop] = sums[places[1:]] - sums[places[:-1]]
        start = stop
    return found


def containing(words: pa.Table, part: str) -> pa.Table:
    """Returns the rows of counted words that contain a text, in any case (Python's `casefold`)."""
    sought = part.casefold()
    if not sought:
        return words
    column = words.column("word")
    plain = pc.string_is_ascii(column)
    found = np.array(pc.match_substring(pc.ascii_lower(column), sought))
    others = np.flatnonzero(~np.array(plain))
    for start in range(0, others.size, _CHUNK):
        rows = others[start : start + _CHUNK]
        found[rows] = [sought in word.casefold() for word in column.take(pa.array(rows)).to_pylist()]
    return words.filter(pa.array(found))


def most_frequent(words: pa.Table, most: int) -> pa.Table:
    """Returns the most frequent of counted words, those first; of equals those first that sort first."""
    order = pc.select_k_unstable(words, most, [("n", "descending"), ("word", "ascending")])
    return words.take(order)


def counted_among(table: Table, column: str, words: pa.ChunkedArray, among: Mask) -> NDArray[np.int64]:
    """Returns how often each of some words occurs in a column's rows of a mask: (words,)."""
    few = words.combine_chunks()

    def count(place: slice, columns: dict[str, Any]) -> NDArray[np.int64]:
        here = _texts(columns[column].filter(pa.array(among[place])))
        return np.bincount(np.asarray(pc.index_in(here, value_set=few).drop_null()), minlength=len(few))

    return sum(table.map([column], count), np.zeros(len(few), np.int64))


def _texts(words: Any) -> Any:
    """Returns words as texts; large ones, so that those of a whole pool may stand in one array."""
    if pa.types.is_dictionary(words.type):
        words = words.cast(pa.string())
    return words.cast(pa.large_string())
