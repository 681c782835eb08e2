"""Everything the page says, gathered: one pass of the run after the other, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.data import Column
from tamis.pool import Pool
from tamis.reporting.duplicates import Duplicates, duplicates
from tamis.reporting.groups import Group, groups_of
from tamis.reporting.histogram import Histogram, histograms
from tamis.reporting.lines import column_of, verdict_on
from tamis.reporting.overlap import intersections
from tamis.reporting.pairs import Pair, read_pairs
from tamis.reporting.picking import around, first_by, scrambled
from tamis.reporting.tally import Tally, tallies
from tamis.reporting.written import Written, written
from tamis.selectors.expression import parse
from tamis.store import Run
from tamis.store.reasons import Cut, Verdict
from tamis.store.run import INDEX_NUMBERS
from tamis.store.subset import Subset
from tamis.store.table import Mask, Table

#: Pairs in each strip of a gallery, and rejects of each status.
STRIP = 12
REJECTS = 6

#: So many subsets get galleries; the others get everything else.
GALLERIES = 8

#: The length of captions, read from the index where the scorer `caption_length` has not measured it.
CAPTION = "caption characters"


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Which pairs of a subset, and of what it drops, are shown.

    Attributes:
        cut: the line that `just_kept` and `just_dropped` lie at; None where the recipe ranks by no score.
        just_kept, just_dropped: row and score, the nearest first.
        kept, dropped: random rows.
        columns: those that cards show at once: what the line is drawn on, else what the recipe reads.
        beside: columns that explain those, such as the generated caption that is nearest.
        reasons: why each of the dropped rows is not in the subset, where that is known.
    """

    cut: Cut | None
    just_kept: Sequence[tuple[int, float]]
    just_dropped: Sequence[tuple[int, float]]
    kept: Sequence[int]
    dropped: Sequence[int]
    columns: Sequence[str]
    beside: Sequence[str]
    reasons: Mapping[int, str]

    def rows(self) -> set[int]:
        """Returns every row of it."""
        return {row for row, _ in (*self.just_kept, *self.just_dropped)} | {*self.kept, *self.dropped}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One subset on the page.

    Attributes:
        label: its name; with a number where another has the same.
        kept: how many rows.
        cuts: the lines that its steps drew.
        problem: why no line and no reasons are known; "" where they are.
        groups: repeated pictures of which it keeps one each.
    """

    label: str
    subset: Subset
    kept: int
    cuts: Sequence[Cut]
    problem: str
    gallery: Gallery | None
    groups: Sequence[Group] = ()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One number column, or one score that a recipe computes of columns, with its distribution.

    Attributes:
        label: the scorer's, "" for columns of the index and for computed scores.
        marks: the lines on it, per subset.
    """

    column: Column
    label: str
    histogram: Histogram
    marks: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the page says.

    Attributes:
        rows: how many.
        quantities: captions' and images' sizes, by name.
        measured: what is drawn: score columns, columns of the index that recipes cut, scores they compute.
        words: counts of word columns by name.
        shared: (k, k) rows that each two subsets share.
        rejects: rows of each status but ok: status, count, some of the rows.
        incomplete: score labels with how many shards have them, where some have not.
        pairs: every pair that is shown, by row.
        written: the pairs whose match was mostly written text; None where T-MARS was not run.
    """

    run: Run
    pool: Pool | None
    rows: int
    statuses: Mapping[str, int]
    shown: Sequence[Shown]
    quantities: Mapping[str, Histogram]
    measured: Sequence[Measured]
    words: Mapping[str, Tally]
    word_columns: Mapping[str, Column]
    duplicates: Duplicates
    shared: NDArray[np.int64]
    rejects: Sequence[tuple[str, int, Sequence[int]]]
    incomplete: Mapping[str, int]
    pairs: Mapping[int, Pair]
    written: Written | None = None


def gather(run: Run, subsets: Sequence[Subset], pool: Pool | None) -> Facts:
    """Reads all that the page says of a run and of subsets of it."""
    rows = len(run)
    keeps = [subset.keep for subset in subsets]
    incomplete = {
        label: len(group.shards & set(run.shards))
        for label, group in run.scores.items()
        if not group.shards >= set(run.shards)
    }
    scores = {
        name: run.columns[name]
        for name in run.score_names()
        if (group := run.columns[name][1]) is not None and group.label not in incomplete
    }
    numbers = [name for name, (_, _, column) in scores.items() if column.kind == "number"]
    words = {name: column for name, (_, _, column) in scores.items() if column.kind == "word"}
    fields = {name: run.columns[name][2] for name in run.facts["pool"]["fields"] if name in run.columns}
    words = fields | words
    table = _with_captions(run)
    order = scrambled(table)

    shown: list[Shown] = []
    computed: dict[tuple[str, tuple[tuple[str, str], ...]], Histogram] = {}
    marks: dict[str, list[list[float]]] = {}
    computed_marks: dict[tuple[str, tuple[tuple[str, str], ...]], list[list[float]]] = {}
    for number, (label, subset) in enumerate(zip(_labels(subsets), subsets, strict=True)):
        played = verdict_on(subset)
        ranking, values = played.ranking, None
        for cut in played.cuts:
            name = column_of(played, cut)
            if name is not None:
                name = _short(run, name, numbers)
                marks.setdefault(name, [[] for _ in subsets])[number] += cut.marks
                continue
            key = (cut.score, tuple(sorted(played.names.items())))
            if key not in computed:
                found = _computed(run, played, cut, keeps)
                computed[key] = found
            computed_marks.setdefault(key, [[] for _ in subsets])[number] += cut.marks
        gallery = None
        if number < GALLERIES:
            if ranking is not None:
                values = parse(ranking.score).values(run.table(played.names))
            reads = [played.names.get(name, name) for name in sorted(parse(ranking.score).columns)] if ranking else []
            read = [name for name in reads or subset.reads if name in run.columns]
            columns = [_short(run, name, [*numbers, *words]) for name in read]
            beside = [_short(run, name, [*numbers, *words]) for name in _beside(run, read)]
            gallery = _gallery(table, subset, played, ranking, values, order, columns, beside)
        shown.append(
            Shown(
                label=label,
                subset=subset,
                kept=len(subset),
                cuts=played.cuts,
                problem=played.problem,
                gallery=gallery,
                groups=groups_of(subset, table) if number < GALLERIES else (),
            )
        )

    lengths = [] if "characters" in numbers else [CAPTION]
    drawn = numbers + [name for name in INDEX_NUMBERS if name in marks]
    everything = list(dict.fromkeys([*drawn, *lengths, *INDEX_NUMBERS]))
    flat = {name: [mark for each in per_subset for mark in each] for name, per_subset in marks.items()}
    found_histograms = histograms(table, everything, keeps, flat)
    none: list[list[float]] = [[] for _ in subsets]
    measured = [
        Measured(
            column=run.columns[name][2],
            label=group.label if (group := run.columns[name][1]) is not None else "",
            histogram=found_histograms[name],
            marks=marks.get(name, none),
        )
        for name in drawn
    ]
    measured += [
        Measured(
            column=Column(name=text, unit="", better="high", about="a score that a recipe computes of columns"),
            label="",
            histogram=histogram,
            marks=computed_marks[text, names],
        )
        for (text, names), histogram in computed.items()
    ]
    statuses = run.statuses
    rejects = _rejects(table, statuses, order)
    wanted = {row for each in shown if each.gallery for row in each.gallery.rows()}
    wanted |= {row for _, _, some in rejects for row in some}
    wanted |= {row for each in shown for group in each.groups for row in group.rows}
    text = written(run, table, numbers)
    wanted |= set(text.rows if text else ())
    sizes = lengths or ["characters", "words"]
    return Facts(
        run=run,
        pool=pool,
        rows=rows,
        statuses=statuses,
        shown=shown,
        quantities={name: found_histograms[name] for name in [*sizes, *INDEX_NUMBERS] if name in found_histograms},
        measured=measured,
        words=tallies(table, ["status", *words], keeps),
        word_columns=words,
        duplicates=duplicates(table, order),
        shared=intersections(keeps),
        rejects=rejects,
        incomplete=incomplete,
        pairs=read_pairs(
            run,
            sorted(wanted),
            numbers,
            list(words),
            pool,
            painted=text.rows if text else (),
            painter=text.painter if text else None,
        ),
        written=text,
    )


def _labels(subsets: Sequence[Subset]) -> list[str]:
    seen: Counter[str] = Counter()
    labels = []
    for subset in subsets:
        seen[subset.name] += 1
        again = seen[subset.name]
        labels.append(subset.name if again == 1 else f"{subset.name} ({again})")
    return labels


def _short(run: Run, name: str, numbers: Sequence[str]) -> str:
    """Returns the name that the page uses for a column that a recipe may call by its full name."""
    inner, group, _ = run.locate(name)
    if group is None:
        return name
    return next((short for short in numbers if run.columns[short][:2] == (inner, group)), name)


def _beside(run: Run, names: Sequence[str]) -> list[str]:
    """Returns the full names of the columns that explain others."""
    found = []
    for name in names:
        _, group, column = run.columns[name]
        if group is not None and column.beside and (full := f"{group.label}.{column.beside}") in run.columns:
            found.append(full)
    return found


def _with_captions(run: Run) -> Table:
    """Returns the run's table with one column more: how many characters each caption has."""
    table = run.table()

    def read(block: int, names: Sequence[str]) -> dict[str, Any]:
        values = table.read(block, [name for name in names if name != CAPTION])
        if CAPTION in names:
            lengths = pc.utf8_length(run.index(run.shards[block], ["caption"]).column("caption"))
            values[CAPTION] = np.asarray(lengths.cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32)
        return values

    kind: Callable[[str], str] = lambda name: "number" if name == CAPTION else table.kind(name)  # noqa: E731
    return Table(table.sizes, read, table.read_uids, kind)


