"""Any image encoder with any text decoder, such as ViT with GPT-2."""

from __future__ import annotations

from typing import Any

from tamis.models.captioners.architecture import Architecture


class EncoderDecoder(Architecture):
    """`VisionEncoderDecoderModel`, which transformers does not count among its image-text models."""

    def cls(self) -> Any:
        import transformers

        return transformers.VisionEncoderDecoderModel
