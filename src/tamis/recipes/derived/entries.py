"""`entries`: which entries of a list a caption contains, for the step `balance`."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import RecipeError, at_least_one, first_line, read_text, require
from tamis.core.types import Column, OptionalFileRef
from tamis.recipes.derived import Derived, Saved
from tamis.runs.table import Table

#: MetaCLIP's spaces: around punctuation, and instead of tabs and line ends.
_SPACED = str.maketrans({**{mark: f" {mark} " for mark in ",.;:?!`"}, **dict.fromkeys("\t\n\r", " ")})

#: First and last characters of entries in scripts without spaces between words, as ranges: Thai and Lao, Tibetan,
#: Burmese, Khmer, kana, Chinese characters.
_UNSPACED = ((0xE00, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF),
             (0xF900, 0xFAFF), (0x20000, 0x3134F))  # fmt: skip

_PAIRS = 1 << 24  # pairs of words that are sorted at once


def joined_by_row(names: Any, lengths: Rows, lacking: Mask) -> Any:
    """Returns the names of each row separated by tabs, (rows,) Arrow; None where it is lacking.

    `names` of one row come after those of another; `lengths` (rows,) says how many each has.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), names)
    return pc.if_else(pa.array(lacking), None, pc.binary_join(lists, "\t"))


def read_names(path: str, of: str) -> list[str]:
    """Returns the names in a file with one per line, or a JSON list; `of` is who asks, for RecipeError."""
    try:
        text = read_text(path)
        names = json.loads(text) if text.lstrip().startswith(("[", "{")) else text.splitlines()
        if isinstance(names, dict):
            raise ValueError("it is a JSON object")
        return [stripped for name in names if (stripped := name.strip())]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        what = f"{of}: {path} must be UTF-8 text with one name per line, or a JSON list of texts"
        raise RecipeError(f"{what}; {first_line(error)}") from error


