"""Image captioners: images to texts, by nucleus sampling or by beam search.

A new architecture is a file with a class like `Blip`, a line in `ARCHITECTURES`, and a tiny checkpoint of it in
`tests/factories.py`. Kinds that are not in the dictionary are tried too, as `Architecture` says.
"""

from __future__ import annotations

from collections.abc import Mapping

from tamis.models.captioners.architecture import Architecture
from tamis.models.captioners.blip import Blip
from tamis.models.captioners.blip2 import Blip2
from tamis.models.captioners.encoder_decoder import EncoderDecoder
from tamis.models.captioners.git import Git
from tamis.models.loading import model_type

#: What is particular to each kind of checkpoint, by the `model_type` of its config.json.
ARCHITECTURES: Mapping[str, Architecture] = {
    "blip": Blip(),
    "blip-2": Blip2(),
    "git": Git(),
    "vision-encoder-decoder": EncoderDecoder(),
}


def architecture_of(model: str) -> Architecture:
    """Returns what is particular to a checkpoint.

    Raises:
        ModelError: it is not here, or holds no config.json.
        DependencyError: torch or transformers is not installed.
    """
    return ARCHITECTURES.get(model_type(model) or "", Architecture())
