"""SIEVE: how well a caption matches generated captions of its image, after medium phrases are removed from both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tamis.core.arrays import Floats
from tamis.core.errors import unknown_message
from tamis.core.types import LATER, Column, Device, ModelRef, Node, OptionalFileRef, OptionalModelRef, Signal
from tamis.models.chat_client import Server
from tamis.models.nucleus import Sampling
from tamis.signals.features.embeddings import Fit
from tamis.signals.features.generated import captions_by
from tamis.signals.features.sources import Captions, DecodedImages
from tamis.signals.features.text_boxes import MaskedImages

_MEDIA = ("image", "photo", "photograph", "picture", "pic", "snapshot", "illustration", "drawing", "painting", "sketch")
_STOCK = ("image", "photo", "photograph", "picture", "illustration", "vector")


def _tamis() -> tuple[str, ...]:
    """Media with every article and number, with and without "of"; words of stock photography; close-ups."""
    of = [f"{article}{medium}{s} of" for medium in _MEDIA for s in ("", "s") for article in ("an ", "a ", "the ", "")]
    kinds = ("stock", "royalty-free", "royalty free", "free stock", "royalty-free stock", "royalty free stock")
    stock = [f"{kind} {medium}{s}" for kind in kinds for medium in _STOCK for s in ("", "s")]
    stocked = [f"{article}{one}" for one in stock for article in ("", "a ", "the ")]
    turned = [f"{medium}{s} stock" for medium in _STOCK for s in ("", "s")]
    return (*of, *(f"{one} of" for one in stocked), *stocked, *turned, "a close-up of", "close-up of", "a close up of")


#: Lists of medium phrases, by their names in recipes. SIEVE's paper names three phrases and "...": "paper" has them
#: with each article. "released" and "released-long" are from its code, which never uses the longer one. "tamis" is
#: ours: it has plurals, articles and more media, and removes all of "stock photo of"; the other lists leave a stray
#: "of".
MEDIUM_PHRASES: Mapping[str, tuple[str, ...]] = {
    "paper": (
        *(f"{article}{medium} of" for medium in ("image", "picture", "photo") for article in ("an ", "a ", "the ", "")),
        "stock photo",
        "photo stock",
    ),
    "released": ("an image of", "a photo of", "stock photo", "photo stock", "a photo", "an image", "image", "photo"),
    "released-long": (
        *("an image of", "a photo of", "an icon of", "an illustration of", "a template of", "a thumbnail of"),
        *("a vector of", "photo stock", "stock photo", "a photo", "an image", "an icon", "an illustration"),
        *("a template", "a thumbnail", "image", "photo", "icon", "illustration", "template", "vector", "thumbnail"),
        *("free", "print", "sale", "quot", "png", "jpeg", "jpg"),
    ),
    "tamis": _tamis(),
}

#: A text without a letter or a digit.
_NOTHING = re.compile(r"[\W_]*")

#: Reasons for a missing score.
NOTHING_REMAINS = "nothing remains of the caption without phrases like 'a photo of'"
NO_WORDS = "the caption holds no letter and no digit"
NO_CAPTION = "the captioner generated no words for the image"


@dataclass(frozen=True, kw_only=True)
class Sieve(Signal):
    """Scores a pair by the best cosine of its caption with captions that a model generates for its image.

    High: someone who saw the image could have written the caption. Low: the caption is about something else, about
    things that an image cannot show (names, places, prices), or about text in the image, which captioners trained on
    clean pairs do not read.

    Attributes:
        captioner: a BLIP, GIT, BLIP-2 or vision-language checkpoint (docs/models.md lists the types), or a server with
            such a model: `{url: ..., model: ...}`, with the settings of `tamis.models.chat_client.Server`.
        sampling: number of captions per image, and how to draw them; more captions never lower the score.
        encoder: embeds the texts: a sentence-transformers, CLIP or BLIP retrieval checkpoint.
        encoder_prompt: text before each text for the encoder, such as "query: " for E5; None: what the encoder's folder
            names as its default; "": none.
        medium: phrases to remove from both sides first: "paper", "released" or "released-long" (the authors' lists),
            "tamis" (ours: plurals, articles, more media), or your own list; an empty list removes nothing. The report
            counts what was removed.
        captions_from: a Parquet, CSV or JSON Lines file of captions, by uid or key, instead of a captioner. With it,
            the captioner's settings are an error. See `GivenCaptions`.
        mask_text: caption the images after painting over their written text (the paper: section 2, concurrent work).
        fit: how to resize images for the captioner: "model", by its preprocessing, or "crop", as CLIP and the released
            code do (not for vision-language models).

    Emits:
        sieve: the largest cosine, in [-1, 1]. NaN if the image does not decode (unless `captions_from` is set) or the
            captioner's processor refuses it, there is no caption, or nothing is left of it without medium phrases.
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
            "sieve", "cosine", "high", beside="sieve_caption", about="best cosine of the caption with generated ones"
        ),
        Column("sieve_mean", "cosine", "high", about="mean cosine of the caption with generated ones"),
        Column("sieve_caption", "text", "neither", kind="word", about="the nearest generated caption"),
    )
    captioner: OptionalModelRef | Server = "Salesforce/blip-image-captioning-base"
    sampling: Sampling = Sampling()
    encoder: ModelRef = "minilm"
    encoder_prompt: str | None = field(default=None, metadata=LATER)
    medium: str | tuple[str, ...] = "paper"
    captions_from: OptionalFileRef = None
    mask_text: bool = False
    fit: Fit = "model"

    def __post_init__(self) -> None:
        if isinstance(self.medium, str) and self.medium not in MEDIUM_PHRASES:
            message = unknown_message("list of medium phrases", self.medium, MEDIUM_PHRASES)
            raise ValueError(f"{message}; write your own phrases as a list")
        self._generated()  # checks its settings

    def _generated(self) -> Node:
        return captions_by(self, MaskedImages() if self.mask_text else DecodedImages())

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions(), "generated": self._generated()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.sentence import load_sentence_encoder

        encode = load_sentence_encoder(self.encoder, device, self.encoder_prompt)
        phrases = MEDIUM_PHRASES[self.medium] if isinstance(self.medium, str) else self.medium

        def score(*, captions: Sequence[str | None], generated: Sequence[list[str] | None]) -> dict[str, Any]:
            columns = alignment(captions, generated, encode, phrase_remover(phrases))
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
        captions: n texts, None if missing.
        generated: n lists of texts, None if missing. A text that is empty without medium phrases is left out of the
            maximum and counts as 0 in the mean.
        encode: texts -> unit rows.
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
            reasons[n] = NO_CAPTION if some else "the captioner's processor or server refuses the image"
            continue
        cosines = np.stack([vectors[some[k]] for k in kept]) @ vectors[text]
        best[n], mean[n] = cosines.max(), cosines.sum() / len(some)
        nearest[n] = unmasked[kept[int(cosines.argmax())]]
    return {"sieve": best, "sieve_mean": mean, "sieve_caption": nearest, "reason": reasons}


