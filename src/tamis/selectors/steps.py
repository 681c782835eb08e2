"""The simple selectors: thresholds, best rows, equal values, tags, random rows, and combinations of other steps.

A row without a score (null, or an expression that comes out NaN or infinite) is an error, because neither keeping nor
dropping it silently would be right. A step that says `missing: drop` drops and counts it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Float64s, Mask
from tamis.errors import RecipeError, check_fraction, check_words, unknown_message, without_effect
from tamis.ids import scramble
from tamis.math.order import keep_top, round_half_up
from tamis.selectors.expression import parse
from tamis.selectors.outcome import (
    Drops,
    Ends,
    Outcome,
    Selection,
    Step,
    check_kind,
    describe,
    only_score,
    run_steps,
    verdict,
)
from tamis.store.reasons import Cut, Reason
from tamis.store.repeats import joined
from tamis.store.table import Table

Missing = Literal["error", "drop"]
Of = Literal["survivors", "pool"]


def check_numbers(step: str, table: Table, expression: str) -> None:
    """Raises RecipeError if an expression reads a column that does not hold numbers."""
    for name in sorted(parse(expression).columns):
        check_kind(step, table, name, "number")


def rows_of(table: Table, of: Of) -> int:
    """Returns the number of rows that a share is of: of the candidates, or of the whole pool."""
    return len(table) if of == "pool" else int(np.count_nonzero(table.candidates()))


def check_budget(step: Any) -> None:
    """Raises ValueError unless a step has exactly one of `n` and `fraction`, and `of` only with a fraction."""
    if (step.n is None) == (step.fraction is None):
        names = " or ".join(one.name for one in fields(step) if one.name in ("n", "fraction"))
        raise ValueError(f"{step.name} needs {names}, got {'neither' if step.n is None else 'both'}")
    if step.fraction is not None:
        check_fraction(step.fraction)
    if step.n is not None:
        if step.n < 0:
            raise ValueError(f"{step.name} needs n >= 0, got {step.n}")
        without_effect(step, "of", because="n does not depend on the number of rows")


def budget_of(step: Any, table: Table) -> int:
    """Returns how many rows a step with `n`, `fraction` and `of` asks for."""
    return int(step.n) if step.n is not None else round_half_up(step.fraction, rows_of(table, step.of))


def group_codes(table: Table, column: str) -> tuple[NDArray[np.int64], list[str] | list[float]]:
    """Returns the number of each row's group, (rows,), -1 if it has no value, and the value of each group."""
    codes = np.full(len(table), -1, np.int64)
    numbers: dict[Any, int] = {}
    for place, values in table.map([column], lambda place, columns: (place, columns[column])):
        if isinstance(values, np.ndarray):
            values = pa.array(values + 0, mask=np.isnan(values))  # + 0: no negative zero
        words = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        inside = words.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        known = [*(numbers.setdefault(value, len(numbers)) for value in words.dictionary.to_pylist()), -1]
        codes[place] = np.array(known, np.int64)[inside]
    return codes, list(numbers)


@dataclass(frozen=True, kw_only=True)
class _Threshold:
    """Shared by the steps that compare a score with limits."""

    name: ClassVar[str]
    line: ClassVar[str]  # in the funnel, with settings in braces
    reason: ClassVar[str]  # why rows are dropped
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
    def poolwide(self) -> frozenset[str]:
        return parse(self.score).poolwide

    @property
    def pointwise(self) -> bool:
        return not self.poolwide

    @property
    def described(self) -> str:
        return self.line.format(**vars(self))

    @property
    def _ends(self) -> Ends:
        """The lowest and the highest value that is kept."""
        return getattr(self, "low", None), getattr(self, "high", None)

    def check_columns(self, table: Table) -> None:
        """Raises RecipeError if the score reads words or embeddings."""
        check_numbers(self.name, table, self.score)

    def select(self, table: Table) -> Selection:
        self.check_columns(table)
        expression, ends, candidates = parse(self.score), self._ends, table.candidates()
        keep, missing = np.zeros(len(table), bool), np.zeros(len(table), bool)

        def judge(place: slice, score: NDArray[Any]) -> None:
            low, high = (None if end is None else score.dtype.type(end) for end in ends)
            above: Any = True if low is None else score >= low
            keep[place] = above if high is None else above & (score <= high)
            missing[place] = np.isnan(score)

        column = expression.column
        if column is None:
            judge(slice(None), expression.values(table))
        else:
            # A column is float32, so the limit must be too: 0.281 is not a float32, and the stored score of a pair at
            # 0.281 is slightly below the float64.
            with np.errstate(over="ignore"):  # a limit beyond float32's range is infinite
                low, high = (None if end is None else float(np.float32(end)) for end in ends)
            ends = low, high
            list(table.map([column], lambda place, columns: judge(place, columns[column])))
        cut: float | None = getattr(self, "value", None)
        reason = self.reason.format(**vars(self))
        return verdict(self, keep, missing & candidates, candidates, reason, cut, score=self.score, ends=ends)


