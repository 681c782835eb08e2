"""How often each word of a column occurs, and a search among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Mask
from tamis.store.table import Table

#: Words beyond ASCII that become Python's at once.
_CHUNK = 1 << 16


def counted(table: Table, column: str) -> pa.Table:
    """Returns the different words of a column and how often each occurs: `word` (large_string) and `n` (int64)."""

    def count(place: slice, columns: dict[str, Any]) -> pa.Table:
        found = pc.value_counts(_texts(columns[column]).drop_null())
        return pa.table({"word": found.field("values"), "n": found.field("counts")})

    none = pa.table({"word": pa.array([], pa.large_string()), "n": pa.array([], pa.int64())})
    together = pa.concat_tables([none, *table.map([column], count)]).group_by("word", use_threads=False)
    return together.aggregate([("n", "sum")]).select(["word", "n_sum"]).rename_columns(["word", "n"])


def containing(words: pa.Table, part: str) -> pa.Table:
    """Returns the rows of counted words that contain a text, in any case (Python's `casefold`)."""
    sought = part.casefold()
    if not sought:
        return words
    column = words.column("word")
    found = np.array(pc.match_substring(pc.ascii_lower(column), sought))
    others = np.flatnonzero(~np.array(pc.string_is_ascii(column)))
    for start in range(0, others.size, _CHUNK):
        rows = others[start : start + _CHUNK]
        found[rows] = [sought in word.casefold() for word in column.take(pa.array(rows)).to_pylist()]
    return words.filter(pa.array(found))


def most_frequent(words: pa.Table, most: int) -> pa.Table:
    """Returns the most frequent of counted words; those that sort first come first among equals."""
    return words.take(pc.select_k_unstable(words, most, [("n", "descending"), ("word", "ascending")]))


def counted_among(table: Table, column: str, words: pa.ChunkedArray, among: Mask) -> NDArray[np.int64]:
    """Returns how often each of some words occurs in a column's rows of a mask: (words,)."""
    few = words.combine_chunks()

    def count(place: slice, columns: dict[str, Any]) -> NDArray[np.int64]:
        here = _texts(columns[column].filter(pa.array(among[place])))
        return np.bincount(np.asarray(pc.index_in(here, value_set=few).drop_null()), minlength=len(few))

    return sum(table.map([column], count), np.zeros(len(few), np.int64))


def _texts(words: Any) -> Any:
    """Returns words as large strings, so that those of a whole pool fit into one array."""
    return (words.cast(pa.string()) if pa.types.is_dictionary(words.type) else words).cast(pa.large_string())
