"""The simple selectors: thresholds, best rows, equal values, tags, random rows, and combinations of other steps.

A row without a score (null, or an expression that comes out NaN or infinite) is an error, because neither keeping nor
dropping it silently would be right. A step that says `missing: drop` drops and counts it.
"""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import RecipeError, RunError, check_effect, check_fraction, check_words, unknown_message
from tamis.core.math.order import number_of, round_half_up
from tamis.core.types import USABLE
from tamis.recipes.steps.best import Best, Ranked, by_row, by_uid
from tamis.recipes.steps.outcome import (
    Blockwise,
    Ends,
    IfMissing,
    Outcome,
    ReadsColumns,
    Rule,
    Step,
    Unscored,
    check_kind,
    check_missing,
    coded,
    describe,
    only_score,
    rule_of,
    run_steps,
)
from tamis.runs.expression import parse
from tamis.runs.reasons import Codes, DropReason
from tamis.runs.subset import join_rows
from tamis.runs.table import Table, as_numbers
from tamis.runs.tags import BAD, GOOD, SEPARATOR, TAGS, tags_in

Of = Literal["survivors", "pool"]


def candidates_of(table: Table) -> int:
    """Returns the number of candidates."""
    return sum(int(np.count_nonzero(table.candidates_in(rows))) for rows in table.row_ranges())


def rows_of(table: Table, of: Of) -> int:
    """Returns the number of rows that a share is of: of the candidates, or of the whole pool."""
    return len(table) if of == "pool" else candidates_of(table)


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
        check_effect(step, "of", because="n does not depend on the number of rows")


def budget_of(step: Any, table: Table) -> int:
    """Returns how many rows a step with `n`, or with `fraction` and `of`, asks for."""
    n = getattr(step, "n", None)
    return int(n) if n is not None else round_half_up(step.fraction, rows_of(table, step.of))


def groups_of(table: Table, column: str) -> tuple[list[Any], Rows, Callable[[Any], Rows]]:
    """Returns the values of a column, how many rows have each, and a function.

    The function takes the column of some rows and returns the numbers of their values; -1 without a value. RunError: it
    meets a value that was not there when the values were counted, since someone tags pairs meanwhile.
    """
    sizes: Counter[Any] = Counter()

    def encode(values: Any) -> Any:
        if isinstance(values, np.ndarray):
            values = pa.array(values + 0, mask=np.isnan(values))  # + 0: no negative zero
        return values if pa.types.is_dictionary(values.type) else values.dictionary_encode()

    def count(span: slice, columns: dict[str, Any], candidates: Mask) -> dict[Any, int]:
        words = encode(columns[column])
        inside = words.indices.drop_null().to_numpy()
        counts = np.bincount(inside, minlength=len(words.dictionary)).tolist()
        return dict(zip(words.dictionary.to_pylist(), counts, strict=True))

    for some in table.scan([column], count):
        sizes.update(some)
    numbers = {value: number for number, value in enumerate(sizes)}

    def codes_of(values: Any) -> Rows:
        words = encode(values)
        inside = words.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        try:
            known = [*(numbers[value] for value in words.dictionary.to_pylist()), -1]
        except KeyError as error:
            raise RunError(f"the column {column!r} changed while it was read: choose again") from error
        return np.asarray(np.array(known, np.int64)[inside])

    return list(sizes), np.array([*sizes.values()], np.int64), codes_of


def group_codes(table: Table, column: str) -> tuple[Rows, list[Any]]:
    """Returns the number of each row's group, (rows,), -1 if it has no value, and the value of each group."""
    names, _, codes_of = groups_of(table, column)
    codes = np.empty(len(table), np.int64)
    for span, found in table.map([column], lambda span, columns: (span, codes_of(columns[column]))):
        codes[span] = found
    return codes, names


