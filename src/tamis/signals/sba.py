"""SBA: how well a language model rewrites a caption from its CLIP embedding. One of ICC's two teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.data import Column, Device, ModelRef, Node, OptionalModelRef, Signal
from tamis.errors import at_least_one, require
from tamis.features.sources import Captions, of_distinct


@dataclass(frozen=True, kw_only=True)
class Sba(Signal):
    """Scores a caption by how well a language model rewrites it from CLIP's single vector of it.

    High: CLIP's vector holds what the caption says. Low: it does not, for example because images never show it. Fluent
    phrases score high too, visible or not; `tamis train icc` combines it with `vba`. It falls with the length of the
    caption: see `tamis.math.normalise.PerLength`.

    Attributes:
        bridge: the linear layer between the two models: a folder that `tamis train sba` wrote.
        clip: the CLIP checkpoint whose text tower is used; None: where it was in training.
        language_model: the causal language model; None: where it was in training.
        beams: number of beams, of which the best reconstruction counts.
        max_tokens: longest reconstruction, in tokens.
        no_repeat: no run of this many tokens is repeated; 0 for no limit. The released code has 2.

    Emits:
        sba: 1 - character edit distance / length of the longer text, of the best reconstruction, in [0, 1]. NaN where
            there is no caption.
        sba_caption: the best reconstruction.

    Cost: a beam search of a language model per distinct caption.

    Source: Yanuka et al. 2024 (ICC, arXiv 2403.01306), section 2.
    """

    name: ClassVar[str] = "sba"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="sba",
            unit="edit similarity",
            better="high",
            beside="sba_caption",
            about="how well a language model rewrites the caption from its CLIP vector",
        ),
        Column(name="sba_caption", unit="text", better="neither", kind="word", about="the best reconstruction"),
    )
    bridge: ModelRef
    clip: OptionalModelRef = None
    language_model: OptionalModelRef = None
    beams: int = 5
    max_tokens: int = 60
    no_repeat: int = 0

    def __post_init__(self) -> None:
        at_least_one(beams=self.beams, max_tokens=self.max_tokens)
        if self.no_repeat < 0:
            raise ValueError(f"no_repeat must be 0 (no limit) or more, got {self.no_repeat}")

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.soft_token import load_semantic_autoencoder

        require("rapidfuzz", extra="clip")
        rewrite = load_semantic_autoencoder(self.bridge, self.clip, self.language_model, device)

        def best(texts: Sequence[str]) -> Iterable[tuple[float, str | None]]:
            written = rewrite(texts, beams=self.beams, max_tokens=self.max_tokens, no_repeat=self.no_repeat)
            return map(most_alike, texts, written)

        def score(*, captions: Sequence[str | None]) -> dict[str, Any]:
            missing: tuple[float, str | None] = (np.nan, None)
            rows = of_distinct(captions, best, missing)
            return {"sba": np.array([one for one, _ in rows], np.float32), "sba_caption": [text for _, text in rows]}

        return score


def edit_similarity(one: str, other: str) -> float:
    """Returns 1 - edit distance / length of the longer text: in [0, 1], 1 for equal texts, also for two empty ones.

    Source: Yanuka et al. 2024 (ICC), section 2, normalised as in the released code, but high for similar texts; the
        distance of Levenshtein 1966: the least number of characters to insert, delete or replace.
    """
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_similarity(one, other)


def most_alike(text: str, others: Sequence[str]) -> tuple[float, str]:
    """Returns the largest edit similarity of a text with others, and that other text; of equal ones the first."""
    return max(((edit_similarity(text, other), other) for other in others), key=lambda pair: pair[0])