def _computed(run: Run, played: Verdict, cut: Cut, keeps: Sequence[Mask]) -> Histogram:
    table = run.table(played.names)
    values = parse(cut.score).values(table).astype(np.float32)

    def read(block: int, names: Sequence[str]) -> dict[str, Any]:
        return {cut.score: values[table.starts[block] : table.starts[block + 1]]}

    whole = Table(table.sizes, read, table.read_uids, lambda _: "number")
    return histograms(whole, [cut.score], keeps, {cut.score: cut.marks})[cut.score]


def _gallery(
    table: Table,
    subset: Subset,
    played: Verdict,
    ranking: Cut | None,
    values: NDArray[np.float64] | None,
    order: NDArray[np.uint64],
    columns: Sequence[str],
    beside: Sequence[str],
) -> Gallery:
    just_kept: list[tuple[int, float]] = []
    just_dropped: list[tuple[int, float]] = []
    if ranking is not None and values is not None and played.dropped_by is not None:
        fell = played.dropped_by == ranking.code
        just_kept, just_dropped = around(table, values, ranking, subset.keep, fell, STRIP)
    dropped = [int(row) for row in first_by(order, STRIP, ~subset.keep)]
    reasons = {}
    if played.dropped_by is not None:
        for row in [*dropped, *(row for row, _ in just_dropped)]:
            reasons[row] = played.reasons[played.dropped_by[row]]
    return Gallery(
        cut=ranking,
        just_kept=just_kept,
        just_dropped=just_dropped,
        kept=[int(row) for row in first_by(order, STRIP, subset.keep)],
        dropped=dropped,
        columns=columns,
        beside=beside,
        reasons=reasons,
    )


def _rejects(
    table: Table, statuses: Mapping[str, int], order: NDArray[np.uint64]
) -> list[tuple[str, int, Sequence[int]]]:
    bad = sorted((status for status in statuses if status != "ok"), key=lambda status: (-statuses[status], status))
    if not bad:
        return []
    chosen: dict[str, NDArray[np.int64]] = {status: np.empty(0, np.int64) for status in bad}

    def look(place: slice, columns: dict[str, Any]) -> dict[str, NDArray[np.int64]]:
        words = columns["status"].cast(pa.string())
        found = {}
        for status in bad:
            among = pc.equal(words, status).to_numpy(zero_copy_only=False)
            found[status] = first_by(order[place], REJECTS, among) + place.start
        return found

    for found in table.map(["status"], look):
        for status, rows in found.items():
            both = np.concatenate([chosen[status], rows])
            chosen[status] = both[np.argsort(order[both], kind="stable")[:REJECTS]]
    return [(status, statuses[status], [int(row) for row in chosen[status]]) for status in bad]
