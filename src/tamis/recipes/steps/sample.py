"""A step that keeps better rows several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tamis.core.arrays import Rows
from tamis.core.errors import RecipeError, at_least_one, check_effect
from tamis.core.files.scratch import filled, stored
from tamis.core.ids import seed_of_epoch
from tamis.core.math.sampling import (
    MOST,
    Cap,
    Copies,
    Drawn,
    Scan,
    Spread,
    average_copies,
    shuffled_copies,
    whole_copies,
)
from tamis.recipes.steps.best import by_uid
from tamis.recipes.steps.outcome import Blockwise, IfMissing, ReadsColumns, Rule, check_missing
from tamis.recipes.steps.steps import Of, budget_of, candidates_of
from tamis.runs.expression import parse
from tamis.runs.reasons import DropReason
from tamis.runs.table import Table


@dataclass(frozen=True, kw_only=True)
class Sample(ReadsColumns, Blockwise):
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
        epochs: draws this often, each time with another seed; each epoch has n copies. The subset has an order: epoch
            after epoch, each shuffled.
        seed: another seed rounds other rows up.
        missing: what to do with rows without a score.

    Cost: six passes or a few more over the scores, 1 µs per row; two more for each epoch. Memory: 300 MB, and 4 bytes
        per row for the copies; 22 bytes per row are stored. Of several epochs 8 bytes per copy.
    Source: FLYT (2025, arXiv 2503.08805): alpha .15, limit 15, a standard deviation near 2.5. A new draw for
        each epoch: Liang et al. 2026, DynamiCS (arXiv 2604.27932).
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
    epochs: int = 1
    seed: int = 0
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.n is None) == (self.fraction is None):
            raise ValueError("sample needs n (copies in all) or fraction (copies per row), and not both")
        for name in ("n", "fraction", "alpha", "limit", "std"):
            if (value := getattr(self, name)) is not None and not 0 < value < np.inf:
                raise ValueError(f"{name} must be above 0, got {value}")
        at_least_one(epochs=self.epochs)
        check_effect(self, "alpha" if self.cap == "hard" else "limit", because=f"cap: {self.cap} does not read it")
        check_effect(self, *(["of"] if self.n else []), because="n does not depend on the number of rows")

    @property
    def described(self) -> str:
        many = f"{self.n:,} copies" if self.n else f"{self.fraction:g} copies per row of the {self.of}"
        rule = f"at most {self.limit:,} of a row" if self.cap == "hard" else f"alpha {self.alpha:g}"
        often = f", {self.epochs:,} epochs" if self.epochs > 1 else ""
        return f"{many} by {self.score}, {self.cap} cap, {rule}{often}"

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        scan = parse(self.score).scan(table)
        spread, candidates, copies = Spread.of(scan), candidates_of(table), budget_of(self, table)
        check_missing(self, lacking := candidates - spread.count, candidates, self.score)
        facts, drawn, order = {}, Drawn(stored(len(table), np.uint16)), None
        if spread.count and copies:
            rule = self._rule(scan, spread, copies)
            each = [self._draw(table, scan, epoch, spread.count, copies, rule) for epoch in range(self.epochs)]
            drawn = each[0] if self.epochs == 1 else self._joined(each)
            facts = {"most_copies_of_a_row": drawn.most, "lowest_score": drawn.lowest}
            if self.epochs > 1:
                order = self._in_order(table, each)
        scored = lambda span, rows, _: (span, np.bincount(rows, minlength=span.stop - span.start))  # noqa: E731
        known = filled(len(table), np.uint8, scan(scored) if lacking else ())
        return Rule(
            decide=lambda span, read, _: np.where(drawn.times[span] > 0, 0, 2 - known[span] if lacking else 1),
            reasons=[DropReason(text=text, score=self.score) for text in ("not drawn", f"no value for {self.score}")],
            lacking=self.score,
            facts=facts,
            joined=lambda keep: {"times": drawn.times[:], "order": order},
        )

    def _draw(self, table: Table, scan: Scan[Any], epoch: int, rows: int, copies: int, rule: Copies) -> Drawn:
        ties = by_uid(table, seed_of_epoch(self.seed, epoch))
        return whole_copies(scan, lambda span, rows: ~ties(span, rows), len(table), rows, copies, rule)

    def _joined(self, epochs: Sequence[Drawn]) -> Drawn:
        """Returns how often rows are drawn in all epochs."""
        times = np.sum([drawn.times[:] for drawn in epochs], axis=0, dtype=np.int64)
        if times.max() > MOST:
            raise RecipeError(f"sample: {self.epochs:,} epochs need more than {MOST:,} copies of one row: take fewer")
        lowest = min(drawn.lowest for drawn in epochs)
        return replace(epochs[0], times=times.astype(np.uint16), most=int(times.max()), lowest=lowest)

    def _in_order(self, table: Table, epochs: Sequence[Drawn]) -> Rows:
        high, low = table.uids(np.arange(len(table)))
        shuffle = partial(shuffled_copies, high, low, seed=self.seed)
        return np.concatenate([shuffle(drawn.times[:], epoch=number)[0] for number, drawn in enumerate(epochs)])

    def _rule(self, scan: Callable[..., Iterator[Any]], spread: Spread, copies: int) -> Copies:
        """Returns how often to keep each row on average."""
        what = f"sample: {copies:,} copies of {spread.count:,} rows need more than"
        if self.cap == "hard" and copies > self.limit * spread.count:
            raise RecipeError(f"{what} {self.limit:,} of one row: raise limit, or draw fewer")
        rule = average_copies(scan, spread, copies, Copies(cap=self.cap, alpha=self.alpha, limit=self.limit), self.std)
        if rule.of(np.array([spread.high]))[0] > MOST + 1e-6:  # rounding
            raise RecipeError(f"{what} {MOST:,} of one row: raise alpha, lower std or limit, or draw fewer")
        return rule