@dataclass(frozen=True, kw_only=True)
class AtLeast(_Threshold):
    """Keeps rows whose score is at least a value (DataComp's `--threshold`).

    Attributes:
        score: an expression over score columns.
        value: the lowest score that is kept.
        missing: what to do with rows without a score.
    """

    name: ClassVar[str] = "at_least"
    line: ClassVar[str] = "{score} >= {value:.15g}"
    reason: ClassVar[str] = "{score} below {value:.15g}"
    value: float

    @property
    def _ends(self) -> Ends:
        return self.value, None


@dataclass(frozen=True, kw_only=True)
class AtMost(_Threshold):
    """Keeps rows whose score is at most a value. Settings as in `AtLeast`."""

    name: ClassVar[str] = "at_most"
    line: ClassVar[str] = "{score} <= {value:.15g}"
    reason: ClassVar[str] = "{score} above {value:.15g}"
    value: float

    @property
    def _ends(self) -> Ends:
        return None, self.value


@dataclass(frozen=True, kw_only=True)
class Between(_Threshold):
    """Keeps rows whose score is between two values, both included.

    Attributes:
        score, missing: as in `AtLeast`.
        low, high: the ends, low <= high.
    """

    name: ClassVar[str] = "between"
    line: ClassVar[str] = "{low:.15g} <= {score} <= {high:.15g}"
    reason: ClassVar[str] = "{score} outside {low:.15g} to {high:.15g}"
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"between needs low <= high, got low {self.low} and high {self.high}")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class _Top:
    """Shared by the steps that keep the best rows."""

    name: ClassVar[str]
    score: str
    missing: Missing = "error"
    per: str | None = None
    cap: int | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and (self.per is None or self.cap < 0):
            raise ValueError(f"cap (rows per group) must be 0 or more and needs per: COLUMN; got cap {self.cap}")
        check_words(self)

    @property
    def reads(self) -> frozenset[str]:
        return parse(self.score).columns | ({self.per} if self.per else set())

    @property
    def poolwide(self) -> frozenset[str]:
        of_pool = {self.per} if self.per and getattr(self, "of", "survivors") == "pool" else set()
        return parse(self.score).poolwide | of_pool

    @property
    def _groups(self) -> str:
        if self.per is None:
            return ""
        return f" per {self.per}" if self.cap is None else f", at most {self.cap:,} per {self.per}"

    def _budget(self, rows: int) -> int:
        """Returns how many of `rows` rows to keep."""
        raise NotImplementedError

    def check_columns(self, table: Table) -> None:
        """Raises RecipeError if the score reads anything but numbers, or groups are embeddings."""
        check_numbers(self.name, table, self.score)
        if self.per is not None:
            check_kind(self.name, table, self.per, "word", "number")

    def select(self, table: Table) -> Selection:
        self.check_columns(table)
        candidates = table.candidates()
        of: Of = getattr(self, "of", "survivors")
        score = parse(self.score).values(table)
        missing, what = np.isnan(score), self.score
        if self.per is not None:
            what = f"{self.score} and {self.per}"
            group, values = group_codes(table, self.per)
            missing |= group < 0
        missing &= candidates
        judged = candidates & ~missing
        if self.per is not None:
            place = _places(table, score, group, judged)
            if self.cap is None:
                sizes = np.bincount(group[group >= 0] if of == "pool" else group[judged], minlength=len(values))
                quota = np.array([self._budget(int(size)) for size in sizes] or [0], np.int64)
                keep = judged & (place < quota[np.maximum(group, 0)])
                reason = f"below the cut of its {self.per}"
                return verdict(self, keep, missing, candidates, reason, what=what, score=self.score)
            judged &= place < self.cap
        n = min(self._budget(rows_of(table, of)), int(np.count_nonzero(judged)))
        keep, cut = keep_top(score, n, judged, lambda rows: scramble(*table.uids(rows)))
        reason = f"{self.score} below the cut"
        return verdict(self, keep, missing, candidates, reason, cut, what=what, score=self.score, ends=(cut, None))


