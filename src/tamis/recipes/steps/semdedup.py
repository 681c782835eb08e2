"""SemDeDup: one pair of each group whose images mean the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import check_fraction
from tamis.core.ids import format_uid, scramble
from tamis.core.math.order import keep_top, round_half_up
from tamis.core.math.similarity import equal_before, nearest_before, representatives, unit_rows
from tamis.recipes.steps.clusters import Clusters, ClusterStep, gather, order_by_group
from tamis.recipes.steps.outcome import IfMissing
from tamis.runs.reasons import Repeats
from tamis.runs.table import Table

#: Groups whose members are listed in the facts, the largest first.
_EXAMPLES = 24

#: Replaces the cosine of equal rows. It is above every threshold, even for epsilon 0.
_COPY = np.nextafter(np.float32(1), np.float32(2))


@dataclass(frozen=True, kw_only=True)
class SemDeDup(ClusterStep):
    """Keeps one pair of each group of near duplicates: rows whose embeddings are within epsilon of each other.

    Rows are clustered. In each cluster a row is dropped if its cosine with a row before it is above 1 - epsilon.
    Duplicates in different clusters both stay: fewer clusters find more.

    Attributes:
        epsilon: 1 - the cosine from which two rows are the same, in [0, 2]: 0.05 finds copies that were recompressed
            or cropped a little, 0.3 rows that mean much the same, 0 only equal embeddings; or
        fraction: the share of the rows to keep, in [0, 1]: the rows least similar to any earlier row.
        clusters: how many, at most one per row; None: one per thousand rows, of more than a million
            their square root. 1 compares all with all.
        keep: which row comes first in a group: "hard", the one farthest from the cluster's centre (as in the paper),
            "easy", the nearest, or "random".
        embedding: a column of stored embeddings.
        also: further epsilons whose kept shares the facts report, from the same pass.
        seed: for the clusters and for "random".
        missing: what to do with rows without the embedding.

    Cost: k-means, then n_k^2 d / 2 multiplications for a cluster of n_k rows (docs/performance.md). Memory: the
        embeddings of one cluster, in float32, and 1 MiB of cosines.

    Source: Abbas et al. 2023, "SemDeDup: data-efficient learning at web-scale through semantic deduplication"
        (arXiv 2303.09540), section 3 and algorithm A7.
    """

    name: ClassVar[str] = "semdedup"
    reason: ClassVar[str] = "repeats another"
    epsilon: float | None = None
    fraction: float | None = None
    clusters: int | None = None
    keep: Literal["hard", "easy", "random"] = "hard"
    embedding: str = "image_embedding"
    also: tuple[float, ...] = ()
    seed: int = 0
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.fraction is None):
            raise ValueError(f"semdedup needs epsilon or fraction, got {'neither' if self.epsilon is None else 'both'}")
        for epsilon in (*self.also, *(() if self.epsilon is None else (self.epsilon,))):
            if not 0 <= epsilon <= 2:
                raise ValueError(f"epsilon is 1 - a cosine, between 0 and 2, got {epsilon}")
        if self.fraction is not None:
            check_fraction(self.fraction)
        super().__post_init__()

    @property
    def described(self) -> str:
        how = f"epsilon {self.epsilon:g}" if self.epsilon is not None else f"to {100 * (self.fraction or 0):g} %"
        return f"SemDeDup of {self.embedding}, {how}"

    def choose(self, table: Table, clusters: Clusters) -> tuple[Mask, float, dict[str, Any]]:
        """Returns which clustered rows stay, the cosine above which rows are dropped, and facts about the groups."""
        order, starts = order_by_group(table, clusters.label, len(clusters.centroids), seed=self.seed)
        cosine = np.full(order.size, -np.inf, np.float32)
        before = np.full(order.size, -1, np.int64)
        for group in gather(table, [self.embedding], order, starts):
            for cluster, span, (vectors,) in group:
                unit = unit_rows(vectors)  # float16 rows are not quite of length 1, nor is a copy's cosine 1
                first = self._order(unit, clusters.centroids[cluster])
                order[span] = order[span][first]
                nearest, row = nearest_before(unit[first])
                equal = equal_before(vectors[first])
                row = np.where(equal >= 0, equal, row)
                # Rounding must not affect exact duplicates.
                cosine[span] = np.where(equal >= 0, _COPY, np.minimum(nearest, 1))
                before[span] = np.where(row >= 0, row + span.start, -1)
        keep = np.zeros(len(table), bool)
        epsilons = [*self.also, *([] if self.epsilon is None else [self.epsilon])]
        shares = {epsilon: float((cosine <= np.float32(1 - epsilon)).mean()) for epsilon in sorted(epsilons)}
        if self.epsilon is not None:
            stays, cut = cosine <= np.float32(1 - self.epsilon), float(1 - self.epsilon)
        else:
            n = round_half_up(self.fraction or 0.0, order.size)
            every = np.ones(order.size, bool)
            stays, lowest = keep_top(-cosine, n, every, lambda places: scramble(*table.uids(order[places])))
            cut = float(-lowest) if lowest is not None else -1.0
        keep[order[stays]] = True
        facts = {
            "clusters": len(clusters.centroids),
            "kept_share_by_epsilon": {np.format_float_positional(e, trim="-"): share for e, share in shares.items()},
            **groups(table, order, heads := representatives(before, stays)),
            "repeats": repeats(order, heads),
        }
        return keep, cut, facts

    def _order(self, unit: NDArray[np.float32], centroid: NDArray[np.float32]) -> Rows:
        """Returns the order in which to go through a cluster's unit rows, which come by scrambled uid."""
        if self.keep == "random":
            return np.arange(len(unit))
        # Computed again in the order of uids, so that the last bit does not depend on how the table is cut.
        cosine = unit @ centroid
        return np.argsort(cosine if self.keep == "hard" else -cosine, kind="stable")


def repeats(order: Rows, heads: Rows) -> Repeats:
    """Returns the rows that are not their own representatives, ascending, and these. Arguments as in `groups`."""
    copies = np.flatnonzero(heads != np.arange(order.size))
    copies = copies[np.argsort(order[copies])]
    return order[copies], order[heads[copies]]


def groups(table: Table, order: Rows, heads: Rows) -> dict[str, Any]:
    """Returns the number of groups of more than one row, and uids of the largest, their representatives first.

    `order` are (n,) row numbers; `heads` (n,) are indices into the order: the representative of each row.
    """
    sizes = np.bincount(heads, minlength=order.size)
    several = np.flatnonzero(sizes > 1)
    largest = several[np.lexsort((several, -sizes[several]))][:_EXAMPLES]
    examples = []
    for head in largest.tolist():
        members = np.flatnonzero(heads == head)
        members = np.concatenate([[head], members[members != head][:5]])
        rows = order[members]
        uids = [format_uid(*halves) for halves in zip(*table.uids(rows), strict=True)]
        examples.append({"uids": uids, "rows": rows.tolist(), "size": int(sizes[head])})
    return {"groups": int(several.size), "largest_groups": examples}
