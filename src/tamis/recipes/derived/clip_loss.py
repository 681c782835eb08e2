"""`clip_loss`: a pair's cosine, less how alike its image and its caption are to those of random other pairs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.core.arrays import Float32s, Rows
from tamis.core.errors import at_least_one
from tamis.core.ids import copy_numbers, scramble
from tamis.core.math.similarity import unit_rows
from tamis.core.types import Column
from tamis.recipes.derived import Derived, Saved
from tamis.recipes.derived.contrastive import contrastive_norms
from tamis.recipes.steps.clusters import GATHER, check_widths, has_embedding
from tamis.recipes.steps.outcome import check_kind
from tamis.runs.table import Table

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ClipLoss(Derived):
    """The negative of a pair's contrastive loss under CLIP (s-CLIPLoss, negCLIPLoss), from stored embeddings.

    Captions that fit many images ("photo") have a high cosine with theirs too; the loss subtracts that. The pool is
    split into random batches `repeats` times, and values are means over these. Pairs that occur several times in a
    batch lower each other's score: remove copies first if that is not wanted.

    Attributes:
        image, text: columns of stored embeddings, from one model.
        temperature: what the model divides cosines by, exp(-logit_scale), at least 0.0001; None: that of the
            checkpoint, which the run notes with its embeddings, else 0.01 as for OpenAI's CLIP. Scores of different
            temperatures or batches cannot be compared.
        batch: maximum number of pairs in a batch. All batches have the same number of pairs, give or take one.
        repeats: partitions into batches.
        seed: another seed draws other partitions. A partition depends on seed and uids only; rows of one uid fall into
            batches independently.
        precision: of the products. "bf16" is several times faster where torch is installed and the processor has bf16
            instructions. Its values differ from those of "float32", and of other processors, by about 1e-4 of a cosine;
            of single rows by up to 1e-3 with embeddings of CLIPs, and 1e-2 where a vector has few large numbers.

    Cost: repeats * rows * batch * d multiplications: for 12.8 million rows of 512, 4 * 10^15 at the defaults. A killed
        computation loses at most the last 262,144 rows.

    Source: Wang et al. 2024 (arXiv 2405.19547), equation 1; batches of 32,768 and 10 repeats as in their scripts.
    """

    name: ClassVar[str] = "clip_loss"
    version: ClassVar[int] = 2
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="clip_loss", unit="cosine", better="high", about="cosine less the mean of both norms: 0 or less"),
        Column(
            name="clip_norm_image", unit="cosine", better="low", about="how well the image fits the captions of a batch"
        ),
        Column(
            name="clip_norm_text", unit="cosine", better="low", about="how well the caption fits the images of a batch"
        ),
    )
    image: str = "image_embedding"
    text: str = "text_embedding"
    temperature: float | None = None
    batch: int = 32_768
    repeats: int = 10
    seed: int = 0
    precision: Literal["float32", "bf16"] = "bf16"

    def __post_init__(self) -> None:
        at_least_one(batch=self.batch, repeats=self.repeats)
        if self.temperature is not None and not 1e-4 <= self.temperature < np.inf:  # float32
            raise ValueError(f"temperature must be at least 0.0001, got {self.temperature}")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.image, self.text})

    def compute(self, table: Table, saved: Saved) -> Mapping[str, Any]:
        for name in (self.image, self.text):
            check_kind(self.name, table, name, "vector")
        temperature = self.temperature or table.about(self.image).get("temperature")
        if temperature is None:
            log.warning("clip_loss: the run does not record its model's temperature; using 0.01, OpenAI CLIP's")
        there = has_embedding(table, self.image)[:] & has_embedding(table, self.text)[:]
        rows, sums = np.flatnonzero(there), np.zeros((3, len(table)))
        high, low = table.uids(rows)
        copy = copy_numbers(high, low)  # copies of a pair would otherwise share every batch
        for repeat in range(self.repeats):
            tie = scramble(high, low + copy, self.seed + (repeat << 32))
            order = rows[np.lexsort((low, high, tie))]
            batches = np.array_split(order, max(-(-order.size // self.batch), 1))
            several = max(GATHER // len(batches[0]), 1) if order.size else 1
            for first in range(0, len(batches), several):
                some = batches[first : first + several]
                make = partial(self._of, table, some, temperature or 0.01)
                sums[:, np.concatenate(some)] += saved(f"repeat-{repeat}-{first}", make)
        values = np.where(there, sums / self.repeats, np.nan).astype(np.float32)
        return {column.name: one for column, one in zip(self.columns, values, strict=True)}

    def _of(self, table: Table, batches: Sequence[Rows], temperature: float) -> Float32s:
        """Returns the three columns of some batches, one after another: (3, rows)."""
        rows, ends = np.concatenate(batches), np.cumsum([0, *map(len, batches)]).tolist()
        sides = [table.vectors(name, rows) for name in (self.image, self.text)]
        check_widths(self.name, {self.image: sides[0].shape[1], self.text: sides[1].shape[1]})
        out = np.empty((3, rows.size), np.float32)
        for start, stop in pairwise(ends):
            images, texts = (unit_rows(side[start:stop]) for side in sides)
            of_images, of_texts = contrastive_norms(images, texts, temperature, self.precision)
            cosine = np.einsum("nd,nd->n", images, texts, dtype=np.float64)
            out[:, start:stop] = cosine - (of_images + of_texts) / 2, of_images, of_texts
        return out
