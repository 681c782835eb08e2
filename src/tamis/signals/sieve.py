"""SIEVE: how well a caption says what a captioning model sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.data import Column, Device, ModelRef, Node, OptionalFileRef, OptionalModelRef, Scorer
from tamis.errors import unknown, without_effect
from tamis.features.embeddings import Fit
from tamis.features.generated_captions import GeneratedCaptions, GivenCaptions
from tamis.features.masked_images import MaskedImages
from tamis.features.sources import Captions, DecodedImages
from tamis.models.nucleus import Sampling
from tamis.signals.medium import MEDIUM_PHRASES, holds_words, without_medium

#: Why a caption is not judged.
NOTHING_REMAINS = "nothing remains of the caption without phrases like 'a photo of'"
NO_WORDS = "the caption holds no letter and no digit"


@dataclass(frozen=True, kw_only=True)
class Sieve(Scorer):
    """Scores a pair by the best cosine of its caption with captions that a model gives to its image.

    High: somebody who saw the picture could have written the caption. Low: the caption speaks of something else, of
    what cannot be seen (names, places, prices), or of what is written in the picture, which captioners pretrained on
    clean pairs do not read.

    Attributes:
        captioner: a BLIP, GIT or other image-to-text checkpoint.
        sampling: how many captions are drawn of each image, and how; more never lower the score.
        encoder: whose space the texts are compared in: a sentence-transformers, CLIP or BLIP retrieval checkpoint.
        medium: phrases that are removed from both sides first: "paper", "released" or "released-long" (the lists),
            "tamis" (ours: plurals, articles, more media), or phrases of one's own; an empty list removes nothing. The
            report counts what was removed.
        captions_from: a Parquet, CSV or JSON Lines file of captions made elsewhere, by uid or key; no captioner runs
            then, and settings of one are an error. See `GivenCaptions`.
        mask_text: captions the images with their written text painted over (the paper: section 2, concurrent work).
        fit: how images are made to fit the captioner: "model", its own way, or "crop", CLIP's way, as released.

    Emits:
        sieve: the largest of the cosines, in [-1, 1]. NaN where the image does not decode (which nobody looks at with
            `captions_from`), there is no caption, or nothing remains of it without medium phrases.
        sieve_mean: their mean.
        sieve_caption: the generated caption that is nearest.

    Cost: 0.6 s per image with BLIP-base, bf16, two CPU cores; docs/performance.md. The encoder sees
        each distinct text of a batch once.

    Source: Mahmoud et al. 2024, "Sieve: multimodal dataset pruning using image captioning models", equation 8 and
        section 4.4 (8 captions, p = 0.9, 5 to 20 tokens).
    """

    name: ClassVar[str] = "sieve"
    version: ClassVar[int] = 2
    columns: ClassVar[tuple[Column, ...]] = (
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
            told = "captions_from takes captions from a file and no captioner runs"
            without_effect(self, "sampling", "mask_text", "fit", because=told)
            if self.captioner is not None:
                without_effect(self, "captioner", because=told)
            object.__setattr__(self, "captioner", None)  # the default, which is not run, is part of no fingerprint
        elif self.captioner is None:
            raise ValueError("name a captioner, or captions_from: a file of captions")
        if isinstance(self.medium, str) and self.medium not in MEDIUM_PHRASES:
            raise ValueError(
                f"{unknown('list of medium phrases', self.medium, MEDIUM_PHRASES)}; phrases of your own go in a list"
            )
        self._generated()  # its settings are checked with ours

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
            found = alignment(captions, generated, encode, without_medium(phrases))
            if self.captions_from is not None:
                for n, (text, said) in enumerate(zip(captions, generated, strict=True)):
                    if text is not None and not said:
                        found["reason"][n] = "captions_from has no caption of this pair"
            return found

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
        generated: n lists of texts, None where there are none. A generated text of which nothing remains counts as
            unlike everything: it is left out of the maximum and is 0 in the mean.
        encode: texts to unit rows.
        mask: removes medium phrases, M in the paper.

    Returns:
        "sieve", "sieve_mean": (n,) float32; "sieve_caption": n texts; "reason": n sentences, None where judged.

    Source: Mahmoud et al. 2024, equation 8.
    """
    best = np.full(len(captions), np.nan, np.float32)
    mean = best.copy()
    nearest: list[str | None] = [None] * len(captions)
    reasons: list[str | None] = [None] * len(captions)
    masked = [mask(caption) if caption is not None else None for caption in captions]
    shown = [None if said is None else [mask(text) for text in said] for said in generated]
    texts = {text for text in masked if text} | {text for said in shown if said is not None for text in said if text}
    ordered = sorted(texts)  # sets have no order of their own
    place = {text: row for row, text in enumerate(ordered)}
    vectors = encode(ordered)
    for n, (text, said, full) in enumerate(zip(masked, shown, generated, strict=True)):
        if text is None or said is None or full is None:
            continue
        if not text:
            reasons[n] = NOTHING_REMAINS if holds_words(captions[n] or "") else NO_WORDS
            continue
        kept = [k for k, other in enumerate(said) if other]
        if not kept:
            reasons[n] = "the captioner said nothing of the image"
            continue
        cosines = _cosines(vectors[place[text]], vectors[[place[said[k]] for k in kept]])
        best[n], mean[n] = cosines.max(), cosines.sum() / len(said)
        nearest[n] = full[kept[int(cosines.argmax())]]
    return {"sieve": best, "sieve_mean": mean, "sieve_caption": nearest, "reason": reasons}


def _cosines(one: Floats, others: Floats) -> NDArray[np.float32]:
    found: NDArray[np.float32] = others.astype(np.float32) @ one.astype(np.float32)
    return found
