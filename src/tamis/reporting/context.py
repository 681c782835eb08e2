"""What several sections of the report share, read once: columns, masks, why rows were dropped, histograms, pairs.

A section's `gather` asks here for what others need too, and reads for itself what only it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Mask, Rows
from tamis.data import Column
from tamis.math.ranks import rank_correlations
from tamis.pool import Pool
from tamis.reporting.groups import Group, Repeated, groups_of, repeats_of_pool, repeats_told
from tamis.reporting.histogram import Histogram, histograms
from tamis.reporting.lines import verdict_on
from tamis.reporting.overlap import intersections
from tamis.reporting.pairs import Painter, Pair, read_pairs
from tamis.reporting.picking import first_by, scrambled
from tamis.reporting.subset_names import SubsetName, names_of
from tamis.reporting.tally import Tally, tallies
from tamis.reporting.traits import Found, find
from tamis.selectors.expression import parse
from tamis.store import Run
from tamis.store.reasons import Verdict, blocks
from tamis.store.run import INDEX_NUMBERS
from tamis.store.subset import Subset
from tamis.store.table import Table

#: So many subsets get galleries and groups of repeated pictures; the others get everything else.
GALLERIES = 8

#: So many reasons of one step have pictures.
REASONS = 12

#: The length of captions, read from the index where the scorer `caption_length` has not measured it.
CAPTION = "caption characters"

#: All pictures of a page together, in characters of their data URLs, and all texts of its pairs, in bytes.
BUDGET, TEXTS = 9_000_000, 3_000_000

#: So much is left of each text of a pair once the page's texts weigh too much, in characters.
_SHORTENED = 200

#: The unit of columns of hashes, which tell nobody anything.
_HASHES = "hex digits"

#: Pairs that are looked at where the whole pool would take long: drawn by uid.
SAMPLE = 100_000

#: Scores whose ranks are compared.
_CORRELATED = 24

#: The order in which random pairs are drawn; selectors draw in the order of seed 0.
_SEED = 2022


@dataclass(frozen=True)
class ComputedScore:
    """A score that a recipe computes of columns; two recipes that mean the same one share it.

    Attributes:
        text: the expression as the recipe writes it.
        names: the recipe's own names for columns, with those of the run.
    """

    text: str
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Where the steps of the subsets cut: on each score, a list of values per subset.

    Attributes:
        columns: by the page's name of a column of the run.
        computed: by a score that a recipe computes of columns.
    """

    columns: Mapping[str, Sequence[Sequence[float]]]
    computed: Mapping[ComputedScore, Sequence[Sequence[float]]]


