"""How often each word of a word column occurs in the pool, and in each subset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tamis.arrays import Mask
from tamis.store.table import Table

#: A column with more different values than this is not a category (a URL, an id): it is named, not counted.
MOST = 10_000


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts of one word column.

    Attributes:
        values: each value with its rows in the pool and in each subset, the most frequent first; None is null.
        many: True where there are more than `MOST`; `values` is empty then.
    """

    values: tuple[tuple[str | None, int, tuple[int, ...]], ...]
    many: bool = False


def tallies(table: Table, names: Sequence[str], keeps: Sequence[Mask]) -> dict[str, Tally]:
    """Returns the counts of word columns, in one pass over the table's blocks."""
    totals: dict[str, dict[str | None, np.ndarray[Any, np.dtype[np.int64]]]] = {name: {} for name in names}
    many: set[str] = set()

    def look(place: slice, columns: dict[str, Any]) -> dict[str, dict[str | None, Any]]:
        return {name: _count(columns[name], [keep[place] for keep in keeps]) for name in names if name not in many}

    for found in table.map(names, look) if names else ():
        for name, counts in found.items():
            total = totals[name]
            for word, numbers in counts.items():
                total[word] = total[word] + numbers if word in total else numbers
            if len(total) > MOST:
                many.add(name)
                total.clear()
    return {name: Tally(values=() if name in many else _sorted(totals[name]), many=name in many) for name in names}


def _count(column: Any, keeps: Sequence[Mask]) -> dict[str | None, Any]:
    words = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if isinstance(words, pa.ChunkedArray):
        words = words.combine_chunks()
    values = words.dictionary.to_pylist()
    places = words.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    counts = [np.bincount(places, minlength=len(values) + 1)]
    counts += [np.bincount(places[keep], minlength=len(values) + 1) for keep in keeps]
    stacked = np.stack(counts, axis=1).astype(np.int64)
    return {word: stacked[number] for number, word in enumerate([*values, None]) if stacked[number, 0]}


def _sorted(total: dict[str | None, Any]) -> tuple[tuple[str | None, int, tuple[int, ...]], ...]:
    ordered = sorted(total.items(), key=lambda item: (-int(item[1][0]), item[0] is None, item[0] or ""))
    return tuple((word, int(counts[0]), tuple(int(count) for count in counts[1:])) for word, counts in ordered)
