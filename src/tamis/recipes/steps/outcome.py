"""The result of selecting: which rows stay, and why each of the others was dropped.

Steps decide; `run_steps` gives dropped rows their codes. The report, the explorer and the export of dropped pairs read
these codes and never apply a recipe again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Captions, Mask, Rows, Times
from tamis.core.errors import RecipeError, check_words, naming_faults
from tamis.runs.expression import parse
from tamis.runs.reasons import Codes, Cut, DropReason, Repeats, blocks, codes_in, widen
from tamis.runs.table import MemoryTable, Table

#: What a step does about rows without a value: an error, or it drops and counts them.
IfMissing = Literal["error", "drop"]

#: The two ends of what a threshold keeps; None where it is open.
Ends = tuple[float | None, float | None]


@dataclass(frozen=True)
class Selection:
    """The verdict of one selector on the candidates, the rows that earlier steps left.

    Attributes:
        keep: (rows,) bool over the complete table; only candidates can be set.
        counts: "kept", one entry per reason to drop, and "missing" for rows without a score: all candidates.
        dropped_by: (rows,) uint8 or uint16: the code of the reason each row was dropped for; 0 for rows that stay or
            were not candidates.
        reasons: the reason of code 1, of code 2, and so on.
        cut: the threshold, on the expression's own scale; None if there is none.
        facts: other facts about the choice, as JSON holds them; the report shows them.
        cuts: the thresholds on scores, with both ends.
        times, caption: (rows,) how often each row is kept, and its caption; None: the step does not choose it.
        order: rows in the order to train on, each as often as it is kept; None: the step does not choose it.
        repeats: rows dropped as copies, ascending, and the kept row that each of them repeats.
    """

    keep: Mask
    counts: Mapping[str, int]
    dropped_by: Codes
    reasons: tuple[DropReason, ...]
    cut: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    cuts: tuple[Cut, ...] = ()
    times: Times | None = None
    caption: Captions | None = None
    order: Rows | None = None
    repeats: Repeats | None = None


@runtime_checkable
class Step(Protocol):
    """A selector: a frozen dataclass of settings.

    Optional properties: `described`, its line of the funnel; `poolwide`, the columns of which it looks at rows that
    earlier steps dropped (without it, all that it reads); `pointwise`, whether it judges each row by itself.
    """

    @property
    def name(self) -> str: ...

    @property
    def reads(self) -> frozenset[str]:
        """The columns it looks at, and no others."""
        ...

    def select(self, table: Table) -> Selection:
        """Decides about the candidates of the table.

        Raises:
            RecipeError: rows have no score, and the step does not say what to do with them.
        """
        ...


def check_files(steps: Iterable[Step]) -> None:
    """Raises RecipeError if a file that steps read besides the run, such as reference embeddings, cannot be read."""
    _check(steps, "check_files")


def check_columns(steps: Iterable[Step], table: Table) -> None:
    """Raises RecipeError if a column does not hold what a step expects of it: numbers, words or embeddings."""
    _check(steps, "check_columns", table)


def _check(steps: Iterable[Step], method: str, *arguments: Table) -> None:
    """Calls an optional method of steps, also of steps inside groups."""
    for step in with_parts(steps):
        with naming_faults("step", step):
            getattr(step, method, lambda *_: None)(*arguments)


def with_parts(steps: Iterable[Step]) -> Iterator[Step]:
    """Yields steps, and those inside groups."""
    for step in steps:
        yield step
        for part in getattr(step, "parts", ()):
            yield from with_parts(part)


#: What to do about a column of the wrong kind, by the kind that was expected.
_ADVICE = {
    "number": " (compare words with 'equals')",
    "vector": ": stored embeddings such as image_embedding (score with --keep embeddings)",
}


def check_kind(step: str, table: Table, name: str, *expected: str) -> None:
    """Raises RecipeError if a column is not of one of the expected kinds ("number", "word", "vector").

    Where numbers are expected, words will do if each is a number.
    """
    if not any(table.holds(name, kind) for kind in expected):
        wanted = " or ".join(f"{kind}s" for kind in expected)
        what = f"the column {name!r} holds {table.kind(name)}s, expected {wanted}"
        raise RecipeError(f"{step}: {what}{_ADVICE.get(expected[0], '')}")


class ReadsColumns:
    """Base class of steps: what they read, from the names of the settings that name columns. None names no column.

    Attributes:
        scores: settings that hold an expression over numbers.
        words, vectors, groups: settings that name a column of words; of embeddings; of words or numbers.
    """

    name: ClassVar[str]
    scores: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[tuple[str, ...]] = ()
    vectors: ClassVar[tuple[str, ...]] = ()
    groups: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_words(self)

    def _values(self, settings: Iterable[str]) -> list[str]:
        return [value for name in settings if (value := getattr(self, name)) is not None]

    @property
    def reads(self) -> frozenset[str]:
        names = self._values((*self.words, *self.vectors, *self.groups))
        return frozenset(names).union(*(parse(text).columns for text in self._values(self.scores)))

    @property
    def poolwide(self) -> frozenset[str]:
        return frozenset().union(*(parse(text).poolwide for text in self._values(self.scores)))

    def check_columns(self, table: Table) -> None:
        """Raises RecipeError if a column does not hold what its setting is for."""
        for text in self._values(self.scores):
            for name in sorted(parse(text).columns):
                check_kind(self.name, table, name, "number")
        for settings, *kinds in (self.words, "word"), (self.vectors, "vector"), (self.groups, "word", "number"):
            for name in self._values(settings):
                check_kind(self.name, table, name, *kinds)


class ReadsPool(ReadsColumns):
    """Base class of steps whose verdict on a row depends on all rows of what they read."""

    @property
    def poolwide(self) -> frozenset[str]:
        return self.reads


@dataclass(frozen=True)
class Unscored:
    """Rows that a step looks at, and whose scores in a column were not requested yet."""

    step: Step
    column: str
    rows: Mask

    def __str__(self) -> str:
        rows = f"{int(np.count_nonzero(self.rows)):,} rows whose {self.column!r} is not scored yet"
        return f"{self.step.name}: '{describe(self.step)}' looks at {rows}"


@dataclass(frozen=True)
class Outcome:
    """What all steps of a recipe leave of a table.

    Attributes:
        keep: (rows,) bool.
        dropped_by: (rows,) uint8 or uint16: the code of the reason each row was dropped for; 0 where it stays.
        funnel: a line per step, in order, as JSON holds it: the `step`, candidates `before` it, `kept`, `dropped` by
            reason, the `cut`, the `facts` if there are any, and `times` in all that rows are kept if they repeat.
        reasons: the reason of code 1, of code 2, and so on, each with the number of its step.
        cuts: the thresholds on scores, in the order of the steps.
        times, caption: as in `Selection`; None: every kept row once, with its alt-text.
        order: the kept rows in the order to train on, each as often as it is kept; None: they have no order.
        unscored: why no more steps were applied: the next one looks at rows that are not scored yet. None: all were.
        repeats: as in `Selection`, by the number of the step.
    """

    keep: Mask
    dropped_by: Codes
    funnel: tuple[Mapping[str, Any], ...] = ()
    reasons: tuple[DropReason, ...] = ()
    cuts: tuple[Cut, ...] = ()
    times: Times | None = None
    caption: Captions | None = None
    order: Rows | None = None
    unscored: Unscored | None = None
    repeats: Mapping[int, Repeats] = field(default_factory=dict)


def describe(step: Any) -> str:
    """Returns a step as one line of a funnel."""
    return str(getattr(step, "described", step.name))


def _find_unscored(step: Step, table: Table) -> Unscored | None:
    """Returns the first column of a step with rows that it looks at and that are not scored yet."""
    for name in () if hasattr(step, "parts") else sorted(step.reads):  # parts are checked one by one
        if (requested := table.requested(name)) is not None:
            rows = ~requested if name in getattr(step, "poolwide", step.reads) else table.candidates & ~requested
            if rows.any():
                return Unscored(step, name, rows)
    return None


def only_score(reasons: Iterable[DropReason]) -> str | None:
    """Returns the one expression that some reasons depend on; None if there is none, or several."""
    scores = {reason.score for reason in reasons if reason.score is not None}
    return scores.pop() if len(scores) == 1 else None


def check_missing(step: Any, missing: Mask | int, candidates: Mask | int, what: str) -> None:
    """Raises RecipeError if candidates lack a value and the step says `missing: error`. Takes masks or numbers."""
    if (lacking := int(np.sum(missing))) and getattr(step, "missing", "drop") == "error":
        raise RecipeError(
            f"{step.name}: {lacking:,} of {int(np.sum(candidates)):,} rows have no value for {what!r} (not "
            "scored, or infinite). Add 'missing: drop' to the step, or filter them in an earlier step (of the same "
            "part of all_of, any_of or none_of), such as {equals: {score: status, value: ok}}"
        )


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a step decides about one block of rows by itself, after it has looked at the pool.

    Attributes:
        columns: what `decide` reads.
        decide: gets the slice of the block's rows, its columns and its candidates, (n,) bool; returns (n,) the code of
            the reason that drops each row, 0 for rows that stay. The codes of other rows do not matter.
        reasons: the reason of code 1, of code 2, and so on.
        lacking: what the rows of the last reason have no value of; None: no reason is a missing value.
        cuts: the thresholds; -1 stands for the number of rows that this step drops.
        cut, facts, repeats: as in `Selection`.
        joined: returns `times`, `caption` and `order` of the rows that stay; None if the step chooses none of them.
    """

    columns: Sequence[str] = ()
    decide: Callable[[slice, dict[str, Any], Mask], Codes]
    reasons: Sequence[DropReason]
    lacking: str | None = None
    cuts: Sequence[Cut] = ()
    cut: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    repeats: Repeats | None = None
    joined: Callable[[Mask], Mapping[str, Any]] | None = None


