"""What a selection says: which rows stay, and why each of the others does not.

Steps judge; `Drops` gives the rows that fall their codes, and is the only place that does. Whoever reads a subset later
(the report, the export of dropped pairs) reads these, and applies no recipe again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tamis.arrays import Mask
from tamis.errors import RecipeError
from tamis.store.reasons import Codes, Cut, Reason, add_codes, blocks, widened
from tamis.store.table import Table

#: The two ends of what a line keeps; None where it is open.
Ends = tuple[float | None, float | None]


@dataclass(frozen=True)
class Selection:
    """The verdict of one selector on the rows in question.

    Attributes:
        keep: (rows,) bool over the whole table; only rows in question can be set.
        counts: "kept", one entry per reason to drop, and "missing" for rows without a score. They add up to the
            rows in question.
        cut: where the line fell, on the expression's own scale; None where there is no line.
        facts: what else is worth telling of the choice, as JSON holds it: the report shows it.
        dropped_by: (rows,) uint8 or uint16: the code of the reason that each row fell by, 0 where it stays or was not
            in question.
        reasons: the reason of code 1, of code 2, and so on.
        cuts: the lines drawn on scores.
    """

    keep: Mask
    counts: Mapping[str, int]
    dropped_by: Codes
    reasons: tuple[Reason, ...]
    cut: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    cuts: tuple[Cut, ...] = ()


@runtime_checkable
class Step(Protocol):
    """A selector: a frozen dataclass of settings."""

    @property
    def name(self) -> str: ...

    @property
    def reads(self) -> frozenset[str]:
        """The columns it looks at, and no others."""
        ...

    def select(self, table: Table) -> Selection:
        """Judges the rows that are alive in the table.

        Raises:
            RecipeError: rows have no score and the step does not say what to do with them.
        """
        ...


@runtime_checkable
class ReadsFiles(Protocol):
    """A step that reads something beside the run: a list of classes, reference embeddings, or steps that do."""

    def check_files(self) -> None:
        """Checks that it is there.

        Raises:
            RecipeError: it is not, or cannot be read.
        """
        ...


def check_files(steps: Iterable[Step]) -> None:
    """Checks that what steps read beside the run is there.

    Raises:
        RecipeError: it is not, or cannot be read.
    """
    for step in steps:
        if isinstance(step, ReadsFiles):
            step.check_files()


@dataclass(frozen=True)
class StepCount:
    """One line of the funnel."""

    step: str
    before: int
    kept: int
    dropped: Mapping[str, int]
    cut: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Returns the line as JSON holds it."""
        return {
            "step": self.step,
            "before": self.before,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "cut": self.cut,
            **({"facts": dict(self.facts)} if self.facts else {}),
        }


