"""Exact distributions of columns: histograms of numbers (one column in memory at a time) and counts of words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.arrays import Float32s, Float64s, Mask
from tamis.runs.reasons import blocks
from tamis.runs.table import Table, as_numbers

Counts = NDArray[np.int64]

#: The quantiles that are computed.
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)

BARS = 50

#: A tail longer than this many times the range of the middle 98 % is drawn as one bar at the edge.
_LONG_TAIL = 0.75


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Distribution of a column over the pool and over each subset.

    `judged` counts rows with a finite value, `null` rows without a value; `infinite` values are in no bar. Quantiles
    are not interpolated (the lower value). Bars are between `edges`; if `below` (`above`), the first (last) bar also
    holds all values beyond its edge. `low` and `high` are NaN if there is no finite value.
    """

    judged: int
    null: int
    infinite: int
    low: float
    high: float
    quantiles: Mapping[float, float]
    edges: Float64s
    below: bool
    above: bool
    pool: Counts
    kept: Sequence[Counts]
    kept_null: Sequence[int]


def histograms(
    table: Table, names: Sequence[str], keeps: Sequence[Mask], cuts: Mapping[str, Sequence[float]] | None = None
) -> dict[str, Histogram]:
    """Returns the distribution of each number column; its axis includes its `cuts`, even in a long tail."""
    return {name: histogram(whole_column(table, name), keeps, (cuts or {}).get(name, ())) for name in names}


def whole_column(table: Table, name: str) -> Float32s:
    """Reads a whole number column: (rows,) float32."""
    values = np.empty(len(table), np.float32)

    def read(rows: slice, columns: dict[str, Any]) -> None:
        values[rows] = as_numbers(columns[name])

    list(table.map([name], read))
    return values


def histogram(values: Float32s, keeps: Sequence[Mask], cuts: Sequence[float] = ()) -> Histogram:
    """Returns the distribution of one column: see `histograms`."""
    finite = values[np.isfinite(values)] + np.float32(0)  # -0 becomes 0
    judged, null = finite.size, int(np.count_nonzero(np.isnan(values)))
    low = high = float("nan")
    quantiles = dict.fromkeys(QUANTILES, low)
    edges = np.array([0.0, 1.0])
    if judged:
        ranks = {level: int(level * (judged - 1)) for level in QUANTILES}
        finite.partition(sorted({0, judged - 1, *ranks.values()}))
        low, high = float(finite[0]), float(finite[-1])
        quantiles = {level: float(finite[rank]) for level, rank in ranks.items()}
        whole = bool((finite == np.rint(finite)).all())
        edges = _edges(low, high, quantiles, [cut for cut in cuts if low <= cut <= high], whole)
    counts = np.zeros((1 + len(keeps), edges.size - 1), np.int64)
    kept_null = [0] * len(keeps)
    for part in blocks(values.size):
        there, here = np.isfinite(values[part]), [keep[part] for keep in keeps]
        bars = bars_of(values[part][there], edges)
        for total, among in zip(counts, (bars, *(bars[keep[there]] for keep in here)), strict=True):
            total += np.bincount(among, minlength=total.size)
        missing = np.isnan(values[part])
        kept_null = [n + int(np.count_nonzero(keep & missing)) for n, keep in zip(kept_null, here, strict=True)]
    return Histogram(
        judged=judged, null=null, infinite=values.size - judged - null, low=low, high=high, quantiles=quantiles,
        edges=edges, below=bool(low < edges[0]), above=bool(high > edges[-1]), pool=counts[0], kept=list(counts[1:]),
        kept_null=kept_null,
    )  # fmt: skip


def bars_of(values: Float32s, edges: Float64s) -> NDArray[np.int64]:
    """Returns the bar of each finite value; values beyond the edges go to the first or last bar."""
    start, stop, bars = float(edges[0]), float(edges[-1]), edges.size - 1
    # float64, and division last: else rounding could move an integer out of the bar around it.
    return np.clip((values.astype(np.float64) - start) * bars / (stop - start), 0, bars - 1).astype(np.int64)


