"""GIT (Wang et al. 2022): a BERT that reads the image as the beginning of the text."""

from __future__ import annotations

from typing import Any, ClassVar

from tamis.models.captioners.architecture import Architecture, words
from tamis.models.captioners.decoder import Parts
from tamis.models.linear import Linear


class Git(Architecture):
    """`GitForCausalLM`."""

    takes_prompt: ClassVar[bool] = True
    fast: ClassVar[bool] = True

    def cls(self) -> Any:
        import transformers

        return transformers.GitForCausalLM

    def beginning(self, prompt: str, config: Any, tokenizer: Any) -> list[int]:
        return [config.bos_token_id, *words(prompt, tokenizer)]

    def parts(self, model: Any) -> Parts:
        config = model.config
        return Parts(
            tower=model.git.image_encoder,
            embeddings=model.git.embeddings,
            layers=model.git.encoder.layer,
            head=Linear(model.output),
            project=model.git.visual_projection,
            start=int(config.bos_token_id),
            end=int(config.eos_token_id),
            heads=int(config.num_attention_heads),
            longest=int(config.max_position_embeddings),
        )
