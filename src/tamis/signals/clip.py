"""CLIPScore: the cosine of image and caption in a joint space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tamis.data import Column, Device, ModelRef, Node, Signal
from tamis.features.embeddings import ImageEmbedding, TextEmbedding
from tamis.math.similarity import rowwise_dot


@dataclass(frozen=True, kw_only=True)
class ClipScore(Signal):
    """Scores a pair by the cosine of its image's and its caption's embedding (Hessel et al. 2021, without weight).

    High: the caption matches the image, or the words written in the image: CLIP reads, and a photographed title
    matches its own caption best of all. `tmars` is the remedy.

    Attributes:
        model: a CLIP or SigLIP checkpoint: Hugging Face id, local folder or built-in name.

    Emits:
        clip: cosine, in [-1, 1]; between 0.1 and 0.4 in practice for OpenAI's models. NaN where the image does not
            decode or there is no caption.

    Cost: 75 ms per pair with ViT-B/32, float32, two CPU cores; docs/performance.md.
    """

    name: ClassVar[str] = "clip"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="clip", unit="cosine", better="high", about="cosine of image and caption embedding"),
    )
    model: ModelRef

    def needs(self) -> Mapping[str, Node]:
        return {"image": ImageEmbedding(model=self.model), "text": TextEmbedding(model=self.model)}

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, image, text: {"clip": rowwise_dot(image, text)}
