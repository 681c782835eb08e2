"""Counts words: the values of a word column, and the words of captions, in the pool and in each subset."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.arrays import Mask
from tamis.store.table import Table

#: A column with more distinct values than this is not a category (a URL, an id): it is named, not counted.
MOST = 10_000

#: Up to this many values are always a category.
FEW = 15

#: Mean words per value: from `_TEXT` on free text; from `_TEXTLIKE` on text, not ids, if nearly all values differ.
_TEXT, _TEXTLIKE = 4.0, 1.2

#: A word: two letters or more, with apostrophes and hyphens inside. Scripts without spaces give whole runs.
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")

#: A word in fewer captions says nothing about a recipe; characters of a caption that are read.
RARE, _READ = 5, 2_000


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts of one word column: (value or None, rows of the pool, rows of each subset), the most frequent first.

    `many`: over `MOST`, none is listed then. `length`: mean words of the distinct values; NaN without any.
    """

    values: Sequence[tuple[str | None, int, tuple[int, ...]]]
    many: bool = False
    length: float = float("nan")

    @property
    def judged(self) -> int:
        """Rows with a value; 0 where there are too many values to count."""
        return sum(rows for word, rows, _ in self.values if word is not None)

    @property
    def distinct(self) -> int:
        """How many values there are."""
        return sum(word is not None for word, _, _ in self.values)

    @property
    def kind(self) -> Literal["category", "text", "id"]:
        """Whether the values sort pairs, are free text (a generated caption), or name single pairs (a URL)."""
        # Without the most frequent value, which often is "" or stands for none.
        top = max((rows for word, rows, _ in self.values if word is not None), default=0)
        single = self.many or (self.distinct > FEW and 2 * (self.distinct - 1) > self.judged - top)
        if self.length >= _TEXT or (single and self.length >= _TEXTLIKE):
            return "text"
        return "id" if single else "category"


def tallies(table: Table, names: Sequence[str], keeps: Sequence[Mask]) -> dict[str, Tally]:
    """Returns the counts of word columns, in one pass over the table's blocks."""
    totals: dict[str, dict[str | None, Any]] = {name: {} for name in names}
    many: dict[str, Tally] = {}

    def look(place: slice, columns: dict[str, Any]) -> dict[str, dict[str | None, Any]]:
        return {name: _count(columns[name], [keep[place] for keep in keeps]) for name in names if name not in many}

    for block in table.map(names, look) if names else ():
        for name, counts in block.items():
            total = totals[name]
            for word, numbers in counts.items():
                total[word] = total[word] + numbers if word in total else numbers
            if len(total) > MOST:
                many[name] = Tally(values=(), many=True, length=_mean_words(total))
                total.clear()

    def tally(total: dict[str | None, Any]) -> Tally:
        ordered = sorted(total.items(), key=lambda item: (-int(item[1][0]), item[0] is None, item[0] or ""))
        values = [(word, int(counts[0]), tuple(counts[1:].tolist())) for word, counts in ordered]
        return Tally(values=values, length=_mean_words(total))

    return {name: many[name] if name in many else tally(total) for name, total in totals.items()}


def _mean_words(values: Iterable[str | None]) -> float:
    lengths = [len(value.split()) for value in values if value]
    return sum(lengths) / len(lengths) if lengths else float("nan")


def _count(column: Any, keeps: Sequence[Mask]) -> dict[str | None, Any]:
    """Returns the rows of each value of a block: (1 + subsets,)."""
    words = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if isinstance(words, pa.ChunkedArray):
        words = words.combine_chunks()
    values = words.dictionary.to_pylist()
    places = words.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    counts = [np.bincount(among, minlength=len(values) + 1) for among in (places, *(places[keep] for keep in keeps))]
    stacked = np.stack(counts, axis=1).astype(np.int64)
    return {word: stacked[place] for place, word in enumerate([*values, None]) if stacked[place, 0]}


def frequencies(captions: Sequence[str], keeps: Sequence[Mask]) -> list[list[dict[str, Any]]]:
    """Returns for each subset the words of captions that it keeps more often than others, the most surprising first.

    A word of at least `RARE` captions is in `pool` of them and in `kept` of the subset's. `surprise` is the
    z-score of the kept count against a random subset of that size: (kept - n p) / sqrt(n p (1 - p)).
    """
    words = [{w.casefold() for w in _WORD.findall(caption[:_READ]) if len(w) > 1} for caption in captions]
    pool = Counter(word for each in words for word in each)
    return [_ranked(pool, words, keep) if 0 < np.count_nonzero(keep) < len(words) else [] for keep in keeps]


def _ranked(pool: Counter[str], words: Sequence[set[str]], keep: Mask) -> list[dict[str, Any]]:
    kept = Counter(word for each, here in zip(words, keep.tolist(), strict=True) if here for word in each)
    part = np.count_nonzero(keep) / len(words)
    found = [
        {
            "word": word,
            "pool": rows,
            "kept": kept[word],
            "surprise": (kept[word] - rows * part) / float(np.sqrt(rows * part * (1 - part))),
        }
        for word, rows in pool.items()
        if rows >= RARE
    ]
    return sorted(found, key=lambda each: (-each["surprise"], each["word"]))
