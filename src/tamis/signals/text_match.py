"""Text-Match: does the image spell out its caption?"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.data import Column, Device, Node, Scorer
from tamis.features.recognised_text import RecognisedText
from tamis.features.sources import Captions
from tamis.math.substring import longest_shared_run


@dataclass(frozen=True, kw_only=True)
class TextMatch(Scorer):
    """Scores a pair by the longest run of characters that its caption shares with the text written in its image.

    Letters and digits count; case, accents' encoding, white space and punctuation do not, because recognisers drop
    them. From 5 on the pair teaches a model to read (Radenovic et al.); pictures that also show what the caption says
    are lost with it, which `tmars` keeps.

    Attributes:
        text: finds and reads the text.

    Emits:
        text_match: characters, 0 and up; 0 where the image has no text. NaN where the image does not decode or there
            is no caption.
        image_text: the lines that were read, with " / " between them.

    Cost: detector and recogniser; docs/performance.md.

    Source: Radenovic et al. 2023, "Filtering, distillation, and hard negatives for vision-language pre-training"
        (arXiv 2301.02280), section 3.1; Maini et al. 2024 (T-MARS), section 4.3 and appendix D.1: 5 characters.
    """

    name: ClassVar[str] = "text_match"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="text_match",
            unit="characters",
            better="low",
            beside="image_text",
            about="longest run that caption and image text share",
        ),
        Column(name="image_text", unit="text", better="neither", kind="word", about="the text written in the image"),
    )
    text: RecognisedText = RecognisedText()

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions(), "texts": self.text}

    def load(self, device: Device) -> Callable[..., Any]:
        def score(*, captions: Sequence[str | None], texts: Sequence[list[str] | None]) -> dict[str, Any]:
            runs = [
                np.nan
                if caption is None or lines is None
                else longest_shared_run(letters(caption), letters("".join(lines)))
                for caption, lines in zip(captions, texts, strict=True)
            ]
            return {
                "text_match": np.array(runs, np.float32),
                "image_text": [None if lines is None else " / ".join(lines) for lines in texts],
            }

        return score


def letters(text: str) -> str:
    """Returns the letters, marks and digits of a text in their compatibility form, case folded."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in plain if unicodedata.category(character)[0] in "LMN")