class Context:
    """A run, subsets of it, and what is read of both for more than one section. Everything is read when first asked.

    Attributes:
        run: the run.
        subsets: what was chosen from it.
        pool: where pictures come from; None: there are none.
        names: what the page calls each of the subsets.
        keeps: (rows,) bool for each of the subsets.
        incomplete: labels of scores that some shards lack, with how many have them. The page leaves these out.
    """

    def __init__(self, run: Run, subsets: Sequence[Subset], pool: Pool | None, *, budget: int = BUDGET) -> None:
        self.run = run
        self.subsets = tuple(subsets)
        self.pool = pool
        self.names: tuple[SubsetName, ...] = names_of(subsets)
        self.keeps: tuple[Mask, ...] = tuple(subset.keep for subset in subsets)
        self.incomplete: Mapping[str, int] = {
            label: len(group.shards & set(run.shards))
            for label, group in run.scores.items()
            if not group.shards >= set(run.shards)
        }
        self._budget, self._texts = budget, TEXTS
        self._pairs: dict[int, Pair] = {}

    @cached_property
    def rows(self) -> int:
        """How many pairs the run has."""
        return len(self.run)

    @cached_property
    def statuses(self) -> Mapping[str, int]:
        """How many pairs have which status."""
        return self.run.statuses

    @cached_property
    def numbers(self) -> Sequence[str]:
        """The shortest name of each complete score column of numbers."""
        return [name for name, column in self._scores.items() if column.kind == "number"]

    @cached_property
    def words(self) -> Mapping[str, Column]:
        """Columns of words by name: fields that came with the pairs, then complete score columns but hashes."""
        fields = [name for name in self.run.facts["pool"]["fields"] if name in self.run.columns]
        scores = {
            name: column for name, column in self._scores.items() if column.kind == "word" and column.unit != _HASHES
        }
        return {name: self.run.columns[name][2] for name in fields} | scores

    @cached_property
    def _scores(self) -> Mapping[str, Column]:
        found = {name: self.run.columns[name] for name in self.run.score_names()}
        return {
            name: column
            for name, (_, group, column) in found.items()
            if group is not None and group.label not in self.incomplete
        }

    @cached_property
    def table(self) -> Table:
        """The run's rows, with the column `CAPTION` beside the run's own: how many characters each caption has."""
        run, table = self.run, self.run.table()

        def read(block: int, names: Sequence[str]) -> dict[str, Any]:
            values = table.read(block, [name for name in names if name != CAPTION])
            if CAPTION in names:
                lengths = pc.utf8_length(run.index(run.shards[block], ["caption"]).column("caption"))
                values[CAPTION] = np.asarray(lengths.cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32)
            return values

        def kind(name: str) -> str:
            return "number" if name == CAPTION else table.kind(name)

        return Table(table.sizes, read, table.read_uids, kind)

    @cached_property
    def order(self) -> NDArray[np.uint64]:
        """The order in which random pairs are drawn: (rows,) scrambled uids."""
        return scrambled(self.table, _SEED)

    @cached_property
    def sample(self) -> Rows:
        """Returns the rows that are looked at where the whole pool would take long, ascending: at most `SAMPLE`."""
        return np.sort(first_by(self.order, SAMPLE, np.ones(self.rows, bool)))

    @cached_property
    def traits(self) -> Sequence[Found]:
        """What pairs of the pool have that is worth a look, in one pass."""
        inner = {self.run.columns[name][0]: name for name in reversed([*self.numbers, *self.words])}
        return find(self.table, inner, self.order)

    @cached_property
    def repeats(self) -> Repeated | None:
        """The repeated pictures of the pool; None where nothing is known of them.

        Where a recipe looked for them among all pairs, that is said; of a large pool what recipes found in a part.
        """
        told = repeats_told(self.subsets)
        if self.rows in told:
            return Repeated(pairs=told[self.rows], groups=())
        hashes = [group.label for group in self.run.scores.values() if group.facts["name"] == "image_hash"]
        found = None
        if hashes and not set(hashes) & set(self.incomplete):
            found = repeats_of_pool(self.run, self.table)
        return found or (Repeated(pairs=max(told.values()), groups=()) if told else None)

    @cached_property
    def groups(self) -> Mapping[int, Sequence[Group]]:
        """The largest groups of repeated pictures that steps of the first subsets tell of, by the subset's place."""
        found = {name.place: groups_of(self.subsets[name.place], self.table) for name in self.names[:GALLERIES]}
        return {place: groups for place, groups in found.items() if groups}

    def fallen(self, place: int) -> Sequence[int]:
        """Returns how many rows fell by each reason of a subset's verdict: that of code 1, of code 2, and so on."""
        return self._fallen[place]

    @cached_property
    def _fallen(self) -> Sequence[Sequence[int]]:
        found: list[Sequence[int]] = []
        for explained in self.explanations:
            counts = np.zeros(len(explained.why) + 1, np.int64)
            if explained.dropped_by is None:
                found.append(())
                continue
            for part in blocks(self.rows):
                counts += np.bincount(explained.dropped_by[part], minlength=counts.size)
            found.append([int(each) for each in counts[1:]])
        return found

    def shown_reasons(self, place: int) -> Sequence[int]:
        """Returns the codes of the reasons of a subset's verdict that have pictures on the page.

        Of each step the first `REASONS` by which a row fell, or could have fallen at a line; of the first subsets.
        """
        if place >= GALLERIES:
            return ()
        explained, of_step = self.explanations[place], Counter[int | None]()
        cuts, found = {cut.code for cut in explained.cuts}, []
        for code, (reason, rows) in enumerate(zip(explained.why, self.fallen(place), strict=False), start=1):
            if (rows or code in cuts) and of_step[reason.step] < REASONS:
                of_step[reason.step] += 1
                found.append(code)
        return found

    @cached_property
    def tallies(self) -> Mapping[str, Tally]:
        """How often each value of the status and of the columns of words occurs, in one pass."""
        return tallies(self.table, ["status", *self.words], self.keeps)

    @cached_property
    def texts(self) -> Sequence[str]:
        """The columns of words that hold free text."""
        return [name for name in self.words if self.tallies[name].kind == "text"]

    @cached_property
    def explanations(self) -> Sequence[Verdict]:
        """Per subset: which step dropped which row, why, and the lines that steps drew on scores."""
        return [verdict_on(subset) for subset in self.subsets]

    @cached_property
    def marks(self) -> Marks:
        """Where the steps cut, per score and subset."""
        columns: dict[str, list[list[float]]] = {}
        computed: dict[ComputedScore, list[list[float]]] = {}
        for place, explained in enumerate(self.explanations):
            for cut in explained.cuts:
                marks: list[list[float]] = [[] for _ in self.subsets]
                line = parse(cut.score).line
                if line is not None:  # a cut of -text_area is one of text_area
                    column, factor, offset = line
                    marks = columns.setdefault(self.short(explained.names.get(column, column)), marks)
                    marks[place] += sorted((mark - offset) / factor for mark in cut.marks)
                    continue
                score = ComputedScore(cut.score, tuple(sorted(explained.names.items())))
                computed.setdefault(score, marks)[place] += cut.marks
        return Marks(columns=columns, computed=computed)

    @cached_property
    def lengths(self) -> Sequence[str]:
        """The columns that tell how long captions are: the scorer's where it ran, else what the index gives."""
        return ["characters", "words"] if "characters" in self.numbers else [CAPTION]

    @cached_property
    def shared(self) -> NDArray[np.int64]:
        """How many rows each two subsets share: (k, k), their own sizes on the diagonal."""
        return intersections(self.keeps)

    @cached_property
    def correlations(self) -> tuple[Sequence[str], NDArray[np.float64]]:
        """The scores of which some row has a finite value, and how far each two rank the sample's rows alike: (k, k).

        Of columns of one name that hold the same, the first alone.
        """
        names: dict[tuple[str, bytes], str] = {}
        rows, starts = self.sample, self.table.starts
        found: dict[str, NDArray[np.float32]] = {name: np.empty(rows.size, np.float32) for name in self.numbers}

        def look(place: slice, columns: dict[str, Any]) -> None:
            first, last = np.searchsorted(rows, [place.start, place.stop])
            for name, values in found.items():
                values[first:last] = columns[name][rows[first:last] - place.start]

        for _ in self.table.map(list(found), look) if found and len(starts) > 1 else ():
            pass
        for name, values in found.items():
            if np.isfinite(values).any():
                names.setdefault((self.run.columns[name][0], values.tobytes()), name)
        kept = list(names.values())[:_CORRELATED]
        matrix = rank_correlations(np.stack([found[name] for name in kept], axis=1)) if kept else np.empty((0, 0))
        return kept, matrix

    @cached_property
    def histograms(self) -> Mapping[str, Histogram]:
        """The distribution of each number column of scores and index, in two passes for all of them."""
        cuts = {name: [mark for each in marks for mark in each] for name, marks in self.marks.columns.items()}
        lengths = [name for name in self.lengths if name == CAPTION]
        return histograms(self.table, list(dict.fromkeys([*self.numbers, *lengths, *INDEX_NUMBERS])), self.keeps, cuts)

    def short(self, name: str) -> str:
        """Returns the name that the page uses for a column that a recipe may call by its full name."""
        if name not in self.run.columns:
            return name
        inner, group, _ = self.run.columns[name]
        if group is None:
            return name
        candidates = [*self.numbers, *self.words]
        return next((short for short in candidates if self.run.columns[short][:2] == (inner, group)), name)

    def values(self, score: str, names: Mapping[str, str]) -> NDArray[np.float64] | None:
        """Returns a score that a recipe writes, of every row: (rows,), NaN where it is missing.

        Args:
            score: the expression.
            names: the recipe's own names for columns, to those of the run.

        Returns:
            None where the run no longer has a column of it, or not of every shard.
        """
        for name in parse(score).columns:
            _, group, _ = self.run.columns.get(names.get(name, name), ("", None, None))
            if names.get(name, name) not in self.run.columns or (group and group.label in self.incomplete):
                return None
        return parse(score).values(self.run.table(names))

    def read(self, rows: Sequence[int], *, painted: Sequence[int] = (), painter: Painter | None = None) -> None:
        """Reads pairs, with their pictures, that `pair` will be asked for: together, since each shard is opened once.

        Args:
            rows: of the run, in any order; what was read before is not read again, unless it is to be painted.
            painted: those of them that `painter` shall paint.
            painter: None where nothing is painted.
        """
        wanted = sorted({row for row in rows if row not in self._pairs or (painter is not None and row in painted)})
        found = read_pairs(
            self.run, wanted, self.numbers, list(self.words), self.pool, painted=painted, painter=painter
        )
        for pair in found.values():
            pair.texts = [name for name in self.texts if pair.words.get(name)]
        self._pairs |= found

    def pair(self, row: int, *, painted: bool = False) -> Pair:
        """Returns a pair that was read, for one card.

        Once the page's pictures weigh too much it has none, and once its texts do, they are cut.

        Args:
            row: of the run.
            painted: True where the card shows the painted pictures, if there are some, instead of the plain one.
        """
        pair = self._lightened(self._pairs[row])
        both = painted and all(pair.painted)
        weight = sum(map(len, pair.painted)) if both else len(pair.thumbnail)
        if weight > self._budget:
            return replace(pair, thumbnail="", painted=("", ""), no_picture="left out to keep the page small")
        self._budget -= weight
        return pair

    def _lightened(self, pair: Pair) -> Pair:
        texts = [pair.caption or "", *(pair.words[name] or "" for name in pair.texts)]
        weight = sum(len(text.encode("utf-8", "replace")) for text in texts)
        if weight <= self._texts:
            self._texts -= weight
            return pair
        words = {name: _cut(value) if name in pair.texts else value for name, value in pair.words.items()}
        return replace(pair, caption=_cut(pair.caption), words=words)


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _SHORTENED else text[: _SHORTENED - 1] + "…"
