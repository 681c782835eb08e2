"""T-MARS: the match of image and caption after the written text is painted over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.arrays import Floats, Pixels
from tamis.data import Column, Device, ModelRef, Node, Signal
from tamis.features.embeddings import ImageEmbedding, TextEmbedding
from tamis.features.masked_images import Fill, MaskedEmbedding, MaskedImages
from tamis.features.sources import DecodedImages
from tamis.features.text import TextBoxes
from tamis.math.similarity import rowwise_dot
from tamis.models.ocr.detector import Regions
from tamis.signals.text_area import text_shares


@dataclass(frozen=True, kw_only=True)
class Tmars(Signal):
    """Scores a pair by the cosine of its caption with its image after the written text is painted over.

    High: what the image shows besides text matches the caption. A pair whose only match is the text scores as low as a
    mismatched one; `clip_drop` says how much of the match was text.

    Attributes:
        model: a CLIP or SigLIP checkpoint: Hugging Face id, local folder or built-in name. Its embeddings of captions
            and unmasked images are shared with `clip`.
        boxes: finds the text; shared with every signal that uses the same boxes.
        fill, ring: how text is painted over; see `MaskedImages`.

    Emits:
        tmars: cosine, in [-1, 1]. NaN where the image does not decode or there is no caption.
        clip_drop: cosine before minus cosine after, in [-2, 2]; exactly 0 where there is no text.
        n_text_boxes: number of text regions. NaN where the image does not decode.
        text_area: share of the pixels that they cover, in [0, 1]. NaN where the image does not decode.

    Cost: 57 ms per pair with ViT-B/32, bf16, two CPU cores (docs/performance.md): the detector, and the image tower a
        second time for images with text.

    Source: Maini et al. 2024, "T-MARS: improving visual representations by circumventing text feature learning"
        (ICLR), section 4.1 and algorithm 1.
    """

    name: ClassVar[str] = "tmars"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="tmars",
            unit="cosine",
            better="high",
            beside="clip_drop",
            about="cosine of caption and image without its text",
        ),
        Column(name="clip_drop", unit="cosine", better="low", about="how much of the CLIP cosine was written text"),
        Column(name="n_text_boxes", unit="regions", better="neither", about="regions of written text"),
        Column(name="text_area", unit="share", better="low", about="share of the image that written text covers"),
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
            "plain": ImageEmbedding(model=self.model),
            "masked": MaskedEmbedding(model=self.model, masked=self._masked()),
            "text": TextEmbedding(model=self.model),
            "boxes": self.boxes,
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
