"""aveCLIP: the match of a caption with images drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.arrays import Floats, Pixels
from tamis.data import Column, Device, ModelRef, Node, Signal
from tamis.errors import at_least_one
from tamis.features.generated import DrawnImages
from tamis.features.sources import Captions
from tamis.math.similarity import unit_rows
from tamis.models.text_to_image import Drawing


@dataclass(frozen=True, kw_only=True)
class AveClip(Signal):
    """Scores a caption by its mean CLIP cosine with several images drawn from it.

    High: a text-to-image model can draw it. Slower than every other signal: a baseline for samples.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
        text_to_image: the model that draws: a pipeline of diffusers.
        pictures: number of images of each caption.
        drawing: how they are drawn.

    Emits:
        ave_clip: mean cosine, in [-1, 1]. NaN where there is no caption.

    Cost: `pictures` drawings per distinct caption.

    Source: Wu and Smith 2023, "Composition and deformance: measuring imageability with a text-to-image model" (WNU).
    """

    name: ClassVar[str] = "ave_clip"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="ave_clip", unit="cosine", better="high", about="mean cosine with images drawn from the caption"),
    )
    model: ModelRef = "openai/clip-vit-large-patch14"
    text_to_image: ModelRef = "stabilityai/stable-diffusion-2"
    pictures: int = 10
    drawing: Drawing = Drawing()

    def __post_init__(self) -> None:
        at_least_one(pictures=self.pictures)

    def needs(self) -> Mapping[str, Node]:
        drawn = DrawnImages(model=self.text_to_image, count=self.pictures, drawing=self.drawing)
        return {"captions": Captions(), "drawn": drawn}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.clip import load_clip, load_tokenizer
        from tamis.models.preprocess import load_preprocess

        clip, tokenize = load_clip(self.model, device), load_tokenizer(self.model)
        preprocess = load_preprocess(self.model)

        def score(*, captions: Sequence[str | None], drawn: Sequence[list[Pixels] | None]) -> dict[str, Floats]:
            images = {text: some for text, some in zip(captions, drawn, strict=True) if text is not None and some}
            texts = sorted(images)
            scores = np.full(len(captions), np.nan, np.float32)
            if texts:
                pixels = [preprocess.resize(image) for text in texts for image in images[text]]
                of_images = unit_rows(clip.images(pixels)).reshape(len(texts), self.pictures, -1)
                cosines = np.einsum("npd,nd->np", of_images, unit_rows(clip.texts(tokenize(texts))))
                mean = dict(zip(texts, cosines.mean(1), strict=True))
                scores[:] = [np.nan if caption is None else mean[caption] for caption in captions]
            return {"ave_clip": scores}

        return score
