"""PAC-S: CLIPScore by a model that was fine-tuned on generated positives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.arrays import Floats
from tamis.data import Column, Device, ModelRef, Node, Signal
from tamis.features.embeddings import ImageEmbedding, PromptedTextEmbedding
from tamis.math.similarity import rowwise_dot


@dataclass(frozen=True, kw_only=True)
class Pac(Signal):
    """Scores a pair by twice the cosine of its image and its prompted caption, at least 0.

    With a checkpoint of PAC-S (saved as a transformers CLIP) it is that metric; with any other CLIP it is only
    CLIPScore with a prompt and another weight.

    Attributes:
        model: a CLIP or SigLIP checkpoint: Hugging Face id, local folder or built-in name.
        prompt: what precedes each caption.

    Emits:
        pac: in [0, 2]. NaN where the image does not decode or there is no caption.

    Cost: as `clip`; image embeddings are shared with `clip` of the same model.

    Source: Sarto et al. 2023, "Positive-augmented contrastive learning for image and video captioning evaluation"
        (CVPR, arXiv 2303.12112), equation 5; w = 2.
    """

    name: ClassVar[str] = "pac"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="pac", unit="twice the cosine", better="high", about="PAC-S of image and caption"),
    )
    model: ModelRef
    prompt: str = "A photo depicts "

    def needs(self) -> Mapping[str, Node]:
        return {
            "image": ImageEmbedding(model=self.model),
            "text": PromptedTextEmbedding(model=self.model, prompt=self.prompt),
        }

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, image, text: {"pac": pac_score(rowwise_dot(image, text))}


def pac_score(cosines: Floats) -> Floats:
    """Returns 2 max(cosine, 0) as float32; NaN where the cosine is."""
    return (2 * np.maximum(cosines, 0)).astype(np.float32)
