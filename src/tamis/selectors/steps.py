"""The selectors: each a frozen record that keeps some of the rows in question.

A row without a score (null, or an expression that comes out NaN or infinite) is an error, since neither keeping nor
dropping it silently would be right; a step that says `missing: drop` drops and counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Mask
from tamis.errors import RecipeError, check_words
from tamis.math.order import keep_top, round_half_up
from tamis.selectors.budget import check_fraction
from tamis.selectors.expression import Expression, parse
from tamis.selectors.outcome import Drops, Ends, Outcome, Selection, Step, check_files, only_score, run_steps, verdict
from tamis.selectors.outcome import describe as describe  # the command line looks for it here
from tamis.store.reasons import Cut, Reason
from tamis.store.table import Table
from tamis.uid import scramble

Missing = Literal["error", "drop"]


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """What steps that look at a score share.

    Attributes:
        score: an expression over score columns.
        missing: what to do with rows without a score.
    """

    score: str
    missing: Missing = "error"

    @property
    def reads(self) -> frozenset[str]:
        return parse(self.score).columns


@dataclass(frozen=True, kw_only=True)
class _Combined:
    """What steps that combine others share.

    Attributes:
        parts: lists of steps.
        labels: what the funnel calls them.
    """

    name: ClassVar[str]
    parts: tuple[tuple[Step, ...], ...]
    labels: tuple[str, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(name for part in self.parts for step in part for name in step.reads)

    @property
    def names(self) -> list[str]:
        """What the parts are called: by their labels, else by their steps."""
        return [
            label or " then ".join(describe(inner) for inner in part) or "every row"
            for label, part in zip(self.labels or [""] * len(self.parts), self.parts, strict=True)
        ]

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"{self.name.replace('_', ' ')}: {', '.join(self.names)}"

    def check_files(self) -> None:
        for part in self.parts:
            check_files(part)

    def judged(self, table: Table) -> Iterator[tuple[str, Outcome]]:
        """Yields each part's name with what it leaves of the whole pool: the parts are judged one by one."""
        for name, part in zip(self.names, self.parts, strict=True):
            yield name, run_steps(table.among(None), part)


@dataclass(frozen=True, kw_only=True)
class _Limited(_Scored):
    """What steps with one limit share.

    Attributes:
        value: the limit.
    """

    name: ClassVar[str]
    value: float

    def __post_init__(self) -> None:
        _check_value(self.name, self.value)
        check_words(self)


@dataclass(frozen=True, kw_only=True)
class AtLeast(_Limited):
    """Keeps rows whose score is at least a value (DataComp's `--threshold`).

    Attributes:
        score: an expression over score columns.
        value: the lowest score that is kept.
        missing: what to do with rows without a score.
    """

    name: ClassVar[str] = "at_least"

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"{self.score} >= {self.value:.15g}"

    def select(self, table: Table) -> Selection:
        return _compare(
            table,
            self,
            lambda score, kind: score >= kind(self.value),
            f"{self.score} below {self.value:.15g}",
            (self.value, None),
        )


@dataclass(frozen=True, kw_only=True)
class AtMost(_Limited):
    """Keeps rows whose score is at most a value. Settings as in `AtLeast`."""

    name: ClassVar[str] = "at_most"

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"{self.score} <= {self.value:.15g}"

    def select(self, table: Table) -> Selection:
        return _compare(
            table,
            self,
            lambda score, kind: score <= kind(self.value),
            f"{self.score} above {self.value:.15g}",
            (None, self.value),
        )


@dataclass(frozen=True, kw_only=True)
class Between(_Scored):
    """Keeps rows whose score lies between two values, both included.

    Attributes:
        low, high: the ends, low <= high.
    """

    name: ClassVar[str] = "between"
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"between needs low <= high, got low {self.low} and high {self.high}")
        check_words(self)

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"{self.low:.15g} <= {self.score} <= {self.high:.15g}"

    def select(self, table: Table) -> Selection:
        return _compare(
            table,
            self,
            lambda score, kind: (score >= kind(self.low)) & (score <= kind(self.high)),
            f"{self.score} outside {self.low:.15g} to {self.high:.15g}",
            (self.low, self.high),
        )


