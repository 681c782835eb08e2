"""`norm_sim`: how much an image is like a set of target images."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from tamis.core.arrays import Float32s
from tamis.core.ids import file_digest, fingerprint
from tamis.core.math.similarity import unit_rows
from tamis.core.types import Column
from tamis.recipes.derived import Derived, Saved
from tamis.recipes.steps.clusters import BLOCK, check_widths, present, reference_vectors, second_moments
from tamis.recipes.steps.outcome import check_kind
from tamis.runs import Run
from tamis.runs.table import Table

log = logging.getLogger(__name__)

#: Names of sets that models are tested on.
_TESTS = re.compile(r"(?i)(?:^|[^a-z])(test|val|validation|eval\w*)(?:[^a-z]|$)")


@dataclass(frozen=True, kw_only=True)
class NormSim(Derived):
    """The norm of an image's similarities to target images (NormSim).

    With `norm: inf` it is the largest absolute cosine with any target; with `norm: 2` the root of the sum of squared
    cosines, which orders rows as VAS does. Targets are training images of the tasks that the model is for; test images
    of a benchmark would leak into the selection.

    Attributes:
        targets: embeddings of the target images by the same model: a run that stores them (score a folder of images
            with --keep embeddings), or a .npy file (m, d).
        norm: inf or 2.
        embedding: a column of stored image embeddings.

    Cost: rows * targets * d multiplications for `inf`, rows * d^2 for 2. Memory: the targets in float32 for `inf`.

    Source: Wang et al. 2024 (arXiv 2405.19547), section 3.2; VAS: Wang et al. 2023 (arXiv 2402.02055).
    """

    name: ClassVar[str] = "norm_sim"
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="norm_sim", unit="cosine", better="high", about="norm of the cosines with the target images"),
    )
    targets: str
    norm: Literal["inf", 2] = "inf"
    embedding: str = "image_embedding"

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.embedding})

    def contents(self) -> Mapping[str, str]:
        path = Path(self.targets).expanduser()
        next(self._targets())  # raises if they cannot be used
        if path.is_dir():
            run = Run(path)
            return {"targets": fingerprint({"stamps": [*run.stamps], "embedding": run.vectors.get(self.embedding, "")})}
        return {"targets": file_digest(path)}

    def _targets(self, models: Mapping[str, str] | None = None) -> Iterator[Float32s]:
        return reference_vectors(self.targets, self.embedding, models, of=self.name)

    def compute(self, table: Table, saved: Saved) -> Mapping[str, Any]:
        check_kind(self.name, table, self.embedding, "vector")
        if _TESTS.search(Path(self.targets).name):
            log.warning("norm_sim: %s looks like a test set: results on that test will be inflated", self.targets)
        blocks = self._targets(table.about(self.embedding).get("models"))
        if self.norm == "inf":
            targets = list(blocks)  # not one array: that would take the memory twice
        else:
            moments = sum(map(second_moments, blocks))
            with threadpool_limits(1, user_api="blas"):  # several threads are slower here
                values, axes = np.linalg.eigh(moments)
            root = (axes * np.sqrt(values.clip(0))).astype(np.float32)  # root @ root.T are the second moments
            targets = [root.T]
        width = targets[0].shape[1]

        def similar(vectors: Float32s) -> Float32s:
            check_widths(self.name, {"the targets": width, self.embedding: vectors.shape[1]})
            if self.norm == 2:
                return np.asarray(np.linalg.norm(vectors @ root, axis=1), np.float32)
            best = np.zeros(len(vectors), np.float32)
            for some in targets:
                products = vectors @ some.T
                np.maximum(best, np.maximum(products.max(1), -products.min(1)), out=best)
            return best

        def of_block(block: int) -> Float32s:
            stored = table.read(block, [self.embedding])[self.embedding]
            found = np.full(len(stored), np.nan, np.float32)
            for start in range(0, len(stored), BLOCK):
                rows = start + np.flatnonzero(present(stored[start : start + BLOCK]))
                if rows.size:
                    found[rows] = similar(unit_rows(stored[rows]))
            return found

        found = [saved(f"block{block}", partial(of_block, block)) for block in range(len(table.sizes))]
        return {"norm_sim": np.concatenate([np.zeros(0, np.float32), *found])}
