"""Embeddings of images and captions by CLIP-like models, unit rows, float16.

They are rounded to float16 where they are made, not where they are stored: a score computed in the pass and one
computed later from the stored embeddings are the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.arrays import Floats, Pixels
from tamis.data import Device, ModelRef, Node
from tamis.errors import ModelError, check_words
from tamis.features.sources import Captions, DecodedImages
from tamis.math.similarity import unit_rows

#: How images are made to fit a model; see `ModelPixels`.
Fit = Literal["model", "crop"]


@dataclass(frozen=True, kw_only=True)
class ModelPixels(Node):
    """Images as a model wants to see them: n arrays (side, side, 3) of uint8, None where one does not decode.

    Attributes:
        model: whose preprocessing (resize, crop) to apply. Equal for two models with equal preprocessing settings
            only if they are one model; the work is small beside decoding.
        of: which images.
        fit: "model" for the model's own way; "crop" resizes the shorter side to the model's and crops the centre, as
            CLIP's preprocessing does, where a model's own would squash the image into a square.
    """

    name: ClassVar[str] = "model_pixels"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    model: ModelRef
    of: Node = DecodedImages()
    fit: Fit = "model"

    def __post_init__(self) -> None:
        check_words(self)

    def needs(self) -> Mapping[str, Node]:
        return {"images": self.of}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.preprocess import load_preprocess

        preprocess = load_preprocess(self.model)
        if self.fit == "crop":
            preprocess = preprocess.cropping()

        def pixels(*, images: Sequence[Pixels | None]) -> list[Pixels | None]:
            return [None if image is None else preprocess.resize(image) for image in images]

        return pixels


@dataclass(frozen=True, kw_only=True)
class Tokens(Node):
    """Captions as a model's token ids: n lists, None where there is no caption.

    Attributes:
        model: whose tokenizer.
    """

    name: ClassVar[str] = "tokens"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    model: ModelRef

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.tokens import load_tokenizer

        tokenize = load_tokenizer(self.model)

        def tokens(*, captions: Sequence[str | None]) -> list[list[int] | None]:
            present = [caption for caption in captions if caption is not None]
            ids = iter(tokenize(present))
            return [None if caption is None else next(ids) for caption in captions]

        return tokens


@dataclass(frozen=True, kw_only=True)
class ImageEmbedding(Node):
    """Images in a model's joint space: (n, d) float16 unit rows, NaN where one does not decode.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
    """

    name: ClassVar[str] = "image_embedding"
    version: ClassVar[int] = 1
    stored_as: ClassVar[str] = "embeddings"
    model: ModelRef

    def needs(self) -> Mapping[str, Node]:
        return {"pixels": ModelPixels(model=self.model)}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.clip import load_clip

        clip = load_clip(self.model, device)

        def embed(*, pixels: Sequence[Pixels | None]) -> Floats:
            present = [image for image in pixels if image is not None]
            return _scatter([image is not None for image in pixels], clip.images, present, clip.size)

        return embed


@dataclass(frozen=True, kw_only=True)
class AlikeImageEmbedding(ImageEmbedding):
    """The same for a model that prepares images as another one does, whose resized images it takes.

    It is for several models of one training: an image is then resized once for all of them.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
        resized_for: the other one.

    Raises:
        ModelError: when it is loaded: the two prepare images differently.
    """

    resized_for: ModelRef

    def needs(self) -> Mapping[str, Node]:
        return {"pixels": ModelPixels(model=self.resized_for)}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.preprocess import load_preprocess

        if load_preprocess(self.model) != load_preprocess(self.resized_for):
            raise ModelError(
                f"{self.model} prepares images otherwise than {self.resized_for} (their preprocessor_config.json "
                "differ): they are no epochs of one training"
            )
        return super().load(device)


@dataclass(frozen=True, kw_only=True)
class TextEmbedding(Node):
    """Captions in a model's joint space: (n, d) float16 unit rows, NaN where there is no caption.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
    """

    name: ClassVar[str] = "text_embedding"
    version: ClassVar[int] = 1
    stored_as: ClassVar[str] = "embeddings"
    model: ModelRef

    def needs(self) -> Mapping[str, Node]:
        return {"tokens": Tokens(model=self.model)}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.clip import load_clip

        clip = load_clip(self.model, device)

        def embed(*, tokens: Sequence[list[int] | None]) -> Floats:
            present = [ids for ids in tokens if ids is not None]
            return _scatter([ids is not None for ids in tokens], clip.texts, present, clip.size)

        return embed


@dataclass(frozen=True, kw_only=True)
class PromptedTextEmbedding(Node):
    """Captions behind a prompt in a model's joint space: (n, d) float16 unit rows, NaN where there is no caption.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
        prompt: what each caption is put behind, the space between them included.
    """

    name: ClassVar[str] = "prompted_text_embedding"
    version: ClassVar[int] = 1
    stored_as: ClassVar[str] = "embeddings"
    model: ModelRef
    prompt: str

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.clip import load_clip
        from tamis.models.tokens import load_tokenizer

        clip, tokenize = load_clip(self.model, device), load_tokenizer(self.model)

        def embed(*, captions: Sequence[str | None]) -> Floats:
            tokens = tokenize([self.prompt + caption for caption in captions if caption is not None])
            return _scatter([caption is not None for caption in captions], clip.texts, tokens, clip.size)

        return embed


def _scatter(present: Sequence[bool], embed: Callable[[Any], Floats], items: Sequence[Any], size: int) -> Floats:
    rows = np.full((len(present), size), np.nan, np.float16)
    if items:
        rows[np.array(present)] = unit_rows(embed(items)).astype(np.float16)
    return rows