@dataclass(frozen=True, kw_only=True)
class Entries(Derived):
    """Finds the entries of a list (words, names, titles) that each caption contains: MetaCLIP's matching.

    Entries match whole words, in their own case. Punctuation counts as a word of the caption. As MetaCLIP does, we do
    not split entries: "St. Louis" matches nothing, "St . Louis" does. Entries in scripts without spaces (Chinese,
    Japanese, Thai) match anywhere.

    Attributes:
        entries_from: a file with one entry per line, or a JSON list of entries. None: the words that occur at
            least `least` times in the pool's captions, and pairs of them that often follow one another.
        least: without a file: minimum number of occurrences of a word or of a pair.
        association: without a file: how many times more often than by chance a pair must occur.
        wordnet: without a file: also the words in WordNet's files (index.noun, ...), a folder or a zip of it.

    Emits:
        n_entries: number of different entries in the caption. NaN without a caption.
        entries: those entries, separated by tabs, in the order in which they end; empty without a match.

    Cost: 40 µs per caption with 9 of 500,000 entries, on one CPU core.
    Source: Xu et al. 2024, MetaCLIP (arXiv 2309.16671): 500,000 entries from WordNet and Wikipedia. Its pairs of words
        have a PMI of at least 30. We read that as a ratio, because 30 bits need a pool of 10^9 words per occurrence.
    """

    name = "entries"
    version = 2
    columns = (
        Column(
            "n_entries", "entries", "neither", beside="entries", about="entries of a list that the caption contains"
        ),
        Column("entries", "text", "neither", kind="word", about="the entries in the caption, separated by tabs"),
    )
    lacking: ClassVar[str] = "the row has no caption"
    entries_from: OptionalFileRef = None
    least: int = 20
    association: float = 30.0
    wordnet: OptionalFileRef = None

    def __post_init__(self) -> None:
        at_least_one(least=self.least)
        if not 0 <= self.association < np.inf:
            raise ValueError(f"association must be 0 or more, got {self.association}")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"caption"})

    def compute(self, table: Table, saved: Saved) -> Mapping[str, Any]:
        require("ahocorasick", extra="balance")
        import ahocorasick

        names = sorted(
            set(read_names(self.entries_from, self.name) if self.entries_from else self._from_pool(table, saved))
        )
        if not names:
            raise RecipeError(f"entries: {self.entries_from or 'the pool'} has no entries: lower least, or name a file")
        automaton = ahocorasick.Automaton()
        for number, entry in enumerate(names):
            automaton.add_word(_as_pattern(entry), number)
        automaton.make_automaton()
        words, counts, known = [], np.full(len(table), np.nan, np.float32), pa.array(names)
        for block, place in enumerate(table.row_ranges()):
            ids = saved(f"block{block}", partial(_matches, automaton, table, block))
            ends = np.flatnonzero(ids < 0)
            lengths = np.diff(ends, prepend=-1) - 1
            lacking = ids[ends] == -2
            counts[place] = np.where(lacking, np.nan, lengths)
            words.append(joined_by_row(known.take(pa.array(ids[ids >= 0])), lengths, lacking))
        return {"n_entries": counts, "entries": pa.chunked_array(words, pa.string())}

    def _from_pool(self, table: Table, saved: Saved) -> Iterator[str]:
        """Yields WordNet's words, frequent words of the captions, and pairs of these that often follow one another."""
        yield from _wordnet_words(Path(self.wordnet).expanduser()) if self.wordnet else ()
        counted: Counter[str] = Counter()
        for block in range(len(table.sizes)):
            for caption in _captions(table, block):
                counted.update((caption or "").translate(_SPACED).split(" "))
        frequent = sorted(
            word for word, count in counted.items() if count >= self.least and any(map(str.isalpha, word))
        )
        yield from frequent
        numbers = {word: number for number, word in enumerate(frequent)}
        total = sum(count for word, count in counted.items() if word)
        del counted
        for one, other in self._pairs(saved("words", lambda: _number(table, numbers)), total).tolist():
            yield f"{frequent[one]} {frequent[other]}"

    def _pairs(self, words: Rows, total: int) -> Rows:
        """Returns pairs of word numbers, (n, 2), that follow one another often: by number, and by more than chance."""
        each = np.bincount(words[words >= 0]).astype(np.float64)
        first, second = words[:-1], words[1:]
        found, parts = [np.empty(0, np.int64)], 1 + words.size // _PAIRS
        for part in range(parts):  # by the first word, so that memory is bounded
            some = (first >= 0) & (second >= 0) & (first % parts == part)
            keys, counts = np.unique(first[some].astype(np.int64) * each.size + second[some], return_counts=True)
            chance = each[keys // max(each.size, 1)] * each[keys % max(each.size, 1)] / max(total, 1)
            found.append(keys[(counts >= self.least) & (counts >= self.association * chance)])
        keys = np.concatenate(found)
        return np.stack([keys // max(each.size, 1), keys % max(each.size, 1)], axis=1)


def _captions(table: Table, block: int) -> list[str | None]:
    captions: list[str | None] = table.read(block, ["caption"])["caption"].to_pylist()
    return captions


def _as_pattern(entry: str) -> str:
    return f"{'' if _unspaced(entry[0]) else ' '}{entry}{'' if _unspaced(entry[-1]) else ' '}"


def _unspaced(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _UNSPACED)


def _matches(automaton: Any, table: Table, block: int) -> Rows:
    """Returns the numbers of the entries in each caption, then -1, or -2 if there is no caption."""
    found: list[int] = []
    for caption in _captions(table, block):
        if caption is not None:
            found += dict.fromkeys(map(itemgetter(1), automaton.iter(f" {caption.translate(_SPACED)} ")))
        found.append(-2 if caption is None else -1)
    return np.array(found, np.int32)


def _number(table: Table, numbers: Mapping[str, int]) -> Rows:
    """Returns the numbers of the words of all captions, -1 for other words, two spaces, and between captions."""
    found = []
    for block in range(len(table.sizes)):
        captions = (caption.translate(_SPACED).split(" ") for caption in _captions(table, block) if caption)
        found.append(np.array([n for words in captions for n in (*map(numbers.get, words, repeat(-1)), -1)], np.int32))
    return np.concatenate([np.zeros(0, np.int32), *found])


def _wordnet_words(path: Path) -> Iterator[str]:
    """Yields the words in WordNet's index files, in a folder or a zip file."""
    if path.is_dir():
        texts = [read_text(file) for file in sorted(path.glob("index.*"))]
    else:
        try:
            with zipfile.ZipFile(path) as archive:
                texts = [archive.read(name).decode() for name in archive.namelist() if Path(name).stem == "index"]
        except zipfile.BadZipFile as error:
            raise RecipeError(f"entries: wordnet: {path} is neither a folder nor a zip file") from error
    if not texts:
        raise RecipeError(f"entries: wordnet: {path} has no files index.noun, index.verb, ...")
    lines = (line for text in texts for line in text.splitlines() if line and line[0] != " ")  # not the licence
    yield from (line.partition(" ")[0].replace("_", " ") for line in lines)