def _places(table: Table, score: Float64s, group: NDArray[np.int64], judged: Mask) -> NDArray[np.int64]:
    """Returns the rank of each scored row in its group: 0 for the best, ties by uid."""
    rows = np.flatnonzero(judged)
    order = np.lexsort((scramble(*table.uids(rows)), -score[rows], group[rows]))
    ordered = group[rows[order]]
    place = np.full(len(table), len(table), np.int64)
    place[rows[order]] = np.arange(rows.size) - np.searchsorted(ordered, ordered)  # since the start of its group
    return place


@dataclass(frozen=True, kw_only=True)
class TopFraction(_Top):
    """Keeps the best share of rows: exactly the integer nearest to fraction * rows (halves upwards).

    Attributes:
        score: an expression; higher is kept.
        fraction: in [0, 1].
        of: "survivors": a share of the candidates; "pool": of all rows, scored or not, so that the number does not
            depend on what earlier steps dropped (DataComp takes fractions of the pool).
        missing: what to do with rows without a score.
        per: a column (`cluster`, `top_language`): take the share within each group.
        cap: with `per`: take the share of all rows, and at most this many from each group.
    """

    name: ClassVar[str] = "top_fraction"
    fraction: float
    of: Of = "survivors"

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        super().__post_init__()

    @property
    def described(self) -> str:
        return f"top {100 * self.fraction:g} % of the {self.of} by {self.score}{self._groups}"

    def _budget(self, rows: int) -> int:
        return round_half_up(self.fraction, rows)


@dataclass(frozen=True, kw_only=True)
class TopN(_Top):
    """Keeps the n best rows, or all where there are fewer.

    Attributes:
        score, missing: as in `TopFraction`.
        n: how many.
        per: a column: take n from each of its groups.
        cap: with `per`: take n in all, and at most this many from each group.
    """

    name: ClassVar[str] = "top_n"
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"top_n needs n >= 0, got {self.n}")
        super().__post_init__()

    @property
    def described(self) -> str:
        return f"top {self.n:,} by {self.score}{self._groups}"

    def _budget(self, rows: int) -> int:
        return self.n