@dataclass(frozen=True, kw_only=True)
class _Ranked(_Scored):
    """What steps that keep the best rows share.

    Attributes:
        per: a column whose groups each give their own.
        cap: with `per`: the budget is of all, and no group gives more rows than this.
    """

    per: str | None = None
    cap: int | None = None

    @property
    def reads(self) -> frozenset[str]:
        return parse(self.score).columns | ({self.per} if self.per else set())


@dataclass(frozen=True, kw_only=True)
class TopFraction(_Ranked):
    """Keeps the best share of rows: exactly the whole number nearest to fraction * rows (halves upwards).

    Attributes:
        score: an expression; higher is kept.
        fraction: in [0, 1].
        of: whose share. "survivors": of the rows in question; "pool": of all rows, judged or not, so that later
            steps do not depend on what earlier ones dropped (DataComp takes fractions of the pool).
        missing: what to do with rows without a score.
        per: a column (`cluster`, `top_language`): the share is taken of each of its groups.
        cap: with `per`: the share is taken of all, and no group gives more rows than this.
    """

    name: ClassVar[str] = "top_fraction"
    fraction: float
    of: Literal["survivors", "pool"] = "survivors"

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        _check_cap(self)
        check_words(self)

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"top {100 * self.fraction:g} % of the {self.of} by {self.score}{_per(self)}"

    def select(self, table: Table) -> Selection:
        def budget(rows: int) -> int:
            return round_half_up(self.fraction, rows)

        return _top(table, self, budget, whole=self.of == "pool")


@dataclass(frozen=True, kw_only=True)
class TopN(_Ranked):
    """Keeps the n best rows, or all where there are fewer.

    Attributes:
        score: an expression; higher is kept.
        n: how many.
        missing: what to do with rows without a score.
        per: a column (`cluster`, `top_language`): n of each of its groups.
        cap: with `per`: n of all, and no group gives more rows than this.
    """

    name: ClassVar[str] = "top_n"
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"top_n needs n >= 0, got {self.n}")
        _check_cap(self)
        check_words(self)

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"top {self.n:,} by {self.score}{_per(self)}"

    def select(self, table: Table) -> Selection:
        return _top(table, self, lambda rows: self.n, whole=False)


@dataclass(frozen=True, kw_only=True)
class Equals:
    """Keeps rows whose column is one value, or one of several: words (`top_language: en`) or numbers.

    Attributes:
        score: the name of one column.
        value: the value or values.
        missing: what to do with rows without a value.
    """

    name: ClassVar[str] = "equals"
    score: str
    value: str | float | tuple[str, ...] | tuple[float, ...]
    missing: Missing = "error"

    def __post_init__(self) -> None:
        if parse(self.score).column is None:
            raise ValueError(f"equals looks at one column, got the expression {self.score!r}")
        if self.value == ():
            raise ValueError("equals needs at least one value, got an empty list")
        check_words(self)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.score})

    @property
    def _wanted(self) -> tuple[str, ...] | tuple[float, ...] | tuple[str | float]:
        return self.value if isinstance(self.value, tuple) else (self.value,)

    @property
    def _listed(self) -> str:
        return " or ".join(str(value) for value in self._wanted)

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"{self.score} is {self._listed}"

    def select(self, table: Table) -> Selection:
        alive = table.living()
        keep, missing = np.zeros(len(table), bool), np.zeros(len(table), bool)
        wanted = self._wanted
        kind = table.kind(self.score)
        for value in wanted:
            if isinstance(value, str) != (kind == "word"):
                raise RecipeError(f"equals: the column {self.score!r} holds {kind}s, got {value!r}")

        def work(place: slice, columns: dict[str, Any]) -> None:
            column = columns[self.score]
            if kind == "word":
                words = column if column.type == pa.string() else column.cast(pa.string())
                keep[place] = pc.is_in(words, value_set=pa.array(wanted, pa.string())).to_numpy(zero_copy_only=False)
                missing[place] = pc.is_null(words).to_numpy(zero_copy_only=False)
            else:
                with np.errstate(over="ignore"):  # a value past float32's range is infinite
                    keep[place] = np.isin(column, np.asarray(wanted, column.dtype))
                missing[place] = np.isnan(column)

        for _ in table.map([self.score], work):
            pass
        score = self.score if kind == "number" else None
        return verdict(self, keep, missing & alive, alive, f"{self.score} is not {self._listed}", score=score)


