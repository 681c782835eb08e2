"""What a selection says: which rows stay, and why each of the others does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

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
    """

    keep: Mask
    counts: Mapping[str, int]
    cut: float | None = None


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


@dataclass(frozen=True)
class StepCount:
    """One line of the funnel."""

    step: str
    before: int
    kept: int
    dropped: Mapping[str, int]
    cut: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns the line as JSON holds it."""
        return {
            "step": self.step,
            "before": self.before,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "cut": self.cut,
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
