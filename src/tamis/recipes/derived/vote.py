"""`vote`: in how many scores a row is among the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.core.arrays import Floats, Mask
from tamis.core.errors import RecipeError
from tamis.core.files.scratch import filled
from tamis.core.math.order import quantile
from tamis.core.types import Column
from tamis.recipes.derived import Derived, Saved
from tamis.recipes.steps.outcome import check_kind
from tamis.runs.expression import parse
from tamis.runs.table import Table


@dataclass(frozen=True, kw_only=True)
class Vote(Derived):
    """In how many scores a row lies above the score's quantile. A score where all rows are equal votes for none.

    Attributes:
        scores: score expressions, high for good rows (`-perplexity`): one vote each.
        quantile: of each score, over the rows that have it, in (0, 1); .8: a score votes for the best fifth.

    Cost: three or four passes over each score. Memory: 100 MB; 4 bytes per row are stored.
        A row without any of the scores gets no value; a missing score gives no vote.

    Source: Wu et al. 2025, ICONS (arXiv 2501.00654), which counts votes of tasks; there, too, .8.
    """

    name: ClassVar[str] = "vote"
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="votes", unit="scores", better="high", about="scores in which the row is above the quantile"),
    )
    lacking: ClassVar[str] = "the row has none of the scores"
    scores: tuple[str, ...]
    quantile: float = 0.8

    def __post_init__(self) -> None:
        if not self.scores:
            raise ValueError("vote: name at least one score")
        if not 0 < self.quantile < 1:
            raise ValueError(f"vote: quantile must be above 0 and below 1, got {self.quantile:g}")
        _ = self.reads  # parses the expressions

    @property
    def reads(self) -> frozenset[str]:
        return frozenset().union(*(parse(score).columns for score in self.scores))

    def compute(self, table: Table, saved: Saved) -> Mapping[str, Any]:
        for name in sorted(self.reads):
            check_kind(self.name, table, name, "number")
        cuts = [quantile(parse(score).keys(table), self.quantile, len(table)) for score in self.scores]
        if None in cuts:
            raise RecipeError(f"vote: no row has a value for {self.scores[cuts.index(None)]!r}")
        values_of = [parse(score).fit(table) for score in self.scores]

        def count(span: slice, columns: dict[str, Any], candidates: Mask) -> tuple[slice, Floats]:
            values = np.array([of(columns, candidates.size) for of in values_of])
            return span, np.where(np.isnan(values).all(0), np.nan, (values > np.array(cuts)[:, None]).sum(0))

        votes = filled(len(table), np.float32, table.scan(sorted(self.reads), count))
        return {"votes": votes, "cuts.npy": np.array(cuts)}
