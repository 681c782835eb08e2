"""BLIP (Li et al. 2022): a BERT that attends to the image across, in every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from tamis.models.captioners.architecture import Architecture, words
from tamis.models.captioners.decoder import Norm, Parts
from tamis.models.linear import Linear

if TYPE_CHECKING:
    import torch


class Blip(Architecture):
    """`BlipForConditionalGeneration`."""

    takes_prompt: ClassVar[bool] = True
    fast: ClassVar[bool] = True

    def cls(self) -> Any:
        import transformers

        return transformers.BlipForConditionalGeneration

    def beginning(self, prompt: str, config: Any, tokenizer: Any) -> list[int]:
        text = config.text_config
        # Its `generate` drops the last token, an end that its processor writes.
        return [text.bos_token_id, *words(prompt, tokenizer), text.sep_token_id]

    def parts(self, model: Any) -> Parts:
        text, bert = model.config.text_config, model.text_decoder.bert
        return Parts(
            tower=model.vision_model,
            embeddings=bert.embeddings,
            layers=bert.encoder.layer,
            head=_head(model.text_decoder.cls.predictions),
            project=None,
            start=int(text.bos_token_id),
            end=int(text.sep_token_id),
            heads=int(text.num_attention_heads),
            longest=int(text.max_position_embeddings),
        )


def _head(predictions: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns the head: from states to the scores of the vocabulary."""
    change, norm = Linear(predictions.transform.dense), Norm(predictions.transform.LayerNorm)
    activation, vocabulary = predictions.transform.transform_act_fn, Linear(predictions.decoder)
    return lambda x: vocabulary(norm(activation(change(x))))
