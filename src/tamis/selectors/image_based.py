"""DataComp's image-based rule: pairs in the clusters that hold a reference image."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.arrays import Float32s, Floats, Mask, load_array
from tamis.errors import RecipeError, RunError
from tamis.math.similarity import unit_rows
from tamis.selectors.clusters import ClusterStep
from tamis.selectors.outcome import Selection, verdict
from tamis.selectors.vectors import BLOCK, present
from tamis.store.run import Run
from tamis.store.table import Table

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ImageBased(ClusterStep):
    """Keeps rows in clusters of the pool that hold at least one reference image.

    Attributes:
        reference: embeddings of the reference images by the same model: a run folder that stores them (score a folder
            of images with --keep embeddings), or a .npy file (m, d).
        embedding: a column of stored embeddings (DataComp: l14_img).
        clusters: of the pool, at most one per row; None: one per thousand rows. DataComp takes 100,000.
        seed: of the clusters.
        missing: what to do with rows without the embedding.

    Cost: k-means, then n k d multiplications for the pool and m k d for the references. Memory: the rows that k-means
        is trained on (256 per cluster); pool and references are read in blocks.

    Source: Gadre et al. 2023, DataComp (arXiv 2304.14108), baseline "image-based". It trains clusters by distance and
        assigns by inner product; here both go by cosine.
    """

    name: ClassVar[str] = "image_based"
    reference: str
    embedding: str = "image_embedding"
    clusters: int | None = None
    seed: int = 0
    missing: Literal["error", "drop"] = "error"

    @property
    def described(self) -> str:
        return f"clusters of {self.embedding} that hold an image of {Path(self.reference).name}"

    def check_files(self) -> None:
        """Raises RecipeError if the references are missing or hold no embedding."""
        next(reference_vectors(self.reference, self.embedding))

    def select(self, table: Table) -> Selection:
        blocks = reference_vectors(self.reference, self.embedding, table.about(self.embedding).get("models"))
        first = next(blocks)  # what is wrong with the reference is reported before the work, not after it
        clusters, missing = self.cluster(table)
        keep = np.zeros(len(table), bool)
        facts: dict[str, Any] = {}
        if clusters is not None:
            held = hit(chain([first], blocks), clusters.centroids)
            there = clusters.label >= 0
            keep[there] = held[clusters.label[there]]
            facts = {"clusters": len(held), "clusters_with_reference": int(np.count_nonzero(held))}
            if held.all():
                log.warning(
                    "image_based keeps every image: all of its clusters (%d) hold a reference image; raise `clusters`",
                    len(held),
                )
        reason = "no reference image in its cluster"
        return verdict(self, keep, missing, table.living(), reason, what=self.embedding, facts=facts)


def hit(reference: Iterable[Float32s], centroids: Float32s) -> Mask:
    """Returns which centroids are the nearest to at least one reference vector: (k,) bool; ties go to the lower number.

    `reference` are blocks (m, d) of unit rows, `centroids` (k, d) unit rows. Raises RecipeError for two sizes.
    """
    held = np.zeros(len(centroids), bool)
    for block in reference:
        if block.shape[1] != centroids.shape[1]:
            raise RecipeError(
                f"image_based: the reference embeddings have {block.shape[1]} dimensions, the pool's "
                f"{centroids.shape[1]}: embed both with one model"
            )
        held[(block @ centroids.T).argmax(1)] = True
    return held


def reference_vectors(reference: str, embedding: str, models: Mapping[str, str] | None = None) -> Iterator[Float32s]:
    """Yields the reference embeddings that are not missing, in blocks (m, d) of float32 unit rows.

    Args:
        reference: a run folder, or a .npy file of rows.
        embedding: which stored embeddings of the run.
        models: that made the pool's: digests of weights by name; None if unknown.

    Raises:
        RecipeError: the place is neither a run folder with that embedding nor a .npy file of rows, another model made
            them, or every row is missing.
    """
    path, empty = Path(reference).expanduser(), True
    for part in _parts(path, embedding, models or {}):
        if part.ndim != 2 or part.dtype.kind != "f":
            raise RecipeError(
                f"image_based: {reference} holds an array of {part.shape} {part.dtype}, expected rows of embeddings, "
                "floats (m, d)"
            )
        for start in range(0, len(part), BLOCK):
            block = part[start : start + BLOCK]
            block = block[present(block)]
            if len(block):
                empty = False
                yield unit_rows(block)
    if empty:
        raise RecipeError(f"image_based: {reference} holds no embedding: no cluster of the pool could be kept")


def _parts(path: Path, embedding: str, models: Mapping[str, str]) -> Iterator[Floats]:
    try:
        if not path.is_dir():
            yield load_array(path, mapped=True)
            return
        run = Run(path)
        others: Mapping[str, str] = run.table().about(embedding).get("models") or {}
        if models and others and not {*models.values()} & {*others.values()}:  # weights: one model may have many paths
            raise RecipeError(
                f"image_based: {' and '.join(others)} made the embeddings of {path}, {' and '.join(models)} those of "
                "the pool: embed both with one model"
            )
        for shard in run.shards:
            yield run.embedding(run.vectors.get(embedding, embedding), shard)
    except RunError as error:
        raise RecipeError(f"image_based: {error}") from error
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"image_based: {path} is neither a run folder nor a .npy file of embeddings ({error})"
        ) from error
