"""Steps that thin out crowded regions of the embeddings: quotas for clusters, and D2 pruning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.core.arrays import Float64s, Mask
from tamis.core.errors import at_least_one, check_effect, check_fraction
from tamis.core.ids import scramble
from tamis.core.math.pruning import nearest_others, pick_apart, quotas
from tamis.core.math.similarity import unit_rows
from tamis.recipes.steps.clusters import Clusters, ClusterStep, gather, order_by_group, order_by_uid
from tamis.recipes.steps.outcome import IfMissing, Selection, check_missing, verdict
from tamis.recipes.steps.steps import Of, budget_of, check_budget
from tamis.runs.expression import parse
from tamis.runs.table import Table

#: Other centres whose mean distance says how far a cluster stands apart (the published default).
_NEAREST = 20
#: Scores below count as this, as in the released code of D2: with negative ones a pick would raise its neighbours.
_LOWEST = 1e-7


@dataclass(frozen=True, kw_only=True)
class _Thinned(ClusterStep):
    """Shared by the steps here: clusters, and a number of rows to keep."""

    n: int | None = None
    fraction: float | None = None
    of: Of = "survivors"
    clusters: int | None = None
    embedding: str = "image_embedding"
    seed: int = 0
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        check_budget(self)
        super().__post_init__()

    @property
    def _budget(self) -> str:
        return f"{self.n:,} rows" if self.fraction is None else f"{100 * self.fraction:g} % of the {self.of}"


@dataclass(frozen=True, kw_only=True)
class Density(_Thinned):
    """Keeps fewer rows of dense clusters that have near neighbours, more of wide clusters that stand apart.

    Drop copies first (`semdedup`) and filter by quality: rows far from every centre may be noise.

    Attributes:
        n: how many rows to keep; or
        fraction: the share to keep, in [0, 1].
        of: with `fraction`: of the candidates, or of the whole pool.
        clusters: how many; None: one per thousand rows, of more than a million their square root. The paper: 100 for
            12.8 million pairs, 500 for 280 million.
        embedding: a column of stored embeddings. DINOv2's served the paper better than CLIP's.
        tau: above 0; the smaller, the more the quotas differ (softmax of the complexities / tau).
        balance: each cluster keeps at least this share of an equal split, in [0, 1].
        keep: which rows of a cluster: "hard", the farthest from its centre (as in the paper), "easy", the nearest, or
            "random".
        seed: for the clusters, for "random" and for ties.
        missing: what to do with rows without the embedding.

    Cost: k-means, a sort, k^2 d multiplications for k clusters. Memory: 60 bytes per row.

    Source: Abbas et al. 2024, "Effective pruning of web-scale datasets based on complexity of concept clusters"
        (arXiv 2401.04578).
    """

    name: ClassVar[str] = "density"
    reason: ClassVar[str] = "above the quota of its cluster"
    tau: float = 0.5
    balance: float = 0.5
    keep: Literal["hard", "easy", "random"] = "hard"

    def __post_init__(self) -> None:
        if not 0 < self.tau < np.inf:
            raise ValueError(f"tau must be above 0, got {self.tau}")
        check_fraction(self.balance, "balance")
        super().__post_init__()

    @property
    def described(self) -> str:
        return f"{self._budget} by the density of clusters of {self.embedding}"

    def choose(self, table: Table, clusters: Clusters) -> tuple[Mask, None, dict[str, Any]]:
        rows = np.flatnonzero(clusters.label >= 0)
        sign = {"hard": 1, "easy": -1, "random": 0}[self.keep]
        # Cluster and cosine in one number, so that by_uid sorts by both before it sorts by uid.
        key = np.round((sign * clusters.cosine[rows].astype(np.float64) + 2) * 2**29).astype(np.int64)
        key += clusters.label[rows].astype(np.int64) << 32
        order = order_by_uid(table, rows, groups=key, seed=self.seed)
        held, starts, sizes = np.unique(clusters.label[order], return_index=True, return_counts=True)
        distance = 1 - clusters.cosine[order].astype(np.float64)
        complexity = np.add.reduceat(distance, starts) / sizes
        if held.size > 1:
            _, near = nearest_others(clusters.centroids[held], min(_NEAREST, held.size - 1))
            complexity *= 1 - near.mean(1, dtype=np.float64)
        with np.errstate(over="ignore"):  # of a tiny tau; exp(-inf) is 0, as it should be
            shares = np.exp((complexity - complexity.max()) / self.tau)
        quota = quotas(shares / shares.sum(), sizes, min(budget_of(self, table), rows.size), self.balance)
        keep = np.zeros(len(table), bool)
        keep[order[np.arange(order.size) - np.repeat(starts, sizes) < np.repeat(quota, sizes)]] = True
        ends = np.quantile(quota / sizes, [0, 0.5, 1]).round(4).tolist()
        return keep, None, {"clusters": held.size, "kept_share_of_clusters": ends}  # lowest, median, highest


@dataclass(frozen=True, kw_only=True)
class D2(_Thinned):
    """Keeps rows of high score that are not near each other: D2 pruning, for difficulty (or quality) and diversity.

    Every row's score first grows by those of its nearest neighbours, so rows that stand for many come first. Then the
    row of highest score is taken, its neighbours' scores fall, and so on.

    Attributes:
        score: an expression; higher is kept. Scores below 1e-7 count as 1e-7.
        n, fraction, of: how many rows to keep, as in `density`.
        k: neighbours of a row, at least 1.
        gamma: how fast the effect of a taken row falls with the squared distance; from 0 to 1e9.
        mode: "weighted": neighbours lose exp(-gamma distance) * the taken row's score; "absolute": the whole score.
        clusters: neighbours are looked for within clusters; None: as in `density`. Fewer find nearer neighbours and
            take longer; 1 compares all with all.
        embedding: a column of stored embeddings.
        seed: for the clusters and for ties.
        missing: what to do with rows without the score or the embedding.

    Cost: k-means, n_k^2 d multiplications for a cluster of n_k rows, some microseconds per row kept and neighbour.
        Memory: 60 bytes per row and 8 per neighbour.

    Source: Maharana et al. 2024, "D2 pruning: message passing for balancing diversity and difficulty in data pruning"
        (arXiv 2310.07931). The released code for DataComp differs: docs/as-published.md.
    """

    name: ClassVar[str] = "d2"
    reason: ClassVar[str] = "near a better pair, or a low score"
    scores = ("score",)
    score: str
    k: int = 1
    gamma: float = 1.0
    mode: Literal["weighted", "absolute"] = "weighted"

    def __post_init__(self) -> None:
        at_least_one(k=self.k)
        if not 0 <= self.gamma <= 1e9:  # float32
            raise ValueError(f"gamma must be 0 or more, at most 1e9, got {self.gamma}")
        super().__post_init__()
        if self.mode == "absolute":
            check_effect(self, "gamma", because="mode: absolute does not read it")

    @property
    def poolwide(self) -> frozenset[str]:
        return parse(self.score).poolwide

    @property
    def described(self) -> str:
        return f"D2: {self._budget} by {self.score}, apart by {self.embedding}"

    def select(self, table: Table) -> Selection:
        self.check_columns(table)
        candidates, score = table.candidates, parse(self.score).values(table)
        missing = np.isnan(score) & candidates
        check_missing(self, missing, candidates, self.score)
        clusters, without = self.cluster(table.with_candidates(candidates & ~missing))
        keep, facts = np.zeros(len(table), bool), dict[str, Any]()
        if clusters is not None:
            keep, facts = self._pick(table, clusters, score)
        what = f"{self.score} and {self.embedding}"
        return verdict(self, keep, missing | without, candidates, self.reason, what=what, facts=facts)

    def _pick(self, table: Table, clusters: Clusters, score: Float64s) -> tuple[Mask, dict[str, Any]]:
        """Returns which clustered rows stay, and how many clusters there are."""
        order, starts = order_by_group(table, clusters.label, len(clusters.centroids), seed=self.seed)
        raised = np.maximum(score[order], _LOWEST)
        k = min(self.k, int(np.diff(starts).max()))  # a cluster has no more rows
        neighbours = np.empty((order.size, k), np.int32)
        weights = np.ones((order.size, k), np.float32)
        for group in gather(table, [self.embedding], order, starts):
            for _, span, (vectors,) in group:
                which, cosine = nearest_others(unit_rows(vectors), k)
                distance = np.clip(2 - 2 * cosine, 0, 1e9)  # squared, of unit rows; 1e9 for no neighbour
                neighbours[span] = np.where(which >= 0, which + span.start, -1)
                raised[span] += (np.exp(-distance) * raised[span][which]).sum(1)
                if self.mode == "weighted":
                    weights[span] = np.exp(-self.gamma * distance)
        n = min(budget_of(self, table), order.size)
        keep, ties = np.zeros(len(table), bool), scramble(*table.uids(order), seed=self.seed)
        keep[order[pick_apart(raised, neighbours, weights, n, ties)]] = True
        return keep, {"clusters": len(clusters.centroids)}
