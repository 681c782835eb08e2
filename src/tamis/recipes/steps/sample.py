"""A step that keeps better rows several times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tamis.core.arrays import Float64s
from tamis.core.errors import RecipeError, check_effect
from tamis.core.ids import scramble
from tamis.core.math.sampling import Cap, average_copies, whole_copies
from tamis.recipes.steps.outcome import IfMissing, ReadsColumns, Selection, verdict
from tamis.recipes.steps.steps import Of, budget_of
from tamis.runs.expression import parse
from tamis.runs.table import Table

_MOST = np.iinfo(np.uint16).max


@dataclass(frozen=True, kw_only=True)
class Sample(ReadsColumns):
    """Keeps rows several times by score, instead of a hard cut: n copies in all.

    The number of copies depends only on scores, uids and the seed. Rows with low scores are dropped.

    Attributes:
        score: an expression, a logit. Weights w, such as `concept_weight`, are log(w) with std: null.
        n: number of copies; it may exceed the number of rows.
        fraction, of: instead of n: copies per row of the candidates (survivors) or of the pool; may exceed 1.
        cap: "soft": good rows have one copy more per `alpha` of score, others exp(score) in proportion; "level": the
            same without rows below a level; "hard": copies in proportion to exp(score), up to `limit`.
        alpha: of "soft" and "level"; a smaller one repeats the best rows more often.
        limit: of "hard": maximum number of copies of a row.
        std: scores are scaled to this standard deviation, on which all rules depend; null: not scaled.
        seed: another seed rounds other rows up.
        missing: what to do with rows without a score.

    Cost: up to 4 microseconds and 130 bytes per row.
    Source: FLYT (2025, arXiv 2503.08805): alpha .15, limit 15, a standard deviation near 2.5.
    """

    name: ClassVar[str] = "sample"
    scores = ("score",)
    score: str
    n: int | None = None
    fraction: float | None = None
    of: Of = "survivors"
    cap: Cap = "soft"
    alpha: float = 0.15
    limit: int = 15
    std: float | None = 2.5
    seed: int = 0
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.n is None) == (self.fraction is None):
            raise ValueError("sample needs n (copies in all) or fraction (copies per row), and not both")
        for name in ("n", "fraction", "alpha", "limit", "std"):
            if (value := getattr(self, name)) is not None and not 0 < value < np.inf:
                raise ValueError(f"{name} must be above 0, got {value}")
        check_effect(self, "alpha" if self.cap == "hard" else "limit", because=f"cap: {self.cap} does not read it")
        check_effect(self, *(["of"] if self.n else []), because="n does not depend on the number of rows")

    @property
    def described(self) -> str:
        many = f"{self.n:,} copies" if self.n else f"{self.fraction:g} copies per row of the {self.of}"
        rule = f"at most {self.limit:,} of a row" if self.cap == "hard" else f"alpha {self.alpha:g}"
        return f"{many} by {self.score}, {self.cap} cap, {rule}"

    def select(self, table: Table) -> Selection:
        self.check_columns(table)
        candidates, times = table.candidates, np.zeros(len(table), np.uint16)
        score = parse(self.score).values(table)
        missing = ~np.isfinite(score) & candidates
        rows = np.flatnonzero(candidates & ~missing)
        rows = rows[np.argsort(score[rows], kind="stable")]  # sums of floats then do not depend on the order of rows
        copies, facts = budget_of(self, table), {}
        if rows.size and copies:
            counts = self._counts(score[rows], copies)
            rows, counts = rows[counts > 0], counts[counts > 0]
            times[rows] = whole_copies(counts, copies, scramble(*table.uids(rows), seed=self.seed))
            facts = {"most_copies_of_a_row": int(times.max()), "lowest_score": float(score[times > 0].min())}
        found = verdict(self, times > 0, missing, candidates, "not drawn", facts=facts, score=self.score)
        return replace(found, times=times)

    def _counts(self, score: Float64s, copies: int) -> Float64s:
        """Returns how often to keep each row on average."""
        what = f"sample: {copies:,} copies of {score.size:,} rows need more than"
        if self.cap == "hard" and copies > self.limit * score.size:
            raise RecipeError(f"{what} {self.limit:,} of one row: raise limit, or draw fewer")
        logits = score if self.std is None else (score - score.mean()) * (self.std / (score.std() or 1.0))
        counts = average_copies(logits, copies, cap=self.cap, alpha=self.alpha, limit=self.limit)
        if counts.max() > _MOST + 1e-6:  # rounding
            raise RecipeError(f"{what} {_MOST:,} of one row: raise alpha, lower std or limit, or draw fewer")
        return counts
