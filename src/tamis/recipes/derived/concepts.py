"""`concept_weight`: high for images of rare concepts, so that sampling by it balances concepts without captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Float32s
from tamis.core.errors import at_least_one
from tamis.core.files.scratch import stored
from tamis.core.types import Column, FileRef
from tamis.recipes.derived import Derived, Saved
from tamis.recipes.steps.clusters import BLOCK, check_widths, present, reference_vectors
from tamis.recipes.steps.outcome import check_kind
from tamis.runs.table import Table

IDs = NDArray[np.integer[Any]]

_CELLS = 1 << 26  # cosines in memory at once


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
        check_kind(self.name, table, self.embedding, "vector")
        models = table.about(self.embedding).get("models")
        concepts = np.concatenate(list(reference_vectors(self.concepts, self.embedding, models, of=self.name)))

        def nearest(block: int) -> IDs:  # `saved` keeps it in a file: the second pass reads it
            return saved(f"block{block}", partial(self._nearest, table, block, concepts))

        counts, rows_with = np.zeros(len(concepts), np.int64), 0
        for ids in map(nearest, range(len(table.sizes))):
            counts += np.bincount(ids[ids >= 0], minlength=counts.size)
            rows_with += int(np.count_nonzero(ids[:, 0] >= 0))
        rarity, weight = 1 / np.maximum(counts, 1), stored(len(table), np.float32)
        factor = rows_with / max(int(np.count_nonzero(counts)), 1)  # each concept adds 1 to the sum of all weights
        for rows, ids in zip(table.row_ranges(), map(nearest, range(len(table.sizes))), strict=True):
            weight[rows] = np.where(ids[:, 0] < 0, np.nan, rarity[np.sort(ids)].sum(axis=1)) * factor
        return {"concept_weight": weight}

    def _nearest(self, table: Table, block: int, concepts: Float32s) -> IDs:
        """Returns the concepts of a block's rows, (rows, k), -1 without an embedding."""
        vectors, k = table.read(block, [self.embedding])[self.embedding], min(self.k, len(concepts))
        check_widths(self.name, {"the concepts": concepts.shape[1], self.embedding: vectors.shape[1]})
        nearest, step = np.full((len(vectors), k), -1, np.int32), max(1, min(BLOCK, _CELLS // len(concepts)))
        for start in range(0, len(vectors), step):
            rows = start + np.flatnonzero(present(vectors[start : start + step]))
            cosine = vectors[rows].astype(np.float32) @ concepts.T  # but for the row's length, which changes no order
            nearest[rows] = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
        return nearest
