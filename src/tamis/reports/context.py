"""Data that several sections need, read once: columns, masks, reasons for drops, histograms, pairs.

Data of a single section is read there.
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

from tamis.core.arrays import U64, Float64s, Mask, Rows
from tamis.core.errors import RunError, unknown_message
from tamis.core.types import INDEX_NUMBERS, Column
from tamis.reports.distributions import Histogram, Tally, histograms, tallies
from tamis.reports.formats import clip, names_of
from tamis.reports.page_pairs import (
    SIDES,
    Group,
    Painter,
    Pair,
    add_images,
    current_groups,
    first_by,
    first_of_each,
    random_order,
    read_pairs,
    salted,
)
from tamis.runs import Run
from tamis.runs.expression import parse
from tamis.runs.reasons import Cut, Verdict
from tamis.runs.run import RunTable
from tamis.runs.subset import Subset
from tamis.runs.table import Table

#: What a section shows on the page and stores in report.json.
Facts = dict[str, Any]

#: Only the first subsets, up to this number, get galleries and groups of repeated images.
GALLERIES = 8

#: Maximum number of reasons per step that are shown with images.
REASONS = 12

#: Number of images in the mosaic: lines of 14 or 7 on the page.
MOSAIC = 28

#: Name of a column with the length of each caption, read from the index if `caption_length` was not run.
CAPTION = "caption characters"

#: Limits of a page: characters of all images (as data URLs), and bytes of all texts of its pairs.
BUDGET, TEXTS = 9_000_000, 3_000_000

#: Once `TEXTS` is used up, texts are cut to this many characters.
_SHORTENED = 200

#: Rows to sample, drawn by uid, for what would take too long on the whole pool.
SAMPLE = 100_000

#: Seed of the random order of pairs. Not 0: selectors use 0, so the first rows they keep would be biased.
_SEED = 2022

#: Thresholds of each subset on one score.
Marks = Sequence[Sequence[float]]

#: A score that a recipe computes: the expression, and pairs of (name in the recipe, name in the run).
Computed = tuple[str, tuple[tuple[str, str], ...]]


def number_columns(run: Run) -> list[str]:
    """Returns the shortest names of the number scores that every shard has, then the pool's fields of numbers."""
    scores = [name for name in run.score_names() if run.columns[name][2].kind == "number"]
    return [name for name in (*scores, *run.number_fields) if run.is_complete(run.columns[name][1])]


def word_columns(run: Run) -> list[str]:
    """Returns the fields of the pool, then the word scores that every shard has, without hashes and numbers."""
    fields = [name for name in run.facts["pool"]["fields"] if name in run.columns]
    scores = [name for name in run.score_names() if run.is_complete(run.columns[name][1])]
    words = [name for name in scores if run.columns[name][2].kind == "word"]
    found = fields + [name for name in words if run.columns[name][2].unit != "hex digits"]
    return [name for name in found if name not in run.number_fields]


class _WithLengths(RunTable):
    """A run's table with an added column, `CAPTION`: the characters of each caption."""

    def read(self, block: int, names: Sequence[str]) -> dict[str, Any]:
        values = super().read(block, [name for name in names if name != CAPTION])
        if CAPTION in names:
            lengths = pc.utf8_length(self.run.index(self.run.shards[block], ["caption"]).column("caption"))
            values[CAPTION] = np.asarray(lengths.cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32)
        return values

    def kind(self, name: str) -> str:
        return "number" if name == CAPTION else super().kind(name)