def phrase_remover(phrases: Sequence[str]) -> Callable[[str], str]:
    """Returns a function that removes phrases from a text.

    Phrases match whole words in any case, the longest first. White space and punctuation that a removal leaves at the
    ends, or doubles, go too. A text without a phrase is returned unchanged, but a text without a letter or a digit,
    before or after, becomes "".

    Source: Mahmoud et al. 2024 (SIEVE), section 3 ("Masking medium words"), M(T). The released code removes them inside
        words too ("photographer" becomes "grapher") and leaves the spaces.
    """
    phrases = tuple(phrases)
    if not phrases:
        return lambda text: text
    pattern = _pattern(phrases)

    def remove(text: str) -> str:
        rest, removed = pattern.subn(" ", text)
        if not removed:
            return text if holds_words(text) else ""
        rest = re.sub(r"\s+([,;:!?)\]]|\.(?!\d))|([(\[])\s+", r"\1\2", " ".join(rest.split()))
        rest = re.sub(r"^(?:[ ,;:!?|]|[-.](?!\d))+", "", rest)  # "-20" and ".5" are numbers
        rest = re.sub(r"[\s,;:|-]+[.!?]*$", "", rest)
        return rest if holds_words(rest) else ""

    return remove


def holds_words(text: str) -> bool:
    """Whether a text has a letter or a digit: "???" and a row of emoji have none."""
    return not _NOTHING.fullmatch(text)


def count_removed(phrases: Sequence[str], texts: Iterable[str]) -> dict[str, Any]:
    """Counts what `phrase_remover(phrases)` removes from texts.

    Returns:
        The number of `texts`; how many lost something (`touched`) or everything (`emptied`); the number of `characters`
        lost, including white space and punctuation; and (phrase, number of texts with it), the most frequent first.
    """
    remove, pattern = phrase_remover(phrases), _pattern(tuple(phrases))
    counts: Counter[str] = Counter()
    number = touched = emptied = characters = 0
    for text in texts:
        number += 1
        matches = {" ".join(match.group().casefold().split()) for match in pattern.finditer(text)} if phrases else set()
        if matches:
            rest = remove(text)
            touched += 1
            emptied += not rest
            characters += len(text) - len(rest)
            counts.update(matches)
    ordered = tuple(sorted(counts.items(), key=lambda one: (-one[1], one[0])))
    return {"texts": number, "touched": touched, "emptied": emptied, "characters": characters, "phrases": ordered}


@lru_cache(maxsize=16)
def _pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    # As written and folded: IGNORECASE matches "\u00df" and its capital, folding turns both into "ss".
    written = {form for phrase in phrases for form in (phrase, phrase.casefold())}
    longest_first = sorted(written, key=lambda phrase: (-len(phrase), phrase))
    words = "|".join(r"\s+".join(re.escape(word) for word in phrase.split()) for phrase in longest_first)
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)