@dataclass(frozen=True, kw_only=True)
class Equals:
    """Keeps rows whose column has one of some values: words (`top_language: en`) or numbers.

    Attributes:
        score: the name of one column.
        value: the value or values.
        missing: what to do with rows without a value.
    """

    name: ClassVar[str] = "equals"
    poolwide: ClassVar[frozenset[str]] = frozenset()
    pointwise: ClassVar[bool] = True
    score: str
    value: str | float | tuple[str, ...] | tuple[float, ...]
    missing: Missing = "error"

    def __post_init__(self) -> None:
        if parse(self.score).column is None:
            raise ValueError(f"equals looks at one column, got the expression {self.score!r}")
        if self.value == ():
            raise ValueError("equals needs at least one value, got an empty list")
        if any(value != value for value in self._values):  # NaN equals nothing
            raise ValueError("equals needs numbers or words, got nan")
        check_words(self)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.score})

    @property
    def _values(self) -> tuple[Any, ...]:
        return self.value if isinstance(self.value, tuple) else (self.value,)

    @property
    def _listed(self) -> str:
        return " or ".join(map(str, self._values))

    @property
    def described(self) -> str:
        return f"{self.score} is {self._listed}"

    def check_columns(self, table: Table) -> None:
        """Raises RecipeError if words are compared with numbers, or numbers with words."""
        for value in self._values:
            check_kind(f"equals: {value!r}", table, self.score, "word" if isinstance(value, str) else "number")

    def select(self, table: Table) -> Selection:
        self.check_columns(table)
        candidates, is_word = table.candidates(), table.kind(self.score) == "word"
        keep, missing = np.zeros(len(table), bool), np.zeros(len(table), bool)

        def work(place: slice, columns: dict[str, Any]) -> None:
            column = columns[self.score]
            if is_word:
                words = column if column.type == pa.string() else column.cast(pa.string())
                wanted = pa.array(self._values, pa.string())
                keep[place] = pc.is_in(words, value_set=wanted).to_numpy(zero_copy_only=False)
                missing[place] = pc.is_null(words).to_numpy(zero_copy_only=False)
            else:
                with np.errstate(over="ignore"):  # a value beyond float32's range is infinite
                    keep[place] = np.isin(column, np.asarray(self._values, column.dtype))
                missing[place] = np.isnan(column)

        list(table.map([self.score], work))
        score = None if is_word else self.score
        return verdict(self, keep, missing & candidates, candidates, f"{self.score} is not {self._listed}", score=score)


#: The column of people's tags: a row's tags, sorted and joined; null without a tag.
TAGS, SEPARATOR = "tagged", ","

#: Two tags that exclude each other. The column `label` has them as 1 and 0.
GOOD, BAD = "good", "bad"

#: Maximum characters of a tag; invisible characters within words of Persian and within emoji.
_LONGEST_TAG, _JOINERS = 60, "\u200c\u200d"


def tags_in(text: str | None) -> list[str]:
    """Returns the tags of a cell of the column."""
    return text.split(SEPARATOR) if text else []


def checked_tag(text: Any) -> str:
    """Returns a tag without surplus spaces, in Unicode's composed form (NFC), or raises RecipeError."""
    tag = " ".join(unicodedata.normalize("NFC", text).split()).strip(_JOINERS) if isinstance(text, str) else ""
    hidden = any(unicodedata.category(one) in ("Cc", "Cf", "Cs") for one in tag if one not in _JOINERS)
    if not tag or len(tag) > _LONGEST_TAG or hidden or SEPARATOR in tag:
        what = f"a tag has 1 to {_LONGEST_TAG} characters, no comma and nothing invisible"
        raise RecipeError(f"{what}, got {str(text)[:80]!r}")
    return tag


@dataclass(frozen=True, kw_only=True)
class Tagged:
    """Keeps rows that have at least one of some tags, which people gave in `tamis explore`.

    In recipes: `tagged: blurry` or `tagged: [blurry, text]`.

    Attributes:
        tags: the tag or tags. Each must be on a row of the run, except `good` and `bad`.
    """

    name: ClassVar[str] = "tagged"
    pointwise: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset({TAGS})
    tags: str | tuple[str, ...]

    def __post_init__(self) -> None:
        if not self._wanted:
            raise ValueError("tagged needs at least one tag, got an empty list")

    @property
    def _wanted(self) -> list[str]:
        return [checked_tag(tag) for tag in ([self.tags] if isinstance(self.tags, str) else self.tags)]

    @property
    def described(self) -> str:
        return f"tagged {' or '.join(self._wanted)}"

    def select(self, table: Table) -> Selection:
        codes, sets = group_codes(table, TAGS)
        tags, wanted = [tags_in(str(text)) for text in sets], set(self._wanted)
        known = {GOOD, BAD}.union(*tags)
        for tag in sorted(wanted - known):
            raise RecipeError(f"tagged: {unknown_message('tag', tag, known)}")
        has = np.array([*(not wanted.isdisjoint(each) for each in tags), False])  # the last: of code -1, no tag
        return verdict(self, has[codes], np.zeros(0, bool), table.candidates(), f"not {self.described}")


