"""How captions are drawn: the settings that recipes nest as `sampling`."""

from __future__ import annotations

from dataclasses import dataclass

from tamis.errors import at_least_one


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Nucleus sampling of captions.

    Attributes:
        captions: how many are drawn of each image.
        top_p: probability of the nucleus, in [0, 1]; 0 takes the likeliest token each time, and all captions of an
            image are the same.
        top_k: draw only from the k likeliest tokens; 0 for no limit.
        min_tokens, max_tokens: length in tokens, the start token and the prompt counted, as `generate` counts.
        repetition_penalty: above 1, tokens that are in the caption already become less likely (Keskar et al. 2019).
        prompt: what every caption begins with ("a picture of"); it is cut off again.
        seed: other captions for another one.

    Raises:
        ValueError: a number lies outside its range.
    """

    captions: int = 8
    top_p: float = 0.9
    top_k: int = 0
    min_tokens: int = 5
    max_tokens: int = 20
    repetition_penalty: float = 1.0
    prompt: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one(captions=self.captions)
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p must be in [0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (no limit) or more, got {self.top_k}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"min_tokens must be at most max_tokens, got {self.min_tokens} and {self.max_tokens}")
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty must be above 0, got {self.repetition_penalty}")
