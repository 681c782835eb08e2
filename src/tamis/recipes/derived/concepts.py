"""The concepts of a list that an image shows, by its stored embedding; no captions are read.

`concepts` names them, for `balance` and `cabs`. `concept_weight` is high for images of rare ones, for `sample`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.arrays import Float32s
from tamis.core.errors import RecipeError, at_least_one, brief
from tamis.core.files.scratch import stored
from tamis.core.types import CLASS_NAMES, Column, FileRef, OptionalFileRef
from tamis.recipes.derived import Derived, Saved
from tamis.recipes.derived.entries import joined_by_row, read_names
from tamis.recipes.steps.clusters import BLOCK, check_widths, present, reference_vectors
from tamis.recipes.steps.outcome import check_kind
from tamis.runs.table import Table

IDs = NDArray[np.integer[Any]]

_CELLS = 1 << 26  # cosines in memory at once

_LACKING = -2  # in place of a concept of a row without an embedding


@dataclass(frozen=True, kw_only=True)
class ConceptWeight(Derived):
    """Weights an image by how rare its nearest concepts are in the pool: Σ 1 / count over its k nearest concepts.

    It reads no captions, so pairs with empty or foreign captions are balanced too. For the step `sample`:
    `score: log(concept_weight)`, with `std: null`.

    Attributes:
        concepts: a .npy file, (K, d): embeddings of concepts by the model of the run's images. Runs have them next to
            the scores of `zero_shot_class` (class_vectors.npy: names of classes) and `cluster` (centroids.npy).
        k: nearest concepts of each image.
        embedding: stored embeddings of images.

    Emits:
        concept_weight: above 0; its mean over the pool is 1. NaN without an embedding.

    Cost: n K d multiplications. Memory: the concepts; 4 (k + 1) bytes per row are stored.
    Source: An et al. 2025, LLaVA-OneVision-1.5 (arXiv 2509.23661), concept-balanced sampling with MetaCLIP's entries.
    """

    name = "concept_weight"
    version = 2
    columns = (Column("concept_weight", "weight", "high", about="how rare the nearest concepts of the image are"),)
    concepts: FileRef
    k: int = 10
    embedding: str = "image_embedding"

    def __post_init__(self) -> None:
        at_least_one(k=self.k)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.embedding})

    def compute(self, table: Table, saved: Saved) -> Mapping[str, Any]:
        concepts = _vectors(self, table)

        def nearest(block: int) -> IDs:  # `saved` keeps it in a file: the second pass reads it
            return saved(f"block{block}", partial(_nearest, self, table, block, concepts, -np.inf))

        counts, rows_with = np.zeros(len(concepts), np.int64), 0
        for ids in map(nearest, range(len(table.sizes))):
            counts += np.bincount(ids[ids >= 0], minlength=counts.size)
            rows_with += int(np.count_nonzero(ids[:, 0] >= 0))
        rarity, weight = 1 / np.maximum(counts, 1), stored(len(table), np.float32)
        factor = rows_with / max(int(np.count_nonzero(counts)), 1)  # each concept adds 1 to the sum of all weights
        for rows, ids in zip(table.row_ranges(), map(nearest, range(len(table.sizes))), strict=True):
            weight[rows] = np.where(ids[:, 0] < 0, np.nan, rarity[np.sort(ids).clip(0)].sum(axis=1)) * factor
        return {"concept_weight": weight}


@dataclass(frozen=True, kw_only=True)
class Concepts(Derived):
    """Names the concepts that an image shows: its nearest ones, if they are near enough.

    Attributes:
        concepts: a .npy file, (K, d), as for `concept_weight`.
        names: their K names, a text file with one per line or a JSON list. None: class_names.json beside `concepts`, as
            `zero_shot_class` writes it, else their numbers.
        k: most concepts of an image.
        at_least: the lowest cosine at which an image shows a concept.
        embedding: stored embeddings of images.

    Emits:
        n_concepts: number of concepts of the image, from 0 to k. NaN without an embedding.
        concepts: their names, the nearest first, separated by tabs; empty without any.

    Cost: n K d multiplications. Memory: the concepts, and the names of all rows.
    Source: Ghosh et al. 2025, CABS (arXiv 2511.20643) composes batches from such names; it finds them with RAM++ and
        GroundingDINO.
    """

    name = "concepts"
    version = 2
    columns = (
        Column("n_concepts", "concepts", "neither", beside="concepts", about="concepts that the image shows"),
        Column("concepts", "text", "neither", kind="word", about="the concepts of the image, separated by tabs"),
    )
    concepts: FileRef
    names: OptionalFileRef = None
    k: int = 10
    at_least: float
    embedding: str = "image_embedding"

    def __post_init__(self) -> None:
        at_least_one(k=self.k)
        if not -1 <= self.at_least <= 1:
            raise ValueError(f"at_least is a cosine, from -1 to 1, got {self.at_least:g}")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.embedding})

    def compute(self, table: Table, saved: Saved) -> Mapping[str, Any]:
        concepts = _vectors(self, table)
        known, counts, words = pa.array(self._names(len(concepts))), np.full(len(table), np.nan, np.float32), []
        for block, rows in enumerate(table.row_ranges()):
            ids = saved(f"block{block}", partial(_nearest, self, table, block, concepts, self.at_least))
            lacking, lengths = ids[:, 0] == _LACKING, np.count_nonzero(ids >= 0, axis=1)
            counts[rows] = np.where(lacking, np.nan, lengths)
            words.append(joined_by_row(known.take(pa.array(ids[ids >= 0])), lengths, lacking))
        return {"n_concepts": counts, "concepts": pa.chunked_array(words, pa.string())}

    def _names(self, count: int) -> list[str]:
        beside = Path(self.concepts).expanduser().with_name(CLASS_NAMES)
        path = self.names or (str(beside) if beside.is_file() else None)
        names = read_names(path, "concepts") if path else [str(number) for number in range(count)]
        if len(names) != count:
            raise RecipeError(f"concepts: {self.concepts} has {count:,} concepts, {path} {len(names):,} names")
        if wrong := [name for name in names if "\t" in name or name[:1] == "["]:
            why = "has a tab, which separates names" if "\t" in wrong[0] else "begins as a list does, with ["
            raise RecipeError(f"concepts: {path}: the name {brief(wrong[0])} {why}")
        return names


def _vectors(signal: ConceptWeight | Concepts, table: Table) -> Float32s:
    """Returns a signal's concepts, (K, d) unit rows."""
    check_kind(signal.name, table, signal.embedding, "vector")
    models = table.about(signal.embedding).get("models")
    return np.concatenate(list(reference_vectors(signal.concepts, signal.embedding, models, of=signal.name)))