@dataclass(frozen=True, kw_only=True)
class RandomFraction:
    """Keeps a random share of rows: exactly the integer nearest to fraction * rows.

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
        candidates = table.candidates()
        rows = np.flatnonzero(candidates)
        n = min(round_half_up(self.fraction, rows_of(table, self.of)), rows.size)
        draws = np.zeros(len(table), np.uint64)
        draws[rows] = ~scramble(*table.uids(rows), seed=self.seed)  # ~: the lowest are kept
        keep, _ = keep_top(draws, n, candidates, lambda tied: tied.astype(np.uint64))  # equal uids: keep the first rows
        return verdict(self, keep, np.zeros(0, bool), candidates, "not drawn")


@dataclass(frozen=True, kw_only=True)
class _Combined:
    """Shared by the steps that combine others."""

    name: ClassVar[str]
    parts: tuple[tuple[Step, ...], ...]
    labels: tuple[str, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(name for part in self.parts for step in part for name in step.reads)

    @property
    def pointwise(self) -> bool:
        return all(getattr(step, "pointwise", False) for part in self.parts for step in part)

    @property
    def _names(self) -> list[str]:
        """The names of the parts: their labels, or else their steps."""
        return [
            label or " then ".join(describe(inner) for inner in part) or "every row"
            for label, part in zip(self.labels or [""] * len(self.parts), self.parts, strict=True)
        ]

    @property
    def described(self) -> str:
        return f"{self.name.replace('_', ' ')}: {', '.join(self._names)}"

    def _judged(self, table: Table) -> Iterator[tuple[str, Outcome]]:
        """Yields each part's name, and its outcome on the whole pool."""
        for name, part in zip(self._names, self.parts, strict=True):
            yield name, run_steps(table.among(None), part)


@dataclass(frozen=True, kw_only=True)
class AllOf(_Combined):
    """Keeps rows that every part keeps, each part applied to the whole pool: the papers' "A and B".

    A row counts as often as in the part with the fewest copies, and carries the caption of the first part that chooses.

    Attributes:
        parts: lists of steps.
        labels: what the funnel calls them.
    """

    name: ClassVar[str] = "all_of"

    def select(self, table: Table) -> Selection:
        drops, parts = Drops(table.candidates()), []
        for name, part in self._judged(table):
            parts.append(part)
            score = only_score(part.reasons)
            drops.drop(part.keep, f"not in {name}", others=True, score=score, cuts=part.cuts)
        return replace(drops.selection(), **joined(parts, drops.left, every=True))


@dataclass(frozen=True, kw_only=True)
class AnyOf(_Combined):
    """Keeps rows that at least one part keeps, each part applied to the whole pool. Settings as in `AllOf`.

    A row counts as often as in the part with the most copies, and carries the caption of the first part that keeps it.
    """

    name: ClassVar[str] = "any_of"

    def select(self, table: Table) -> Selection:
        keep = np.zeros(len(table), bool)
        cuts: list[Cut] = []
        reasons: list[Reason] = []
        parts = [part for _, part in self._judged(table)]
        for part in parts:
            keep |= part.keep
            cuts += part.cuts
            reasons += part.reasons
        drops = Drops(table.candidates())
        text = f"in none of {', '.join(self._names)}"
        drops.drop(keep, text, others=True, score=only_score(reasons), cuts=cuts)
        return replace(drops.selection(), **joined(parts, drops.left, every=False))


@dataclass(frozen=True, kw_only=True)
class NoneOf(_Combined):
    """Keeps rows that no part keeps, each part applied to the whole pool. Settings as in `AllOf`."""

    name: ClassVar[str] = "none_of"

    def select(self, table: Table) -> Selection:
        drops = Drops(table.candidates())
        for name, part in self._judged(table):
            # Without the part's thresholds: here the rows inside them are dropped.
            drops.drop(part.keep, f"in {name}", score=only_score(part.reasons))
        return drops.selection()