@dataclass(frozen=True, kw_only=True)
class _Threshold(ReadsColumns, Blockwise):
    """Shared by the steps that compare a score with limits."""

    scores = ("score",)
    line: ClassVar[str]  # in the funnel, with settings in braces
    reason: ClassVar[str]  # why rows are dropped
    score: str
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        if any(end is not None and np.isnan(end) for end in self._ends):  # every comparison with NaN is false
            raise ValueError(f"{self.name} needs a number, got nan")
        super().__post_init__()

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

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        expression, ends = parse(self.score), self._ends
        column, values = expression.column, expression.fit(table)
        if column is not None and table.kind(column) == "number":
            # Scores are float32, so the limit must be too: 0.281 is not a float32, and the stored score of a pair at
            # 0.281 is slightly below the float64.
            with np.errstate(over="ignore"):  # a limit beyond float32's range is infinite
                low, high = (None if end is None else float(np.float32(end)) for end in ends)
            ends = low, high

        def decide(span: slice, columns: dict[str, Any], candidates: Mask) -> Codes:
            score = values(columns, candidates.size) if column is None else as_numbers(columns[column])
            low, high = (None if end is None else score.dtype.type(end) for end in ends)
            keep: Any = True if low is None else score >= low
            return coded(keep if high is None else keep & (score <= high), np.isnan(score))

        reason, value = self.reason.format(**vars(self)), getattr(self, "value", None)
        return rule_of(self, sorted(expression.columns), decide, reason, value, score=self.score, ends=ends)


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
class _Top(ReadsColumns, Blockwise):
    """Shared by the steps that keep the best rows."""

    scores, groups = ("score",), ("per",)
    score: str
    missing: IfMissing = "error"
    per: str | None = None
    cap: int | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and (self.per is None or self.cap < 0):
            raise ValueError(f"cap (rows per group) must be 0 or more and needs per: COLUMN; got cap {self.cap}")
        super().__post_init__()

    @property
    def poolwide(self) -> frozenset[str]:
        of_pool = {self.per} if self.per and getattr(self, "of", "survivors") == "pool" else set()
        return super().poolwide | of_pool

    @property
    def _groups(self) -> str:
        if self.per is None:
            return ""
        return f" per {self.per}" if self.cap is None else f", at most {self.cap:,} per {self.per}"

    @abstractmethod
    def _budget(self, rows: int) -> int:
        """Returns how many of `rows` rows to keep."""

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        values, of, candidates = parse(self.score).fit(table), getattr(self, "of", "survivors"), candidates_of(table)
        of_pool, codes_of, what = np.array([len(table)]), None, self.score
        if self.per is not None:
            _, of_pool, codes_of = groups_of(table, self.per)
            what = f"{self.score} and {self.per}"

        # One round keeps the best rows of each group, or of the pool. With a cap there are two: first at most `cap`
        # rows of each group, then the best of what remains. Rows are ranked in each scan again, so nothing is kept but
        # the cuts of earlier rounds.
        rounds: list[Best] = []

        def remaining(span: slice, columns: dict[str, Any], candidates: Mask) -> Ranked:
            """Returns the scores of a block, NaN without a group, the groups, and which rows remain."""
            score, groups = values(columns, candidates.size), None
            if codes_of is not None:
                groups = codes_of(columns[str(self.per)])
                score = np.where(groups < 0, np.nan, score)
            keep = candidates & ~np.isnan(score)
            for best in rounds:
                keep = best.kept(span, score, groups, keep)
                groups = None  # only the first round is by groups
            return score, groups, keep

        def count(most: Rows) -> Rows:
            """Returns how many rows to keep of each group, or of all rows together, from how many have a score."""
            if not rounds:
                check_missing(self, candidates - int(most.sum()), candidates, what)
            if rounds or self.per is None:
                n: Any = self._budget(len(table) if of == "pool" else candidates)
            else:
                sizes = (of_pool if of == "pool" else most).tolist()
                n = self.cap if self.cap is not None else np.array([self._budget(size) for size in sizes], np.int64)
            return np.asarray(np.minimum(n, most))

        def choose(rows: int, groups: int = 1) -> Best:
            return Best(table, sorted(self.reads), remaining, count, rows, (by_uid(table), by_row), groups)

        reason, cut = f"{self.score} below the cut", None
        if self.per is not None:
            rounds.append(choose(candidates, of_pool.size))
        if self.per is not None and self.cap is None:
            reason = f"below the cut of its {self.per}"
        else:
            rounds.append(choose(int(rounds[0].n.sum()) if rounds else candidates))
            cut = float(number_of(rounds[-1].cuts)[0]) if rounds[-1].n[0] else None

        known = rounds[0].codes if self.per is None else None

        def decide(span: slice, columns: dict[str, Any], candidates: Mask) -> Codes:
            if known is not None:
                return known[span]
            score, _, keep = remaining(span, columns, candidates)
            return coded(keep, np.isnan(score))

        read = sorted(self.reads) if known is None else []
        return rule_of(self, read, decide, reason, cut, what=what, score=self.score, ends=(cut, None))


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
class Equals(ReadsColumns, Blockwise):
    """Keeps rows whose column has one of some values: words (`top_language: en`) or numbers.

    Attributes:
        score: the name of one column.
        value: the value or values.
        missing: what to do with rows without a value.
    """

    name: ClassVar[str] = "equals"
    groups = ("score",)
    pointwise: ClassVar[bool] = True
    score: str
    value: str | float | tuple[str, ...] | tuple[float, ...]
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        if parse(self.score).column is None:
            raise ValueError(f"equals looks at one column, got the expression {self.score!r}")
        if self.value == ():
            raise ValueError("equals needs at least one value, got an empty list")
        if any(value != value for value in self._wanted):  # NaN equals nothing
            raise ValueError("equals needs numbers or words, got nan")
        if any(not isinstance(value, str) and 2**53 <= abs(value) < 2**64 for value in self._wanted):  # ids
            raise ValueError("equals cannot tell apart numbers of more than 15 digits: put them in quotes, as words")
        super().__post_init__()

    @property
    def _wanted(self) -> tuple[Any, ...]:
        return self.value if isinstance(self.value, tuple) else (self.value,)

    @property
    def _listed(self) -> str:
        return " or ".join(map(str, self._wanted))

    @property
    def described(self) -> str:
        return "readable" if self._is_readable else f"{self.score} is {self._listed}"

    @property
    def _is_readable(self) -> bool:
        return self.score == "status" and {*self._wanted} == USABLE

    def check_columns(self, table: Table) -> None:
        """Raises RecipeError if words are compared with numbers, or numbers with words."""
        for value in self._wanted:
            check_kind(f"equals: {value!r}", table, self.score, "word" if isinstance(value, str) else "number")

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        is_word = table.kind(self.score) == "word" and any(isinstance(value, str) for value in self._wanted)

        def decide(span: slice, columns: dict[str, Any], candidates: Mask) -> Codes:
            if is_word:
                column = columns[self.score]
                words = column if column.type == pa.string() else column.cast(pa.string())
                values = pa.array(map(str, self._wanted), pa.string())
                keep = pc.is_in(words, value_set=values).to_numpy(zero_copy_only=False)
                return coded(keep, pc.is_null(words).to_numpy(zero_copy_only=False))
            column = as_numbers(columns[self.score])
            with np.errstate(over="ignore"):  # a value beyond float32's range is infinite
                return coded(np.isin(column, np.asarray(self._wanted, column.dtype)), np.isnan(column))

        reason = "not readable" if self._is_readable else f"{self.score} is not {self._listed}"
        return rule_of(self, [self.score], decide, reason, score=None if is_word else self.score)