def _edges(
    low: float, high: float, quantiles: Mapping[float, float], cuts: Sequence[float], whole: bool
) -> NDArray[np.float64]:
    """Returns the edges of the bars. The axis excludes long tails, except where there is a cut."""
    first, last = quantiles[QUANTILES[0]], quantiles[QUANTILES[-1]]
    near, far = max(low, _round(first, up=False)), min(high, _round(last, up=True))
    reach = max(far - near, 0.0)
    start, stop = min([near, *cuts]), max([far, *cuts])
    alike = _round(first, up=False) == _round(last, up=False)  # nearly all values are equal: show the others
    if alike or low >= start - _LONG_TAIL * reach:
        start = low
    if alike or high <= stop + _LONG_TAIL * reach:
        stop = high
    if whole and max(abs(start), abs(stop)) < 1 << 24:
        # All bars span equally many integers.
        start, stop = np.floor(start), np.ceil(stop)
        width = max(1, int(np.ceil((stop - start + 1) / BARS)))
        bars = int((stop - start) // width) + 1
        return np.asarray(start - 0.5 + width * np.arange(bars + 1), np.float64)
    if start == stop:
        pad = abs(start) * 0.05 or 0.5
        return np.array([start - pad, start + pad])
    return np.linspace(start, stop, BARS + 1)


def _round(value: float, *, up: bool) -> float:
    """Rounds a float32 down (or `up`) to 16 significant bits."""
    bits = int(np.float32(value).view(np.uint32))
    grows = up != bool(bits >> 31)
    return float(np.uint32(bits | 0xFFFF if grows else bits & 0xFFFF0000).view(np.float32))


#: A column with more distinct values (a URL, an id) is not a category: the page names it without counts.
MOST = 10_000

#: A column with at most this many distinct values is always a category.
FEW = 15

#: Mean words per value from which a column is free text: in general, and if nearly all values differ.
_TEXT, _TEXTLIKE = 4.0, 1.2

#: A word: letters, with apostrophes and hyphens inside. Scripts without spaces give whole runs of letters.
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")

#: Minimum number of captions with a word for it to be compared, and characters read of each caption.
RARE, _READ = 5, 2_000


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts of a word column: (value or None, rows of the pool, rows of each subset), the most frequent first.

    `many`: more than `MOST` distinct values, so `values` is empty. `length`: mean words per distinct value, or NaN.
    """

    values: Sequence[tuple[str | None, int, tuple[int, ...]]]
    many: bool = False
    length: float = float("nan")

    @property
    def judged(self) -> int:
        """Number of rows with a value; 0 if `many`."""
        return sum(rows for word, rows, _ in self.values if word is not None)

    @property
    def distinct(self) -> int:
        """Number of distinct values; 0 if `many`."""
        return sum(word is not None for word, _, _ in self.values)

    @property
    def kind(self) -> Literal["category", "text", "id"]:
        """What the values are: categories, free text (a generated caption), or ids of single pairs (a URL)."""
        # The most frequent value does not count: it is often "" or stands for a missing one.
        top = max((rows for word, rows, _ in self.values if word is not None), default=0)
        single = self.many or (self.distinct > FEW and 2 * (self.distinct - 1) > self.judged - top)
        if self.length >= _TEXT or (single and self.length >= _TEXTLIKE):
            return "text"
        return "id" if single else "category"


def tallies(table: Table, names: Sequence[str], keeps: Sequence[Mask]) -> dict[str, Tally]:
    """Counts the values of word columns, in one pass over the table."""
    totals: dict[str, dict[str | None, Any]] = {name: {} for name in names}
    many: dict[str, Tally] = {}

    def look(rows: slice, columns: dict[str, Any]) -> dict[str, dict[str | None, Any]]:
        return {name: _count(columns[name], [keep[rows] for keep in keeps]) for name in names if name not in many}

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
    """Returns the counts of each value in a block: (1 + subsets,), the pool first."""
    words = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if isinstance(words, pa.ChunkedArray):
        words = words.combine_chunks()
    values = words.dictionary.to_pylist()
    places = words.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    counts = [np.bincount(among, minlength=len(values) + 1) for among in (places, *(places[keep] for keep in keeps))]
    stacked = np.stack(counts, axis=1).astype(np.int64)
    return {word: stacked[code] for code, word in enumerate([*values, None]) if stacked[code, 0]}


def frequencies(captions: Sequence[str], keeps: Sequence[Mask]) -> list[list[dict[str, Any]]]:
    """Ranks for each subset the words of captions, from over-represented to under-represented.

    A word is in `pool` captions (at least `RARE`), of which the subset keeps `kept`. `surprise` is the z-score of
    `kept` against a random subset of that size: (kept - n p) / sqrt(n p (1 - p)).
    """
    words = [{w.casefold() for w in _WORD.findall(caption[:_READ]) if len(w) > 1} for caption in captions]
    pool = Counter(word for each in words for word in each)
    ranked = []
    for keep in keeps:
        kept = Counter(word for each, here in zip(words, keep.tolist(), strict=True) if here for word in each)
        part = np.count_nonzero(keep) / max(len(words), 1)
        found = []
        for word, rows in pool.items() if 0 < part < 1 else ():
            if rows >= RARE:
                surprise = (kept[word] - rows * part) / float(np.sqrt(rows * part * (1 - part)))
                found.append({"word": word, "pool": rows, "kept": kept[word], "surprise": surprise})
        ranked.append(sorted(found, key=lambda each: (-each["surprise"], each["word"])))
    return ranked
