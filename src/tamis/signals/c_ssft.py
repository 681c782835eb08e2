"""C-SSFT: how well a pair survives the fine-tuning of a CLIP on clean pairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.data import Column, Device, FileRef, Node, Signal
from tamis.errors import ModelError, at_least_one
from tamis.features.embeddings import AlikeImageEmbedding, ImageEmbedding, TextEmbedding
from tamis.math.similarity import rowwise_dot


@dataclass(frozen=True, kw_only=True)
class CSsft(Signal):
    """Scores a pair by its mean cosine under the models after each epoch of a CLIP's fine-tuning on a clean set.

    Low: the model forgets the pair as soon as it sees clean ones, or never knew it: image and caption do not match.
    Pairs like those of the clean set score high by design, so a clean set that resembles a benchmark leaks it (the
    paper's Table 3). Pairs of nothing but written text score high as well (Table 4); `tmars` is for those.

    Attributes:
        folder: what `tamis train c_ssft` wrote, or any folder of checkpoints called `epoch-1`, `epoch-2`, ..., which
            must prepare images alike. Its contents identify it, not its name.
        epochs: number of checkpoints to use, from the first; the paper has 5.

    Emits:
        c_ssft: mean cosine, in [-1, 1]. The equation of appendix A.1 sums the cosines and its text averages them: the
            order of pairs is the same. NaN where the image does not decode or there is no caption.

    Cost: as `clip`, once per epoch; images are decoded and resized once for all. All models are loaded at once: 5 of
        ViT-B/32 are 3 GB in float32, half of it in bf16.

    Source: Maini et al. 2024, T-MARS (arXiv 2307.03132), section 4.2 and appendix A.1, after Maini et al. 2022,
        "Characterizing datapoints via second-split forgetting" (arXiv 2210.15031).
    """

    name: ClassVar[str] = "c_ssft"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="c_ssft",
            unit="cosine",
            better="high",
            about="mean cosine under the models of all epochs of a fine-tuning on clean pairs",
        ),
    )
    folder: FileRef
    epochs: int = 5

    def __post_init__(self) -> None:
        at_least_one(epochs=self.epochs)

    def needs(self) -> Mapping[str, Node]:
        first, *others = models = epoch_models(self.folder, self.epochs)
        images: list[Node] = [ImageEmbedding(model=first)]
        images += [AlikeImageEmbedding(model=model, resized_for=first) for model in others]
        nodes: dict[str, Node] = {}
        for number, (image, model) in enumerate(zip(images, models, strict=True), start=1):
            # Epoch by epoch, so that both towers of a model are loaded together.
            nodes |= {f"image_{number}": image, f"text_{number}": TextEmbedding(model=model)}
        return nodes

    def load(self, device: Device) -> Callable[..., Any]:
        def score(**given: Floats) -> dict[str, Floats]:
            epochs = range(1, self.epochs + 1)
            cosines = np.stack([rowwise_dot(given[f"image_{n}"], given[f"text_{n}"]) for n in epochs])
            return {"c_ssft": mean_over_epochs(cosines)}

        return score


def mean_over_epochs(cosines: Floats) -> NDArray[np.float32]:
    """Returns the mean over epochs of (epochs, n) cosines: (n,) float32; NaN where one of them is.

    Source: Maini et al. 2024 (T-MARS), appendix A.1, "average cosine similarity ... after every epoch".
    """
    return np.asarray(cosines.mean(0, dtype=np.float64), np.float32)


def epoch_models(folder: str, epochs: int) -> list[str]:
    """Returns references to the models of epochs 1 to n in a folder; ModelError if it lacks one of them.

    A missing folder is noticed when it is hashed.
    """
    # With "./" in front, no path is taken for a Hugging Face id.
    place = os.path.join(".", os.path.expanduser(folder))
    models = [os.path.join(place, f"epoch-{number}") for number in range(1, epochs + 1)]
    complete = [os.path.isfile(os.path.join(model, "config.json")) for model in models]
    if os.path.isdir(place) and not all(complete):
        last = complete.index(False)
        raise ModelError(
            f"c_ssft: {folder} has no complete epoch-{last + 1}, and epochs is {epochs}: run the `tamis train c_ssft` "
            f"that writes it again" + (f", or set epochs: {last}" if last else "")
        )
    return models
