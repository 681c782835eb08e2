"""A map of stored embeddings: PaCMAP lays out a sample, and every other row goes near its nearest laid-out rows."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from tamis.core.arrays import Float32s, Float64s, Mask, Rows
from tamis.core.errors import RecipeError, needs_extra
from tamis.core.math.similarity import unit_rows
from tamis.core.math.texts import c_tf_idf
from tamis.core.types import Column
from tamis.recipes.derived import Saved
from tamis.recipes.derived.columns import Computed, add_columns
from tamis.recipes.steps.clusters import has_embedding, order_by_uid
from tamis.recipes.steps.outcome import check_kind
from tamis.runs import Run, open_run
from tamis.runs.table import Table

BOTH = ["image_embedding", "text_embedding"]

#: Dimensions that PaCMAP sees, laid-out neighbours that place every other row, and rows too few for PaCMAP.
_DIMENSIONS, _NEIGHBOURS, _FEW = 100, 5, 10

#: Words of at least three letters, so no numbers.
_WORD = re.compile(r"[^\W\d_]{3,}")

#: Rows in memory at once; rows that principal components are fitted to; laid-out rows from which an index searches.
_CHUNK, _FITTED, _INDEXED = 1 << 15, 25_000, 20_000

#: Returns the vectors of ascending rows: (n, d).
Reader = Callable[[Rows], Float32s]


def map_embeddings(
    run: str | os.PathLike[str] | Run, *, of: str = "image", sample: int = 100_000, seed: int = 0
) -> Run:
    """Gives every row of a run `map_x` and `map_y`, its position on a map of stored embeddings (NaN without one).

    Near rows are alike; distances between islands mean little. The same call again does nothing. The same seed gives
    the same map on one machine with one number of threads; elsewhere rounding differs, and so may the map.

    Args:
        run: a run folder with stored embeddings (`--keep embeddings`).
        of: "image", "text", "both" (of each pair, one after the other), or the name of stored embeddings.
        sample: the most rows that PaCMAP lays out, drawn by uid. Other rows get the median position of their five
            nearest laid-out rows.
        seed: another seed gives another map.

    Raises:
        RunError: the run has no such embeddings, another command holds it, or its rows have changed since the start.
        RecipeError: the column holds no embeddings, or no row has one.
        DependencyError: pacmap is not installed.

    Source: Wang et al. 2021, "Understanding how dimension reduction tools work" (JMLR 22), in the package pacmap.
    """
    opened = open_run(run)
    table = opened.table()
    names = BOTH if of == "both" else [f"{of}_embedding" if of in ("image", "text") else of]
    for name in names:
        check_kind("map", table, name, "vector")
    folders = [opened.locate(name)[0] for name in names]
    there = np.logical_and.reduce([has_embedding(table, folder)[:] for folder in folders])
    if not there.any():
        raise RecipeError(f"no row of {opened.path} has {' and '.join(names)}: there is nothing to lay out")
    about = f"position on the map of {' and '.join(names)}"
    columns = [Column(name=f"map_{axis}", unit="position", better="neither", about=about) for axis in "xy"]

    def compute(saved: Saved) -> Computed:
        x, y = positions(table, folders, there, sample=sample, seed=seed).T.copy()
        return {"map_x": x, "map_y": y}, {}

    settings = {"embeddings": folders, "sample": sample, "seed": seed}
    return add_columns(opened, "map", f"map_{of}", settings, columns, compute)[0]


def positions(table: Table, names: Sequence[str], there: Mask, *, sample: int, seed: int) -> Float32s:
    """Returns the position of every row in [-1, 1]: (rows, 2) float32, NaN where there is no embedding."""
    every = np.flatnonzero(there)
    laid = np.sort(order_by_uid(table, every, seed=seed)[:sample])
    vectors, project, _ = principal_components(lambda rows: read_unit_rows(table, names, rows), laid, _DIMENSIONS)
    points = vectors[:, :2] if laid.size < _FEW else embed(vectors, seed=seed)
    low, high = points.min(axis=0), points.max(axis=0)
    points = (points - (low + high) / 2) / max(float((high - low).max()) / 2, 1e-12)
    out = np.full((len(table), 2), np.nan, np.float32)
    out[laid] = points
    rest = np.setdiff1d(every, laid, assume_unique=True)
    if rest.size:
        import faiss

        many = laid.size >= _INDEXED
        index: Any = faiss.index_factory(vectors.shape[1], f"IVF{round(4 * laid.size**0.5)},Flat" if many else "Flat")
        index.train(vectors)
        index.add(vectors)
        if many:
            index.nprobe = 8
        for chunk in chunks(rest):
            nearest: Rows = index.search(project(chunk), min(_NEIGHBOURS, laid.size))[1]
            nearest = np.where(nearest < 0, nearest[:, :1], nearest)  # an index may find fewer
            out[chunk] = np.median(points[nearest], axis=1)
    return out


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


def read_unit_rows(table: Table, names: Sequence[str], rows: Rows) -> Float32s:
    """Returns the stored embeddings of some rows, each of length 1, one after the other: (n, d); NaN where missing."""
    return np.concatenate([unit_rows(table.vectors(name, rows)) for name in names], axis=1)


def chunks(rows: Rows) -> list[Rows]:
    return [rows[start : start + _CHUNK] for start in range(0, rows.size, _CHUNK)]


def principal_components(read: Reader, rows: Rows, count: int) -> tuple[Float32s, Reader, Float64s]:
    """Returns the first principal components of rows' vectors: coordinates (n, k), a function that returns those of
    other rows, and the share of the variance along each.

    At most 25,000 rows decide on the directions. Memory: d x d numbers. Signs make the largest weight of each
    component positive. Source: Pearson 1901.
    """
    total: Any = 0
    square: Any = 0
    some = rows[:: -(-rows.size // _FITTED)]
    for chunk in chunks(some):
        vectors = read(chunk)
        total = vectors.sum(axis=0, dtype=np.float64) + total
        square = (vectors.T @ vectors).astype(np.float64) + square
    mean = total / some.size
    values, axes = np.linalg.eigh(square / some.size - np.outer(mean, mean))
    axes = axes[:, ::-1][:, :count]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])

    def project(asked: Rows) -> Float32s:
        return np.asarray((read(asked) - mean) @ axes, np.float32)

    coordinates = np.concatenate([project(chunk) for chunk in chunks(rows)])
    return coordinates, project, values[::-1][:count].clip(0) / max(float(values.clip(0).sum()), 1e-12)


def top_words(
    texts: Iterable[str], classes: Sequence[int], count: int, *, stop: Collection[str] = ()
) -> list[list[str]]:
    """Returns for each of `count` classes up to three words by c-TF-IDF, the best first; ties by the alphabet.

    A caption counts a word once. Words in one caption of a class, of `stop`, and those that begin with a better word or
    begin one ("dog", "dogs") are left out.
    """
    found = [Counter[str]() for _ in range(count)]
    for text, number in zip(texts, classes, strict=True):
        found[number].update(set(_WORD.findall(text.lower())).difference(stop))
    vocabulary = sorted(set().union(*found))
    counts = np.array([[counter[word] for word in vocabulary] for counter in found])
    named = []
    for weights, occurs in zip(c_tf_idf(counts), counts, strict=True):
        chosen: list[str] = []
        for term in np.argsort(-weights * (occurs > 1), kind="stable")[:12].tolist():
            word = vocabulary[term]
            if occurs[term] > 1 and not any(word.startswith(better) or better.startswith(word) for better in chosen):
                chosen.append(word)
        named.append(chosen[:3])
    return named
