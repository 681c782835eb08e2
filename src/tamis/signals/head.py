"""Heads: small trained networks that predict something from an embedding, as aesthetics, NSFW or watermarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np

from tamis.core.arrays import Float32s, Floats
from tamis.core.errors import ModelError, RecipeError, check_words
from tamis.core.math.normalise import inverse_logit
from tamis.core.types import LATER, Column, Device, ModelRef, Node, OptionalFileRef, OptionalModelRef, Signal
from tamis.models.heads import Activation, load_head
from tamis.models.reference import resolve
from tamis.pools.datacomp import PUBLISHED, GivenEmbedding
from tamis.pools.vectors import Side
from tamis.signals.features.embeddings import GivenVectors, ImageEmbedding, TextEmbedding


@dataclass(frozen=True, kw_only=True)
class Head(Signal):
    """Scores a pair by a small network on the embedding of its image or caption.

    For predictors as people publish them: LAION's aesthetic predictors, NSFW and watermark heads, your own probes. What
    high means is what the head was trained for. A head fits one embedding model: another model of the same width gives
    numbers without meaning and without an error, unless the head's file names its model. In a recipe, give each head a
    `label`: `label: aesthetic` makes the column `aesthetic.head`.

    Attributes:
        weights: a safetensors or npz file of linear layers, named as torch, Keras or scikit-learn name them; a folder
            that `tamis convert` made of a .pth; or an ONNX file. The metadata of a safetensors file may name the
            embeddings' `model`, by name or digest, and the `activation` between the layers.
        of: the embeddings' model: a CLIP or SigLIP checkpoint. None only for embeddings from DataComp or a file.
        embedding: what the head reads, always of length 1: "image_embedding" or "text_embedding" of the model, or
            DataComp's published "b32_img", "b32_txt", "l14_img" or "l14_txt".
        activation: what is between the layers: "none", "relu" or "tanh"; "auto": what the file says;
            nothing for the improved aesthetic predictor; nothing between two layers whose numbers follow each other;
            else "relu".
        output: what to do with the head's outputs: "identity", "sigmoid" or "softmax".
        position: which output to take, from 0; None if the head has one.
        embeddings_from: embeddings made elsewhere, instead of a model. See `GivenVectors`.

    Emits:
        head: the output. NaN if there is no embedding.

    Cost: 0.02 ms per pair beyond the embedding (the improved aesthetic predictor, one CPU core).

    Source: Schuhmann et al. 2022, LAION-5B (arXiv 2210.08402): its aesthetic and safety predictors on CLIP embeddings.
    """

    name = "head"
    reads_texts = False  # its embedding does
    columns = (Column("head", "output", "neither", about="output of a small network on the embedding"),)
    weights: ModelRef
    of: OptionalModelRef = None
    embedding: Literal["image_embedding", "text_embedding", "b32_img", "b32_txt", "l14_img", "l14_txt"] = (
        "image_embedding"
    )
    activation: Activation = "auto"
    output: Literal["identity", "sigmoid", "softmax"] = "identity"
    position: int | None = None
    embeddings_from: OptionalFileRef = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_words(self)
        if self.embeddings_from is not None and (self.embedding in PUBLISHED or self.of is not None):
            raise ValueError("embeddings_from reads embeddings from a file: leave out of, and DataComp's embeddings")
        if self.position is not None and self.position < 0:
            raise ValueError(f"position counts outputs from 0, got {self.position}")

    def needs(self) -> Mapping[str, Node]:
        if self.embedding in PUBLISHED:
            return {"rows": GivenEmbedding(array=self.embedding, size=PUBLISHED[self.embedding])}
        side: Side = "image" if self.embedding == "image_embedding" else "text"
        if self.embeddings_from is not None:
            return {"rows": GivenVectors(file=self.embeddings_from, side=side)}
        if self.of is None:
            raise RecipeError("head: set of: the model of the embeddings, such as openai/clip-vit-large-patch14")
        return {"rows": (ImageEmbedding if side == "image" else TextEmbedding)(model=self.of)}

    def load(self, device: Device) -> Callable[..., Any]:
        network, model = load_head(self.weights, self.activation, device)
        # By digest, as the user named it, or as a folder of the same name.
        of = self.of and (self.of, resolve(self.of).digest, PurePosixPath(self.of).name)
        if model and of and model not in of and PurePosixPath(model).name != of[2]:
            raise ModelError(f"the head {self.weights} was made for embeddings of {model}, and of is {self.of}")

        def score(*, rows: Floats) -> dict[str, Float32s]:
            there = ~np.isnan(rows).any(1)
            outputs = network(np.where(there.reshape(-1, 1), rows, 0).astype(np.float32))
            if outputs.ndim != 2:
                raise ModelError(f"{self.weights} gives an array of {outputs.shape}, expected (rows, outputs)")
            if (count := outputs.shape[1]) <= (self.position or 0) or (self.position is None and count > 1):
                raise ModelError(f"{self.weights} has {count} outputs: set position, from 0 to {count - 1}")
            values = output_of(outputs, self.output, self.position or 0)
            return {"head": np.where(there, values, np.float32(np.nan))}

        return score


def output_of(values: Floats, output: str, position: int) -> Float32s:
    """Returns (n,) float32: one of (n, k) outputs, as it is, or after a sigmoid or a softmax over all k."""
    wide = np.asarray(values, np.float64)
    chosen = wide[:, position]
    if output == "sigmoid":
        chosen = inverse_logit(chosen)
    elif output == "softmax":
        chosen = np.exp(chosen - np.logaddexp.reduce(wide, axis=1))
    return np.asarray(chosen, np.float32)
