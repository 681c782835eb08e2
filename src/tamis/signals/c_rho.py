"""C-RHO: how much better a model of clean pairs likes a pair than a model of the pool does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tamis.data import Column, Device, ModelRef, Node, Signal
from tamis.features.embeddings import ImageEmbedding, TextEmbedding
from tamis.math.similarity import rowwise_dot


@dataclass(frozen=True, kw_only=True)
class CRho(Signal):
    """Scores a pair by its cosine under a model of a clean set, minus that under a model that saw the pool once.

    High: the model of clean pairs finds a match that the pool has not taught yet. Low: it finds no match, or the pool
    teaches the pair well already. The two models have different scales, so 0 has no meaning: only the order counts.

    Attributes:
        clean: a CLIP trained on the clean set; the paper's for 32 epochs on CC3M. `tamis train c_rho` makes both.
        pool: a CLIP trained on the whole pool for one epoch. Equation 1 has the cosine after that epoch, not a loss.

    Emits:
        c_rho: difference of the cosines, in [-2, 2]. NaN where the image does not decode or there is no caption.

    Cost: as `clip`, twice; images are decoded once.

    Source: Maini et al. 2024, T-MARS (arXiv 2307.03132), section 4.2 and appendix A.2, equation 1: clean minus pool,
        the highest are kept. After Mindermann et al. 2022, "Prioritized training on points that are learnable, worth
        learning, and not yet learnt" (arXiv 2206.07137): training loss minus held-out loss; high cosine is low loss.
    """

    name: ClassVar[str] = "c_rho"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="c_rho",
            unit="cosine",
            better="high",
            about="cosine under a model of clean pairs minus that under a model of the pool",
        ),
    )
    clean: ModelRef
    pool: ModelRef

    def __post_init__(self) -> None:
        if self.clean == self.pool:
            raise ValueError(f"clean and pool are the same model, {self.clean}: every pair would score 0; name two")
        if (Path(self.clean).name, Path(self.pool).name) == ("pool", "clean"):  # the names of `tamis train c_rho`
            raise ValueError(
                f"clean ({self.clean}) and pool ({self.pool}) are swapped: pairs would be ranked backwards"
            )

    def needs(self) -> Mapping[str, Node]:
        return {
            "clean_image": ImageEmbedding(model=self.clean),
            "clean_text": TextEmbedding(model=self.clean),
            "pool_image": ImageEmbedding(model=self.pool),
            "pool_text": TextEmbedding(model=self.pool),
        }

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, clean_image, clean_text, pool_image, pool_text: {
            "c_rho": rowwise_dot(clean_image, clean_text) - rowwise_dot(pool_image, pool_text)
        }