@dataclass(frozen=True, kw_only=True)
class RandomFraction:
    """Keeps a random share of rows: exactly the whole number nearest to fraction * rows.

    Which ones depends on their uids and the seed alone.

    Attributes:
        fraction: in [0, 1].
        seed: another seed draws another, unrelated share.
        of: as in `TopFraction`.
    """

    name: ClassVar[str] = "random_fraction"
    fraction: float
    seed: int = 0
    of: Literal["survivors", "pool"] = "survivors"

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        check_words(self)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset()

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"random {100 * self.fraction:g} % of the {self.of} (seed {self.seed})"

    def select(self, table: Table) -> Selection:
        alive = table.living()
        rows = np.flatnonzero(alive)
        n = min(round_half_up(self.fraction, len(table) if self.of == "pool" else rows.size), rows.size)
        keep = np.zeros(len(table), bool)
        if n:
            order = scramble(*table.uids(rows), seed=self.seed)
            cut = np.partition(order, n - 1)[n - 1]
            drawn = order < cut
            tied = np.flatnonzero(order == cut)  # pairs of one uid; the first rows of them
            drawn[tied[: n - int(np.count_nonzero(drawn))]] = True
            keep[rows] = drawn
        return verdict(self, keep, np.zeros(0, bool), alive, "not drawn")


@dataclass(frozen=True, kw_only=True)
class AllOf(_Combined):
    """Keeps rows that every part keeps, each part judged on the whole pool: the papers' "A and B".

    Attributes:
        parts: lists of steps.
        labels: what the funnel calls them.
    """

    name: ClassVar[str] = "all_of"

    def select(self, table: Table) -> Selection:
        drops = Drops(table.living())
        for name, part in self.judged(table):
            score = only_score(part.reasons)
            drops.drop(part.keep, f"not in {name}", others=True, score=score, cuts=part.cuts)
        return drops.selection()


@dataclass(frozen=True, kw_only=True)
class AnyOf(_Combined):
    """Keeps rows that at least one part keeps, each part judged on the whole pool. Settings as in `AllOf`."""

    name: ClassVar[str] = "any_of"

    def select(self, table: Table) -> Selection:
        keep = np.zeros(len(table), bool)
        cuts: list[Cut] = []
        reasons: list[Reason] = []
        for _, part in self.judged(table):
            keep |= part.keep
            cuts += part.cuts
            reasons += part.reasons
        drops = Drops(table.living())
        text = f"in none of {', '.join(self.names)}"
        drops.drop(keep, text, others=True, score=only_score(reasons), cuts=cuts)
        return drops.selection()


@dataclass(frozen=True, kw_only=True)
class NoneOf(_Combined):
    """Keeps rows that no part keeps, each part judged on the whole pool. Settings as in `AllOf`."""

    name: ClassVar[str] = "none_of"

    def select(self, table: Table) -> Selection:
        drops = Drops(table.living())
        for name, part in self.judged(table):
            # Without the part's lines: what lies inside them falls.
            drops.drop(part.keep, f"in {name}", score=only_score(part.reasons))
        return drops.selection()


def _per(step: TopFraction | TopN) -> str:
    if step.per is None:
        return ""
    return f" per {step.per}" if step.cap is None else f", at most {step.cap:,} per {step.per}"


def _check_value(name: str, value: float) -> None:
    if np.isnan(value):  # every comparison with it is false: all rows would be dropped without a word
        raise ValueError(f"{name} needs a number, got {value}")


def _check_cap(step: TopFraction | TopN) -> None:
    if step.cap is not None and (step.per is None or step.cap < 0):
        raise ValueError(
            f"{step.name}: cap is how many rows each group of per gives at most; got per {step.per}, cap {step.cap}"
        )


def _compare(
    table: Table, step: AtLeast | AtMost | Between, judge: Callable[[Any, Any], Mask], reason: str, ends: Ends
) -> Selection:
    expression = parse(step.score)
    alive = table.living()
    keep, missing = np.zeros(len(table), bool), np.zeros(len(table), bool)
    if expression.column is not None:
        # A bare column is float32, and so must the value be: 0.281 is not a float32, and the stored score of a pair
        # at 0.281 lies a hair below the float64.
        _only_numbers(table, expression)

        def work(place: slice, columns: dict[str, Any]) -> None:
            score: NDArray[np.float32] = columns[expression.column or ""]
            with np.errstate(over="ignore"):  # a value past float32's range is infinite, as it should be
                keep[place] = judge(score, np.float32)
            missing[place] = np.isnan(score)

        for _ in table.map(sorted(expression.columns), work):
            pass
        ends = _float32(ends)
    else:
        score = _values(table, expression)
        keep, missing = judge(score, np.float64), np.isnan(score)
    cut = step.value if isinstance(step, AtLeast | AtMost) else None
    return verdict(step, keep, missing & alive, alive, reason, cut, score=step.score, ends=ends)


