"""ICC: how visually concrete a caption is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.data import Column, Device, ModelRef, Node, Scorer
from tamis.features.sources import Captions


@dataclass(frozen=True, kw_only=True)
class Icc(Scorer):
    """Scores a caption by how visually concrete it is: can it be drawn, and read back from the drawing?

    High: a scene that anybody would picture much alike ("a cat standing on a counter"). Low: opinions, names, slogans,
    prices, whatever a picture cannot show. The image is not looked at: a concrete caption can belong to another
    picture, so choose by `clip` as well.

    Attributes:
        model: what gives the number: "moranyanuka/icc", "norms" (built in, no download; weaker, above all on long
            captions), a folder that `tamis train icc` wrote, or any sequence classification checkpoint with one logit.

    Emits:
        icc: about 0 (abstract) to about 1 (concrete); a checkpoint's output is not cut at either end. NaN where there
            is no caption.

    Cost: 4 ms per distinct caption with DistilRoBERTa, bf16, two CPU cores; docs/performance.md.

    Source: Yanuka et al. 2024, "ICC: quantifying image caption concreteness for multimodal dataset curation"
        (arXiv 2403.01306).
    """

    name: ClassVar[str] = "icc"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="icc", unit="concreteness", better="high", about="how visually concrete the caption is"),
    )
    model: ModelRef = "moranyanuka/icc"

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.regression import load_text_regression

        regress = load_text_regression(self.model, device)

        def score(*, captions: Sequence[str | None]) -> dict[str, NDArray[np.float32]]:
            found = np.full(len(captions), np.nan, np.float32)
            present = [caption for caption in captions if caption is not None]
            if present:
                found[[caption is not None for caption in captions]] = regress(present)
            return {"icc": found}

        return score
