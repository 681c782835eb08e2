"""SemDeDup: one pair of each group whose images mean the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import U64, Mask, Rows
from tamis.core.errors import check_fraction
from tamis.core.files.scratch import stored
from tamis.core.ids import format_uid, scramble
from tamis.core.math.order import number_of, ordered_bits, round_half_up
from tamis.core.math.similarity import equal_before, nearest_before, representatives, unit_rows
from tamis.recipes.steps.best import PLACES, first_places, rows_at
from tamis.recipes.steps.clusters import Chosen, Clusters, ClusterStep
from tamis.recipes.steps.outcome import IfMissing
from tamis.runs.reasons import Repeats, blocks
from tamis.runs.regroup import Records, regroup
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
        embeddings of one cluster, in float32, and 16 bytes per dropped row. Scratch: `regroup`, and 28 bytes per row.

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

    def choose(self, table: Table, clusters: Clusters) -> Chosen:
        """Returns which rows stay, the cosine above which rows are dropped, and facts about the groups."""
        centroids, count = clusters.centroids, len(clusters.centroids)
        dealt = regroup(table, [self.embedding], clusters.label, count, seed=self.seed)

        def look(cluster: int, places: slice, rows: Records, _: None) -> tuple[slice, Records]:
            vectors = rows["vectors"][self.embedding]
            unit = unit_rows(vectors)  # float16 rows are not quite of length 1, nor is a copy's cosine 1
            first = self._order(unit, centroids[cluster])
            nearest, row = nearest_before(unit[first])
            equal = equal_before(vectors[first])
            found = np.empty(first.size, [*PLACES, ("before", "i4")])
            found["row"], found["before"] = rows["row"][first], np.where(equal >= 0, equal, row)
            # Rounding must not affect exact duplicates.
            found["key"] = _key(np.where(equal >= 0, _COPY, np.minimum(nearest, 1)))
            found["tie"] = scramble(rows["high"][first], rows["low"][first])
            return places, found

        found = stored(len(dealt), [*PLACES, ("before", "i4")])
        for places, some in dealt.scan(look):
            found[places] = some
        if self.epsilon is not None:
            cut, least = float(1 - self.epsilon), _key(1 - self.epsilon)
            stays: Callable[[slice], Mask] = lambda places: found[places]["key"] >= least  # noqa: E731
        else:
            n = round_half_up(self.fraction or 0.0, len(found))
            last, stays = first_places(found, n)
            cut = -float(number_of(last)[0]) if n else -1.0
        epsilons = sorted({*self.also, *([] if self.epsilon is None else [self.epsilon])})
        limits, below = _key(1 - np.array(epsilons)), np.zeros(len(epsilons), np.int64)
        for places in blocks(len(found)):
            below += (found[places]["key"][:, None] >= limits).sum(0)

        def copies() -> Iterator[tuple[Rows, Rows]]:
            for start, stop in pairwise(dealt.starts.tolist()):
                some, stay = found[start:stop], stays(slice(start, stop))
                yield some["row"], representatives(some["before"].astype(np.int64), stay)

        facts, pairs = copies_in(table, copies())
        names = [np.format_float_positional(epsilon, trim="-") for epsilon in epsilons]
        shares = dict(zip(names, (below / len(dealt)).tolist(), strict=True))
        facts = {"clusters": count, "kept_share_by_epsilon": shares, **facts}
        return rows_at(table, found, stays).__getitem__, cut, facts, pairs

    def _order(self, unit: NDArray[np.float32], centroid: NDArray[np.float32]) -> Rows:
        """Returns the order in which to go through a cluster's unit rows, which come by scrambled uid."""
        if self.keep == "random":
            return np.arange(len(unit))
        # Computed again in the order of uids, so that the last bit does not depend on how the table is cut.
        cosine = unit @ centroid
        return np.argsort(cosine if self.keep == "hard" else -cosine, kind="stable")


def _key(cosine: Any) -> U64:
    """Returns keys that are high where the cosine, rounded to float32, is low."""
    return ordered_bits(-np.asarray(cosine, np.float32).astype(np.float64))


def repeats(rows: Rows, heads: Rows) -> Repeats:
    """Returns the rows that are not their own representatives, ascending, and these. Arguments as in `copies_in`."""
    copies = np.flatnonzero(heads != np.arange(rows.size))
    copies = copies[np.argsort(rows[copies])]
    return rows[copies], rows[heads[copies]]


def copies_in(table: Table, parts: Iterable[tuple[Rows, Rows]]) -> tuple[dict[str, Any], Repeats]:
    """Returns facts about groups of copies, and the rows that are not their own representatives, with these.

    The facts are the number of groups of more than one row, and uids of the largest, their representatives first.

    Args:
        table: the pool's rows.
        parts: row numbers (n,), and the index in them of each row's representative (n,). No group is in two parts.
    """
    count, first, largest, found = 0, 0, list[tuple[int, int, Rows]](), [np.zeros((2, 0), np.int64)]
    for rows, heads in parts:
        sizes = np.bincount(heads, minlength=rows.size)
        several = np.flatnonzero(sizes > 1)
        count += several.size
        several = several[sizes[several] > (-largest[-1][0] if len(largest) == _EXAMPLES else 1)]
        for head in several[np.lexsort((several, -sizes[several]))][:_EXAMPLES].tolist():
            members = np.flatnonzero(heads == head)
            members = np.concatenate([[head], members[members != head][:5]])
            largest.append((-int(sizes[head]), first + head, rows[members]))
        largest = sorted(largest, key=lambda each: each[:2])[:_EXAMPLES]
        found.append(np.stack(repeats(rows, heads)))
        first += rows.size
    examples = []
    for size, _, rows in largest:
        uids = [format_uid(*halves) for halves in zip(*table.uids(rows), strict=True)]
        examples.append({"uids": uids, "rows": rows.tolist(), "size": -size})
    pairs = np.concatenate(found, axis=1)
    pairs = pairs[:, np.argsort(pairs[0])]
    return {"groups": count, "largest_groups": examples}, (pairs[0], pairs[1])
