"""Pictures that a text-to-image model draws of captions."""

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
    """Pictures of each caption: n lists of `count` arrays (height, width, 3) of uint8, None where there is none.

    A picture depends on its caption and these settings alone; equal captions are drawn once in a batch.

    Attributes:
        model: a text-to-image pipeline of diffusers.
        count: pictures per caption.
        drawing: how.

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
            present = sorted({caption for caption in captions if caption is not None})
            drawn: dict[str, list[Pixels]] = {caption: [] for caption in present}
            for number in range(self.count):
                drawing = replace(self.drawing, seed=self.drawing.seed + number)
                for caption, picture in zip(present, draw(present, drawing), strict=True):
                    drawn[caption].append(picture)
            return [None if caption is None else drawn[caption] for caption in captions]

        return images
