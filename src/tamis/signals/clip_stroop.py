"""CLIP-SP: how much a caption changes a sentence that it is put into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.data import Column, Device, ModelRef, Node, Scorer
from tamis.features.sources import Captions
from tamis.math.similarity import unit_rows

#: What in a prompt stands for the caption.
SLOT = "[*]"


@dataclass(frozen=True, kw_only=True)
class ClipStroop(Scorer):
    """Scores a caption by how far it moves CLIP's embedding of a sentence whose slot it fills.

    What is visually salient moves it far: high is concrete. A weak baseline for whole captions, and a long caption
    moves more than a short one.

    Attributes:
        model: a CLIP or SigLIP checkpoint, whose text tower alone is used.
        prompts: sentences with the slot "[*]".

    Emits:
        clip_stroop: 1 - the mean cosine of the filled with the unfilled prompts, in [0, 2]. NaN where there is no
            caption.

    Cost: the text tower, per prompt and distinct caption.

    Source: Alper et al. 2023, "Is BERT blind? Exploring the effect of vision-and-language pretraining on visual
        language understanding" (arXiv 2303.12513), Stroop probing; Yanuka et al. 2024 (ICC), appendix A.4: whole
        captions in the slot, without the prompts in which something is given to somebody. The list of prompts is ours.
    """

    name: ClassVar[str] = "clip_stroop"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="clip_stroop", unit="1 - cosine", better="high", about="how far the caption moves a sentence around it"
        ),
    )
    model: ModelRef = "openai/clip-vit-large-patch14"
    prompts: tuple[str, ...] = ("I see the [*]", "A photo of the [*]", "A picture of my [*]", "This is the [*]")

    def __post_init__(self) -> None:
        lacking = [prompt for prompt in self.prompts if SLOT not in prompt]
        if not self.prompts or lacking:
            raise ValueError(f"every prompt needs the slot {SLOT!r}, got {lacking or 'no prompt'}")

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.clip import load_clip
        from tamis.models.tokens import load_tokenizer

        clip, tokenize = load_clip(self.model, device), load_tokenizer(self.model)

        def embed(texts: Sequence[str]) -> NDArray[np.float32]:
            return unit_rows(clip.texts(tokenize(texts)))

        def score(*, captions: Sequence[str | None]) -> dict[str, NDArray[np.float32]]:
            present = [caption for caption in captions if caption is not None]
            found = np.full(len(captions), np.nan, np.float32)
            if present:
                found[[caption is not None for caption in captions]] = interference(present, self.prompts, embed)
            return {"clip_stroop": found}

        return score


def interference(
    captions: Sequence[str], prompts: Sequence[str], embed: Callable[[Sequence[str]], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Returns (n,) 1 - the mean over prompts of the cosine of the prompt with and without a caption in its slot.

    Args:
        captions: n texts.
        prompts: with `SLOT`.
        embed: texts to unit rows.
    """
    moved = np.zeros(len(captions), np.float64)
    for prompt in prompts:
        empty = embed([prompt])[0]
        moved += embed([prompt.replace(SLOT, caption) for caption in captions]) @ empty
    return (1 - moved / len(prompts)).astype(np.float32)
