"""How visually concrete a caption is: ICC, its two teachers, and two baselines from its paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tamis.core.arrays import Floats, Pixels
from tamis.core.errors import at_least_one, check_effect, require
from tamis.core.math.similarity import unit_rows
from tamis.core.types import LATER, Column, Device, ModelRef, Node, OptionalModelRef
from tamis.models.text_to_image import Drawing
from tamis.signals.basic import CaptionSignal
from tamis.signals.features.generated import DrawnImages
from tamis.signals.features.sources import of_present


@dataclass(frozen=True, kw_only=True)
class Icc(CaptionSignal):
    """Scores a caption by how visually concrete it is: can it be drawn, and read back from the drawing?

    High: a scene that everyone imagines alike ("a cat standing on a counter"). Low: opinions, names, slogans, prices
    and whatever else an image cannot show. It ignores the image, and a concrete caption can belong to another one, so
    select by `clip` too.

    Attributes:
        model: "moranyanuka/icc", "norms" (built in, no download; weaker, above all on long captions), a folder that
            `tamis train icc` wrote, or any sequence classification checkpoint with one logit.

    Emits:
        icc: about 0 (abstract) to about 1 (concrete); a checkpoint's output is not clipped. NaN without a caption.

    Cost: 4 ms per distinct caption with DistilRoBERTa, bf16, two CPU cores; docs/performance.md.

    Source: Yanuka et al. 2024, "ICC: quantifying image caption concreteness for multimodal dataset curation"
        (arXiv 2403.01306).
    """

    name = "icc"
    columns = (Column("icc", "concreteness", "high", about="how visually concrete the caption is"),)
    model: ModelRef = "moranyanuka/icc"

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.regression import load_text_regression

        regress = load_text_regression(self.model, device)
        return lambda *, captions: {"icc": of_present(captions, regress)}


@dataclass(frozen=True, kw_only=True)
class Sba(CaptionSignal):
    """Scores a caption by how well a language model rewrites it from its CLIP vector.

    High: the vector contains what the caption says. Low: it does not, for example because images never show it. Fluent
    phrases score high too, visible or not; `tamis train icc` combines it with `vba`. Longer captions score lower: see
    `tamis.core.math.normalise.PerLength`.

    Attributes:
        bridge: the linear layer between the two models: a folder that `tamis train sba` wrote.
        clip: the CLIP checkpoint whose text tower is used; None: the path or id from training.
        language_model: the causal language model; None: the path or id from training.
        beams: number of beams; the best reconstruction counts.
        max_tokens: longest reconstruction, in tokens.
        no_repeat: no run of this many tokens is repeated; 0 for no limit. The released code has 2.
        encoder: None: reconstructions are compared by characters; a model: by BERTScore with its token embeddings.
        layer: layer of the encoder; None: the choice of the `bert-score` package, else the last.

    Emits:
        sba: 1 - character edit distance / length of the longer text, for the best reconstruction, in [0, 1]. With an
            encoder BERTScore F1, at most 1; 0 if the reconstruction is empty. NaN without a caption.
        sba_caption: the best reconstruction.

    Cost: a beam search of a language model per distinct caption.

    Source: Yanuka et al. 2024 (ICC, arXiv 2403.01306), section 2; table 6 has both ways to compare.
    """

    name = "sba"
    version = 2
    columns = (
        Column(
            "sba",
            "similarity",
            "high",
            beside="sba_caption",
            about="how well a language model rewrites the caption from its CLIP vector",
        ),
        Column("sba_caption", "text", "neither", kind="word", about="the best reconstruction"),
    )
    bridge: ModelRef
    clip: OptionalModelRef = None
    language_model: OptionalModelRef = None
    beams: int = 5
    max_tokens: int = 60
    no_repeat: int = 0
    encoder: OptionalModelRef = field(default=None, metadata=LATER)
    layer: int | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        at_least_one(beams=self.beams, max_tokens=self.max_tokens)
        _check_layer(self)
        if self.no_repeat < 0:
            raise ValueError(f"no_repeat must be 0 (no limit) or more, got {self.no_repeat}")

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.soft_token import load_semantic_autoencoder

        compare = _comparison(self.encoder, self.layer, device)
        rewrite = load_semantic_autoencoder(self.bridge, self.clip, self.language_model, device)

        def best(texts: Sequence[str]) -> Iterable[tuple[float, str | None]]:
            written = rewrite(texts, beams=self.beams, max_tokens=self.max_tokens, no_repeat=self.no_repeat)
            return compare(texts, written)

        return self.columns_of(best)


def _check_layer(signal: Sba | Vba) -> None:
    if signal.encoder is None:
        check_effect(signal, "layer", because="without an encoder texts are compared by characters")


def _comparison(
    encoder: str | None, layer: int | None, device: Device
) -> Callable[[Sequence[str], Sequence[Sequence[str]]], Iterable[tuple[float, str | None]]]:
    """Returns the function from texts and their reconstructions to each text's best score and reconstruction."""
    if encoder is None:
        require("rapidfuzz", extra="clip")
        return lambda texts, generated: map(most_alike, texts, generated)
    from tamis.models.texts.sentence import load_token_encoder

    encode = load_token_encoder(encoder, layer, device)
    return lambda texts, generated: best_reconstructions(dict(zip(texts, generated, strict=True)), encode).values()


