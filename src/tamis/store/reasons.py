"""Why rows are not in a subset: a code per row, a sentence per code, and the thresholds on scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import RecipeError

Codes = NDArray[np.unsignedinteger[Any]]

#: Message for a subset without reasons.
NO_REASONS = (
    "The subset holds no reasons: it was put together by hand, or another program wrote it. "
    "Choose it again with `tamis select`"
)

_BLOCK = 1 << 20  # rows per block: a block and its temporaries stay in the cache


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why rows were dropped.

    Attributes:
        text: "clip below 0.28".
        step: the step that dropped them, from 1; None for a part of another step, and for rows scored after the choice.
        score: the expression that the step judged by, in the recipe's own names; None for none or several.
    """

    text: str
    step: int | None = None
    score: str | None = None

    @property
    def sentence(self) -> str:
        return self.text if self.step is None else f"Step {self.step}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A threshold of a step on a score.

    Attributes:
        step: its description.
        score: the expression, in the recipe's own names.
        low, high: limits of what it keeps, on the expression's scale; None for no limit.
        code: of the rows that it drops.
        dropped: how many. A part of another step counts what it drops of the whole pool.
    """

    step: str
    score: str
    low: float | None
    high: float | None
    code: int
    dropped: int

    @property
    def marks(self) -> tuple[float, ...]:
        return tuple(end for end in (self.low, self.high) if end is not None)

    def distance(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns how far values are inside the limits (positive) or outside (negative)."""
        low = np.inf if self.low is None else values - self.low
        high = np.inf if self.high is None else self.high - values
        return np.minimum(low, high)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a recipe decided about every row of a run.

    Attributes:
        names: the recipe's own names for columns, to those of the run.
        why: the reason of code 1, of code 2, and so on.
        dropped_by: (rows,) uint8, or uint16 for more than 255 reasons: the code of what dropped each row, 0 for kept
            rows; None if unknown.
        cuts: the thresholds on scores in the order of the steps, with those of the parts of all_of and any_of.
        problem: why there is no `dropped_by`; "" if there is one.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    why: tuple[Reason, ...] = ()
    dropped_by: Codes | None = None
    cuts: tuple[Cut, ...] = ()
    problem: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """A sentence per code, the first ("") for rows that are kept."""
        return ("", *(reason.sentence for reason in self.why))

    @property
    def ranking(self) -> Cut | None:
        """The last threshold that dropped a row, else the last; None if there is none."""
        return next((cut for cut in reversed(self.cuts) if cut.dropped), self.cuts[-1] if self.cuts else None)

    def agrees(self, keep: NDArray[np.bool_]) -> bool:
        """Whether exactly the kept rows have no reason."""
        if self.dropped_by is None:
            return True
        return self.dropped_by.shape == keep.shape and all(
            np.array_equal(self.dropped_by[place] == 0, keep[place]) for place in blocks(keep.size)
        )


def blocks(rows: int) -> Iterator[slice]:
    """Yields the places of blocks that fit into the processor's cache."""
    for start in range(0, rows, _BLOCK):
        yield slice(start, min(start + _BLOCK, rows))


def widened(codes: Codes, largest: int) -> Codes:
    """Returns codes in a type that holds the largest, unchanged if they fit; RecipeError: two bytes do not hold it."""
    if largest > np.iinfo(np.uint16).max:
        raise RecipeError(f"the recipe has {largest:,} reasons to drop a pair, at most 65,535 are possible")
    return codes.astype(np.uint16) if largest > np.iinfo(codes.dtype).max else codes


def add_codes(total: Codes, codes: Sequence[int] | Codes, after: int) -> None:
    """Adds the codes of one more step in place: (rows,), 0 for rows that it does not drop.

    Its code 1 becomes `after` + 1. `total` must be wide enough, and 0 wherever `codes` is not.
    """
    step, offset = np.asarray(codes), total.dtype.type(after)
    for place in blocks(total.size):
        fell = step[place] != 0
        total[place] += fell.view(np.uint8) * offset
        total[place] += step[place].astype(total.dtype, copy=False)
