"""Cosines of a pair's embeddings: CLIPScore, PAC-S, C-SSFT and C-RHO."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tamis.core.arrays import Floats, Pixels
from tamis.core.errors import ModelError, at_least_one, check_words
from tamis.core.math.similarity import rowwise_dot
from tamis.core.types import LATER, Column, Device, FileRef, ModelRef, Node, OptionalFileRef, OptionalModelRef, Signal
from tamis.models.chat_client import Server
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.nucleus import Sampling
from tamis.models.reference import Cleaning
from tamis.pools.vectors import SIDES
from tamis.signals.features.embeddings import (
    AlikeImageEmbedding,
    Fit,
    GivenVectors,
    ImageEmbedding,
    ModelPixels,
    PromptedTextEmbedding,
    TextEmbedding,
    embed_present,
)
from tamis.signals.features.generated import captions_by
from tamis.signals.features.sources import Captions, of_present

#: Reasons for a missing score.
NO_VECTOR = "embeddings_from has no usable vector of the image or of the caption"
NO_GENERATED = "there is no generated caption of the image"

#: Where the first sentence of a text ends.
_SENTENCE = re.compile(r"(?<=[.!?])(?<!\b\w\.)\s+(?![a-z])|(?<=[\u3002\uff01\uff1f])")


@dataclass(frozen=True, kw_only=True)
class ClipScore(Signal):
    """Scores a pair by the cosine of its image's and its caption's embedding (Hessel et al. 2021, without weight).

    High: the caption matches the image, or words written in it: CLIP can read, and nothing matches a caption better
    than its own words in the image. `tmars` corrects for that.

    Attributes:
        model: a CLIP or SigLIP checkpoint: Hugging Face id, local folder or built-in name.
        embeddings_from: embeddings made elsewhere, instead of a model: Parquet or a folder of arrays. With
            `--keep embeddings` the run stores them, for every step that reads embeddings. See `GivenVectors`.
        text: how captions are cleaned before the tokenizer: "openai", or "hf", as transformers does; None: as the
            checkpoint's were, see docs/models.md.

    Emits:
        clip: cosine, in [-1, 1]; between 0.1 and 0.4 in practice for OpenAI's models. NaN if the image does not decode
            or there is no caption; with `embeddings_from`, if it lacks a vector of the pair.

    Cost: 75 ms per pair with ViT-B/32, float32, two CPU cores; docs/performance.md.
    """

    name = "clip"
    columns = (Column("clip", "cosine", "high", about="cosine of image and caption embedding"),)
    ONE_OF: ClassVar[tuple[str, ...]] = ("model", "embeddings_from")
    model: OptionalModelRef = None
    embeddings_from: OptionalFileRef = field(default=None, metadata=LATER)
    text: Cleaning | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_words(self)
        if (self.model is None) == (self.embeddings_from is None):
            raise ValueError("set model, a checkpoint, or embeddings_from, a file of embeddings: one of the two")

    def needs(self) -> Mapping[str, Node]:
        if self.model is not None:
            return {"image": ImageEmbedding(model=self.model), "text": TextEmbedding(model=self.model, text=self.text)}
        assert self.embeddings_from is not None
        return {side: GivenVectors(file=self.embeddings_from, side=side) for side in SIDES}

    def load(self, device: Device) -> Callable[..., Any]:
        def score(*, image: Floats, text: Floats) -> dict[str, Any]:
            columns: dict[str, Any] = {"clip": rowwise_dot(image, text)}
            if self.embeddings_from is not None:
                columns["reason"] = [NO_VECTOR] * len(image)  # for rows without a score
            return columns

        return score


@dataclass(frozen=True, kw_only=True)
class GeneratedClip(Signal):
    """Scores an image by the best cosine of its embedding with captions that a model generates for it.

    High: one of the captions describes the image well. The step `choose_caption` compares it with `clip` of the same
    model to choose the text to train on. CLIP likes short plain sentences, so a generated caption often wins
    where the alt-text knows more (names, places).

    Attributes:
        model: a CLIP or SigLIP checkpoint, the one of `clip`.
        captioner: as in `sieve`; with equal settings both signals share the captions.
        sampling: number of captions per image, and how to draw them.
        captions_from: a file of captions instead of a captioner, as in `sieve`.
        fit: how to resize images for the captioner, as in `sieve`.
        first_sentence: judge and keep only the first sentence of each caption: vision-language models write several,
            and CLIP reads at most 77 tokens.

    Emits:
        generated_clip: the largest cosine, in [-1, 1]. NaN if the image does not decode or has no generated caption.
        generated_caption: the caption with that cosine; of equal ones the first.

    Cost: captions as `sieve`, which takes most of the time, and a pass of the text tower per distinct caption. Image
        embeddings and the model are shared with `clip`.

    Source: Nguyen et al. 2023, "Improving multimodal datasets with image captioning" (NeurIPS, arXiv 2307.10350),
        section 3.
    """

    name = "generated_clip"
    columns = (
        Column(
            "generated_clip", "cosine", "high", beside="generated_caption", about="best cosine with generated captions"
        ),
        Column("generated_caption", "text", "neither", kind="word", about="the generated caption with that cosine"),
    )
    model: ModelRef
    captioner: OptionalModelRef | Server = "Salesforce/blip-image-captioning-base"
    sampling: Sampling = Sampling()
    captions_from: OptionalFileRef = None
    fit: Fit = "model"
    first_sentence: bool = False

    def __post_init__(self) -> None:
        captions_by(self)  # checks its settings

    def needs(self) -> Mapping[str, Node]:
        return {"image": ImageEmbedding(model=self.model), "generated": captions_by(self)}

    def load(self, device: Device) -> Callable[..., Any]:
        clip, tokenize = load_clip(self.model, device), load_tokenizer(self.model)

        def score(*, image: Floats, generated: Sequence[Sequence[str] | None]) -> dict[str, Any]:
            texts = [[text for text in some or () if text.strip()] for some in generated]
            if self.first_sentence:
                texts = [[first_sentence(text) for text in some] for some in texts]
            distinct = sorted({text for some in texts for text in some})
            place = {text: number for number, text in enumerate(distinct)}
            vectors = embed_present(distinct, lambda some: clip.texts(tokenize(some)), clip.size)
            best = np.full(len(texts), np.nan, np.float32)
            captions: list[str | None] = [None] * len(texts)
            for n, some in enumerate(texts):
                if some and not np.isnan(image[n, 0]):
                    cosines = rowwise_dot(np.repeat(image[n : n + 1], len(some), 0), vectors[[place[t] for t in some]])
                    best[n], captions[n] = cosines.max(), some[int(cosines.argmax())]
            reasons = [NO_GENERATED if one is None else None for one in captions]
            return {"generated_clip": best, "generated_caption": captions, "reason": reasons}

        return score


def first_sentence(text: str) -> str:
    """Returns a text up to the first mark that ends a sentence: not the dots in "J. Smith" and "approx. two"."""
    return _SENTENCE.split(text.strip(), maxsplit=1)[0]


@dataclass(frozen=True, kw_only=True)
class Itm(Signal):
    """Scores a pair by the probability that its image and caption match, from a network that reads both together.

    High: the caption describes the image, in its details too: the network attends from words to patches, which a
    cosine cannot. Most good pairs score near 1, so it separates better at the low end than at the top.

    Attributes:
        model: a retrieval checkpoint of BLIP or BLIP-2, with the head `itm_head`.

    Emits:
        itm: probability, in [0, 1]. NaN if the image does not decode or there is no caption.

    Cost: a pass of the image tower and of the text tower for each pair; nothing is shared with other signals.

    Source: Li et al. 2022, "BLIP: bootstrapping language-image pre-training" (arXiv 2201.12086), section 3.2 (the
        matching loss; its CapFilt filters captions by this head).
    """

    name = "itm"
    columns = (Column("itm", "probability", "high", about="probability that image and caption match"),)
    model: ModelRef

    def needs(self) -> Mapping[str, Node]:
        return {"pixels": ModelPixels(model=self.model), "captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.match import load_matcher

        matcher = load_matcher(self.model, device)

        def score(*, pixels: Sequence[Pixels | None], captions: Sequence[str | None]) -> dict[str, Floats]:
            pairs = zip(pixels, captions, strict=True)
            whole = [None if image is None or text is None else (image, text) for image, text in pairs]
            return {"itm": of_present(whole, lambda some: matcher(*zip(*some, strict=True)))}

        return score


@dataclass(frozen=True, kw_only=True)
class Pac(Signal):
    """Scores a pair by twice the cosine of its image and its prompted caption, at least 0.

    With a checkpoint of PAC-S (saved as a transformers CLIP) it is that metric; with any other CLIP it is only
    CLIPScore with a prompt and another weight.

    Attributes:
        model: a CLIP or SigLIP checkpoint: Hugging Face id, local folder or built-in name.
        prompt: text before each caption.

    Emits:
        pac: in [0, 2]. NaN if the image does not decode or there is no caption.

    Cost: as `clip`; image embeddings are shared with `clip` of the same model.

    Source: Sarto et al. 2023, "Positive-augmented contrastive learning for image and video captioning evaluation"
        (CVPR, arXiv 2303.12112), equation 5; w = 2.
    """

    name = "pac"
    columns = (Column("pac", "twice the cosine", "high", about="PAC-S of image and caption"),)
    model: ModelRef
    prompt: str = "A photo depicts "

    def needs(self) -> Mapping[str, Node]:
        return {
            "image": ImageEmbedding(model=self.model),
            "text": PromptedTextEmbedding(model=self.model, prompt=self.prompt),
        }

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, image, text: {"pac": (2 * np.maximum(rowwise_dot(image, text), 0)).astype(np.float32)}


@dataclass(frozen=True, kw_only=True)
class CSsft(Signal):
    """Scores a pair by its mean cosine over the epochs of a CLIP's fine-tuning on a clean set.

    Low: image and caption do not match, because the model forgets the pair as soon as it sees clean ones, or never knew
    it. Pairs that resemble the clean set score high by design, so a clean set that resembles a benchmark leaks it (the
    paper's Table 3). Images that show only text score high too (Table 4); `tmars` is for them.

    Attributes:
        folder: what `tamis train c_ssft` wrote, or any folder of checkpoints called `epoch-1`, `epoch-2`, ... with
            equal preprocessing. Its contents identify it, not its name.
        epochs: number of checkpoints to use, from the first; the paper has 5.

    Emits:
        c_ssft: mean cosine, in [-1, 1]. Appendix A.1's equation sums the cosines and its text averages them, which
            ranks pairs equally. NaN if the image does not decode or there is no caption.

    Cost: as `clip`, once per epoch; images are decoded and resized once for all. All models are loaded at once: 5 of
        ViT-B/32 are 3 GB in float32, half of it in bf16.

    Source: Maini et al. 2024, T-MARS (arXiv 2307.03132), section 4.2 and appendix A.1, after Maini et al. 2022,
        "Characterizing datapoints via second-split forgetting" (arXiv 2210.15031).
    """

    name = "c_ssft"
    columns = (
        Column(
            "c_ssft",
            "cosine",
            "high",
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
        def score(**embeddings: Floats) -> dict[str, Floats]:
            epochs = range(1, self.epochs + 1)
            cosines = np.stack([rowwise_dot(embeddings[f"image_{n}"], embeddings[f"text_{n}"]) for n in epochs])
            return {"c_ssft": cosines.mean(0, dtype=np.float64).astype(np.float32)}

        return score


def epoch_models(folder: str, epochs: int) -> list[str]:
    """Returns the models of epochs 1 to n in a folder; ModelError if one is missing.

    If the whole folder is missing, hashing it raises the error.
    """
    # "./" in front, so that the path cannot be mistaken for a Hugging Face id.
    path = os.path.join(".", os.path.expanduser(folder))
    models = [os.path.join(path, f"epoch-{number}") for number in range(1, epochs + 1)]
    complete = [os.path.isfile(os.path.join(model, "config.json")) for model in models]
    if os.path.isdir(path) and not all(complete):
        last = complete.index(False)
        raise ModelError(
            f"c_ssft: {folder} has no complete epoch-{last + 1}, and epochs is {epochs}: run `tamis train c_ssft` again"
            + (f", or set epochs: {last}" if last else "")
        )
    return models


@dataclass(frozen=True, kw_only=True)
class CRho(Signal):
    """Scores a pair by its cosine under a model of a clean set, minus its cosine under a model of the pool.

    High: the clean model sees a match that the pool has not taught yet. Low: it sees no match, or the pool already
    teaches the pair well. The two models have different scales, so 0 has no meaning: only the order counts.

    Attributes:
        clean: a CLIP trained on the clean set; in the paper, for 32 epochs on CC3M. `tamis train c_rho` makes both.
        pool: a CLIP trained on the whole pool for one epoch. Equation 1 has the cosine after that epoch, not a loss.

    Emits:
        c_rho: difference of the cosines, in [-2, 2]. NaN if the image does not decode or there is no caption.

    Cost: as `clip`, twice; images are decoded once.

    Source: Maini et al. 2024, T-MARS (arXiv 2307.03132), section 4.2 and appendix A.2, equation 1: clean minus pool,
        the highest are kept. After Mindermann et al. 2022, "Prioritized training on points that are learnable, worth
        learning, and not yet learnt" (arXiv 2206.07137): training loss minus held-out loss; high cosine is low loss.
    """

    name = "c_rho"
    columns = (
        Column(
            "c_rho", "cosine", "high", about="cosine under a model of clean pairs minus that under a model of the pool"
        ),
    )
    clean: ModelRef
    pool: ModelRef

    def __post_init__(self) -> None:
        if self.clean == self.pool:
            raise ValueError(f"clean and pool are the same model, {self.clean}: every pair would score 0; name two")
        if (Path(self.clean).name, Path(self.pool).name) == ("pool", "clean"):  # the names of `tamis train c_rho`
            raise ValueError(f"clean ({self.clean}) and pool ({self.pool}) are swapped: pairs would rank backwards")

    def needs(self) -> Mapping[str, Node]:
        return {
            "clean_image": ImageEmbedding(model=self.clean),
            "clean_text": TextEmbedding(model=self.clean),
            "pool_image": ImageEmbedding(model=self.pool),
            "pool_text": TextEmbedding(model=self.pool),
        }

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, clean_image, clean_text, pool_image, pool_text: {
            "c_rho": rowwise_dot(clean_image, clean_text) - rowwise_dot(pool_image, pool_text)
        }
