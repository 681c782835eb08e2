"""How many pairs a step may keep: a share or a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tamis.arrays import Mask
from tamis.errors import check_words, without_effect
from tamis.math.order import round_half_up


def check_fraction(fraction: float) -> None:
    """Raises ValueError for a fraction outside [0, 1]."""
    if not 0 <= fraction <= 1:
        percent = f": for {fraction:g} % write {fraction / 100:g}" if 1 < fraction <= 100 else ""
        raise ValueError(f"a fraction must be between 0 and 1, got {str(fraction).removesuffix('.0')}{percent}")


@dataclass(frozen=True, kw_only=True)
class Budgeted:
    """What steps share that fill a budget.

    Attributes:
        fraction: the budget as a share of `of`, in [0, 1]; or
        n: the budget in pairs.
        of: whose share: "survivors", the rows in question, or "pool", all rows.
    """

    name: ClassVar[str]
    fraction: float | None = None
    n: int | None = None
    of: Literal["survivors", "pool"] = "survivors"

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.n is None):
            raise ValueError(f"{self.name} needs fraction or n, got fraction {self.fraction} and n {self.n}")
        if self.fraction is not None:
            check_fraction(self.fraction)
        if self.n is not None:
            if self.n < 0:
                raise ValueError(f"{self.name} needs n >= 0, got {self.n}")
            without_effect(self, "of", because="n is a number of pairs, of nothing")
        check_words(self)

    @property
    def budget_in_words(self) -> str:
        return f"{100 * self.fraction:g} % of the {self.of}" if self.fraction is not None else f"{self.n:,} pairs"

    def budget(self, alive: Mask) -> int:
        """Returns how many pairs may stay of a pool whose rows in question are `alive`: (rows,) bool."""
        if self.n is not None:
            return self.n
        return round_half_up(self.fraction or 0.0, alive.size if self.of == "pool" else int(np.count_nonzero(alive)))
