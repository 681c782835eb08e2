"""ICC: how visually concrete a caption is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tamis.data import Column, Device, ModelRef, Node, Signal
from tamis.features.sources import Captions, of_present


@dataclass(frozen=True, kw_only=True)
class Icc(Signal):
    """Scores a caption by how visually concrete it is: can it be drawn, and read back from the drawing?

    High: a scene that everyone imagines alike ("a cat standing on a counter"). Low: opinions, names, slogans, prices,
    whatever an image cannot show. It ignores the image: a concrete caption can belong to another one, so select by
    `clip` as well.

    Attributes:
        model: "moranyanuka/icc", "norms" (built in, no download; weaker, above all on long captions), a folder that
            `tamis train icc` wrote, or any sequence classification checkpoint with one logit.

    Emits:
        icc: about 0 (abstract) to about 1 (concrete); a checkpoint's output is not clipped. NaN where there is no
            caption.

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

        return lambda *, captions: {"icc": of_present(captions, regress)}