def edit_similarity(one: str, other: str) -> float:
    """Returns 1 - edit distance / length of the longer text: in [0, 1], 1 for equal texts, even two empty ones.

    Source: Yanuka et al. 2024 (ICC), section 2, normalised as in the released code, but high for similar texts. The
        distance is from Levenshtein 1966: the least number of characters to insert, delete or replace.
    """
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_similarity(one, other)


def most_alike(text: str, others: Sequence[str]) -> tuple[float, str | None]:
    """Returns the largest edit similarity of a text to others, and that other text; ties go to the first.

    NaN and None without others.
    """
    if not others:
        return np.nan, None
    return max(((edit_similarity(text, other), other) for other in others), key=lambda pair: pair[0])


@dataclass(frozen=True, kw_only=True)
class Vba(CaptionSignal):
    """Scores a caption by how much of it a captioner reads back from an image drawn from it.

    High: what the caption says can be drawn and seen. Low: it cannot, or the image shows details that the caption does
    not name. `tamis train icc` combines it with `sba`, by the caption's length: see
    `tamis.core.math.normalise.PerLength`.

    Attributes:
        text_to_image: the model that draws: a pipeline of diffusers.
        captioner: the model that reads, by beam search: BLIP, BLIP-2, GIT or a vision-encoder-decoder checkpoint.
        encoder: the model whose token embeddings BERTScore compares; None: texts are compared by characters, as by
            `sba`.
        layer: layer of the encoder; None: the choice of the `bert-score` package, else the last.
        beams: number of beams; the best reconstruction counts.
        max_tokens: longest reconstruction, in tokens.
        prompt: the start of every reconstruction (BLIP, BLIP-2 and GIT only); it is removed before scoring. The
            released code has "a photo of".
        drawing: how to draw images.

    Emits:
        vba: BERTScore F1 of the best reconstruction, at most 1 (without an encoder the edit similarity of `sba`, in
            [0, 1]); 0 if the captioner returns nothing. NaN without a caption, or if it has no token.
        vba_caption: the best reconstruction.

    Cost: seconds per caption, with Stable Diffusion 2 and BLIP-2; meant for making training labels: score with `icc`.

    Source: Yanuka et al. 2024 (ICC, arXiv 2403.01306), section 2, appendix A.7 (guidance 9, 20 steps); table 6
        has both ways to compare.
    """

    name = "vba"
    columns = (
        Column(
            "vba",
            "similarity",
            "high",
            beside="vba_caption",
            about="how much of the caption a captioner reads back from an image drawn from it",
        ),
        Column("vba_caption", "text", "neither", kind="word", about="the best reconstruction"),
    )
    text_to_image: ModelRef = "stabilityai/stable-diffusion-2"
    captioner: ModelRef = "Salesforce/blip2-opt-2.7b"
    encoder: OptionalModelRef = "FacebookAI/roberta-large"
    layer: int | None = None
    beams: int = 5
    max_tokens: int = 30
    prompt: str = ""
    drawing: Drawing = Drawing()

    def __post_init__(self) -> None:
        at_least_one(beams=self.beams, max_tokens=self.max_tokens)
        _check_layer(self)

    def needs(self) -> Mapping[str, Node]:
        return {**super().needs(), "drawn": DrawnImages(model=self.text_to_image, drawing=self.drawing)}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.captioner import load_beam_captioner

        read = load_beam_captioner(self.captioner, device)
        read.check(self.prompt, self.max_tokens)
        compare = _comparison(self.encoder, self.layer, device)

        def score(*, captions: Sequence[str | None], drawn: Sequence[list[Pixels] | None]) -> dict[str, Any]:
            images = {text: some[0] for text, some in zip(captions, drawn, strict=True) if some}

            def best(texts: Sequence[str]) -> Iterable[tuple[float, str | None]]:
                shown = [images[text] for text in texts]
                generated = read(shown, prompt=self.prompt, beams=self.beams, max_tokens=self.max_tokens)
                return compare(texts, generated)

            return self.columns_of(best)(captions=captions)

        return score


def best_reconstructions(
    generated: Mapping[str, Sequence[str]], encode: Callable[[Sequence[str]], Mapping[str, Any]]
) -> dict[str, tuple[float, str | None]]:
    """Returns the best BERTScore F1 among each text's reconstructions, and that reconstruction; ties: the first.

    `encode` returns the `TokenVectors` of texts.
    """
    from tamis.core.math.texts import bertscore

    vectors = encode([*generated, *(other for others in generated.values() for other in others)])
    best: dict[str, tuple[float, str | None]] = {}
    for text, others in generated.items():
        reference, scored = vectors[text], []
        for other in others:
            candidate = vectors[other]
            *_, f1 = bertscore(candidate.vectors, reference.vectors, candidate.counts, reference.counts)
            if not np.isnan(f1):
                scored.append((f1, other))
        best[text] = max(scored, key=lambda pair: pair[0]) if scored else (np.nan, None)
    return best


