"""Text-Match: how much of its caption an image spells out."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.data import Column, Device, Node, Signal
from tamis.features.sources import Captions
from tamis.features.text import RecognisedText
from tamis.math.substring import longest_shared_run, longest_words_across


@dataclass(frozen=True, kw_only=True)
class TextMatch(Signal):
    """Scores a pair by the longest run of characters that its caption shares with the text written in its image.

    Letters and digits count; case, the encoding of accents, white space and punctuation do not, because recognisers
    lose them. A run is within one line, or continues on the next where the caption allows it (`longest_match`): "CAR"
    above "PET SHOP" does not spell "a red carpet". From 5 characters on, a pair teaches a model to read (Radenovic et
    al.). Images that also show what the caption says are lost with it; `tmars` keeps them.

    Attributes:
        text: finds and reads the text.

    Emits:
        text_match: number of characters; 0 where the image has no text. NaN where the image does not decode or there
            is no caption.
        image_text: the lines that were read, separated by " / ".

    Cost: about 20 ms per image for the detector, two CPU cores, and the recogniser for each text found.

    Source: Radenovic et al. 2023, "Filtering, distillation, and hard negatives for vision-language pre-training"
        (arXiv 2301.02280), section 3.1; Maini et al. 2024 (T-MARS), section 4.3 and appendix D.1: 5 characters.
    """

    name: ClassVar[str] = "text_match"
    version: ClassVar[int] = 2
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="text_match",
            unit="characters",
            better="low",
            beside="image_text",
            about="longest run of characters in both caption and image text",
        ),
        Column(name="image_text", unit="text", better="neither", kind="word", about="the text written in the image"),
    )
    text: RecognisedText = RecognisedText()

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions(), "texts": self.text}

    def load(self, device: Device) -> Callable[..., Any]:
        def score(*, captions: Sequence[str | None], texts: Sequence[list[str] | None]) -> dict[str, Any]:
            runs = [
                np.nan if caption is None or lines is None else longest_match(caption, lines)
                for caption, lines in zip(captions, texts, strict=True)
            ]
            return {
                "text_match": np.array(runs, np.float32),
                "image_text": [None if lines is None else " / ".join(lines) for lines in texts],
            }

        return score


def letters(text: str) -> str:
    """Returns the letters, marks and digits of a text: NFKC, case folded."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in plain if unicodedata.category(character)[0] in "LMN")


def longest_match(caption: str, lines: Sequence[str]) -> int:
    """Returns the length of the longest run of letters and digits in both a caption and written lines.

    A run is within one line. It continues after the end of a line only

    - between whole words of the caption: "BIG" above "SALE" in "a big sale" (in Chinese, Japanese and Korean, where
      lines break anywhere, every character is a word);
    - where the line ends with a hyphen, or where whole lines together are one word of the caption: "CON-" above
      "CERT HALL" in "a concert hall", "CHOCO" above "LATE" in "hot chocolate".

    "CAR" above "PET SHOP" shares 3 characters with "a red carpet", not 6. `lines` are in reading order.
    """
    words, written = _words(caption), _lines(lines)
    together = "".join(words)
    longest = max((longest_shared_run(together, line) for line in written), default=0)
    return max(longest, longest_words_across(words, written), _longest_word_in_lines(set(words), written))


def _words(caption: str) -> list[str]:
    """Splits a caption into words of letters and digits; a wide character (Chinese, Japanese, Korean) is a word."""
    plain = unicodedata.normalize("NFKC", caption).casefold()
    spaced = "".join(
        f" {character} "
        if unicodedata.east_asian_width(character) == "W"
        else character if unicodedata.category(character)[0] in "LMN" else " "
        for character in plain
    )  # fmt: skip
    return spaced.split()


def _lines(lines: Sequence[str]) -> list[str]:
    """Returns the letters of each line that has any; a line that ends with a hyphen is joined to the next."""
    joined: list[str] = []
    hyphen = False
    for line in lines:
        text = letters(line)
        if text and hyphen:
            joined[-1] += text
        elif text:
            joined.append(text)
        if text:
            hyphen = line.rstrip().endswith(("-", "\u2010", "\u00ad"))
    return joined


def _longest_word_in_lines(words: Collection[str], lines: Sequence[str]) -> int:
    """Returns the length of the longest word that two or more whole lines make together; 0 without one."""
    most = max(map(len, words), default=0)
    longest = 0
    for first, line in enumerate(lines):
        together = line
        for following in lines[first + 1 :]:
            together += following
            if len(together) > most:
                break
            if together in words:
                longest = max(longest, len(together))
    return longest