@dataclass(frozen=True)
class Outcome:
    """What all steps of a recipe leave of a table.

    Attributes:
        keep: (rows,) bool.
        dropped_by: (rows,) uint8 or uint16: the code of the reason that each row fell by, 0 where it stays.
        funnel: one line per step, in order.
        reasons: the reason of code 1, of code 2, and so on, each with the number of its step.
        cuts: the lines drawn on scores, in the order of the steps.
    """

    keep: Mask
    dropped_by: Codes
    funnel: tuple[StepCount, ...] = ()
    reasons: tuple[Reason, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def kept(self) -> int:
        return int(np.count_nonzero(self.keep))


def describe(step: Any) -> str:
    """Returns a step as one line for funnels."""
    return str(getattr(step, "described", step.name))


class Drops:
    """What one step drops of the rows in question, reason by reason: a step of several reasons says them one by one.

    Memory: two bytes per row beside what the step holds; it works in blocks.
    """

    def __init__(self, alive: Mask) -> None:
        """Begins with the rows in question: (rows,) bool, which stays as it is."""
        self.left = alive.copy()
        self.codes: Codes = np.zeros(alive.size, np.uint8)
        self.reasons: list[Reason] = []
        self.counts: dict[str, int] = {}
        self.cuts: list[Cut] = []

    def drop(
        self,
        rows: Mask,
        text: str,
        *,
        others: bool = False,
        score: str | None = None,
        cuts: Iterable[Cut] = (),
        counted: str | None = None,
    ) -> int:
        """Drops those of the rows that are left, and returns how many they are.

        Args:
            rows: (rows,) which; of those that are not left nothing is said.
            text: why.
            others: drops the rows that are not among `rows` instead.
            score: the expression they were judged by.
            cuts: the lines behind it; they get this reason's code.
            counted: what `Selection.counts` calls them; the text where there is nothing else to call them.
        """
        self.reasons.append(Reason(text=text, score=score))
        code = len(self.reasons)
        self.codes = widened(self.codes, code)
        self.cuts += [replace(cut, code=code) for cut in cuts]
        fallen, number = 0, self.codes.dtype.type(code)
        for place in blocks(rows.size):
            fell = ~rows[place] if others else rows[place].copy()
            fell &= self.left[place]
            self.left[place] ^= fell
            self.codes[place] += fell.view(np.uint8) * number
            fallen += int(np.count_nonzero(fell))
        counted = counted or text  # two parts of a group may have one name
        self.counts[counted] = self.counts.get(counted, 0) + fallen
        return fallen

    def selection(self, cut: float | None = None, facts: Mapping[str, Any] | None = None) -> Selection:
        """Returns the verdict."""
        counts = {"kept": int(np.count_nonzero(self.left)), **self.counts}
        counts["missing"] = counts.pop("missing", 0)  # told last
        return Selection(self.left, counts, self.codes, tuple(self.reasons), cut, facts or {}, tuple(self.cuts))


def only_score(reasons: Iterable[Reason]) -> str | None:
    """Returns the expression that a part of a step judged by; None where it judged by none, or by several."""
    scores = {reason.score for reason in reasons if reason.score is not None}
    return scores.pop() if len(scores) == 1 else None


def verdict(
    step: Any,
    keep: Mask,
    missing: Mask,
    alive: Mask,
    reason: str,
    cut: float | None = None,
    *,
    what: str | None = None,
    facts: Mapping[str, Any] | None = None,
    score: str | None = None,
    ends: Ends = (None, None),
) -> Selection:
    """Returns the verdict of a step that has one reason; rows without a value are an error unless it drops them.

    Args:
        step: whose `name` and `missing` count; its `score` is what rows lack unless `what` says it.
        keep, missing, alive: (rows,) which stay where they were in question, which of those cannot be judged, and
            which were in question.
        reason: why the others go.
        cut, facts: see `Selection`.
        what: the column that rows lack.
        score: the expression over numbers that rows were judged by; None where there is none.
        ends: of the line drawn on that score; None and None where there is none.

    Raises:
        RecipeError: rows lack a value, and the step says `missing: error`.
    """
    lacking = int(np.count_nonzero(missing))
    if lacking and step.missing == "error":
        raise RecipeError(
            f"{step.name}: {lacking:,} of {int(np.count_nonzero(alive)):,} rows have no value for "
            f"{what or step.score!r} (not judged, not a number, or infinite, as x/0). "
            "Say 'missing: drop' in the step to drop them, or put a step before it "
            "(in the same part, where it stands in all_of, any_of or none_of) that removes them, such as "
            "{equals: {score: status, value: ok}}"
        )
    drops = Drops(alive)
    if lacking:
        drops.drop(missing, f"no value for {what or step.score}", score=score, counted="missing")
    fallen = drops.drop(keep, reason, score=score, others=True)
    if score is not None and ends != (None, None):
        low, high = ends
        code = len(drops.reasons)
        drops.cuts.append(Cut(step=describe(step), score=score, low=low, high=high, code=code, dropped=fallen))
    return drops.selection(cut, facts)


def run_steps(table: Table, steps: Sequence[Step]) -> Outcome:
    """Applies steps in order, each to the survivors of the one before.

    Args:
        table: the pool's rows.
        steps: what to apply; none keeps every row.

    Returns:
        The rows that are left, why each of the others is not, and the funnel.

    Raises:
        RecipeError: a step met rows without a score and does not say what to do with them.
    """
    alive = table.living().copy()
    codes: Codes = np.zeros(alive.size, np.uint8)
    funnel: list[StepCount] = []
    reasons: list[Reason] = []
    cuts: list[Cut] = []
    for number, step in enumerate(steps, start=1):
        before = int(np.count_nonzero(alive))
        found = step.select(table.among(alive))
        alive = found.keep
        codes = widened(codes, len(reasons) + len(found.reasons))
        add_codes(codes, found.dropped_by, len(reasons))
        cuts += [replace(cut, code=len(reasons) + cut.code) for cut in found.cuts]
        reasons += [replace(reason, step=number) for reason in found.reasons]
        dropped = {reason: count for reason, count in found.counts.items() if reason != "kept" and count}
        funnel.append(StepCount(describe(step), before, found.counts["kept"], dropped, found.cut, found.facts))
    return Outcome(alive, codes, tuple(funnel), tuple(reasons), tuple(cuts))
