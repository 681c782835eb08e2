"""`cluster`: clusters of a run's stored embeddings, written as columns of the run."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import numpy as np

from tamis import __version__
from tamis.data import Column
from tamis.errors import RecipeError
from tamis.fingerprint import fingerprint
from tamis.selectors.clusters import assign, fit, usual_count
from tamis.selectors.vectors import check_vectors, embedded
from tamis.storage import files
from tamis.store import Run, manifest, open_run, parts
from tamis.store.checked import write_array
from tamis.store.claims import PREPARING_SECONDS, check_same_rows, held, locked


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
    opened = open_run(run, partial=partial)
    table = opened.table()
    check_vectors("cluster", table, [embedding])
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
        return Run(opened.path, partial=partial)
    for number, shard in enumerate(opened.shards):
        place = slice(int(table.starts[number]), int(table.starts[number + 1]))
        numbers = made.label[place]
        label_values = np.where(numbers >= 0, numbers, np.nan).astype(np.float32)
        values = {"cluster": label_values, "centroid_cosine": made.cosine[place]}
        reasons = [None if number >= 0 else "the row has no embedding" for number in numbers.tolist()]
        with held(opened, shard, patience=PREPARING_SECONDS) as uids:
            parts.write_scores(target / f"{shard}.parquet", columns, values, reasons, uids=uids)
    return Run(opened.path, partial=partial)
