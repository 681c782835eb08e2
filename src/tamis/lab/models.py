"""The lab's small models: in the drawn world, each replaces a large one."""

from collections.abc import Mapping
from typing import Literal, NamedTuple


class LabModel(NamedTuple):
    """A model by its job and a line about it; see `tamis.models.reference.BuiltIn`."""

    job: Literal["image-text", "captioner", "text-to-image", "language model"]
    about: str


#: Its name is also its folder among the weights.
MODELS: Mapping[str, LabModel] = {
    "lab/clip": LabModel("image-text", "small CLIP"),
    "lab/clip-noisy": LabModel("image-text", "weaker CLIP that learned from unfiltered pairs"),
    "lab/captioner": LabModel("captioner", "small image captioner"),
    "lab/text-to-image": LabModel("text-to-image", "small diffusion pipeline"),
    "lab/language-model": LabModel("language model", "small causal language model"),
}

#: Settings of a bench of drawn pairs: these models instead of those for photographs.
SETTINGS = (
    *(f"signals.{signal}.model=lab/clip" for signal in ("clip", "tmars", "generated_clip")),
    *(f"signals.{signal}.captioner=lab/captioner" for signal in ("sieve", "generated_clip")),
)
