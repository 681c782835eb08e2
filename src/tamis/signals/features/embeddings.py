"""Embeddings of images and captions by CLIP-like models: float16 unit rows.

Scores are computed from the float16 numbers, so stored embeddings give exactly the same scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.core.arrays import Floats
from tamis.core.errors import ModelError, check_words
from tamis.core.machine import cores
from tamis.core.math.similarity import unit_rows
from tamis.core.types import LATER, Device, FileRef, ModelRef, Node, Samples
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.preprocess import load_preprocess
from tamis.models.reference import Cleaning
from tamis.pools.vectors import Side, load_vectors
from tamis.signals.features.sources import Captions, DecodedImages, each_present, of_present

#: How images are made to fit a model; see `ModelPixels`.
Fit = Literal["model", "crop"]


@dataclass(frozen=True, kw_only=True)
class ModelPixels(Node):
    """Images resized for a model: n arrays (side, side, 3) of uint8, None if one does not decode.

    For a vision-language model they stay as decoded: its own processor resizes them.

    Attributes:
        model: the model whose preprocessing (resize, crop) to apply. Two models with equal preprocessing do not share
            the result; the work is small compared with decoding.
        of: which images.
        fit: "model": as the model's preprocessing says; "crop": if that would squash the image into a square, resize
            its shorter side and crop the centre instead, as CLIP does.
    """

    name: ClassVar[str] = "model_pixels"
    host: ClassVar[bool] = True
    reads_texts: ClassVar[bool] = False
    model: ModelRef
    of: Node = DecodedImages()
    fit: Fit = "model"

    def __post_init__(self) -> None:
        check_words(self)

    def needs(self) -> Mapping[str, Node]:
        return {"images": self.of}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.captioner import takes_decoded_images

        if takes_decoded_images(self.model):
            if self.fit == "crop":
                raise ModelError(f"{self.model} resizes images by its own processor, and fit: crop has no effect on it")
            return lambda *, images: images
        preprocess = load_preprocess(self.model)
        if self.fit == "crop":
            preprocess = preprocess.with_crop()

        if self.of == DecodedImages():
            return lambda *, images: each_present(images, lambda present: map(preprocess.resize, present))
        # Images that a network's results changed are resized while the device waits, not by a reading thread.
        threads = ThreadPoolExecutor(device.threads or cores(), "tamis-resize")
        return lambda *, images: each_present(images, lambda present: threads.map(preprocess.resize, present))


@dataclass(frozen=True, kw_only=True)
class Tokens(Node):
    """Captions as token ids of a model's tokenizer: n lists, None without a caption. `text`: see `TextEmbedding`."""

    name: ClassVar[str] = "tokens"
    host: ClassVar[bool] = True
    model: ModelRef
    text: Cleaning | None = field(default=None, metadata=LATER)

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        tokenize = load_tokenizer(self.model, self.text)

        return lambda *, captions: each_present(captions, tokenize)


@dataclass(frozen=True, kw_only=True)
class _Embedding(Node):
    """An embedding in the joint space of a CLIP or SigLIP checkpoint, `model`."""

    stored_as: ClassVar[str] = "embeddings"
    model: ModelRef


@dataclass(frozen=True, kw_only=True)
class ImageEmbedding(_Embedding):
    """Images in a model's joint space: (n, d) float16 unit rows, NaN if one does not decode.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
    """

    name: ClassVar[str] = "image_embedding"
    reads_texts: ClassVar[bool] = False

    def needs(self) -> Mapping[str, Node]:
        return {"pixels": ModelPixels(model=self.model)}

    def load(self, device: Device) -> Callable[..., Any]:
        clip = load_clip(self.model, device)
        return lambda *, pixels: embed_present(pixels, clip.images, clip.size)


@dataclass(frozen=True, kw_only=True)
class AlikeImageEmbedding(ImageEmbedding):
    """The same for another epoch of one training run: reuses the images that were resized for its first model.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
        resized_for: the model whose resized images it takes.

    Raises:
        ModelError: on loading, if the two models resize images differently.
    """

    resized_for: ModelRef

    def needs(self) -> Mapping[str, Node]:
        return {"pixels": ModelPixels(model=self.resized_for)}

    def load(self, device: Device) -> Callable[..., Any]:
        if load_preprocess(self.model) != load_preprocess(self.resized_for):
            raise ModelError(f"{self.model} and {self.resized_for} are not epochs of one run: they resize otherwise")
        return super().load(device)


@dataclass(frozen=True, kw_only=True)
class TextEmbedding(_Embedding):
    """Captions in a model's joint space: (n, d) float16 unit rows, NaN without a caption.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
        text: how captions are cleaned first; None: as the checkpoint's were (docs/models.md).
    """

    name: ClassVar[str] = "text_embedding"
    text: Cleaning | None = field(default=None, metadata=LATER)

    def needs(self) -> Mapping[str, Node]:
        return {"tokens": Tokens(model=self.model, text=self.text)}

    def load(self, device: Device) -> Callable[..., Any]:
        clip = load_clip(self.model, device)
        return lambda *, tokens: embed_present(tokens, clip.texts, clip.size)


@dataclass(frozen=True, kw_only=True)
class PromptedTextEmbedding(_Embedding):
    """Prompt + caption in a model's joint space: (n, d) float16 unit rows, NaN without a caption.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
        prompt: text before each caption, including the space between them.
    """

    name: ClassVar[str] = "prompted_text_embedding"
    prompt: str

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        clip, tokenize = load_clip(self.model, device), load_tokenizer(self.model)

        def embed(*, captions: Sequence[str | None]) -> Floats:
            prompted = [None if caption is None else self.prompt + caption for caption in captions]
            return embed_present(prompted, lambda texts: clip.texts(tokenize(texts)), clip.size)

        return embed


@dataclass(frozen=True, kw_only=True)
class GivenVectors(Node):
    """Embeddings made elsewhere: (n, d) float16 unit rows, NaN for a pair without a usable vector.

    They are called as those of a model are, `image_embedding` or `text_embedding`, so steps read them alike.

    Attributes:
        file: Parquet with `uid` or `key`, and `image` and `text` (or one of them) as lists of numbers; or a folder
            with image.npy and text.npy, (m, d) floats, and uid.npy. Pairs with the same key share their vectors.
        side: "image" or "text".
    """

    host: ClassVar[bool] = True
    in_index: ClassVar[bool] = True
    stored_as: ClassVar[str] = "embeddings"
    file: FileRef
    side: Side = "image"

    def __post_init__(self) -> None:
        check_words(self)

    @property
    def name(self) -> str:  # type: ignore[override]  # each side has its own
        return f"{self.side}_embedding"

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        vectors = load_vectors(Path(self.file).expanduser())
        return lambda *, samples: vectors.rows(self.side, samples)


def embed_present(items: Sequence[Any], embed: Callable[[Any], Floats], size: int) -> Floats:
    """Embeds all items except None, at once; returns (n, size) float16 unit rows, NaN for None."""
    return of_present(items, lambda present: unit_rows(embed(present)), (size,), np.float16)
