"""Keeps the rows that are most like the others that stay: NormSim without targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from tamis.core.arrays import Float64s, Floats, Rows
from tamis.core.errors import at_least_one
from tamis.core.math.order import keep_top
from tamis.core.math.similarity import unit_rows
from tamis.recipes.steps.clusters import BLOCK, GATHER, has_embedding, order_by_uid, second_moments
from tamis.recipes.steps.outcome import Blockwise, IfMissing, ReadsPool, Rule, check_missing, rule_by
from tamis.recipes.steps.steps import Of, budget_of, check_budget
from tamis.runs.table import Table


@dataclass(frozen=True, kw_only=True)
class NormSimD(ReadsPool, Blockwise):
    """Keeps a share of rows in rounds: each drops those least like the rows that are left (NormSim-2-D, VAS-D).

    The likeness of a row f to them is f^T S f, where S is the sum of x x^T over their embeddings; in the first round,
    over those of all rows of the pool. Choose good pairs first, for example the best 30 % by `clip_loss`.

    Attributes:
        fraction: in [0, 1]; or
        n: number of rows.
        of: as in `top_fraction`.
        rounds: number of rounds; each drops the same number of rows.
        embedding: a column of stored image embeddings.
        missing: what to do with rows without the embedding.

    Cost: rows * d^2 multiplications for each of the first two rounds, and for the rows near the cut in each later
        one. Each round finds the eigenvalues of a (d, d) matrix as well, 0.05 s for d = 768. Memory: the embeddings of
        the candidates, as they are stored.

    Source: Wang et al. 2024 (arXiv 2405.19547), section 3.3, with 500 rounds as in their scripts. Rows that leave are
        subtracted from S instead of summing the others again.
    """

    name: ClassVar[str] = "norm_sim_d"
    vectors = ("embedding",)
    fraction: float | None = None
    n: int | None = None
    of: Of = "survivors"
    rounds: int = 500
    embedding: str = "image_embedding"
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        check_budget(self)
        at_least_one(rounds=self.rounds)
        super().__post_init__()

    @property
    def described(self) -> str:
        budget = f"{self.n:,} rows" if self.fraction is None else f"{100 * self.fraction:g} % of the {self.of}"
        return f"{budget} that are most like each other by {self.embedding}"

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        candidates, there = table.candidates, has_embedding(table, self.embedding)[:]
        missing = candidates & ~there
        check_missing(self, missing, candidates, self.embedding)
        rows = order_by_uid(table, np.flatnonzero(there))
        budget = budget_of(self, table)
        keep = np.zeros(len(table), bool)
        if budget >= rows.size:
            keep[rows] = True
        else:
            moments = self._moments(table.with_candidates(None))
            keep[rows[most_alike(table.vectors(self.embedding, rows), moments, budget, self.rounds)]] = True
        masks = keep.__getitem__, missing.__getitem__
        return rule_by(self, *masks, "least like the rows that stay", what=self.embedding)

    def _moments(self, pool: Table) -> Float64s:
        """Returns the sum of x x^T over the embeddings of every row."""
        rows = order_by_uid(pool, np.flatnonzero(has_embedding(pool, self.embedding)[:]))
        parts = np.array_split(rows, -(-rows.size // GATHER))
        blocks = [second_moments(unit_rows(pool.vectors(self.embedding, part))) for part in parts]
        return np.asarray(np.sum(blocks, axis=0))


def most_alike(vectors: Floats, moments: Float64s, n: int, rounds: int) -> Rows:
    """Returns the n rows that are left after rounds that each drop the rows of smallest f^T S f: ascending numbers.

    `vectors` are (m, d) of any length, n < m; `moments` is S of the first round, (d, d). Later S is the sum of x x^T
    over the rows that are left. Of equal rows, the first stays.

    When rows leave S, a score falls, but by no more than the largest eigenvalue of their x x^T. So a round computes
    only the scores that may be among the lowest; the result is that of computing all.
    """
    left = np.arange(len(vectors))
    score, least = np.full(left.size, np.inf), np.full(left.size, -np.inf)  # when last computed; now at least
    drops = np.diff(np.linspace(0, left.size - n, min(rounds, left.size - n) + 1).astype(np.int64))
    for number, count in enumerate(drops.tolist()):
        near = np.flatnonzero(least <= np.partition(score, count - 1)[count - 1])
        for start in range(0, near.size, BLOCK):
            some = near[start : start + BLOCK]
            unit = unit_rows(vectors[left[some]]).astype(np.float64)
            score[some] = least[some] = np.einsum("nd,nd->n", unit @ moments, unit)
        every = np.ones(left.size, bool)
        stay, _ = keep_top(score, left.size - count, every, lambda tied: tied.astype(np.uint64))
        gone = _moments_of(vectors, left[~stay]) if number else moments - _moments_of(vectors, left[stay])
        moments = moments - gone
        with threadpool_limits(1, user_api="blas"):  # several threads are slower here
            fall = np.linalg.eigvalsh(gone)[-1] + 1e-9 * np.trace(moments)  # rounding
        left, score, least = left[stay], score[stay], least[stay] - fall
    return left


def _moments_of(vectors: Floats, rows: Rows) -> Float64s:
    parts = (vectors[rows[start : start + BLOCK]] for start in range(0, rows.size, BLOCK))
    return sum((second_moments(unit_rows(part)) for part in parts), np.zeros((vectors.shape[1],) * 2))