def coded(keep: Mask, missing: Mask | None = None) -> Codes:
    """Returns 0 for rows that stay, 1 for rows that fall, and 2 for those without a value."""
    codes = (~keep).view(np.uint8)
    if missing is not None:
        codes[missing] = 2
    return codes


def rule_of(
    step: Any,
    columns: Sequence[str],
    decide: Callable[[slice, dict[str, Any], Mask], Codes],
    reason: str,
    cut: float | None = None,
    *,
    what: str = "",
    score: str | None = None,
    ends: Ends = (None, None),
    can_lack: bool = True,
    **more: Any,
) -> Rule:
    """Returns the rule of a step whose codes are `coded`. Arguments as in `verdict`, and of `Rule`."""
    reasons, what = [DropReason(text=reason, score=score)], what or getattr(step, "score", "")
    if can_lack:
        reasons.append(DropReason(text=f"no value for {what}", score=score))
    cuts = [Cut(step=describe(step), score=score, low=ends[0], high=ends[1], code=1, dropped=-1)] if score else []
    return Rule(
        columns=columns, decide=decide, reasons=reasons, lacking=what if can_lack else None,
        cuts=cuts if ends != (None, None) else [], cut=cut, **more,
    )  # fmt: skip


def rule_by(
    step: Any,
    kept: Callable[[slice], Mask],
    lacks: Callable[[slice], Mask],
    reason: str,
    cut: float | None = None,
    **more: Any,
) -> Rule:
    """Returns the rule of a step that knows which rows stay if they do not lack a value, by slices of all rows."""
    return rule_of(step, [], lambda rows, *_: coded(kept(rows), lacks(rows)), reason, cut, **more)