#: Maximum characters of a tag; invisible characters within words of Persian and within emoji.
_LONGEST_TAG, _JOINERS = 60, "\u200c\u200d"


def clean_tag(text: Any) -> str:
    """Returns a tag without surplus spaces, in Unicode's composed form (NFC), or raises RecipeError."""
    tag = " ".join(unicodedata.normalize("NFC", text).split()).strip(_JOINERS) if isinstance(text, str) else ""
    hidden = any(unicodedata.category(one) in ("Cc", "Cf", "Cs") for one in tag if one not in _JOINERS)
    if not tag or len(tag) > _LONGEST_TAG or hidden or SEPARATOR in tag:
        what = f"a tag has 1 to {_LONGEST_TAG} characters, no comma and nothing invisible"
        raise RecipeError(f"{what}, got {str(text)[:80]!r}")
    return tag


@dataclass(frozen=True, kw_only=True)
class Tagged(Blockwise):
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
        return [clean_tag(tag) for tag in ([self.tags] if isinstance(self.tags, str) else self.tags)]

    @property
    def described(self) -> str:
        return f"tagged {' or '.join(self._wanted)}"

    def fit(self, table: Table) -> Rule:
        (sets, _, codes_of), wanted = groups_of(table, TAGS), set(self._wanted)
        tags = [tags_in(str(text)) for text in sets]
        known = {GOOD, BAD}.union(*tags)
        for tag in sorted(wanted - known):
            raise RecipeError(f"tagged: {unknown_message('tag', tag, known)}")
        lacks = np.array([*(wanted.isdisjoint(each) for each in tags), True])  # the last: of code -1, no tag

        def decide(span: slice, columns: dict[str, Any], candidates: Mask) -> Codes:
            return lacks[codes_of(columns[TAGS])].view(np.uint8)

        return rule_of(self, [TAGS], decide, f"not {self.described}", can_lack=False)


def rows_with_tag(table: Table, tag: str) -> Mask:
    """Returns the rows that have a tag: (rows,) bool."""
    rows, sets = group_codes(table, TAGS)
    return np.array([*(clean_tag(tag) in tags_in(str(text)) for text in sets), False])[rows]


