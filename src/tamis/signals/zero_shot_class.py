"""Zero-shot classification: the class of a list whose name is nearest to an image."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.data import Column, Device, ModelRef, Node, OptionalFileRef, Signal
from tamis.errors import RecipeError, check_words
from tamis.features.embeddings import ImageEmbedding
from tamis.math.similarity import nearest_of
from tamis.models.class_names import check_classes, class_names, class_vectors, templates_of
from tamis.pool.datacomp import GivenEmbedding
from tamis.store.parts import CLASS_NAMES, CLASS_VECTORS

#: DataComp's published image embeddings, and how many dimensions they have.
_GIVEN = {"b32_img": 512, "l14_img": 768}


@dataclass(frozen=True, kw_only=True)
class ZeroShotClass(Signal):
    """Classifies an image by the class name nearest to it in a joint space.

    A high cosine means that the image shows the class, or its name in letters. A small margin means that two classes
    fit nearly as well. An image that shows no listed class gets the closest one.

    The embeddings of the class names are stored with the scores (`class_names.json`, `class_vectors.npy`), so that
    steps which compare captions with them, such as `clipcov`, run no model.

    Attributes:
        model: a CLIP or SigLIP checkpoint; the one that makes the run's embeddings shares them.
        classes: a built-in list: "imagenet".
        classes_from: a text file instead, one class per line. Classes with the same name are one class.
        templates: sentences for the names: "photo", "scenes", "name", or a list such as ["a photo of a {}."].
        embedding: "image_embedding", the model's own; or DataComp's published "b32_img" or "l14_img", for metadata
            without images. Then only the model's text tower runs, and it must match them.

    Emits:
        zero_shot_class: the name of the class. None where the image does not decode, or has no embedding.
        class_cosine: the cosine of image and class name, in [-1, 1]; 0.2 to 0.35 in practice for OpenAI's models. NaN
            likewise.
        class_margin: that cosine minus the cosine with the second class, at least 0. NaN likewise.

    Cost: the image tower, shared with `clip`, and n k d multiplications. Once per worker the text tower for every class
        and template, always in float32.

    Source: Radford et al. 2021 (CLIP, arXiv 2103.00020), section 3.1.
    """

    name: ClassVar[str] = "zero_shot_class"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="zero_shot_class",
            unit="text",
            better="neither",
            kind="word",
            about="the class whose name is nearest to the image",
        ),
        Column(
            name="class_cosine",
            unit="cosine",
            better="high",
            beside="zero_shot_class",
            about="cosine of the image with the name of its class",
        ),
        Column(
            name="class_margin",
            unit="cosine",
            better="high",
            beside="zero_shot_class",
            about="cosine with the class minus cosine with the second class",
        ),
    )
    model: ModelRef
    classes: str = "imagenet"
    classes_from: OptionalFileRef = None
    templates: str | tuple[str, ...] = "photo"
    embedding: Literal["image_embedding", "b32_img", "l14_img"] = "image_embedding"

    def __post_init__(self) -> None:
        check_classes(self)
        templates_of(self.templates)
        check_words(self)

    def needs(self) -> Mapping[str, Node]:
        if self.embedding in _GIVEN:
            return {"images": GivenEmbedding(array=self.embedding, size=_GIVEN[self.embedding])}
        return {"images": ImageEmbedding(model=self.model)}

    def load(self, device: Device) -> Callable[..., Any]:
        names, vectors = self._classes(device)
        words = np.array([*names, None], object)  # None for rows without a class, -1

        def score(*, images: Floats) -> dict[str, Any]:
            if images.shape[1] != vectors.shape[1]:
                raise RecipeError(
                    f"zero_shot_class: {self.embedding} has {images.shape[1]} dimensions, {self.model} has "
                    f"{vectors.shape[1]}: name the model that made the embeddings"
                )
            place, cosine, margin = nearest_of(images, vectors)
            return {"zero_shot_class": words[place].tolist(), "class_cosine": cosine, "class_margin": margin}

        return score

    def side_files(self, device: Device) -> Mapping[str, Any]:
        """The files stored with the scores: the k names, and their embeddings, (k, d) float32 unit rows."""
        names, vectors = self._classes(device)
        return {CLASS_NAMES: list(names), CLASS_VECTORS: vectors}

    def _classes(self, device: Device) -> tuple[tuple[str, ...], NDArray[np.float32]]:
        names = tuple(dict.fromkeys(class_names(self.classes_from or self.classes)))
        if len(names) < 2:
            raise RecipeError(
                f"zero_shot_class: the list {self.classes_from!r} has one class, expected two or more: write one class "
                "per line (commas separate names of one class)"
            )
        exact = dataclasses.replace(device, precision="float32")
        return names, class_vectors(self.model, names, templates_of(self.templates), exact)
