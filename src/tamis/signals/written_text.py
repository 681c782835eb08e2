"""Text written in images: its area, its overlap with the caption, and how well the rest matches (T-MARS)."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tamis.core.arrays import Floats, Pixels
from tamis.core.math.regions import covered_share
from tamis.core.math.similarity import rowwise_dot
from tamis.core.math.texts import longest_shared_run, longest_words_across
from tamis.core.types import Column, Device, ModelRef, Node, Signal
from tamis.models.ocr import Regions, load_can_read
from tamis.signals.features.embeddings import ImageEmbedding, TextEmbedding
from tamis.signals.features.sources import Captions, DecodedImages
from tamis.signals.features.text_boxes import Fill, MaskedEmbedding, MaskedImages, RecognisedText, TextBoxes

UNKNOWN_SCRIPT = "the image has text, and the recogniser does not know the script of the caption"


@dataclass(frozen=True, kw_only=True)
class TextArea(Signal):
    """Scores an image by the share of its pixels that written text covers.

    Book covers and banners score near 1, photographs near 0. It does not say whether the text matches the caption:
    `text_match` does.

    Attributes:
        boxes: finds the text; shared with every signal that uses the same boxes.

    Emits:
        text_area: share of pixels, in [0, 1]. NaN if the image does not decode.

    Cost: about 20 ms per image for the detector, two CPU cores, plus 0.1 ms for the area.
    """

    name = "text_area"
    columns = (Column("text_area", "share", "low", about="share of the image that written text covers"),)
    boxes: TextBoxes = TextBoxes()

    def needs(self) -> Mapping[str, Node]:
        return {"boxes": self.boxes, "images": DecodedImages()}

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, boxes, images: {"text_area": text_shares(boxes, images)}


def text_shares(boxes: Sequence[Regions | None], images: Sequence[Pixels | None]) -> Floats:
    """Returns the share of each image that its regions cover: (n,) float32, NaN if one does not decode."""
    shares = np.full(len(images), np.nan, np.float32)
    for n, (regions, image) in enumerate(zip(boxes, images, strict=True)):
        if image is not None and regions is not None:
            shares[n] = covered_share(list(regions.quads), image.shape[1], image.shape[0])
    return shares


@dataclass(frozen=True, kw_only=True)
class TextMatch(Signal):
    """Scores a pair by the longest run of characters that its caption shares with the text written in its image.

    Letters and digits count; case, the encoding of accents, white space and punctuation do not, because recognisers
    lose them. A run stays in one line, or continues on the next if the caption allows it (`longest_match`): "CAR" above
    "PET SHOP" does not spell "a red carpet". From 5 characters on, a pair teaches a model to read (Radenovic et al.).
    Dropping such pairs also loses images that show what the caption says; `tmars` keeps those.

    Attributes:
        text: finds and reads the text.

    Emits:
        text_match: number of characters; 0 if the image has no text. NaN if the image does not decode, there is no
            caption, or the image has text and the recogniser does not know the script of the caption.
        image_text: the lines that were read, separated by " / ".

    Cost: about 20 ms per image for the detector, two CPU cores, and the recogniser for each text found.

    Source: Radenovic et al. 2023, "Filtering, distillation, and hard negatives for vision-language pre-training"
        (arXiv 2301.02280), section 3.1; Maini et al. 2024 (T-MARS), section 4.3 and appendix D.1: 5 characters.
    """

    name = "text_match"
    version = 3
    columns = (
        Column(
            "text_match",
            "characters",
            "low",
            beside="image_text",
            about="longest run of characters in both caption and image text",
        ),
        Column("image_text", "text", "neither", kind="word", about="the text written in the image"),
    )
    text: RecognisedText = RecognisedText()

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions(), "texts": self.text, "boxes": self.text.boxes}

    def load(self, device: Device) -> Callable[..., Any]:
        can_read = load_can_read(self.text.model)

        def score(
            *, captions: Sequence[str | None], texts: Sequence[list[str] | None], boxes: Sequence[Regions | None]
        ) -> dict[str, Any]:
            unknown = [
                bool(caption and regions and not can_read(caption))
                for caption, regions in zip(captions, boxes, strict=True)
            ]
            runs = [
                np.nan if caption is None or lines is None or skipped else longest_match(caption, lines)
                for caption, lines, skipped in zip(captions, texts, unknown, strict=True)
            ]
            return {
                "text_match": np.array(runs, np.float32),
                "image_text": [None if lines is None else " / ".join(lines) for lines in texts],
                "reason": [UNKNOWN_SCRIPT if skipped else None for skipped in unknown],
            }

        return score


def letters(text: str) -> str:
    """Returns the letters, marks and digits of a text: NFKC, case folded."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in plain if unicodedata.category(character)[0] in "LMN")


