"""Length of a caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.arrays import Floats
from tamis.data import Column, Device, Node, Signal
from tamis.features.sources import Captions


@dataclass(frozen=True, kw_only=True)
class CaptionLength(Signal):
    """Counts words and characters of a caption.

    Very short captions ("IMG_2041") say nothing, very long ones are truncated by text encoders. DataComp's basic
    rule keeps more than 2 words and more than 5 characters.

    Emits:
        words: number of words, split at white space (`str.split`), at least 1.
        characters: number of Unicode code points with white space, at least 1.
        Both NaN where there is no caption.

    Cost: below 1 microsecond per caption.
    """

    name: ClassVar[str] = "caption_length"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="words", unit="words", better="neither", about="words of the caption, split at white space"),
        Column(name="characters", unit="characters", better="neither", about="characters of the caption"),
    )

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        def lengths(*, captions: Sequence[str | None]) -> dict[str, Floats]:
            words = [np.nan if caption is None else len(caption.split()) for caption in captions]
            characters = [np.nan if caption is None else len(caption) for caption in captions]
            return {"words": np.array(words, np.float32), "characters": np.array(characters, np.float32)}

        return lengths
