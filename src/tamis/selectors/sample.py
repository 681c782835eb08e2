"""A step that keeps better rows several times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from tamis.arrays import Float64s
from tamis.errors import RecipeError, at_least_one, check_words, without_effect
from tamis.ids import scramble
from tamis.math.order import round_half_up
from tamis.math.sampling import hard_cap, soft_cap, whole_copies
from tamis.selectors.expression import parse
from tamis.selectors.outcome import Selection, verdict
from tamis.selectors.steps import Missing, Of, check_numbers
from tamis.store.table import Table

_MOST = np.iinfo(np.uint16).max


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Keeps rows as often as their score deserves: exactly n copies in all, more of better rows.

    Trainers that see a fixed number of samples gain from repeats of good pairs instead of a hard cut. Rows with a
    low score are dropped. Rounding the numbers of copies depends only on uids and the seed.

    Attributes:
        score: an expression; a logit. For weights, as of `concept_weight`, write log(concept_weight) with std: null.
        n: number of copies in all; it may exceed the number of rows.
        fraction: instead of n: copies per row, also above 1.
        of: with `fraction`: of the candidates, or of the whole pool.
        cap: "soft": a row gets one copy more for each alpha that its score is higher; "hard": copies grow with
            exp(score), up to a limit.
        alpha: of the soft cap; a smaller one repeats the best rows more often.
        limit: of the hard cap; the most copies of a row.
        std: scores are scaled to this standard deviation over the rows that are judged, because both rules depend on
            the scale of scores. null takes them as they are.
        seed: another seed rounds other rows up.
        missing: what to do with rows without a score.

    Cost: two sorts; 60 bytes per row of memory.
    Source: FLYT (2025, arXiv 2503.08805): alpha .15, limit 15, scores with a standard deviation near 2.5.
    """

    name: ClassVar[str] = "sample"
    score: str
    n: int | None = None
    fraction: float | None = None
    of: Of = "survivors"
    cap: Literal["soft", "hard"] = "soft"
    alpha: float = 0.15
    limit: int = 15
    std: float | None = 2.5
    seed: int = 0
    missing: Missing = "error"

    def __post_init__(self) -> None:
        if (self.n is None) == (self.fraction is None):
            raise ValueError("sample needs n (copies in all) or fraction (copies per row), and not both")
        for name in ("n", "fraction"):
            if (value := getattr(self, name)) is not None and not 0 <= value < np.inf:
                raise ValueError(f"{name} must be 0 or more, got {value}")
        for name in ("alpha", "std"):
            if (value := getattr(self, name)) is not None and not 0 < value < np.inf:
                raise ValueError(f"{name} must be above 0, got {value}")
        at_least_one(limit=self.limit)
        if self.limit > _MOST:
            raise ValueError(f"limit can be at most {_MOST:,}, got {self.limit:,}")
        check_words(self)
        if self.fraction is None:
            without_effect(self, "of", because="n does not depend on the number of rows")
        unused, why = ("limit", "soft") if self.cap == "soft" else ("alpha", "hard")
        without_effect(self, unused, because=f"cap: {why} does not read it")

    @property
    def reads(self) -> frozenset[str]:
        return parse(self.score).columns

    @property
    def described(self) -> str:
        many = f"{self.n:,} copies" if self.n is not None else f"{self.fraction:g} copies per row of the {self.of}"
        rule = f"alpha {self.alpha:g}" if self.cap == "soft" else f"at most {self.limit} of a row"
        return f"{many} by {self.score} ({self.cap} cap, {rule})"

    def check_columns(self, table: Table) -> None:
        """Raises RecipeError if the score reads words or embeddings."""
        check_numbers(self.name, table, self.score)

    def select(self, table: Table) -> Selection:
        self.check_columns(table)
        candidates, times = table.candidates(), np.zeros(len(table), np.uint16)
        score = parse(self.score).values(table)
        missing = np.isnan(score) & candidates
        rows = np.flatnonzero(candidates & ~missing)
        rows = rows[np.argsort(score[rows], kind="stable")]  # sums of floats then do not depend on the order of rows
        of = len(table) if self.of == "pool" else int(np.count_nonzero(candidates))
        copies = self.n if self.n is not None else round_half_up(self.fraction or 0.0, of)
        level, facts = None, {}
        if rows.size and copies:
            counts, level = self._counts(score[rows], copies)
            some = rows[counts > 0]
            order = scramble(*table.uids(some), seed=self.seed)
            times[some] = whole_copies(counts[counts > 0], copies, order)
            facts = {"copies": copies, "most_copies_of_a_row": int(times.max())}
        found = verdict(self, times > 0, missing, candidates, "not drawn", level, facts=facts, score=self.score)
        return replace(found, times=times)

    def _counts(self, score: Float64s, copies: int) -> tuple[Float64s, float | None]:
        """Returns how often to keep each row on average, and the score at or below which rows are dropped, if any."""
        scale = 1.0 if self.std is None else self.std / (float(score.std()) or 1.0)
        logits = (score - score.mean()) * scale
        most = self.limit if self.cap == "hard" else _MOST
        if copies > most * score.size:
            raise RecipeError(
                f"sample: {copies:,} copies of {score.size:,} rows are more than {most:,} of each: lower n or fraction"
                + (", or raise limit" if self.cap == "hard" else "")
            )
        if self.cap == "hard":
            return hard_cap(logits, copies, self.limit), None
        counts, level = soft_cap(logits, copies, self.alpha)
        if counts.max() > _MOST:
            raise RecipeError(
                f"sample: the best row would be kept {counts.max():,.0f} times, at most {_MOST:,} are possible: raise "
                "alpha, or lower n, fraction or std"
            )
        return counts, level / scale + float(score.mean())