class Context:
    """A run, subsets of it, and data of both that is read on first use.

    `names` has the page's name of each subset, `keeps` its mask. `title`: of the page; "" for the run's name.
    `named`: label or recipe of the subset to decide about; None for the first. `incomplete`: scores that some shards
    lack, with the number of shards that have them; the page leaves them out. `painter` is set by the section that shows
    painted images. `budget` limits the images of the page.
    """

    def __init__(
        self, run: Run, subsets: Sequence[Subset], *, title: str = "", chosen: str | None = None, budget: int = BUDGET
    ) -> None:
        self.run, self.subsets, self.title, self.named = run, tuple(subsets), title, chosen
        self.rows, self.names = len(run), names_of(subsets)
        self.keeps: tuple[Mask, ...] = tuple(subset.keep for subset in subsets)
        shards = set(run.shards)
        have = {label: len(group.shards & shards) for label, group in run.scores.items()}
        self.incomplete: Mapping[str, int] = {label: n for label, n in have.items() if n < len(shards)}
        self.painter: Painter | None = None
        self._budget, self._texts = budget, TEXTS
        self._pairs: dict[int, Pair] = {}
        self._painted: set[int] = set()

    @cached_property
    def of_status(self) -> Mapping[str, Sequence[int]]:
        """The first `MOSAIC` random rows of each status."""

        def masks(_: slice, columns: Mapping[str, Any]) -> dict[str, Mask]:
            words = columns["status"].cast(pa.string())
            return {status: pc.equal(words, status).to_numpy(zero_copy_only=False) for status in self.run.statuses}

        found = first_of_each(self.table, ["status"], masks, self.order, MOSAIC)
        return {status: rows for status, (_, rows) in found.items()}

    @cached_property
    def numbers(self) -> Sequence[str]:
        """The shortest names of the number scores that every shard has, then the pool's fields of numbers."""
        return number_columns(self.run)

    @cached_property
    def words(self) -> Mapping[str, Column]:
        """Word columns by name: fields of the pool, then scores that every shard has, without hashes."""
        return {name: self.run.columns[name][2] for name in word_columns(self.run)}

    @cached_property
    def table(self) -> Table:
        """The run's table with an added column, `CAPTION`: the characters of each caption."""
        self.run.check_complete()
        return _WithLengths(self.run)

    @cached_property
    def order(self) -> U64:
        """(rows,) numbers, in whose order random pairs are drawn."""
        return random_order(self.table, _SEED)

    def draw(self, n: int, among: Mask, *section: object) -> list[int]:
        """Returns n rows of a mask, in a random order of the section's own."""
        return [int(row) for row in first_by(salted(self.order, *section), n, among)]

    @cached_property
    def chosen(self) -> int | None:
        """The place of the subset to decide about; None without subsets, and of `tamis look`, which proposes some.

        Raises RunError for an unknown name.
        """
        known = {subset.name: place for place, subset in reversed([*enumerate(self.subsets)])}
        known |= {name["label"]: name["place"] for name in self.names}
        if self.named is not None and self.named not in known:
            raise RunError(unknown_message("subset", self.named, known))
        decided = bool(self.subsets) and not (self.run.path / "look.json").is_file()
        return known.get(self.named or "", 0) if decided else None

    @cached_property
    def judging(self) -> Sequence[Facts]:
        """The names of the subsets whose recipe looks at pairs: not of random ones, and not of the whole pool."""
        both = zip(self.names, self.subsets, strict=True)
        return [name for name, subset in both if subset.reads or "select" not in subset.recipe]

    @cached_property
    def sample(self) -> Rows:
        """At most `SAMPLE` random rows, ascending, for what would take too long on the whole pool."""
        return np.sort(first_by(self.order, SAMPLE, np.ones(self.rows, bool)))

    @cached_property
    def groups(self) -> Mapping[int, Sequence[Group]]:
        """The largest groups of repeated images that steps of the first subsets found, by the subset's place."""
        found = {}
        for position, subset in enumerate(self.subsets[:GALLERIES]):
            steps = [line.get("facts") or {} for line in subset.funnel]
            groups = current_groups((each for step in steps for each in step.get("largest_groups", ())), self.table)
            if groups:
                found[position] = groups
        return found

    @cached_property
    def dropped(self) -> Sequence[Sequence[int]]:
        """Per subset: the number of rows dropped for each reason of its verdict, in the order of the codes."""
        return [verdict.drop_counts for verdict in self.verdicts]

    def shown_reasons(self, position: int) -> Sequence[int]:
        """Returns the codes of the reasons that are shown with images: the first `REASONS` of each step."""
        if position >= GALLERIES:
            return ()
        verdict, of_step = self.verdicts[position], Counter[int | None]()
        cuts, found = {cut.code for cut in verdict.cuts}, []
        for code, (reason, rows) in enumerate(zip(verdict.why, self.dropped[position], strict=False), start=1):
            if (rows or code in cuts) and of_step[reason.step] < REASONS:
                of_step[reason.step] += 1
                found.append(code)
        return found

    @cached_property
    def tallies(self) -> Mapping[str, Tally]:
        """The counts of each value of the status and of the word columns, read in one pass."""
        return tallies(self.run.shown, ["status", *self.words], self.keeps)

    @cached_property
    def verdicts(self) -> Sequence[Verdict]:
        """Per subset: its verdict, without cuts on scores that the run no longer has."""
        return [self._verdict(subset.verdict) for subset in self.subsets]

    def _verdict(self, verdict: Verdict) -> Verdict:
        grown = any(reason.step is None for reason in verdict.why)

        def is_current(cut: Cut) -> bool:
            """Whether the run still has the score and, if the score depends on the whole pool, the same pool."""
            expression = parse(cut.score)
            known = all(verdict.names.get(name, name) in self.run.columns for name in expression.columns)
            return known and not (grown and bool(expression.poolwide))

        return replace(verdict, cuts=tuple(cut for cut in verdict.cuts if is_current(cut)))

    @cached_property
    def marks(self) -> tuple[Mapping[str, Marks], Mapping[Computed, Marks]]:
        """The thresholds of each subset, by column (the page's name), and by score that a recipe computes."""
        columns: dict[str, list[list[float]]] = {}
        computed: dict[Computed, list[list[float]]] = {}
        for position, verdict in enumerate(self.verdicts):
            for cut in verdict.cuts:
                marks: list[list[float]] = [[] for _ in self.subsets]
                line = parse(cut.score).line
                if line is not None:  # a threshold on -text_area is drawn on text_area
                    column, factor, offset = line
                    marks = columns.setdefault(self.short(verdict.names.get(column, column)), marks)
                    marks[position] += sorted((mark - offset) / factor for mark in cut.marks)
                else:
                    score = cut.score, tuple(sorted(verdict.names.items()))
                    computed.setdefault(score, marks)[position] += cut.marks
        return columns, computed

    @cached_property
    def lengths(self) -> Sequence[str]:
        """The columns with the length of captions: of the signal if it ran, else of the index."""
        return [name for name in ("characters", "words") if name in self.numbers] or [CAPTION]

    @cached_property
    def histograms(self) -> Mapping[str, Histogram]:
        """The distribution of each number column of scores and index."""
        columns, _ = self.marks
        cuts = {name: [mark for each in marks for mark in each] for name, marks in columns.items()}
        names = dict.fromkeys([*self.numbers, *self.lengths, *INDEX_NUMBERS])
        return histograms(self.table, list(names), self.keeps, cuts)

    def short(self, name: str) -> str:
        """Returns the page's (shorter) name of a column that a recipe may call by its full name."""
        if name not in self.run.columns:
            return name
        inner, group, _ = self.run.columns[name]
        candidates = [*self.numbers, *self.words] if group is not None else []
        return next((short for short in candidates if self.run.columns[short][:2] == (inner, group)), name)

    def shown(self, names: Sequence[str]) -> list[str]:
        """Returns the page's names of columns, without those it does not show, such as hashes."""
        return [short for short in map(self.short, names) if short in self.numbers or short in self.words]

    def values(self, score: str, names: Mapping[str, str]) -> Float64s | None:
        """Returns a recipe's expression for every row: (rows,), NaN where it is missing; None if a column is gone."""
        for name in parse(score).columns:
            full = names.get(name, name)
            if full not in self.run.columns or getattr(self.run.columns[full][1], "label", "") in self.incomplete:
                return None
        return parse(score).values(self.run.table(names))

    def pair(self, row: int, *, painted: bool = False) -> Pair:
        """Returns the pair of a row, which `read_pairs` fills. `painted`: with its painted images."""
        if painted:
            self._painted.add(row)
        return self._pairs.setdefault(row, Pair(row=row))

    def read_pairs(self) -> None:
        """Fills the pairs that `pair` returned. Beyond the budget, images are left out and texts cut."""
        rows, painted = list(self._pairs), self._painted
        images = max(1, len(rows) + 2 * len(painted))
        # A WebP image of n pixels takes about n / 6 characters: many images are smaller, so that all fit.
        side = round(min(SIDES[1], max(SIDES[0], (4 * self._budget / images) ** 0.5)))
        found = read_pairs(self.run, rows, self.numbers, list(self.words))
        add_images(self.run, found, painted=painted, painter=self.painter, side=side)
        texts = [name for name in self.words if self.tallies[name].kind == "text"] if rows else []
        for row, pair in self._pairs.items():
            known = replace(
                found[row], texts=[name for name in texts if found[row].words[name]], subsets=self._decisions(row)
            )
            vars(pair).update(vars(self._within_budget(known)))

    def _decisions(self, row: int) -> dict[str, str]:
        """Returns per subset "kept", "kept 3 times", or why it drops a row."""
        found = {}
        for name, verdict, subset in zip(self.names, self.verdicts, self.subsets, strict=True):
            times = subset.times_of(row)
            kept = f"kept {times:,} times" if times > 1 else "kept"
            found[name["label"]] = kept if times else verdict.reason_of(row) or "dropped"
        return found

    def _within_budget(self, pair: Pair) -> Pair:
        texts = [pair.caption or "", *(pair.words[name] or "" for name in pair.texts)]
        weight = sum(len(text.encode("utf-8", "replace")) for text in texts)
        if weight > self._texts:
            cut = {name: clip(pair.words[name] or "", _SHORTENED) for name in pair.texts}
            pair = replace(pair, caption=pair.caption and clip(pair.caption, _SHORTENED), words={**pair.words, **cut})
        else:
            self._texts -= weight
        weight = len(pair.thumbnail) + sum(map(len, pair.painted))
        if weight > self._budget:
            return replace(pair, thumbnail="", painted=("", ""), no_image="left out to keep the page small")
        self._budget -= weight
        return pair