def _float32(ends: Ends) -> Ends:
    """Returns where a line on a bare column lies: where its float32 does."""
    low, high = ends
    with np.errstate(over="ignore"):
        return None if low is None else float(np.float32(low)), None if high is None else float(np.float32(high))


def _top(table: Table, step: TopFraction | TopN, budget: Callable[[int], int], *, whole: bool) -> Selection:
    """Keeps the best rows: `budget` of the rows (of the whole pool, or in question), or of each group of `per`."""
    score = _values(table, parse(step.score))
    alive = table.living()
    missing = np.isnan(score)
    group: NDArray[np.int64] | None = None
    if step.per is not None:
        group = _groups(table, step.per)
        missing |= group < 0
    missing &= alive
    judged = alive & ~missing
    reason, what = f"{step.score} below the cut", f"{step.score} and {step.per}" if step.per else None
    if group is not None:
        place = _places(table, score, group, judged)
        if step.cap is None:
            counted = group[group >= 0] if whole else group[judged]
            sizes = np.bincount(counted, minlength=int(group.max(initial=-1)) + 1)
            quota = np.array([budget(int(size)) for size in sizes] or [0], np.int64)
            keep = judged & (place < quota[np.maximum(group, 0)])
            reason = f"below the cut of its {step.per}"
            return verdict(step, keep, missing, alive, reason, what=what, score=step.score)
        full = judged & (place >= step.cap)
        judged &= ~full
    n = min(budget(len(table) if whole else int(np.count_nonzero(alive))), int(np.count_nonzero(judged)))
    keep, cut = keep_top(score, n, judged, lambda rows: scramble(*table.uids(rows)))
    return verdict(step, keep, missing, alive, reason, cut, what=what, score=step.score, ends=(cut, None))


def _groups(table: Table, column: str) -> NDArray[np.int64]:
    """Returns the number of each row's group, by the column's value; -1 where it has none."""
    group = np.full(len(table), -1, np.int64)
    numbers: dict[Any, int] = {}
    for place, values in table.map([column], lambda place, columns: (place, columns[column])):
        if table.kind(column) == "word":
            words = values.cast(pa.string()) if values.type != pa.string() else values
            coded = words.dictionary_encode()
            names, codes = coded.dictionary.to_pylist(), coded.indices
            there = pc.is_valid(codes).to_numpy(zero_copy_only=False)
            codes = codes.fill_null(0).to_numpy(zero_copy_only=False)
        elif table.kind(column) == "number":
            there = ~np.isnan(values)
            found, inverse = np.unique(values[there], return_inverse=True)
            names, codes = found.tolist(), np.zeros(len(values), np.int64)
            codes[there] = inverse
        else:
            raise RecipeError(f"per takes a column of words or numbers, {column!r} holds embeddings")
        known = np.array([numbers.setdefault(name, len(numbers)) for name in names] or [0], np.int64)
        group[place] = np.where(there, known[codes], -1)
    return group


def _places(table: Table, score: NDArray[np.float64], group: NDArray[np.int64], judged: Mask) -> NDArray[np.int64]:
    """Returns the place of each judged row among those of its group, the best 0; ties fall by uid."""
    rows = np.flatnonzero(judged)
    order = np.lexsort((scramble(*table.uids(rows)), -score[rows], group[rows]))
    ordered = group[rows[order]]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if rows.size else rows
    lengths = np.diff(np.concatenate([starts, [rows.size]]))
    place = np.full(len(table), len(table), np.int64)
    place[rows[order]] = np.arange(rows.size) - np.repeat(starts, lengths)
    return place


def _values(table: Table, expression: Expression) -> NDArray[np.float64]:
    _only_numbers(table, expression)
    return expression.values(table)


def _only_numbers(table: Table, expression: Expression) -> None:
    for name in sorted(expression.columns):
        if table.kind(name) != "number":
            raise RecipeError(f"the column {name!r} holds words: compare it with 'equals', not in {expression.text!r}")
