"""Steps that thin out crowded regions of the embeddings: quotas for clusters, and D2 pruning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import at_least_one, check_effect, check_fraction
from tamis.core.files.scratch import filled, stored
from tamis.core.ids import scramble
from tamis.core.math.order import as_heads, ordered_bits
from tamis.core.math.pruning import nearest_others, pick_apart, quotas
from tamis.core.math.similarity import unit_rows
from tamis.recipes.steps.best import PLACES, Best, Ranked, by_row, by_uid, first_places, rows_at
from tamis.recipes.steps.clusters import Chosen, Clusters, ClusterStep
from tamis.recipes.steps.outcome import IfMissing
from tamis.recipes.steps.steps import Of, budget_of, check_budget
from tamis.runs.expression import parse
from tamis.runs.reasons import blocks
from tamis.runs.regroup import Records, regroup
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

    Cost: k-means, some passes over clusters and cosines, k^2 d multiplications for k clusters. Memory: what k-means is
        trained on. Scratch: 9 bytes per row.

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

    def choose(self, table: Table, clusters: Clusters) -> Chosen:
        label, count = clusters.label, len(clusters.centroids)
        sign = {"hard": 1, "easy": -1, "random": 0}[self.keep]

        def steps(rows: slice, sign: int) -> Rows:
            """Returns cosines as integers: in steps of 2^-29, above 0, so that sums are exact."""
            cosine = clusters.cosine[rows].astype(np.float64)
            return np.asarray(np.round((sign * np.nan_to_num(cosine) + 2) * 2**29), np.int64)

        sizes, sums = np.zeros((2, count), np.int64)
        for rows in blocks(len(table)):
            inside = label[rows] >= 0
            sizes += np.bincount(label[rows][inside], minlength=count)
            some = np.bincount(label[rows][inside], steps(rows, -1)[inside], minlength=count)
            sums += some.astype(np.int64)  # of a block they are exact
        held = np.flatnonzero(sizes)
        complexity = sums[held] / sizes[held] / 2**29 - 1  # the mean of 1 - cosine
        if held.size > 1:
            _, near = nearest_others(clusters.centroids[held], min(_NEAREST, held.size - 1))
            complexity *= 1 - near.mean(1, dtype=np.float64)
        with np.errstate(over="ignore"):  # of a tiny tau; exp(-inf) is 0, as it should be
            shares = np.exp((complexity - complexity.max()) / self.tau)
        every, quota = int(sizes.sum()), np.zeros(count, np.int64)
        quota[held] = quotas(shares / shares.sum(), sizes[held], min(budget_of(self, table), every), self.balance)

        def ranked(span: slice, columns: dict[str, Any], labels: Any) -> Ranked:
            keys = (2**31 - steps(span, sign)).astype(np.uint64) << np.uint64(33)
            return keys, labels.astype(np.int64), labels >= 0

        ties = (by_uid(table, self.seed), by_row)
        best = Best(table.with_candidates(label), [], ranked, lambda _: quota, every, ties, count)
        ends = np.quantile(quota[held] / sizes[held], [0, 0.5, 1]).round(4).tolist()
        facts = {"clusters": held.size, "kept_share_of_clusters": ends}  # lowest, median, highest
        return lambda span: best.kept(span, *ranked(span, {}, label[span])), None, facts, None


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

    Cost: k-means, n_k^2 d multiplications for a cluster of n_k rows, some microseconds per row and neighbour. Memory:
        the embeddings of one cluster in float32, and 256 MiB. Scratch: `regroup`, and 24 bytes per row.

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

    def usable(self, table: Table) -> Any:
        there, values = super().usable(table), parse(self.score).fit(table)

        def scored(span: slice, columns: dict[str, Any], there: Mask) -> tuple[slice, Mask]:
            return span, there & ~np.isnan(values(columns, there.size))

        return filled(len(table), bool, table.with_candidates(there).scan(sorted(parse(self.score).columns), scored))

    def choose(self, table: Table, clusters: Clusters) -> Chosen:
        columns, values = sorted(parse(self.score).columns), parse(self.score).fit(table)
        count = len(clusters.centroids)
        dealt = regroup(table, [self.embedding], clusters.label, count, seed=self.seed, score=(columns, values))
        k = min(self.k, int(np.diff(dealt.starts).max()))  # a cluster has no more rows

        def pick(cluster: int, places: slice, rows: Records, _: None) -> tuple[slice, Records]:
            which, cosine = nearest_others(unit_rows(rows["vectors"][self.embedding]), k)
            distance = np.clip(2 - 2 * cosine, 0, 1e9)  # squared, of unit rows; 1e9 for no neighbour
            raised = np.maximum(rows["score"], _LOWEST)
            raised += (np.exp(-distance) * raised[which]).sum(1)
            weights = np.exp(-self.gamma * distance) if self.mode == "weighted" else np.ones_like(distance)
            ties = scramble(rows["high"], rows["low"], self.seed)
            picks, scores = pick_apart(raised, which, weights, len(rows), ties)
            scores, ties = as_heads(scores, ties[picks])  # of all clusters together the highest score is next
            found = np.empty(len(rows), PLACES)
            found["row"], found["key"], found["tie"] = rows["row"][picks], ordered_bits(scores), ties
            return places, found

        found = stored(len(dealt), PLACES)
        for places, some in dealt.scan(pick):
            found[places] = some
        _, kept = first_places(found, min(budget_of(self, table), len(found)))
        return rows_at(table, found, kept).__getitem__, None, {"clusters": count}, None
