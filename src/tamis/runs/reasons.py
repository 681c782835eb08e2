"""Why a subset drops rows: a code per row, a sentence per code, and the thresholds on scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.errors import RecipeError
from tamis.core.files import scratch

Codes = NDArray[np.unsignedinteger[Any]]

#: Rows dropped as copies, ascending, (n,) int64, and the row that each of them repeats, (n,) int64.
Repeats = tuple[NDArray[np.int64], NDArray[np.int64]]

#: Message for a subset without reasons.
NO_REASONS = "The subset holds no reasons: choose it again with `tamis select`"

_BLOCK = 1 << 20  # rows per block: a block and its temporaries stay in the cache


@dataclass(frozen=True, kw_only=True)
class DropReason:
    """Why rows were dropped.

    Attributes:
        text: for example "clip below 0.28".
        step: number of the step that dropped them, from 1; None inside another step, or if scored after the choice.
        score: the expression that the step compared, in the recipe's own names; None if it compared none or several.
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
        low, high: lowest and highest value that it keeps; None for no limit.
        code: the code of the rows that it drops.
        dropped: how many rows it drops; inside another step, how many of the whole pool.
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
        """Returns the distance of values from the nearest limit: positive inside, negative outside."""
        low = np.inf if self.low is None else values - self.low
        high = np.inf if self.high is None else self.high - values
        return np.minimum(low, high)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a recipe decided about every row of a run.

    Attributes:
        names: {a recipe's own name: column of the run}.
        why: the reasons; the first has code 1.
        dropped_by: (rows,) uint8, or uint16 for more than 255 reasons: the code of each row's reason, 0 for kept rows;
            None if unknown.
        cuts: the thresholds on scores in the order of the steps, including the steps inside all_of and any_of.
        problem: why `dropped_by` is unknown; "" if it is known.
        repeats: the copies that `distinct` or `semdedup` dropped, by the number of the step.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    why: tuple[DropReason, ...] = ()
    dropped_by: Codes | None = None
    cuts: tuple[Cut, ...] = ()
    problem: str = ""
    repeats: Mapping[int, Repeats] = field(default_factory=dict)

    def original_of(self, row: int) -> int | None:
        """Returns the row that a row repeats, if it was dropped as a copy and this is known."""
        for rows, originals in self.repeats.values():
            place = int(np.searchsorted(rows, row))
            if place < rows.size and rows[place] == row:
                return int(originals[place])
        return None

    def reason_of(self, row: int) -> str | None:
        """Returns why a row is dropped; "" if it is kept, None if unknown."""
        if self.dropped_by is None:
            return None
        code = int(self.dropped_by[row])
        return self.why[code - 1].sentence if code else ""

    @cached_property
    def drop_counts(self) -> list[int]:
        """The number of rows dropped for each reason, in the order of the codes; [] without codes."""
        if self.dropped_by is None:
            return []
        counts = np.zeros(len(self.why) + 1, np.int64)
        for rows in blocks(self.dropped_by.size):
            counts += np.bincount(self.dropped_by[rows], minlength=counts.size)
        return [int(count) for count in counts[1:]]

    def drops(self, cut: Cut) -> int:
        """Returns how many rows a threshold drops; inside another step, at most what that step drops."""
        return min([cut.dropped, *self.drop_counts[cut.code - 1 : cut.code]])

    @property
    def ranking(self) -> Cut | None:
        """The threshold that drops most rows, of several the last one; None without thresholds."""
        return max(reversed(self.cuts), key=self.drops, default=None)

    def agrees(self, keep: NDArray[np.bool_]) -> bool:
        """Whether a row has a reason if and only if it is dropped."""
        if self.dropped_by is None:
            return True
        return self.dropped_by.size == keep.size and all(
            np.array_equal(self.dropped_by[rows] == 0, keep[rows]) for rows in blocks(keep.size)
        )


def blocks(rows: int, block: int = _BLOCK) -> Iterator[slice]:
    """Yields slices of rows that fit into the processor's cache."""
    for start in range(0, rows, block):
        yield slice(start, min(start + block, rows))


def widen(codes: Codes, largest: int) -> Codes:
    """Returns codes in a type that holds `largest`; raises RecipeError if two bytes cannot."""
    if largest > np.iinfo(np.uint16).max:
        raise RecipeError(f"the recipe has {largest:,} reasons to drop a pair, at most 65,535 are possible")
    return codes.astype(np.uint16) if largest > np.iinfo(codes.dtype).max else codes


def codes_in(rows: int) -> Any:
    """Returns a code of 0 for each row: an array, or of more rows than memory should hold, a file."""
    return scratch.stored(rows, np.uint8 if rows <= scratch.IN_MEMORY else np.uint16)


def rows_kept(line: Mapping[str, Any]) -> str:
    """Returns what a line of a funnel keeps: "1,200", or "1,200 rows 3,000 times" if rows repeat."""
    return f"{line['kept']:,}" + (f" rows {line['times']:,} times" if "times" in line else "")