def longest_match(caption: str, lines: Sequence[str]) -> int:
    """Returns the length of the longest run of letters and digits in both a caption and written lines.

    A run is within one line. It continues after the end of a line only

    - between whole words of the caption: "BIG" above "SALE" in "a big sale" (every character is a word in Chinese,
      Japanese and Korean, because their lines can break anywhere);
    - if the line ends with a hyphen, or whole lines together are one word of the caption: "CON-" above "CERT HALL" in
      "a concert hall", "CHOCO" above "LATE" in "hot chocolate".

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


@dataclass(frozen=True, kw_only=True)
class Tmars(Signal):
    """Scores a pair by the cosine of its caption with its image after the written text is painted over.

    High: what the image shows besides text matches the caption. If only its text matches, a pair scores as low as a
    mismatched one; `clip_drop` is the part of the match that was text.

    Attributes:
        model: a CLIP or SigLIP checkpoint: Hugging Face id, local folder or built-in name. Its embeddings of captions
            and unmasked images are shared with `clip`.
        boxes: finds the text; shared with every signal that uses the same boxes.
        fill, ring: how text is painted over; see `MaskedImages`.

    Emits:
        tmars: cosine, in [-1, 1]. NaN if the image does not decode or there is no caption.
        clip_drop: cosine before minus cosine after, in [-2, 2]; exactly 0 if there is no text.
        n_text_boxes: number of text regions. NaN if the image does not decode.
        text_area: share of the pixels that they cover, in [0, 1]. NaN if the image does not decode.

    Cost: 57 ms per pair with ViT-B/32, bf16, two CPU cores (docs/performance.md): the detector, and the image tower a
        second time for images with text.

    Source: Maini et al. 2024, "T-MARS: improving visual representations by circumventing text feature learning"
        (ICLR), section 4.1 and algorithm 1.
    """

    name = "tmars"
    columns = (
        Column("tmars", "cosine", "high", beside="clip_drop", about="cosine of caption and image without its text"),
        Column("clip_drop", "cosine", "low", about="how much of the CLIP cosine was written text"),
        Column("n_text_boxes", "regions", "neither", about="regions of written text"),
        Column("text_area", "share", "low", about="share of the image that written text covers"),
    )
    model: ModelRef
    boxes: TextBoxes = TextBoxes()
    fill: Fill = "surroundings"
    ring: int = 4

    def __post_init__(self) -> None:
        self._masked()  # checks its settings

    def _masked(self) -> MaskedImages:
        return MaskedImages(boxes=self.boxes, fill=self.fill, ring=self.ring)

    def needs(self) -> Mapping[str, Node]:
        return {
            "boxes": self.boxes,  # first: cores that read the next batch meanwhile delay one image, not a whole product
            "plain": ImageEmbedding(model=self.model),
            "masked": MaskedEmbedding(model=self.model, masked=self._masked()),
            "text": TextEmbedding(model=self.model),
            "images": DecodedImages(),
        }

    def load(self, device: Device) -> Callable[..., Any]:
        def score(
            *,
            plain: Floats,
            masked: Floats,
            text: Floats,
            boxes: Sequence[Regions | None],
            images: Sequence[Pixels | None],
        ) -> dict[str, Floats]:
            before, after = rowwise_dot(plain, text), rowwise_dot(masked, text)
            counts = [np.nan if regions is None else len(regions) for regions in boxes]
            return {
                "tmars": after,
                "clip_drop": before - after,
                "n_text_boxes": np.array(counts, np.float32),
                "text_area": text_shares(boxes, images),
            }

        return score
