"""A map of stored embeddings: PaCMAP lays out a sample, and every other row goes near its nearest laid-out rows."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tamis.arrays import Float32s, Float64s, Mask, Rows
from tamis.data import Column
from tamis.errors import RecipeError, needs_extra
from tamis.math.similarity import unit_rows
from tamis.selectors.clusters import by_uid, embedded
from tamis.selectors.outcome import check_kind
from tamis.store import Run, open_run
from tamis.store.derived import add_columns
from tamis.store.table import Table

#: Dimensions that PaCMAP sees, and laid-out neighbours that place every other row.
_DIMENSIONS, _NEIGHBOURS = 100, 5

#: The fewest rows that PaCMAP can lay out; fewer get their principal components.
_FEWEST = 10

#: Rows in memory at once, and laid-out rows from which the search for neighbours uses an index.
_CHUNK, _INDEXED = 1 << 15, 20_000


def lay_out(
    run: str | os.PathLike[str] | Run,
    *,
    of: str = "image",
    sample: int = 100_000,
    seed: int = 0,
    partial: bool = False,
) -> Run:
    """Gives every row of a run the columns `map_x` and `map_y`, its position on a map of stored embeddings.

    The explorer's map shows them. Near rows are alike; distances between islands mean little. The same call again does
    nothing. On one machine with one number of threads the same seed gives the same map; elsewhere rounding differs, and
    so may the map.

    Args:
        run: a run folder with stored embeddings (`--keep embeddings`).
        of: "image", "text", "both" (one after the other, each of length 1), or the name of stored embeddings.
        sample: the most rows that PaCMAP lays out, drawn by uid. Every other row gets the median position of its five
            nearest laid-out rows.
        seed: another seed gives another map.
        partial: lay out the finished shards of an incomplete run.

    Returns:
        The run, opened again. Rows without embedding have no position (NaN).

    Raises:
        RunError: the run has no such embeddings, another command holds it, or its rows have changed since the start.
        RecipeError: the column holds no embeddings, or no row has one.
        DependencyError: pacmap is not installed.

    Source: Wang et al. 2021, "Understanding how dimension reduction tools work" (JMLR 22), in the package pacmap.
    """
    return labelled_layout(run, of=of, sample=sample, seed=seed, partial=partial)[0]


def labelled_layout(
    run: str | os.PathLike[str] | Run, *, of: str, sample: int, seed: int, partial: bool
) -> tuple[Run, str]:
    """Does what `lay_out` does; returns the run and the label of its new columns."""
    if sample < _FEWEST:
        raise RecipeError(f"the sample is {sample} rows, a map needs at least {_FEWEST}")
    opened = open_run(run, partial=partial)
    table = opened.table()
    sides = ["image", "text"] if of == "both" else [of]
    names = [f"{side}_embedding" if side in ("image", "text") else side for side in sides]
    for name in names:
        check_kind("map", table, name, "vector")
    folders = [opened.locate(name)[0] for name in names]
    there = np.logical_and.reduce([embedded(table, folder) for folder in folders])
    if not there.any():
        raise RecipeError(f"no row of {opened.path} has {' and '.join(names)}: there is nothing to lay out")
    settings = {"embeddings": folders, "sample": sample, "seed": seed}
    columns = [
        Column(name=f"map_{axis}", unit="", better="neither", about=f"position on the map of {' and '.join(names)}")
        for axis in "xy"
    ]

    def compute() -> tuple[dict[str, Float32s], dict[str, Any]]:
        points = positions(table, folders, there, sample=sample, seed=seed)
        return {"map_x": points[:, 0].copy(), "map_y": points[:, 1].copy()}, {}

    return add_columns(opened, "map", settings, columns, compute, label=f"map_{of}")


def positions(table: Table, names: Sequence[str], there: Mask, *, sample: int, seed: int) -> Float32s:
    """Returns the position of every row in [-1, 1]: (rows, 2) float32, NaN where there is no embedding."""

    def read(rows: Rows) -> Float32s:
        return joined(table, names, rows)

    every = np.flatnonzero(there)
    laid = np.sort(by_uid(table, every, seed=seed)[:sample])
    axes = Axes(read, laid, _DIMENSIONS)
    vectors = np.concatenate([axes(read(chunk)) for chunk in chunks(laid)])  # (laid, dimensions)
    points = vectors[:, :2] if laid.size < _FEWEST else embed(vectors, seed=seed)
    ends = points.min(axis=0), points.max(axis=0)
    points = (points - (ends[0] + ends[1]) / 2) / max(float((ends[1] - ends[0]).max()) / 2, 1e-12)
    out = np.full((len(table), 2), np.nan, np.float32)
    out[laid] = points
    rest = np.setdiff1d(every, laid, assume_unique=True)
    if rest.size:
        nearest = neighbours_among(vectors)
        for chunk in chunks(rest):
            out[chunk] = np.median(points[nearest(axes(read(chunk)))], axis=1)
    return out


def joined(table: Table, names: Sequence[str], rows: Rows) -> Float32s:
    """Returns the stored embeddings of some rows, each of length 1, one after the other: (n, d); NaN where missing."""
    return np.concatenate([unit_rows(table.vectors(name, rows)) for name in names], axis=1)


def chunks(rows: Rows) -> list[Rows]:
    return [rows[start : start + _CHUNK] for start in range(0, rows.size, _CHUNK)]


class Axes:
    """Principal components of rows' vectors; the call `axes(vectors)` returns coordinates (n, k) float32.

    `read` returns the vectors of ascending rows, a chunk at a time. Memory: d x d numbers. Signs make the largest
    weight of each component positive. Source: Pearson 1901.

    `shares` (k,): the share of the variance along each axis.
    """

    def __init__(self, read: Callable[[Rows], Float32s], rows: Rows, count: int) -> None:
        total: Any = 0
        square: Any = 0
        for chunk in chunks(rows):
            vectors = read(chunk)
            total = vectors.sum(axis=0, dtype=np.float64) + total
            square = (vectors.T @ vectors).astype(np.float64) + square
        self._mean = total / rows.size
        values, axes = np.linalg.eigh(square / rows.size - np.outer(self._mean, self._mean))
        axes = axes[:, ::-1][:, :count]
        self._axes: Float64s = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
        self.shares = values[::-1][:count].clip(0) / max(float(values.clip(0).sum()), 1e-12)

    def __call__(self, vectors: Float32s) -> Float32s:
        return np.asarray((vectors - self._mean) @ self._axes, np.float32)


def embed(vectors: Float32s, *, seed: int) -> Float32s:
    """Returns PaCMAP's positions of vectors: (n, 2)."""
    try:
        import faiss
        import pacmap
    except ImportError as error:
        raise needs_extra("pacmap", "map") from error
    logging.getLogger("pacmap").setLevel(logging.ERROR)  # it warns that a seed was set
    threads = faiss.omp_get_max_threads()
    try:
        work = pacmap.PaCMAP(random_state=seed % (1 << 31), apply_pca=False)
        return np.asarray(work.fit_transform(vectors, init=vectors[:, :2]), np.float32)
    finally:
        faiss.omp_set_num_threads(threads)  # with a seed, pacmap sets it to 1


def neighbours_among(vectors: Float32s) -> Callable[[Float32s], Rows]:
    """Returns a function from vectors (m, d) to the places of their nearest among the given ones: (m, 5)."""
    import faiss

    lists = f"IVF{round(4 * len(vectors) ** 0.5)},Flat" if len(vectors) >= _INDEXED else "Flat"
    index: Any = faiss.index_factory(vectors.shape[1], lists)
    index.train(vectors)
    index.add(vectors)
    if len(vectors) >= _INDEXED:
        index.nprobe = 8
    count = min(_NEIGHBOURS, len(vectors))

    def search(asked: Float32s) -> Rows:
        found: Rows = index.search(asked, count)[1]
        return np.where(found < 0, found[:, :1], found)  # an index may find fewer

    return search