@dataclass(frozen=True, kw_only=True)
class RandomFraction(Blockwise):
    """Keeps a random share of rows: exactly the integer nearest to fraction * rows.

    The choice depends only on uids and the seed.

    Attributes:
        fraction: in [0, 1]; or
        n: how many rows; all where there are fewer.
        seed: another seed draws another, unrelated share.
        of: as in `TopFraction`.
    """

    name: ClassVar[str] = "random_fraction"
    reads: ClassVar[frozenset[str]] = frozenset()
    fraction: float | None = None
    n: int | None = None
    seed: int = 0
    of: Of = "survivors"

    def __post_init__(self) -> None:
        check_budget(self)
        check_words(self)

    @property
    def described(self) -> str:
        share = f"{self.n:,}" if self.fraction is None else f"{100 * self.fraction:g} % of the {self.of}"
        return f"random {share} (seed {self.seed})"

    def fit(self, table: Table) -> Rule:
        rows = candidates_of(table)
        n = np.array([min(budget_of(self, table), rows)])
        draw = by_uid(table, self.seed)

        def rank(span: slice, columns: dict[str, Any], candidates: Mask) -> Ranked:
            keys, inside = np.zeros(candidates.size, np.uint64), np.flatnonzero(candidates)
            keys[inside] = draw(span, inside)
            return keys, None, candidates

        best = Best(table, [], rank, lambda _: n, rows, (by_row,))

        def decide(span: slice, columns: dict[str, Any], candidates: Mask) -> Codes:
            return coded(best.kept(span, *rank(span, columns, candidates)))

        return rule_of(self, [], decide, "not drawn", can_lack=False)


@dataclass(frozen=True, kw_only=True)
class _Combined(Blockwise):
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

    def fit(self, table: Table) -> Rule | Unscored:
        parts: list[Outcome] = []
        for steps in self.parts:
            parts.append(run_steps(table.with_candidates(None), steps))
            if (unscored := parts[-1].unscored) is not None:
                return unscored
        return self._combine(parts)

    @abstractmethod
    def _combine(self, parts: Sequence[Outcome]) -> Rule:
        """Returns the rule by each part's outcome on the whole pool."""

    def _first(self, parts: Sequence[Outcome], *, keeps: bool) -> Callable[[slice, dict[str, Any], Mask], Codes]:
        """Returns what gives the code of the first part that keeps a row, or else of the first that drops it."""

        def decide(rows: slice, columns: dict[str, Any], candidates: Mask) -> Codes:
            codes = np.zeros(candidates.size, np.uint16)
            for number, part in reversed([*enumerate(parts, start=1)]):
                codes[part.keep[rows] == keeps] = number
            return codes

        return decide

    def _reasons(self, parts: Sequence[Outcome], where: str) -> list[DropReason]:
        named = zip(self._names, parts, strict=True)
        return [DropReason(text=f"{where} {name}", score=only_score(part.reasons)) for name, part in named]

    def _join(self, parts: Sequence[Outcome], *, every: bool) -> Callable[[Mask], Mapping[str, Any]] | None:
        if all(part.times is None and part.caption is None for part in parts):
            return None
        whole = [replace(part, keep=part.keep[:]) for part in parts]
        return lambda keep: join_rows(whole, keep, every=every)


@dataclass(frozen=True, kw_only=True)
class AllOf(_Combined):
    """Keeps rows that every part keeps, each part applied to the whole pool: the papers' "A and B".

    A row counts as often as in the part with the fewest copies, and carries the caption of the first part that chooses.

    Attributes:
        parts: lists of steps.
        labels: what the funnel calls them.
    """

    name: ClassVar[str] = "all_of"

    def _combine(self, parts: Sequence[Outcome]) -> Rule:
        cuts = [replace(cut, code=code) for code, part in enumerate(parts, start=1) for cut in part.cuts]
        reasons = self._reasons(parts, "not in")
        return Rule(
            decide=self._first(parts, keeps=False), reasons=reasons, cuts=cuts, joined=self._join(parts, every=True)
        )


@dataclass(frozen=True, kw_only=True)
class AnyOf(_Combined):
    """Keeps rows that at least one part keeps, each part applied to the whole pool. Settings as in `AllOf`.

    A row counts as often as in the part with the most copies, and carries the caption of the first part that keeps it.
    """

    name: ClassVar[str] = "any_of"

    def _combine(self, parts: Sequence[Outcome]) -> Rule:
        def decide(span: slice, columns: dict[str, Any], candidates: Mask) -> Codes:
            return coded(np.logical_or.reduce([part.keep[span] for part in parts]))

        score = only_score(reason for part in parts for reason in part.reasons)
        reason = DropReason(text=f"in none of {', '.join(self._names)}", score=score)
        cuts = [replace(cut, code=1) for part in parts for cut in part.cuts]
        return Rule(decide=decide, reasons=[reason], cuts=cuts, joined=self._join(parts, every=False))


@dataclass(frozen=True, kw_only=True)
class NoneOf(_Combined):
    """Keeps rows that no part keeps, each part applied to the whole pool. Settings as in `AllOf`."""

    name: ClassVar[str] = "none_of"

    def _combine(self, parts: Sequence[Outcome]) -> Rule:
        # Without the parts' thresholds: here the rows inside them are dropped.
        return Rule(decide=self._first(parts, keeps=True), reasons=self._reasons(parts, "in"))
