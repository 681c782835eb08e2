"""SIEVE: how well a caption matches captions that a model generates for its image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tamis.arrays import Floats
from tamis.data import Column, Device, ModelRef, Node, OptionalFileRef, OptionalModelRef, Signal
from tamis.errors import unknown, without_effect
from tamis.features.embeddings import Fit
from tamis.features.generated import GeneratedCaptions, GivenCaptions
from tamis.features.sources import Captions, DecodedImages
from tamis.features.text import MaskedImages
from tamis.models.nucleus import Sampling
from tamis.signals.medium import MEDIUM_PHRASES, holds_words, without_medium

#: Reasons for a missing score.
NOTHING_REMAINS = "nothing remains of the caption without phrases like 'a photo of'"
NO_WORDS = "the caption holds no letter and no digit"


@dataclass(frozen=True, kw_only=True)
class Sieve(Signal):
    """Scores a pair by the best cosine of its caption with captions that a model generates for its image.

    High: someone who saw the image could have written the caption. Low: the caption is about something else, about what
    cannot be seen (names, places, prices), or about text in the image, which captioners trained on clean pairs do not
    read.

    Attributes:
        captioner: a BLIP, GIT or other image-to-text checkpoint.
        sampling: number of captions of each image, and how they are drawn; more captions never lower the score.
        encoder: the model whose space the texts are compared in: a sentence-transformers, CLIP or BLIP retrieval
            checkpoint.
        medium: phrases that are first removed from both sides: "paper", "released" or "released-long" (lists of the
            authors), "tamis" (ours: plurals, articles, more media), or your own list; an empty list removes nothing.
            The report counts what was removed.
        captions_from: a Parquet, CSV or JSON Lines file of captions, by uid or key, instead of a captioner, whose
            settings are an error then. See `GivenCaptions`.
        mask_text: caption the images with their written text painted over (the paper: section 2, concurrent work).
        fit: how images are made to fit the captioner: "model", its own way, or "crop", CLIP's way, as released.

    Emits:
        sieve: the largest cosine, in [-1, 1]. NaN where the image does not decode (unless `captions_from` is set),
            there is no caption, or nothing remains of it without medium phrases.
        sieve_mean: the mean cosine.
        sieve_caption: the nearest generated caption.

    Cost: 0.6 s per image with BLIP-base, bf16, two CPU cores; docs/performance.md. The encoder runs once per distinct
        text of a batch.

    Source: Mahmoud et al. 2024, "Sieve: multimodal dataset pruning using image captioning models", equation 8 and
        section 4.4 (8 captions, p = 0.9, 5 to 20 tokens).
    """

    name = "sieve"
    version = 2
    columns = (
        Column(
            name="sieve",
            unit="cosine",
            better="high",
            beside="sieve_caption",
            about="best cosine of the caption with generated ones",
        ),
        Column(name="sieve_mean", unit="cosine", better="high", about="mean cosine of the caption with generated ones"),
        Column(name="sieve_caption", unit="text", better="neither", kind="word", about="the nearest generated caption"),
    )
    captioner: OptionalModelRef = "Salesforce/blip-image-captioning-base"
    sampling: Sampling = Sampling()
    encoder: ModelRef = "minilm"
    medium: str | tuple[str, ...] = "paper"
    captions_from: OptionalFileRef = None
    mask_text: bool = False
    fit: Fit = "model"

    def __post_init__(self) -> None:
        if self.captions_from is not None:
            reason = "captions_from reads captions from a file and no captioner runs"
            without_effect(self, "sampling", "mask_text", "fit", because=reason)
            if self.captioner is not None:
                without_effect(self, "captioner", because=reason)
            object.__setattr__(self, "captioner", None)  # keeps the unused default out of fingerprints
        elif self.captioner is None:
            raise ValueError("set captioner, or captions_from: a file of captions")
        if isinstance(self.medium, str) and self.medium not in MEDIUM_PHRASES:
            raise ValueError(
                f"{unknown('list of medium phrases', self.medium, MEDIUM_PHRASES)}; write your own phrases as a list"
            )
        self._generated()  # checks its settings

    def _generated(self) -> GeneratedCaptions | GivenCaptions:
        if self.captioner is None:
            assert self.captions_from is not None
            return GivenCaptions(file=self.captions_from)
        return GeneratedCaptions(
            model=self.captioner,
            sampling=self.sampling,
            of=MaskedImages() if self.mask_text else DecodedImages(),
            fit=self.fit,
        )

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions(), "generated": self._generated()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.sentence import load_sentence_encoder

        encode = load_sentence_encoder(self.encoder, device)
        phrases = MEDIUM_PHRASES[self.medium] if isinstance(self.medium, str) else self.medium

        def score(*, captions: Sequence[str | None], generated: Sequence[list[str] | None]) -> dict[str, Any]:
            columns = alignment(captions, generated, encode, without_medium(phrases))
            if self.captions_from is not None:
                for n, (caption, texts) in enumerate(zip(captions, generated, strict=True)):
                    if caption is not None and not texts:
                        columns["reason"][n] = "captions_from has no caption of this pair"
            return columns

        return score


def alignment(
    captions: Sequence[str | None],
    generated: Sequence[Sequence[str] | None],
    encode: Callable[[Sequence[str]], Floats],
    mask: Callable[[str], str],
) -> dict[str, Any]:
    """Returns SIEVE's columns.

    Args:
        captions: n texts, None where there is none.
        generated: n lists of texts, None where there are none. A text that is empty without medium phrases is left out
            of the maximum and counts as 0 in the mean.
        encode: from texts to unit rows.
        mask: removes medium phrases, M in the paper.

    Source: Mahmoud et al. 2024, equation 8.
    """
    best = np.full(len(captions), np.nan, np.float32)
    mean = best.copy()
    nearest: list[str | None] = [None] * len(captions)
    reasons: list[str | None] = [None] * len(captions)
    masked = [None if caption is None else mask(caption) for caption in captions]
    others = [None if texts is None else [mask(text) for text in texts] for texts in generated]
    texts = sorted({*filter(None, masked), *(text for some in others for text in some or () if text)})
    vectors = dict(zip(texts, encode(texts).astype(np.float32), strict=True))
    for n, (caption, text, some, unmasked) in enumerate(zip(captions, masked, others, generated, strict=True)):
        if caption is None or some is None or unmasked is None:
            continue
        if not text:
            reasons[n] = NOTHING_REMAINS if holds_words(caption) else NO_WORDS
            continue
        kept = [k for k, other in enumerate(some) if other]
        if not kept:
            reasons[n] = "the captioner generated no words for the image"
            continue
        cosines = np.stack([vectors[some[k]] for k in kept]) @ vectors[text]
        best[n], mean[n] = cosines.max(), cosines.sum() / len(some)
        nearest[n] = unmasked[kept[int(cosines.argmax())]]
    return {"sieve": best, "sieve_mean": mean, "sieve_caption": nearest, "reason": reasons}
