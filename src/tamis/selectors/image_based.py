"""DataComp's image-based rule: what lies in the same clusters as a set of reference images."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.arrays import Float32s, Floats, Mask, load_array
from tamis.errors import RecipeError, RunError, check_words
from tamis.math.similarity import unit_rows
from tamis.selectors.clusters import check_count, clustered
from tamis.selectors.outcome import Selection, verdict
from tamis.selectors.vectors import BLOCK, ReadsEmbedding, present
from tamis.store.run import Run
from tamis.store.table import Table

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ImageBased(ReadsEmbedding):
    """Keeps rows that lie in a cluster of the pool which holds at least one reference image.

    Attributes:
        reference: embeddings of the reference images by the same model: a run folder that stores them (score a folder
            of images with --keep embeddings), or a .npy file (m, d).
        embedding: a column of stored embeddings (DataComp: l14_img).
        clusters: of the pool, at most one per row; None: one per thousand rows. DataComp takes 100,000.
        seed: of the clusters.
        missing: what to do with rows without the embedding.

    Cost: k-means, then n k d multiplications for the pool and m k d for the references. Memory: the rows that k-means
        is trained on (256 per cluster); pool and references are read in blocks.

    Source: Gadre et al. 2023, DataComp (arXiv 2304.14108), baseline "image-based". There clusters are trained by
        distance and assigned by inner product; here both go by cosine.
    """

    name: ClassVar[str] = "image_based"
    reference: str
    embedding: str = "image_embedding"
    clusters: int | None = None
    seed: int = 0
    missing: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        check_count(self.clusters)
        check_words(self)

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        return f"clusters of {self.embedding} that hold an image of {Path(self.reference).name}"

    def check_files(self) -> None:
        """Checks that the references are there.

        Raises:
            RecipeError: they are not, or hold no embedding.
        """
        next(reference_vectors(self.reference, self.embedding))

    def select(self, table: Table) -> Selection:
        blocks = reference_vectors(self.reference, self.embedding, _weights(table.about(self.embedding)))
        first = next(blocks)  # what is wrong with the reference is said before the work, not after it
        found, missing = clustered(self, table)
        keep = np.zeros(len(table), bool)
        facts: dict[str, Any] = {}
        if found is not None:
            held = hit(chain([first], blocks), found.centroids)
            there = found.label >= 0
            keep[there] = held[found.label[there]]
            facts = {"clusters": len(held), "clusters_with_reference": int(np.count_nonzero(held))}
            if held.all():
                log.warning(
                    "image_based keeps every image: all of its clusters (%d) hold a reference image; raise `clusters`",
                    len(held),
                )
        reason = "no reference image in its cluster"
        return verdict(self, keep, missing, table.living(), reason, what=self.embedding, facts=facts)


def hit(reference: Iterable[Float32s], centroids: Float32s) -> Mask:
    """Returns which centroids are the nearest to at least one reference vector: (k,) bool.

    Args:
        reference: blocks (m, d) of unit rows.
        centroids: (k, d) unit rows. Ties fall to the lower number.

    Raises:
        RecipeError: the two are of different sizes.
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


def reference_vectors(reference: str, embedding: str, weights: Mapping[str, str] | None = None) -> Iterator[Float32s]:
    """Yields the reference embeddings, those that are there: blocks (m, d) of float32 unit rows.

    Args:
        reference: a run folder, or a .npy file of rows.
        embedding: which stored embeddings of the run.
        weights: of the models that made the pool's, by their names; None or none where nobody knows.

    Raises:
        RecipeError: they are neither a run folder with that embedding nor a .npy file of rows, another model made
            them, or no row holds one.
    """
    path = Path(reference).expanduser()
    rows = 0
    for part in _run_parts(path, embedding, weights or {}) if path.is_dir() else [_array(path)]:
        if part.ndim != 2 or part.dtype.kind != "f":
            raise RecipeError(
                f"image_based: {reference} holds an array of {part.shape} {part.dtype}, expected rows of embeddings, "
                "floats (m, d)"
            )
        for start in range(0, len(part), BLOCK):
            block = part[start : start + BLOCK]
            block = block[present(block)]
            if len(block):
                rows += len(block)
                yield unit_rows(block)
    if not rows:
        raise RecipeError(f"image_based: {reference} holds no embedding: no cluster of the pool could be kept")


def _run_parts(path: Path, embedding: str, weights: Mapping[str, str]) -> Iterator[Floats]:
    try:
        run = Run(path)
        others = _weights(run.table().about(embedding))
        if weights and others and not {*weights.values()} & {*others.values()}:
            raise RecipeError(
                f"image_based: {' and '.join(others)} made the embeddings of {path}, {' and '.join(weights)} those of "
                "the pool: embed both with one model"
            )
        for shard in run.shards:
            yield run.embedding(run.vectors.get(embedding, embedding), shard)
    except RunError as error:
        raise RecipeError(f"image_based: {error}") from error


def _array(path: Path) -> Floats:
    try:
        return load_array(path, mapped=True)
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"image_based: {path} is neither a run folder nor a .npy file of embeddings ({error})"
        ) from error


def _weights(about: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the models that stored embeddings were made with, where that is written: name to digest of weights.

    Weights tell models apart, not names: the same lie under many paths.
    """
    return about.get("models") or {}
