"""Images that a text-to-image model draws from captions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tamis.arrays import Pixels
from tamis.data import Device, ModelRef, Node
from tamis.errors import at_least_one
from tamis.features.sources import Captions
from tamis.models.text_to_image import Drawing


@dataclass(frozen=True, kw_only=True)
class DrawnImages(Node):
    """Drawn images of each caption: n lists of `count` arrays (height, width, 3) of uint8, None without a caption.

    An image depends on its caption and these settings alone; equal captions of a batch are drawn once.

    Attributes:
        model: a text-to-image pipeline of diffusers.
        count: number of images of each caption.
        drawing: how they are drawn.

    Cost: `count` times `drawing.steps` passes of the denoiser for each distinct caption.
    """

    name: ClassVar[str] = "drawn_images"
    version: ClassVar[int] = 1
    model: ModelRef
    count: int = 1
    drawing: Drawing = Drawing()

    def __post_init__(self) -> None:
        at_least_one(count=self.count)

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.text_to_image import load_text_to_image

        draw = load_text_to_image(self.model, device)

        def images(*, captions: Sequence[str | None]) -> list[list[Pixels] | None]:
            texts = sorted({caption for caption in captions if caption is not None})
            drawn: dict[str, list[Pixels]] = {text: [] for text in texts}
            for number in range(self.count):
                drawing = replace(self.drawing, seed=self.drawing.seed + number)
                for text, image in zip(texts, draw(texts, drawing), strict=True):
                    drawn[text].append(image)
            return [None if caption is None else drawn[caption] for caption in captions]

        return images
