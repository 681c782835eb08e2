"""The simple selectors: thresholds, best rows, equal values, random rows, and combinations of other steps.

A row without a score (null, or an expression that comes out NaN or infinite) is an error, because neither keeping nor
dropping it silently would be right. A step that says `missing: drop` drops and counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Float64s, Mask
from tamis.errors import RecipeError, check_words
from tamis.math.order import keep_top, round_half_up
from tamis.selectors.expression import Expression, parse
from tamis.selectors.outcome import Drops, Ends, Outcome, Selection, Step, check_files, only_score, run_steps, verdict
from tamis.selectors.outcome import describe as describe  # the command line imports it from here
from tamis.selectors.vectors import group_codes
from tamis.store.reasons import Cut, Reason
from tamis.store.table import Table
from tamis.uid import scramble

Missing = Literal["error", "drop"]
Of = Literal["survivors", "pool"]


def check_fraction(fraction: float) -> None:
    """Raises ValueError for a fraction outside [0, 1]."""
    if not 0 <= fraction <= 1:
        percent = f": for {fraction:g} % write {fraction / 100:g}" if 1 < fraction <= 100 else ""
        raise ValueError(f"a fraction must be between 0 and 1, got {str(fraction).removesuffix('.0')}{percent}")


@dataclass(frozen=True, kw_only=True)
class _Threshold:
    """What steps share that compare a score with limits.

    Attributes:
        score: an expression over score columns.
        missing: what to do with rows without a score.
    """

    name: ClassVar[str]
    score: str
    missing: Missing = "error"

    def __post_init__(self) -> None:
        if any(end is not None and np.isnan(end) for end in self._ends):  # every comparison with NaN is false
            raise ValueError(f"{self.name} needs a number, got nan")
        check_words(self)

    @property
    def reads(self) -> frozenset[str]:
        return parse(self.score).columns

    @property
    def _ends(self) -> Ends:
        """The lowest and the highest value that is kept."""
        raise NotImplementedError

    @property
    def _reason(self) -> str:
        """Why rows are dropped."""
        raise NotImplementedError

    def select(self, table: Table) -> Selection:
        expression, ends = parse(self.score), self._ends
        if expression.column is not None:
            # A column is float32, so the limit must be too: 0.281 is not a float32, and the stored score of a pair at
            # 0.281 is slightly below the float64.
            with np.errstate(over="ignore"):  # a limit beyond float32's range is infinite
                low, high = (None if end is None else float(np.float32(end)) for end in ends)
            ends = low, high
        keep, missing = np.zeros(len(table), bool), np.zeros(len(table), bool)

        def judge(place: slice, score: NDArray[Any]) -> None:
            low, high = (None if end is None else score.dtype.type(end) for end in ends)
            above: Any = True if low is None else score >= low
            keep[place] = above if high is None else above & (score <= high)
            missing[place] = np.isnan(score)

        _check_numbers(table, expression)
        if expression.column is not None:
            name = expression.column
            list(table.map([name], lambda place, columns: judge(place, columns[name])))
        else:
            judge(slice(None), expression.values(table))
        alive = table.living()
        cut: float | None = getattr(self, "value", None)
        return verdict(self, keep, missing & alive, alive, self._reason, cut, score=self.score, ends=ends)


@dataclass(frozen=True, kw_only=True)
class AtLeast(_Threshold):
    """Keeps rows whose score is at least a value (DataComp's `--threshold`).

    Attributes:
        score: an expression over score columns.
        value: the lowest score that is kept.
        missing: what to do with rows without a score.
    """

    name: ClassVar[str] = "at_least"
    value: float

    @property
    def described(self) -> str:
        return f"{self.score} >= {self.value:.15g}"

    @property
    def _ends(self) -> Ends:
        return self.value, None

    @property
    def _reason(self) -> str:
        return f"{self.score} below {self.value:.15g}"


@dataclass(frozen=True, kw_only=True)
class AtMost(_Threshold):
    """Keeps rows whose score is at most a value. Settings as in `AtLeast`."""

    name: ClassVar[str] = "at_most"
    value: float

    @property
    def described(self) -> str:
        return f"{self.score} <= {self.value:.15g}"

    @property
    def _ends(self) -> Ends:
        return None, self.value

    @property
    def _reason(self) -> str:
        return f"{self.score} above {self.value:.15g}"


@dataclass(frozen=True, kw_only=True)
class Between(_Threshold):
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
        super().__post_init__()

    @property
    def described(self) -> str:
        return f"{self.low:.15g} <= {self.score} <= {self.high:.15g}"

    @property
    def _ends(self) -> Ends:
        return self.low, self.high

    @property
    def _reason(self) -> str:
        return f"{self.score} outside {self.low:.15g} to {self.high:.15g}"


@dataclass(frozen=True, kw_only=True)
class _Top:
    """What steps share that keep the best rows.

    Attributes:
        score: an expression; higher is kept.
        missing: what to do with rows without a score.
        per: a column whose groups each get their own budget.
        cap: with `per`: the budget is of all rows, and no group gets more rows than this.
    """

    name: ClassVar[str]
    score: str
    missing: Missing = "error"
    per: str | None = None
    cap: int | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and (self.per is None or self.cap < 0):
            raise ValueError(
                f"{self.name}: cap is the most rows that each group of per gets; got per {self.per}, cap {self.cap}"
            )
        check_words(self)

    @property
    def reads(self) -> frozenset[str]:
        return parse(self.score).columns | ({self.per} if self.per else set())

    @property
    def _per_in_words(self) -> str:
        if self.per is None:
            return ""
        return f" per {self.per}" if self.cap is None else f", at most {self.cap:,} per {self.per}"

    def _budget(self, rows: int) -> int:
        """How many of so many rows to keep."""
        raise NotImplementedError

    def select(self, table: Table) -> Selection:
        expression, alive = parse(self.score), table.living()
        of_pool = getattr(self, "of", "survivors") == "pool"
        _check_numbers(table, expression)
        score = expression.values(table)
        missing = np.isnan(score)
        reason, what = f"{self.score} below the cut", f"{self.score} and {self.per}" if self.per else None
        group = None
        if self.per is not None:
            group, values = group_codes(table, self.per)
            missing |= group < 0
        missing &= alive
        judged = alive & ~missing
        if group is not None:
            place = _places(table, score, group, judged)
            if self.cap is None:
                sizes = np.bincount(group[group >= 0] if of_pool else group[judged], minlength=len(values))
                quota = np.array([self._budget(int(size)) for size in sizes] or [0], np.int64)
                keep = judged & (place < quota[np.maximum(group, 0)])
                reason = f"below the cut of its {self.per}"
                return verdict(self, keep, missing, alive, reason, what=what, score=self.score)
            judged &= place < self.cap
        n = self._budget(len(table) if of_pool else int(np.count_nonzero(alive)))
        n = min(n, int(np.count_nonzero(judged)))
        keep, cut = keep_top(score, n, judged, lambda rows: scramble(*table.uids(rows)))
        return verdict(self, keep, missing, alive, reason, cut, what=what, score=self.score, ends=(cut, None))


@dataclass(frozen=True, kw_only=True)
class TopFraction(_Top):
    """Keeps the best share of rows: exactly the whole number nearest to fraction * rows (halves upwards).

    Attributes:
        score: an expression; higher is kept.
        fraction: in [0, 1].
        of: "survivors": a share of the rows in question; "pool": of all rows, judged or not, so that a step does not
            depend on what earlier ones dropped (DataComp takes fractions of the pool).
        missing: what to do with rows without a score.
        per: a column (`cluster`, `top_language`): the share is taken of each of its groups.
        cap: with `per`: the share is taken of all rows, and no group gets more rows than this.
    """

    name: ClassVar[str] = "top_fraction"
    fraction: float
    of: Of = "survivors"

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        super().__post_init__()

    @property
    def described(self) -> str:
        return f"top {100 * self.fraction:g} % of the {self.of} by {self.score}{self._per_in_words}"

    def _budget(self, rows: int) -> int:
        return round_half_up(self.fraction, rows)


@dataclass(frozen=True, kw_only=True)
class TopN(_Top):
    """Keeps the n best rows, or all where there are fewer.

    Attributes:
        score: an expression; higher is kept.
        n: how many.
        missing: what to do with rows without a score.
        per: a column (`cluster`, `top_language`): n of each of its groups.
        cap: with `per`: n of all rows, and no group gets more rows than this.
    """

    name: ClassVar[str] = "top_n"
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"top_n needs n >= 0, got {self.n}")
        super().__post_init__()

    @property
    def described(self) -> str:
        return f"top {self.n:,} by {self.score}{self._per_in_words}"

    def _budget(self, rows: int) -> int:
        return self.n


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
    def described(self) -> str:
        return f"{self.score} is {self._listed}"

    @property
    def _listed(self) -> str:
        return " or ".join(str(value) for value in self._wanted)

    def select(self, table: Table) -> Selection:
        alive, wanted, kind = table.living(), self._wanted, table.kind(self.score)
        keep, missing = np.zeros(len(table), bool), np.zeros(len(table), bool)
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
                with np.errstate(over="ignore"):  # a value beyond float32's range is infinite
                    keep[place] = np.isin(column, np.asarray(wanted, column.dtype))
                missing[place] = np.isnan(column)

        list(table.map([self.score], work))
        score = self.score if kind == "number" else None
        return verdict(self, keep, missing & alive, alive, f"{self.score} is not {self._listed}", score=score)


@dataclass(frozen=True, kw_only=True)
class RandomFraction:
    """Keeps a random share of rows: exactly the whole number nearest to fraction * rows.

    The choice depends only on uids and the seed.

    Attributes:
        fraction: in [0, 1].
        seed: another seed draws another, unrelated share.
        of: as in `TopFraction`.
    """

    name: ClassVar[str] = "random_fraction"
    reads: ClassVar[frozenset[str]] = frozenset()
    fraction: float
    seed: int = 0
    of: Of = "survivors"

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        check_words(self)

    @property
    def described(self) -> str:
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
            tied = np.flatnonzero(order == cut)  # pairs of one uid: the first of these rows
            drawn[tied[: n - int(np.count_nonzero(drawn))]] = True
            keep[rows] = drawn
        return verdict(self, keep, np.zeros(0, bool), alive, "not drawn")


@dataclass(frozen=True, kw_only=True)
class _Combined:
    """What steps share that combine others.

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
        """The names of the parts: their labels, or else their steps."""
        return [
            label or " then ".join(describe(inner) for inner in part) or "every row"
            for label, part in zip(self.labels or [""] * len(self.parts), self.parts, strict=True)
        ]

    @property
    def described(self) -> str:
        return f"{self.name.replace('_', ' ')}: {', '.join(self.names)}"

    def check_files(self) -> None:
        for part in self.parts:
            check_files(part)

    def _judged(self, table: Table) -> Iterator[tuple[str, Outcome]]:
        """Yields each part's name, and what it leaves of the whole pool."""
        for name, part in zip(self.names, self.parts, strict=True):
            yield name, run_steps(table.among(None), part)


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
        for name, part in self._judged(table):
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
        for _, part in self._judged(table):
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
        for name, part in self._judged(table):
            # Without the part's thresholds: here the rows inside them are dropped.
            drops.drop(part.keep, f"in {name}", score=only_score(part.reasons))
        return drops.selection()


def _places(table: Table, score: Float64s, group: NDArray[np.int64], judged: Mask) -> NDArray[np.int64]:
    """Returns the place of each judged row in its group: 0 for the best, ties by uid."""
    rows = np.flatnonzero(judged)
    order = np.lexsort((scramble(*table.uids(rows)), -score[rows], group[rows]))
    ordered = group[rows[order]]
    starts = np.searchsorted(ordered, ordered)  # of each row's group
    place = np.full(len(table), len(table), np.int64)
    place[rows[order]] = np.arange(rows.size) - starts
    return place


def _check_numbers(table: Table, expression: Expression) -> None:
    for name in sorted(expression.columns):
        if table.kind(name) != "number":
            raise RecipeError(f"the column {name!r} holds words: compare it with 'equals', not in {expression.text!r}")
