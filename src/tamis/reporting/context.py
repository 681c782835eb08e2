"""What several sections share, read once: columns, masks, why rows were dropped, histograms, pairs.

A section reads for itself what only it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.arrays import U64, Float64s, Mask, Rows
from tamis.data import Column
from tamis.pool import Pool
from tamis.reporting.distributions import Histogram, Tally, histograms, tallies
from tamis.reporting.formats import clip, names_of
from tamis.reporting.pairs import Group, Painter, Pair, first_by, read_pairs, scrambled, shown_groups
from tamis.selectors.expression import parse
from tamis.store import Run
from tamis.store.reasons import Cut, Verdict, blocks
from tamis.store.run import INDEX_NUMBERS
from tamis.store.subset import Subset
from tamis.store.table import Table

#: Contents of a section, as the page shows them and report.json stores them.
Facts = dict[str, Any]

#: Number of subsets with galleries and groups of repeated images; the others get everything else.
GALLERIES = 8

#: Number of reasons of one step that have images.
REASONS = 12

#: The length of captions, from the index; used where `caption_length` was not run.
CAPTION = "caption characters"

#: All images of a page together, in characters of their data URLs, and all texts of its pairs, in bytes.
BUDGET, TEXTS = 9_000_000, 3_000_000

#: Characters of each text of a pair once `TEXTS` is used up.
_SHORTENED = 200

#: Pairs that are sampled where the whole pool would take long: drawn by uid.
SAMPLE = 100_000

#: The order in which random pairs are drawn; selectors draw in the order of seed 0.
_SEED = 2022

#: Where each subset cuts a score.
Marks = Sequence[Sequence[float]]

#: A score that a recipe computes: the expression, and the recipe's own names for columns with those of the run.
Computed = tuple[str, tuple[tuple[str, str], ...]]


class Context:
    """A run, subsets of it, and what is read of both for more than one section, when it is first asked for.

    `names` is what the page calls each subset, `keeps` its rows. `incomplete` scores, which some shards lack, are left
    out; the number says how many have them. A section that shows painted images sets the `painter`. `budget` limits
    the images of the page.
    """

    def __init__(self, run: Run, subsets: Sequence[Subset], pool: Pool | None, *, budget: int = BUDGET) -> None:
        self.run, self.subsets, self.pool = run, tuple(subsets), pool
        self.rows, self.names = len(run), names_of(subsets)
        self.keeps: tuple[Mask, ...] = tuple(subset.keep for subset in subsets)
        shards = set(run.shards)
        have = {label: len(group.shards & shards) for label, group in run.scores.items()}
        self.incomplete: Mapping[str, int] = {label: n for label, n in have.items() if n < len(shards)}
        self.painter: Painter | None = None
        self._budget, self._texts = budget, TEXTS
        self._asked: list[tuple[Pair, bool]] = []

    @cached_property
    def statuses(self) -> Mapping[str, int]:
        """The number of pairs of each status."""
        return self.run.statuses

    @cached_property
    def numbers(self) -> Sequence[str]:
        """The shortest name of each complete score column of numbers."""
        return [name for name, column in self._scores.items() if column.kind == "number"]

    @cached_property
    def words(self) -> Mapping[str, Column]:
        """Columns of words by name: fields that came with the pairs, then complete score columns but hashes."""
        columns, scores = self.run.columns, self._scores.items()
        fields = {name: columns[name][2] for name in self.run.facts["pool"]["fields"] if name in columns}
        return fields | {name: each for name, each in scores if each.kind == "word" and each.unit != "hex digits"}

    @cached_property
    def _scores(self) -> Mapping[str, Column]:
        found = {name: self.run.columns[name] for name in self.run.score_names()}
        return {
            name: column for name, (_, group, column) in found.items() if group and group.label not in self.incomplete
        }

    @cached_property
    def table(self) -> Table:
        """The run's rows, with one more column, `CAPTION`: how many characters each caption has."""
        run, table = self.run, self.run.table()

        def read(block: int, names: Sequence[str]) -> dict[str, Any]:
            values = table.read(block, [name for name in names if name != CAPTION])
            if CAPTION in names:
                lengths = pc.utf8_length(run.index(run.shards[block], ["caption"]).column("caption"))
                values[CAPTION] = np.asarray(lengths.cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32)
            return values

        return replace(table, read=read, kind=lambda name: "number" if name == CAPTION else table.kind(name))

    @cached_property
    def order(self) -> U64:
        """The order in which random pairs are drawn: (rows,) scrambled uids."""
        return scrambled(self.table, _SEED)

    @cached_property
    def sample(self) -> Rows:
        """The rows that are sampled where the whole pool would take long, ascending: at most `SAMPLE`."""
        return np.sort(first_by(self.order, SAMPLE, np.ones(self.rows, bool)))

    @cached_property
    def groups(self) -> Mapping[int, Sequence[Group]]:
        """The largest groups of repeated images that steps of the first subsets found, by the subset's place."""
        found = {}
        for place, subset in enumerate(self.subsets[:GALLERIES]):
            steps = [line.get("facts") or {} for line in subset.funnel]
            groups = shown_groups((each for step in steps for each in step.get("largest_groups", ())), self.table)
            if groups:
                found[place] = groups
        return found

    @cached_property
    def fallen(self) -> Sequence[Sequence[int]]:
        """Per subset: the number of rows dropped for each reason of its verdict, that of code 1 first."""
        found: list[Sequence[int]] = []
        for codes, why in ((verdict.dropped_by, verdict.why) for verdict in self.verdicts):
            counts = np.zeros(len(why) + 1, np.int64)
            if codes is not None:
                for part in blocks(self.rows):
                    counts += np.bincount(codes[part], minlength=counts.size)
            found.append(counts[1:].tolist() if codes is not None else ())
        return found

    def shown_reasons(self, place: int) -> Sequence[int]:
        """Returns the codes of a subset's reasons that have images: the first `REASONS` of each step."""
        if place >= GALLERIES:
            return ()
        verdict, of_step = self.verdicts[place], Counter[int | None]()
        cuts, found = {cut.code for cut in verdict.cuts}, []
        for code, (reason, rows) in enumerate(zip(verdict.why, self.fallen[place], strict=False), start=1):
            if (rows or code in cuts) and of_step[reason.step] < REASONS:
                of_step[reason.step] += 1
                found.append(code)
        return found

    @cached_property
    def tallies(self) -> Mapping[str, Tally]:
        """How often each value of the status and of the columns of words occurs, in one pass."""
        return tallies(self.table, ["status", *self.words], self.keeps)

    @cached_property
    def verdicts(self) -> Sequence[Verdict]:
        """Per subset: which step dropped which row, why, and the cuts that can be drawn on the run as it is now."""
        return [self._verdict(subset.verdict) for subset in self.subsets]

    def _verdict(self, verdict: Verdict) -> Verdict:
        grown = any(reason.step is None for reason in verdict.why)

        def is_current(cut: Cut) -> bool:
            """Whether the run still has the cut's score, and its pool, where the score depends on the whole of it."""
            expression = parse(cut.score)
            known = all(verdict.names.get(name, name) in self.run.columns for name in expression.columns)
            return known and not (grown and expression.poolwide)

        return replace(verdict, cuts=tuple(cut for cut in verdict.cuts if is_current(cut)))

    @cached_property
    def marks(self) -> tuple[Mapping[str, Marks], Mapping[Computed, Marks]]:
        """Where each subset cuts scores: by the page's name of a column, and by score that a recipe computes."""
        columns: dict[str, list[list[float]]] = {}
        computed: dict[Computed, list[list[float]]] = {}
        for place, verdict in enumerate(self.verdicts):
            for cut in verdict.cuts:
                marks: list[list[float]] = [[] for _ in self.subsets]
                line = parse(cut.score).line
                if line is not None:  # a cut of -text_area is one of text_area
                    column, factor, offset = line
                    marks = columns.setdefault(self.short(verdict.names.get(column, column)), marks)
                    marks[place] += sorted((mark - offset) / factor for mark in cut.marks)
                else:
                    score = cut.score, tuple(sorted(verdict.names.items()))
                    computed.setdefault(score, marks)[place] += cut.marks
        return columns, computed

    @cached_property
    def lengths(self) -> Sequence[str]:
        """The columns with the length of captions: the signal's where it ran, else the index's."""
        return [name for name in ("characters", "words") if name in self.numbers] or [CAPTION]

    @cached_property
    def histograms(self) -> Mapping[str, Histogram]:
        """The distribution of each number column of scores and index."""
        columns, _ = self.marks
        cuts = {name: [mark for each in marks for mark in each] for name, marks in columns.items()}
        names = dict.fromkeys([*self.numbers, *self.lengths, *INDEX_NUMBERS])
        return histograms(self.table, list(names), self.keeps, cuts)

    def short(self, name: str) -> str:
        """Returns the name that the page uses for a column that a recipe may call by its full name."""
        if name not in self.run.columns:
            return name
        inner, group, _ = self.run.columns[name]
        candidates = [*self.numbers, *self.words] if group is not None else []
        return next((short for short in candidates if self.run.columns[short][:2] == (inner, group)), name)

    def shown(self, names: Sequence[str]) -> list[str]:
        """Returns the page's names of those columns that it shows: hashes are not among them."""
        return [short for short in map(self.short, names) if short in self.numbers or short in self.words]

    def values(self, score: str, names: Mapping[str, str]) -> Float64s | None:
        """Returns a recipe's expression for every row: (rows,), NaN where it is missing; None if a column is gone."""
        for name in parse(score).columns:
            full = names.get(name, name)
            if full not in self.run.columns or getattr(self.run.columns[full][1], "label", "") in self.incomplete:
                return None
        return parse(score).values(self.run.table(names))

    def pair(self, row: int, *, painted: bool = False) -> Pair:
        """Returns a pair for one card, which `read_pairs` fills; `painted` if it shows the painted images."""
        pair = Pair(row=row)
        self._asked.append((pair, painted))
        return pair

    def read_pairs(self) -> None:
        """Fills the pairs that were asked for. Beyond the budget images are left out, and texts shortened."""
        rows = {pair.row for pair, _ in self._asked}
        painted = {pair.row for pair, both in self._asked if both}
        found = read_pairs(
            self.run, rows, self.numbers, list(self.words), self.pool, painted=painted, painter=self.painter
        )
        texts = [name for name in self.words if self.tallies[name].kind == "text"] if rows else []
        for pair, both in self._asked:
            known = replace(found[pair.row], texts=[name for name in texts if found[pair.row].words[name]])
            vars(pair).update(vars(self._within_budget(known, both)))
        self._asked.clear()

    def _within_budget(self, pair: Pair, painted: bool) -> Pair:
        texts = [pair.caption or "", *(pair.words[name] or "" for name in pair.texts)]
        weight = sum(len(text.encode("utf-8", "replace")) for text in texts)
        if weight > self._texts:
            cut = {name: clip(pair.words[name] or "", _SHORTENED) for name in pair.texts}
            pair = replace(pair, caption=pair.caption and clip(pair.caption, _SHORTENED), words={**pair.words, **cut})
        else:
            self._texts -= weight
        weight = sum(map(len, pair.painted)) if painted and all(pair.painted) else len(pair.thumbnail)
        if weight > self._budget:
            return replace(pair, thumbnail="", painted=("", ""), no_image="left out to keep the page small")
        self._budget -= weight
        return pair
