"""What a selection says: which rows stay, and why each of the others does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tamis.errors import RecipeError
from tamis.store.table import Table

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Selection:
    """The verdict of one selector on the rows in question.

    Attributes:
        keep: (rows,) bool over the whole table; only rows in question can be set.
        counts: "kept", one entry per reason to drop, and "missing" for rows without a score. They add up to the
            rows in question.
        cut: where the line fell, on the expression's own scale; None where there is no line.
        facts: what else is worth telling of the choice, as JSON holds it: the report shows it.
    """

    keep: Mask
    counts: Mapping[str, int]
    cut: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


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
        funnel: one line per step, in order.
    """

    keep: Mask
    funnel: tuple[StepCount, ...] = field(default=())

    @property
    def kept(self) -> int:
        return int(np.count_nonzero(self.keep))


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
) -> Selection:
    """Counts a verdict; the rows without a value are an error unless the step drops them.

    Args:
        step: whose `name` and `missing` count; its `score` is what rows lack unless `what` says it.
        keep, missing, alive: (rows,) which stay, which cannot be judged, which were in question.
        reason: why the others go.
        cut, facts: see `Selection`.
        what: the column that rows lack.

    Raises:
        RecipeError: rows lack a value, and the step says `missing: error`.
    """
    lacking = int(np.count_nonzero(missing))
    if lacking and step.missing == "error":
        raise RecipeError(
            f"{step.name}: {lacking:,} of {int(np.count_nonzero(alive)):,} rows have no value for "
            f"{what or step.score!r} "
            "(not judged, or not a number). Say 'missing: drop' in the step to drop them, or put a step before it "
            "(in the same part, where it stands in all_of, any_of or none_of) that removes them, such as "
            "{equals: {score: status, value: ok}}"
        )
    kept = int(np.count_nonzero(keep))
    dropped = int(np.count_nonzero(alive)) - kept - lacking
    return Selection(keep, {"kept": kept, reason: dropped, "missing": lacking}, cut, facts or {})