#: The placeholder of the caption in a prompt.
SLOT = "[*]"


@dataclass(frozen=True, kw_only=True)
class ClipStroop(CaptionSignal):
    """Scores a caption by how far it moves CLIP's embedding of a sentence when it fills the sentence's slot.

    High: visually salient, concrete words. A weak baseline for whole captions; longer captions score higher.

    Attributes:
        model: a CLIP or SigLIP checkpoint; only its text tower is used.
        prompts: sentences with the slot "[*]".

    Emits:
        clip_stroop: 1 - mean cosine of the filled and the unfilled prompts, in [0, 2]. NaN without a caption.

    Cost: the text tower, per prompt and distinct caption.

    Source: Alper et al. 2023, "Is BERT blind? Exploring the effect of vision-and-language pretraining on visual
        language understanding" (arXiv 2303.12513), Stroop probing; Yanuka et al. 2024 (ICC), appendix A.4: whole
        captions in the slot. The list of prompts is ours.
    """

    name = "clip_stroop"
    columns = (Column("clip_stroop", "1 - cosine", "high", about="how far the caption moves a sentence around it"),)
    model: ModelRef = "openai/clip-vit-large-patch14"
    prompts: tuple[str, ...] = ("I see the [*]", "A photo of the [*]", "A picture of my [*]", "This is the [*]")

    def __post_init__(self) -> None:
        lacking = [prompt for prompt in self.prompts if SLOT not in prompt]
        if not self.prompts or lacking:
            raise ValueError(f"every prompt needs the slot {SLOT!r}, got {lacking or 'no prompt'}")

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.clip import load_clip, load_tokenizer

        clip, tokenize = load_clip(self.model, device), load_tokenizer(self.model)

        def embed(texts: Sequence[str]) -> Floats:
            return unit_rows(clip.texts(tokenize(texts)))

        return lambda *, captions: {
            "clip_stroop": of_present(captions, lambda texts: interference(texts, self.prompts, embed))
        }


def interference(captions: Sequence[str], prompts: Sequence[str], embed: Callable[[Sequence[str]], Floats]) -> Floats:
    """Returns 1 - mean over prompts of the cosine between the prompt with the caption and with the empty slot.

    `embed` returns unit rows for texts. The result is (n,) float32, in [0, 2].
    """
    moved = np.zeros(len(captions), np.float64)
    for prompt in prompts:
        empty = embed([prompt])[0]
        moved += embed([prompt.replace(SLOT, caption) for caption in captions]) @ empty
    return (1 - moved / len(prompts)).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class AveClip(CaptionSignal):
    """Scores a caption by its mean CLIP cosine with several images drawn from it.

    High: a text-to-image model can draw it. It is the slowest signal: a baseline for small samples.

    Attributes:
        model: a CLIP or SigLIP checkpoint.
        text_to_image: the model that draws: a pipeline of diffusers.
        pictures: number of images per caption.
        drawing: how to draw them.

    Emits:
        ave_clip: mean cosine, in [-1, 1]. NaN without a caption.

    Cost: `pictures` drawings per distinct caption.

    Source: Wu and Smith 2023, "Composition and deformance: measuring imageability with a text-to-image model" (WNU).
    """

    name = "ave_clip"
    columns = (Column("ave_clip", "cosine", "high", about="mean cosine with images drawn from the caption"),)
    model: ModelRef = "openai/clip-vit-large-patch14"
    text_to_image: ModelRef = "stabilityai/stable-diffusion-2"
    pictures: int = 10
    drawing: Drawing = Drawing()

    def __post_init__(self) -> None:
        at_least_one(pictures=self.pictures)

    def needs(self) -> Mapping[str, Node]:
        drawn = DrawnImages(model=self.text_to_image, count=self.pictures, drawing=self.drawing)
        return {**super().needs(), "drawn": drawn}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.clip import load_clip, load_tokenizer
        from tamis.models.preprocess import load_preprocess

        clip, tokenize = load_clip(self.model, device), load_tokenizer(self.model)
        preprocess = load_preprocess(self.model)

        def score(*, captions: Sequence[str | None], drawn: Sequence[list[Pixels] | None]) -> dict[str, Any]:
            images = {text: some for text, some in zip(captions, drawn, strict=True) if some}

            def mean_cosines(texts: Sequence[str]) -> list[tuple[float]]:
                pixels = [preprocess.resize(image) for text in texts for image in images[text]]
                of_images = unit_rows(clip.images(pixels)).reshape(len(texts), self.pictures, -1)
                cosines = np.einsum("npd,nd->np", of_images, unit_rows(clip.texts(tokenize(texts))))
                return [(mean,) for mean in cosines.mean(1)]

            return self.columns_of(mean_cosines)(captions=captions)

        return score
