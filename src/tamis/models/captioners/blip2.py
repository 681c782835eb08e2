"""BLIP-2 (Li et al. 2023): a language model that reads an image as a few learned queries."""

from __future__ import annotations

from typing import Any, ClassVar

from tamis.models.captioners.architecture import Architecture


class Blip2(Architecture):
    """Any BLIP-2, whatever its language model."""

    takes_prompt: ClassVar[bool] = True

    def beginning(self, prompt: str, config: Any, tokenizer: Any) -> list[int]:
        own: list[int] = tokenizer(prompt)["input_ids"]
        return [config.image_token_index] * config.num_query_tokens + own  # the queries stand where these first are

    def taken(self, config: Any) -> int:
        return int(config.num_query_tokens) + 1
