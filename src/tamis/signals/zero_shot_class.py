"""Zero-shot classification: which class of a list an image belongs to, by the class's name alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.data import Column, Device, ModelRef, Node, OptionalFileRef, Scorer
from tamis.errors import RecipeError, check_words, unknown, without_effect
from tamis.features.embeddings import ImageEmbedding
from tamis.math.similarity import nearest_of
from tamis.models.class_names import BUILT_IN, class_names, class_vectors, templates_of
from tamis.pool.datacomp import GivenEmbedding
from tamis.store.side_files import CLASS_NAMES, CLASS_VECTORS

#: DataComp's published image embeddings, and how many dimensions they have.
_GIVEN = {"b32_img": 512, "l14_img": 768}


@dataclass(frozen=True, kw_only=True)
class ZeroShotClass(Scorer):
    """Sorts an image into the class of a list whose name lies nearest to it in a joint space.

    A high cosine says that the picture shows the class, or its name in letters. A small margin says that two classes
    fit nearly as well. An image of nothing on the list still gets the least unlikely class.

    The embeddings of the class names are kept beside the scores (`class_names.json`, `class_vectors.npy`), so that
    steps which compare captions with them, `clipcov` above all, run no model.

    Attributes:
        model: a CLIP or SigLIP checkpoint: the one that the run's embeddings are made with, so that they are shared.
        classes: a list that is built in: "imagenet".
        classes_from: a text file instead, a class a line. Classes of one name are one class.
        templates: sentences for the names: "photo", "scenes", "name", or a list such as ["a photo of a {}."].
        embedding: "image_embedding", the model's own; or DataComp's published "b32_img" or "l14_img", for metadata
            without images. Then the model's text tower alone runs, and must belong to them.

    Emits:
        zero_shot_class: the name of the class. None where the image does not decode, or has no embedding.
        class_cosine: the cosine of image and class name, in [-1, 1]; for OpenAI's models 0.2 to 0.35 in practice. NaN
            likewise.
        class_margin: by how much it is above the cosine with the second class, 0 and up. NaN likewise.

    Cost: the image tower, shared with `clip`; and n k d multiplications. Once per worker the text tower for every class
        and template, in float32 whatever the precision: a few vectors decide for all pairs.

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
            about="the class whose name lies nearest to the image",
        ),
        Column(
            name="class_cosine",
            unit="cosine",
            better="high",
            beside="zero_shot_class",
            about="cosine of the image with its class's name",
        ),
        Column(
            name="class_margin",
            unit="cosine",
            better="high",
            beside="zero_shot_class",
            about="how far the class's cosine is above the second class's",
        ),
    )
    model: ModelRef
    classes: str = "imagenet"
    classes_from: OptionalFileRef = None
    templates: str | tuple[str, ...] = "photo"
    embedding: Literal["image_embedding", "b32_img", "l14_img"] = "image_embedding"

    def __post_init__(self) -> None:
        if self.classes_from is not None:
            without_effect(self, "classes", because="classes_from gives the classes")
        if self.classes not in BUILT_IN:
            raise ValueError(f"{unknown('list of classes', self.classes, BUILT_IN)}; name a file as classes_from")
        templates_of(self.templates)
        check_words(self)

    def needs(self) -> Mapping[str, Node]:
        if self.embedding in _GIVEN:
            return {"images": GivenEmbedding(array=self.embedding, size=_GIVEN[self.embedding])}
        return {"images": ImageEmbedding(model=self.model)}

    def load(self, device: Device) -> Callable[..., Any]:
        names, vectors = self._classes(device)
        words = np.array([*names, None], object)  # the last: of a row without a class, -1

        def score(*, images: Floats) -> dict[str, Any]:
            if images.shape[1] != vectors.shape[1]:
                raise RecipeError(
                    f"zero_shot_class: {self.embedding} has {images.shape[1]} dimensions, the class names that "
                    f"{self.model} embeds {vectors.shape[1]}: name the model that made the embeddings"
                )
            place, cosine, margin = nearest_of(images, vectors)
            return {"zero_shot_class": words[place].tolist(), "class_cosine": cosine, "class_margin": margin}

        return score

    def side_files(self, device: Device) -> Mapping[str, Any]:
        """Returns what is kept beside the scores: the k names, and their embeddings, (k, d) float32 unit rows."""
        names, vectors = self._classes(device)
        return {CLASS_NAMES: list(names), CLASS_VECTORS: vectors}

    def _classes(self, device: Device) -> tuple[tuple[str, ...], NDArray[np.float32]]:
        names = tuple(dict.fromkeys(class_names(self.classes_from or self.classes)))
        if len(names) < 2:
            raise RecipeError(
                f"zero_shot_class: the list {self.classes_from!r} holds one class, expected two or more: "
                "write one class a line (commas stand between names of one class)"
            )
        where = dataclasses.replace(device, precision="float32")
        return names, class_vectors(self.model, names, templates_of(self.templates), where)
