"""Why rows are not in a subset: a small number per row, a sentence per number, and the lines drawn on scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import RecipeError

Codes = NDArray[np.unsignedinteger[Any]]

#: What a subset says that holds no reasons.
NO_REASONS = (
    "The subset holds no reasons: it was put together by hand, or another program wrote it. "
    "Choose it again with `tamis select`"
)

_BLOCK = 1 << 20  # rows per block: a block and its temporaries stay in the cache


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why rows were dropped.

    Attributes:
        text: what is so of them: "clip below 0.28".
        step: the number of the step that dropped them, from 1; None where no step of a recipe did (a part of another
            step, rows that were scored after the choice).
        score: the expression that the step judged by, in the recipe's own names; None where it judged by none, or by
            several.
    """

    text: str
    step: int | None = None
    score: str | None = None

    @property
    def sentence(self) -> str:
        return self.text if self.step is None else f"Step {self.step}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A line that a step drew on a score.

    Attributes:
        step: what drew it.
        score: the expression, in the recipe's own names.
        low, high: the ends of what it keeps, on the expression's scale; None where it is open.
        code: the code of the rows that fell at this step.
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
        """Returns how far values lie inside the line (positive) or outside it (negative)."""
        if self.low is not None and self.high is not None:
            return np.minimum(values - self.low, self.high - values)
        if self.high is not None:
            return self.high - values
        assert self.low is not None, "a cut without ends is no cut"
        return values - self.low


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a recipe said of every row of a run.

    Attributes:
        names: the recipe's own names for columns, to those of the run.
        why: the reason of code 1, of code 2, and so on.
        dropped_by: (rows,) uint8, or uint16 where there are more than 255 reasons: the code of what dropped each row,
            0 where it is kept; None where nobody knows.
        cuts: the lines on scores, in the order of the steps; those of parts of all_of and any_of among them.
        problem: why there is no `dropped_by`; "" where there is one.
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
        """The last line on a score that some row fell at, else the last; None where there is none."""
        return next((cut for cut in reversed(self.cuts) if cut.dropped), self.cuts[-1] if self.cuts else None)

    def agrees(self, keep: NDArray[np.bool_]) -> bool:
        """Returns whether exactly the rows that are kept have no reason."""
        if self.dropped_by is None:
            return True
        return self.dropped_by.shape == keep.shape and all(
            np.array_equal(self.dropped_by[place] == 0, keep[place]) for place in blocks(keep.size)
        )

    def as_json(self) -> dict[str, Any]:
        """Returns reasons and cuts, without the rows, as JSON holds them."""
        return {"reasons": [asdict(reason) for reason in self.why], "cuts": [asdict(cut) for cut in self.cuts]}

    @classmethod
    def of_json(cls, facts: Mapping[str, Any], dropped_by: Codes, names: Mapping[str, str]) -> Verdict:
        """Returns what `as_json` told of, with its rows."""
        return cls(
            names=names,
            why=tuple(Reason(**reason) for reason in facts["reasons"]),
            dropped_by=dropped_by,
            cuts=tuple(Cut(**cut) for cut in facts.get("cuts") or ()),
        )


def blocks(rows: int) -> Iterator[slice]:
    """Yields the places of blocks that stay in the cache."""
    for start in range(0, rows, _BLOCK):
        yield slice(start, min(start + _BLOCK, rows))


def widened(codes: Codes, largest: int) -> Codes:
    """Returns codes in the smallest type that holds the largest of them: the same array where that is its own.

    Raises:
        RecipeError: there are more than two bytes hold.
    """
    if largest > np.iinfo(np.uint16).max:
        raise RecipeError(f"the recipe has {largest:,} reasons to drop a pair, at most 65,535 can be told apart")
    return codes.astype(np.uint16) if largest > np.iinfo(codes.dtype).max else codes


def add_codes(total: Codes, codes: Sequence[int] | Codes, after: int) -> None:
    """Adds the codes of one more step, in place: its code 1 becomes the one after those that are there.

    Args:
        total: (rows,) wide enough; 0 wherever `codes` is not.
        codes: (rows,) of the step, 0 for rows that it does not drop.
        after: how many codes there are before.
    """
    step, offset = np.asarray(codes), total.dtype.type(after)
    for place in blocks(total.size):
        fell = step[place] != 0
        total[place] += fell.view(np.uint8) * offset
        total[place] += step[place].astype(total.dtype, copy=False)
