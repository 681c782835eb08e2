"""Clusters of stored embeddings by spherical k-means: for steps, and `cluster`, which writes them as columns."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis import __version__
from tamis.arrays import Float32s, Mask
from tamis.data import Column
from tamis.errors import RecipeError, at_least_one, check_words, needs_extra
from tamis.ids import fingerprint
from tamis.math.similarity import unit_rows
from tamis.selectors.outcome import check_kind, check_missing
from tamis.selectors.vectors import BLOCK, by_uid, embedded
from tamis.storage import files
from tamis.store import Run, manifest, open_run, parts
from tamis.store.checked import write_array
from tamis.store.claims import PREPARING_SECONDS, check_same_rows, held, locked
from tamis.store.table import Table

#: Rows per centroid that k-means is trained on, as faiss would sample them; and the minimum in all, so k=1 uses
#: enough rows.
_PER_CENTROID, _AT_LEAST = 256, 1 << 16


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


class ClusterStep:
    """A step that clusters rows by one column of embeddings."""

    name: ClassVar[str]
    embedding: str
    clusters: int | None
    seed: int
    missing: str

    def __post_init__(self) -> None:
        at_least_one(clusters=1 if self.clusters is None else self.clusters)
        check_words(self)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.embedding})

    def check_columns(self, table: Table) -> None:
        """Raises RecipeError if the column holds no embeddings."""
        check_kind(self.name, table, self.embedding, "vector")

    def cluster(self, table: Table) -> tuple[Clusters | None, Mask]:
        """Returns the clusters of the candidates, None if no row has the embedding; and which rows lack it."""
        self.check_columns(table)
        alive = table.living()
        there = embedded(table, self.embedding)
        missing = alive & ~there
        check_missing(self, missing, alive, self.embedding)  # before the work, not after it
        rows = int(np.count_nonzero(there))
        if not rows:
            return None, missing
        count = min(self.clusters or usual_count(rows), rows)
        return assign(table, self.embedding, there, fit(table, self.embedding, there, count, seed=self.seed)), missing


def usual_count(rows: int) -> int:
    """Returns a number of clusters: about a thousand rows each, at most 50,000 clusters."""
    return min(max(rows // 1000, 1), 50_000)


def fit(table: Table, name: str, there: Mask, count: int, *, seed: int = 0, iterations: int = 20) -> Float32s:
    """Returns the centroids of spherical k-means over the rows that are there: (count, d) float32 unit rows.

    It is trained on 256 rows per centroid, at least 65,536, drawn by uid: neither row order nor blocks matter.
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
    """Returns for every row that is there the centroid of largest cosine; ties go to the lower number."""
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


def cluster(
    run: str | os.PathLike[str] | Run,
    *,
    clusters: int | None = None,
    embedding: str = "image_embedding",
    seed: int = 0,
    iterations: int = 20,
    partial: bool = False,
) -> Run:
    """Gives every row of a run the columns `cluster` and `centroid_cosine`, from its stored embeddings.

    Recipes use them like any score: `per: cluster` in top_n and top_fraction, `equals: {score: cluster, value: 7}`. The
    same call again does nothing; after more shards were scored it starts over, since their rows move the centres.

    Args:
        run: a run folder with stored embeddings (`--keep embeddings`).
        clusters: how many; None: one per thousand rows.
        embedding: which embeddings: the name of their folder, or its part before the fingerprint.
        seed: another seed gives other clusters.
        iterations: of k-means.
        partial: cluster the finished shards of an incomplete run.

    Returns:
        The run, opened again.

    Raises:
        RunError: the run has no such embeddings, another command holds it, or its rows have changed since the start.
        RecipeError: the column holds no embeddings, no row has one, or there are fewer rows than clusters.
        DependencyError: faiss is not installed (a single cluster does not need it).
    """
    return labelled_clusters(
        run, clusters=clusters, embedding=embedding, seed=seed, iterations=iterations, partial=partial
    )[0]


def labelled_clusters(
    run: str | os.PathLike[str] | Run,
    *,
    clusters: int | None,
    embedding: str,
    seed: int,
    iterations: int = 20,
    partial: bool = False,
) -> tuple[Run, str]:
    """Does what `cluster` does; returns the run and the label of its new columns."""
    opened = open_run(run, partial=partial)
    table = opened.table()
    check_kind("cluster", table, embedding, "vector")
    folder = opened.locate(embedding)[0]
    there = embedded(table, folder)
    rows = int(there.sum())
    if not rows:
        raise RecipeError(f"no row of {opened.path} has {embedding!r}: nothing can be clustered")
    count = clusters if clusters is not None else usual_count(rows)
    settings: dict[str, Any] = {"clusters": count, "embedding": folder, "seed": seed, "iterations": iterations}
    settings["stamps"] = list(opened.stamps)  # other rows have other clusters
    stem = fingerprint({"name": "cluster", "version": 1, "settings": settings})
    columns = (
        Column(name="cluster", unit="number of a cluster", better="neither", about=f"which of {count:,} clusters"),
        Column(name="centroid_cosine", unit="cosine", better="neither", about="cosine with the cluster's centre"),
    )
    target = opened.path / "scores" / f"cluster-{stem}"
    made = None
    if not set(opened.shards) <= files(target, ".parquet"):
        made = assign(table, folder, there, fit(table, folder, there, count, seed=seed, iterations=iterations))
        check_same_rows(opened, opened.shards)  # that took a while
    # Only now: clusters that cannot be made (too many, no faiss) must not leave empty columns in the run.
    with locked(opened.path, doing="notes its clusters", patience=PREPARING_SECONDS):
        labels = manifest.labels_of(opened.path)
        label = "cluster" if labels.get("cluster", stem) == stem else f"cluster_{stem[:4]}"
        facts = {"name": "cluster", "label": label, "version": 1, "settings": settings, "tamis": __version__}
        facts["columns"] = [asdict(column) for column in columns]
        manifest.describe(opened.path, {f"scores/{target.name}": facts})  # even if only this file was lost
        if made is not None:
            write_array(target / "centroids.npy", made.centroids)
    if made is None:
        return Run(opened.path, partial=partial), label
    for shard, place in opened.places.items():
        numbers = made.label[place]
        label_values = np.where(numbers >= 0, numbers, np.nan).astype(np.float32)
        values = {"cluster": label_values, "centroid_cosine": made.cosine[place]}
        reasons = [None if number >= 0 else "the row has no embedding" for number in numbers.tolist()]
        with held(opened, shard, patience=PREPARING_SECONDS) as uids:
            parts.write_scores(target / f"{shard}.parquet", columns, values, reasons, uids=uids)
    return Run(opened.path, partial=partial), label
