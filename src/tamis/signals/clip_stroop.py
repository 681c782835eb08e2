"""CLIP-SP: how much a caption changes a sentence around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.arrays import Floats
from tamis.data import Column, Device, ModelRef, Node, Signal
from tamis.features.sources import Captions, of_present
from tamis.math.similarity import unit_rows

#: The placeholder of the caption in a prompt.
SLOT = "[*]"


@dataclass(frozen=True, kw_only=True)
class ClipStroop(Signal):
    """Scores a caption by how far it moves CLIP's embedding of a sentence whose slot it fills.

    High: visually salient, concrete words. A weak baseline for whole captions, and longer captions score higher.

    Attributes:
        model: a CLIP or SigLIP checkpoint; only its text tower is used.
        prompts: sentences with the slot "[*]".

    Emits:
        clip_stroop: 1 - mean cosine of the filled and the unfilled prompts, in [0, 2]. NaN where there is no caption.

    Cost: the text tower, per prompt and distinct caption.

    Source: Alper et al. 2023, "Is BERT blind? Exploring the effect of vision-and-language pretraining on visual
        language understanding" (arXiv 2303.12513), Stroop probing; Yanuka et al. 2024 (ICC), appendix A.4: whole
        captions in the slot. The list of prompts is ours.
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
        from tamis.models.clip import load_clip, load_tokenizer

        clip, tokenize = load_clip(self.model, device), load_tokenizer(self.model)

        def embed(texts: Sequence[str]) -> Floats:
            return unit_rows(clip.texts(tokenize(texts)))

        def stroop(texts: Sequence[str]) -> Floats:
            return interference(texts, self.prompts, embed)

        return lambda *, captions: {"clip_stroop": of_present(captions, stroop)}


def interference(captions: Sequence[str], prompts: Sequence[str], embed: Callable[[Sequence[str]], Floats]) -> Floats:
    """Returns 1 - mean over prompts of the cosine of a prompt with and without the caption in its slot.

    `embed` gives unit rows for texts. The result is (n,) float32, in [0, 2].
    """
    moved = np.zeros(len(captions), np.float64)
    for prompt in prompts:
        empty = embed([prompt])[0]
        moved += embed([prompt.replace(SLOT, caption) for caption in captions]) @ empty
    return (1 - moved / len(prompts)).astype(np.float32)
