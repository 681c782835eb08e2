"""`cluster`: the columns `cluster` and `centroid_cosine`, by spherical k-means over stored embeddings."""

from __future__ import annotations

import os

import numpy as np

from tamis.core.errors import RecipeError
from tamis.core.files.scratch import stored
from tamis.core.types import Column
from tamis.recipes.derived import Saved
from tamis.recipes.derived.columns import Computed, add_columns
from tamis.recipes.steps.clusters import assign, fit, has_embedding, usual_count
from tamis.recipes.steps.outcome import check_kind
from tamis.recipes.steps.steps import rows_of
from tamis.runs import Run, open_run
from tamis.runs.reasons import blocks


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
        clusters: how many; None: one per thousand rows, of more than a million their square root.
        embedding: which embeddings: the name of their folder, or its part before the fingerprint.
        seed: another seed gives other clusters.
        iterations: how often k-means moves the centres.
        partial: cluster the finished shards of an incomplete run.

    Raises:
        RunError: the run has no such embeddings, another command holds it, or its rows have changed since the start.
        RecipeError: the column holds no embeddings, no row has one, or there are fewer rows than clusters.
        DependencyError: faiss is not installed (a single cluster does not need it).
    """
    return add_clusters(run, clusters=clusters, embedding=embedding, seed=seed, iterations=iterations, partial=partial)[
        0
    ]


def add_clusters(
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
    there = has_embedding(table, folder)
    rows = rows_of(table.with_candidates(there), "survivors")
    if not rows:
        raise RecipeError(f"no row of {opened.path} has {embedding!r}: nothing can be clustered")
    count = clusters if clusters is not None else usual_count(rows)
    settings = {"clusters": count, "embedding": folder, "seed": seed, "iterations": iterations}
    columns = (
        Column(name="cluster", unit="number of a cluster", better="neither", about=f"which of {count:,} clusters"),
        Column(name="centroid_cosine", unit="cosine", better="neither", about="cosine with the cluster's centre"),
    )

    def compute(saved: Saved) -> Computed:
        made = assign(table, folder, there, fit(table, folder, there, count, seed=seed, iterations=iterations))
        numbers = stored(len(table), np.float32)
        for span in blocks(len(table)):
            numbers[span] = np.where((label := made.label[span]) >= 0, label, np.nan)
        return {"cluster": numbers, "centroid_cosine": made.cosine}, {"centroids.npy": made.centroids}

    return add_columns(opened, "cluster", "cluster", settings, columns, compute, reads=[embedding])
