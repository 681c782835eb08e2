"""Clusters of stored embeddings: spherical k-means, and the cluster of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float32s, Mask
from tamis.errors import RecipeError, needs_extra
from tamis.math.similarity import unit_rows
from tamis.selectors.outcome import check_missing
from tamis.selectors.vectors import BLOCK, by_uid, check_vectors, embedded
from tamis.store.table import Table

#: Rows per centroid that k-means is trained on, as faiss would sample them; and at least so many rows in all, so that
#: the centre of a single cluster is not that of 256 rows.
_PER_CENTROID, _AT_LEAST = 256, 1 << 16


class Clustering(Protocol):
    """The settings of a step that clusters rows. `clusters` None: one per thousand rows."""

    @property
    def name(self) -> str: ...
    @property
    def embedding(self) -> str: ...
    @property
    def clusters(self) -> int | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def missing(self) -> str: ...


@dataclass(frozen=True)
class Clusters:
    """The cluster of each row.

    Attributes:
        centroids: (k, d) float32 unit rows.
        label: (rows,) the cluster of each row of the table, -1 if it is not in question or has no embedding.
        cosine: (rows,) with the cluster's centroid, NaN where there is none.
    """

    centroids: Float32s
    label: NDArray[np.int32]
    cosine: Float32s


def clustered(step: Clustering, table: Table) -> tuple[Clusters | None, Mask]:
    """Clusters the rows in question, with a step's settings.

    Returns:
        The clusters, None if no row has the embedding; and (rows,) bool: rows in question that lack it.

    Raises:
        RecipeError: the column holds no vectors, or rows lack them and the step says `missing: error`.
        DependencyError: faiss is not installed (a single cluster does not need it).
    """
    check_vectors(step.name, table, [step.embedding])
    alive = table.living()
    there = embedded(table, step.embedding)
    missing = alive & ~there
    check_missing(step, missing, alive, step.embedding)  # before the work, not after it
    rows = int(np.count_nonzero(there))
    if not rows:
        return None, missing
    count = min(step.clusters or usual_count(rows), rows)
    centroids = fit(table, step.embedding, there, count, seed=step.seed)
    return assign(table, step.embedding, there, centroids), missing


def usual_count(rows: int) -> int:
    """Returns a number of clusters for so many rows: about a thousand rows each, at most 50,000 clusters."""
    return min(max(rows // 1000, 1), 50_000)


def fit(table: Table, name: str, there: Mask, count: int, *, seed: int = 0, iterations: int = 20) -> Float32s:
    """Returns the centroids of spherical k-means: (count, d) float32 unit rows.

    k-means is trained on 256 rows per centroid, at least 65,536, drawn by uid: neither row order nor blocks matter.

    Args:
        table: whose rows.
        name: a column of vectors.
        there: (rows,) bool, which rows to cluster.
        count: the number of clusters, at most the number of rows.
        seed: another seed draws other rows and other first centroids.
        iterations: of k-means.

    Raises:
        RecipeError: there are fewer rows than clusters.
        DependencyError: faiss is not installed (a single cluster does not need it).
    """
    rows = np.flatnonzero(there)
    if not 1 <= count <= rows.size:
        raise RecipeError(
            f"{count:,} clusters of {rows.size:,} rows that have {name!r}: ask for fewer clusters than there are rows"
        )
    most = max(count * _PER_CENTROID, _AT_LEAST)
    vectors = unit_rows(table.vectors(name, by_uid(table, rows, seed=seed)[:most]))
    if count == 1:
        return unit_rows(vectors.mean(0, dtype=np.float64, keepdims=True))
    try:
        import faiss
    except ImportError as error:
        raise needs_extra("faiss-cpu", "cover") from error
    kmeans = faiss.Kmeans(
        vectors.shape[1],
        count,
        niter=iterations,
        spherical=True,
        seed=seed % (1 << 31),  # faiss takes 31 bits, and reads the clock if it gets a negative number
        min_points_per_centroid=1,
        max_points_per_centroid=most // count + 1,  # all of the sample
    )
    kmeans.train(vectors)
    return unit_rows(np.asarray(kmeans.centroids, np.float32).reshape(count, -1))


def assign(table: Table, name: str, there: Mask, centroids: Float32s) -> Clusters:
    """Returns for every row the centroid of largest cosine; ties go to the lower number.

    Raises:
        RecipeError: embeddings and centroids have different sizes.
    """
    label = np.full(len(table), -1, np.int32)
    cosine = np.full(len(table), np.nan, np.float32)

    def work(place: slice, columns: dict[str, Any]) -> None:
        vectors = columns[name]
        if vectors.shape[1] != centroids.shape[1]:
            raise RecipeError(
                f"{name!r} has {vectors.shape[1]} dimensions, the centroids {centroids.shape[1]}: they must come from "
                "one model"
            )
        for start in range(0, len(vectors), BLOCK):
            rows = start + np.flatnonzero(there[place][start : start + BLOCK])
            if rows.size:
                some = vectors[rows].astype(np.float32)
                products = some @ centroids.T  # (rows, k)
                best = products.argmax(1)
                label[place.start + rows] = best
                length = np.sqrt(np.einsum("nd,nd->n", some, some))  # float16 rows are not quite of length 1
                cosine[place.start + rows] = products[np.arange(rows.size), best] / length

    list(table.map([name], work))
    return Clusters(centroids, label, cosine)