def _nearest(signal: ConceptWeight | Concepts, table: Table, block: int, concepts: Float32s, at_least: float) -> IDs:
    """Returns the concepts of a block's rows, (rows, k), the nearest first, then -1; all -2 without an embedding."""
    vectors, k = table.read(block, [signal.embedding])[signal.embedding], min(signal.k, len(concepts))
    check_widths(signal.name, {"the concepts": concepts.shape[1], signal.embedding: vectors.shape[1]})
    nearest, step = np.full((len(vectors), k), _LACKING, np.int32), max(1, min(BLOCK, _CELLS // len(concepts)))
    for start in range(0, len(vectors), step):
        rows = start + np.flatnonzero(present(vectors[start : start + step]))
        some = vectors[rows].astype(np.float32)
        found = some @ concepts.T  # cosines but for the row's length, which changes no order
        length = np.linalg.norm(some, axis=1, keepdims=True)
        best = np.argpartition(-found, k - 1, axis=1)[:, :k]
        edge = np.take_along_axis(found, best, 1).min(axis=1, keepdims=True) - 2e-6 * length
        for row in np.flatnonzero(np.count_nonzero(found >= edge, axis=1) > k):  # others are as near as the last
            near = np.flatnonzero(found[row] >= edge[row])
            exact = np.round(concepts[near].astype(np.float64) @ some[row] / length[row], 6)
            best[row] = near[np.argsort(-exact, kind="stable")[:k]]
        cosine = np.round(np.take_along_axis(found, best, 1) / length, 6)
        order = np.lexsort((best, -cosine), axis=1)
        nearest[rows] = np.take_along_axis(np.where(cosine >= np.float32(at_least), best, -1), order, 1)
    return nearest
