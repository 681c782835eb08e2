"""How often each word of a word column occurs in the pool, and in each subset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.arrays import Mask
from tamis.store.table import Table

#: A column with more different values than this is not a category (a URL, an id): it is named, not counted.
MOST = 10_000

#: So few values are a category, whatever they are.
FEW = 15

#: Values of so many words in the mean are free text, of at least so many more likely text than ids.
_TEXT, _TEXTLIKE = 4.0, 1.2


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts of one word column.

    Attributes:
        values: each value with its rows in the pool and in each subset, the most frequent first; None is null.
        many: True where there are more than `MOST`; `values` is empty then.
        length: words of the different values, in the mean; NaN where there is none.
    """

    values: tuple[tuple[str | None, int, tuple[int, ...]], ...]
    many: bool = False
    length: float = float("nan")

    @property
    def judged(self) -> int:
        """How many rows have a value; 0 where that was not counted."""
        return sum(rows for word, rows, _ in self.values if word is not None)

    @property
    def distinct(self) -> int:
        """How many values there are."""
        return sum(word is not None for word, _, _ in self.values)

    @property
    def kind(self) -> Literal["category", "text", "id"]:
        """Whether the values sort pairs, are free text (a generated caption), or name single pairs (a URL)."""
        # The most frequent value apart: often it is "", or what stands for none.
        top = max((rows for word, rows, _ in self.values if word is not None), default=0)
        single = self.many or (self.distinct > FEW and 2 * (self.distinct - 1) > self.judged - top)
        if self.length >= _TEXT or (single and self.length >= _TEXTLIKE):
            return "text"
        return "id" if single else "category"


def tallies(table: Table, names: Sequence[str], keeps: Sequence[Mask]) -> dict[str, Tally]:
    """Returns the counts of word columns, in one pass over the table's blocks."""
    totals: dict[str, dict[str | None, np.ndarray[Any, np.dtype[np.int64]]]] = {name: {} for name in names}
    many: dict[str, float] = {}

    def look(place: slice, columns: dict[str, Any]) -> dict[str, dict[str | None, Any]]:
        return {name: _count(columns[name], [keep[place] for keep in keeps]) for name in names if name not in many}

    for found in table.map(names, look) if names else ():
        for name, counts in found.items():
            total = totals[name]
            for word, numbers in counts.items():
                total[word] = total[word] + numbers if word in total else numbers
            if len(total) > MOST:
                many[name] = _length(total)
                total.clear()
    return {
        name: Tally(values=(), many=True, length=many[name])
        if name in many
        else Tally(values=_sorted(totals[name]), length=_length(totals[name]))
        for name in names
    }


def _length(words: Iterable[str | None]) -> float:
    lengths = [len(word.split()) for word in words if word]
    return sum(lengths) / len(lengths) if lengths else float("nan")


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