class Blockwise(ABC):
    """Base class of the steps that decide block by block, so that a pool's columns need not fit into memory."""

    @abstractmethod
    def fit(self, table: Table) -> Rule | Unscored:
        """Looks at the pool, block by block, and returns how to decide; raises what `Step.select` raises."""

    def select(self, table: Table) -> Selection:
        """Decides about the candidates of the table: see `Step.select`."""
        dropped, rule = _Dropped(table), self.fit(table)
        if isinstance(rule, Unscored):
            raise RecipeError(str(rule))
        return dropped.select(self, rule)


class _Dropped:
    """Why each row was dropped so far. A slice of it are the candidates that steps kept so far."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.codes: Any = codes_in(len(table))
        self.reasons: list[DropReason] = []
        self.cuts: list[Cut] = []

    def __getitem__(self, rows: slice) -> Mask:
        return np.asarray(self.table.candidates_in(rows) & (self.codes[rows] == 0))

    @property
    def size(self) -> int:
        return len(self.table)

    def _widen(self, more: int) -> None:
        self.codes = widen(self.codes, len(self.reasons) + more)

    def apply(self, step: Any, rule: Rule) -> Selection:
        """Drops what a rule drops; returns a selection without its arrays."""
        self._widen(len(rule.reasons))
        first = len(self.reasons)

        counted = np.zeros(len(rule.reasons) + 1, np.int64)
        decide = partial(_decide, rule, first, self.codes.dtype)
        for rows, codes, some in self.table.with_candidates(self).scan(rule.columns, decide, in_chunks=True):
            counted += some
            if codes is not None:
                self.codes[rows] += codes
        counts = counted.tolist()
        reasons, named, missing = list(rule.reasons), {"kept": counts[0]}, 0
        if rule.lacking is not None:
            check_missing(step, counts[-1], sum(counts), rule.lacking)
            missing, lacking = counts.pop(), reasons.pop()
        for reason, count in zip(reasons, counts[1:], strict=True):
            named[reason.text] = named.get(reason.text, 0) + count  # two parts of a group may have one name
        named["missing"] = missing
        if missing:
            reasons.append(lacking)
        cuts = tuple(cut if cut.dropped >= 0 else replace(cut, dropped=counts[cut.code]) for cut in rule.cuts)
        self._add(reasons, cuts)
        nothing = np.zeros(0, bool)
        more = {"repeats": rule.repeats, **(rule.joined(self[:]) if rule.joined else {})}
        return Selection(nothing, named, nothing.view(np.uint8), tuple(reasons), rule.cut, rule.facts, cuts, **more)

    def select(self, step: Any, rule: Rule) -> Selection:
        """Drops what a rule drops; returns the selection."""
        return replace(self.apply(step, rule), keep=self[:], dropped_by=self.codes[:])

    def add(self, found: Selection) -> Selection:
        """Drops what a step dropped that decides about all rows at once."""
        if len(found.dropped_by) != len(self.table):
            raise ValueError(f"it decided about {len(found.dropped_by):,} rows, not about {len(self.table):,}")
        self._widen(len(found.reasons))
        for rows in blocks(len(self.table)):
            codes = found.dropped_by[rows].astype(self.codes.dtype)
            self.codes[rows] += np.where(codes > 0, codes + self.codes.dtype.type(len(self.reasons)), 0)
        self._add(found.reasons, found.cuts)
        return found

    def _add(self, reasons: Sequence[DropReason], cuts: Sequence[Cut]) -> None:
        self.cuts += [replace(cut, code=len(self.reasons) + cut.code) for cut in cuts]
        self.reasons += reasons


def _decide(
    rule: Rule, first: int, dtype: Any, rows: slice, columns: dict[str, Any], candidates: Mask
) -> tuple[slice, Codes | None, NDArray[np.int64]]:
    """Returns what to add to the codes of some rows, None for nothing, and how many rows stay and fall by reason."""
    codes = rule.decide(rows, columns, candidates) * candidates
    counts = [np.count_nonzero(codes == code) for code in range(1, len(rule.reasons) + 1)]
    added = np.where(codes > 0, codes.astype(dtype) + dtype.type(first), dtype.type(0)) if any(counts) else None
    return rows, added, np.array([np.count_nonzero(candidates) - sum(counts), *counts], np.int64)


def verdict(
    step: Any,
    keep: Mask,
    missing: Mask,
    candidates: Mask,
    reason: str,
    cut: float | None = None,
    *,
    what: str | None = None,
    facts: Mapping[str, Any] | None = None,
    score: str | None = None,
    ends: Ends = (None, None),
    repeats: Repeats | None = None,
) -> Selection:
    """Returns the verdict of a step that drops rows for one reason, and for a missing value.

    Args:
        step: the selector, with `name` and `missing`.
        keep: (rows,) bool, rows that stay if they are candidates.
        missing: (rows,) bool, candidates without a value.
        candidates: (rows,) bool.
        reason: why the others are dropped.
        cut, facts: see `Selection`.
        what: the column that rows lack; by default `step.score`.
        score: the expression over numbers that decided; None if there is none.
        ends: limits of the threshold on that score; (None, None) if there is none.
        repeats: see `Selection`.

    Raises:
        RecipeError: rows lack a value, and the step says `missing: error`.
    """
    table = MemoryTable({"keep": keep}).with_candidates(candidates)
    rule = rule_by(
        step, keep.__getitem__, missing.__getitem__, reason, cut,
        what=what or "", score=score, ends=ends, facts=facts or {}, repeats=repeats,
    )  # fmt: skip
    return _Dropped(table).select(step, rule)


def run_steps(table: Table, steps: Sequence[Step]) -> Outcome:
    """Applies steps in order, each to the rows that the one before left.

    The last step that chooses how often rows count, or their captions, decides it for the rows that are left. The one
    that chooses how often also chooses their order, or leaves them without one.

    Args:
        table: the pool's rows.
        steps: what to apply; none keeps every row.

    Returns:
        The rows that are left, why each of the others was dropped, and the funnel; or what is `unscored`.

    Raises:
        RecipeError: rows have no score, and the step does not say what to do with them.
    """
    dropped, funnel = _Dropped(table), []
    chosen: dict[str, Any] = {"times": None, "caption": None, "order": None}
    repeats: dict[int, Repeats] = {}
    unscored: Unscored | None = None
    for number, step in enumerate(steps, start=1):
        first, view = len(dropped.reasons), table.with_candidates(dropped)
        with naming_faults("step", *with_parts([step])):
            rule = _find_unscored(step, view) or (step.fit(view) if isinstance(step, Blockwise) else None)
            if isinstance(rule, Unscored):
                unscored = rule
                break
            if rule is not None:
                found = dropped.apply(step, rule)
            else:
                found = dropped.add(step.select(table.with_candidates(dropped[:])))
            dropped.reasons[first:] = [replace(reason, step=number) for reason in dropped.reasons[first:]]
            if found.times is not None or found.order is not None:
                chosen |= {"times": found.times, "order": found.order}
            if found.caption is not None:
                chosen["caption"] = found.caption
            repeats |= {number: found.repeats} if found.repeats is not None else {}
            lost = {reason: count for reason, count in found.counts.items() if reason != "kept" and count}
            line: dict[str, Any] = {"step": describe(step), "before": sum(found.counts.values())}
            line |= {"kept": found.counts["kept"], "dropped": lost, "cut": found.cut}
            line |= {"facts": dict(found.facts)} if found.facts else {}
            if chosen["times"] is not None:
                line["times"] = int(np.sum(chosen["times"], where=dropped[:], dtype=np.int64))
            funnel.append(line)
    keep: Any = dropped[:] if isinstance(dropped.codes, np.ndarray) else dropped
    order = chosen.pop("order")
    kept = {name: None if values is None else values * dropped[:] for name, values in chosen.items()}
    kept["order"] = None if order is None else order[dropped[:][order]]
    return Outcome(
        keep, dropped.codes, tuple(funnel), tuple(dropped.reasons), tuple(dropped.cuts),
        unscored=unscored, repeats=repeats, **kept,
    )  # fmt: skip


def captions_from(steps: Iterable[Any]) -> str:
    """Returns the column with the other captions that steps choose, "" if none does; RecipeError for several."""
    names, waiting = set(), [*steps]
    while waiting:
        step = waiting.pop()
        waiting += [inner for part in getattr(step, "parts", ()) for inner in part]
        names |= {step.text} if step.name == "choose_caption" else set()
    if len(names) > 1:
        raise RecipeError(f"choose_caption: a subset can take captions from one column only, not from {sorted(names)}")
    return "".join(names)


# ---- the order in which steps look at rows: in each of them the same rows stay

#: Columns that every row has.
_ALWAYS = {"status", "key"}


def flatten(steps: Sequence[Any]) -> list[Step]:
    """Returns steps with the last pointwise steps of parts of `all_of` moved behind it.

    Every part judges the whole pool, and only rows that all parts keep stay: what a part says of single rows need not
    be known of rows that others drop.
    """
    found: list[Step] = []
    for step in steps:
        if step.name != "all_of":
            found.append(step)
            continue
        ends = [len(part) - len(list(takewhile(_is_pointwise, reversed(part)))) for part in step.parts]
        if any(ends):  # a part without steps stays: rows count once in it
            heads = tuple(part[:end] for part, end in zip(step.parts, ends, strict=True))
            found.append(replace(step, parts=heads))
        found += flatten([one for part, end in zip(step.parts, ends, strict=True) for one in part[end:]])
    return found


def arrange(steps: Sequence[Step], rank: Callable[[Step], float]) -> list[Step]:
    """Returns flattened steps, those that commute in the order of a rank."""
    left, found = flatten(steps), list[Step]()
    while left:
        group = left[: _group(left, 0)]
        best = min(group, key=rank)
        found.append(best)
        left.pop(next(place for place, step in enumerate(left) if step is best))
    return found


def run_in_any_order(table: Table, steps: Sequence[Step]) -> Outcome:
    """Applies steps as `run_steps` does; if they look at unscored rows, in an order in which they do not, if any."""
    outcome, order = run_steps(table, steps), flatten(steps)
    place = tried = 0
    while outcome.unscored is not None:
        outcome = run_steps(table, order)
        unscored = outcome.unscored
        at = next((number for number, step in enumerate(order) if unscored and step is unscored.step), None)
        if at is None:  # all are applied, or it is in a group
            return outcome
        place, tried = at, tried + 1 if at == place else 1
        end = at + _group(order, at)
        if tried >= end - at:  # each of them was tried here
            return outcome
        order.insert(end - 1, order.pop(at))
    return outcome


def _group(steps: Sequence[Step], start: int) -> int:
    """Returns how many steps from one on can be applied in any order."""
    if not _is_pointwise(steps[start]):
        return 1
    return 1 + len(list(takewhile(_may_come_first, steps[start + 1 :])))


def _is_pointwise(step: Any) -> bool:
    return getattr(step, "pointwise", False)


def _may_come_first(step: Any) -> bool:
    """Whether a step says the same of a row at an earlier place, where it also meets rows that others drop."""
    return _is_pointwise(step) and (getattr(step, "missing", "drop") == "drop" or step.reads <= _ALWAYS)
