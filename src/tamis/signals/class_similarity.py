"""CiT: how similar a caption is to the nearest of a list of class names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.data import Column, Device, ModelRef, Node, OptionalFileRef, Signal
from tamis.features.sources import Captions, of_distinct
from tamis.models.class_names import check_classes, class_names, class_vectors, templates_of


@dataclass(frozen=True, kw_only=True)
class ClassSimilarity(Signal):
    """Scores a caption by its best cosine with the names of a list of classes.

    High: the caption is about something on the list. It says nothing about the image, and selecting by the classes of a
    benchmark favours that benchmark.

    Attributes:
        encoder: the model whose space they are compared in: a sentence-transformers, CLIP or BLIP retrieval checkpoint.
            CiT keeps captions from a cosine of 0.55 (YFCC15M) or 0.7 (YFCC100M) of a SimCSE encoder; others have other
            scales: look at the histogram, or keep a top share.
        classes: a built-in list: "imagenet".
        classes_from: a text file instead, one class per line.
        templates: sentences for the names; CiT takes the bare "name".

    Emits:
        class_similarity: the largest cosine, in [-1, 1]. NaN where there is no caption.
        nearest_class: the class with that cosine.

    Cost: the encoder, once per distinct caption of a batch.

    Source: Xu et al. 2023, "CiT: curation in training for effective vision-language data" (arXiv 2301.02241),
        section 3.2.
    """

    name: ClassVar[str] = "class_similarity"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="class_similarity",
            unit="cosine",
            better="high",
            beside="nearest_class",
            about="best cosine of the caption with a class name",
        ),
        Column(name="nearest_class", unit="text", better="neither", kind="word", about="the nearest class name"),
    )
    encoder: ModelRef = "minilm"
    classes: str = "imagenet"
    classes_from: OptionalFileRef = None
    templates: str | tuple[str, ...] = "name"

    def __post_init__(self) -> None:
        check_classes(self)
        templates_of(self.templates)

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.sentence import load_sentence_encoder

        names = class_names(self.classes_from or self.classes)
        encode = load_sentence_encoder(self.encoder, device)
        classes = class_vectors(self.encoder, names, templates_of(self.templates), device)  # (K, d)

        def nearest(texts: Sequence[str]) -> list[tuple[float, str | None]]:
            return [(float(row.max()), names[int(row.argmax())]) for row in encode(texts) @ classes.T]  # (K,) each

        def score(*, captions: Sequence[str | None]) -> dict[str, Any]:
            missing: tuple[float, str | None] = (np.nan, None)
            rows = of_distinct(captions, nearest, missing)
            return {
                "class_similarity": np.array([cosine for cosine, _ in rows], np.float32),
                "nearest_class": [name for _, name in rows],
            }

        return score
