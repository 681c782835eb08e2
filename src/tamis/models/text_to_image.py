"""Text-to-image pipelines of `diffusers`, made repeatable: a caption always gives the same image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError, at_least_one, require
from tamis.core.types import Device, ModelRef
from tamis.models.device import dtype_of, use_threads
from tamis.models.loading import check_tokens, load_once, load_tokenizer_in, load_whole, one_sentence, quiet
from tamis.models.reference import components_in, resolve

#: Components that check or prepare photographs; drawing from a text does not need them.
_UNNEEDED = ("safety_checker", "feature_extractor", "image_encoder")


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How images are drawn: the settings that recipes nest as `drawing`.

    Attributes:
        steps: number of denoising steps.
        guidance: how strongly the image follows the caption; 1 switches classifier-free guidance off.
        seed: seed of a caption's first image; the next images use the next seeds.
    """

    steps: int = 20
    guidance: float = 9.0
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one(steps=self.steps)
        if self.guidance < 1:
            raise ValueError(f"guidance must be at least 1 (which switches it off), got {self.guidance}")


class TextToImage:
    """Any text-to-image pipeline, with DPM-Solver++ if that is compatible with its scheduler."""

    def __init__(self, model: ModelRef, device: Device) -> None:
        """Loads a pipeline; ModelError if it is missing or draws nothing from a text."""
        require("diffusers", "torch", "transformers", extra="diffusion")
        from diffusers import AutoPipelineForText2Image, DPMSolverMultistepScheduler

        path = resolve(model).path
        if not (path / "model_index.json").is_file():
            raise ModelError(f"{model} is not a pipeline of diffusers: its folder holds no model_index.json")
        self._batch = device.batch_size
        use_threads(device)
        pipeline = load_pipeline(AutoPipelineForText2Image, path, model, dtype_of(device))
        if any(
            kind.__name__ == "DPMSolverMultistepScheduler" for kind in getattr(pipeline.scheduler, "compatibles", ())
        ):
            pipeline.scheduler = DPMSolverMultistepScheduler.from_config(pipeline.scheduler.config)
        pipeline.set_progress_bar_config(disable=True)
        self._pipeline = pipeline.to(device.kind)

    def __call__(self, captions: Sequence[str], drawing: Drawing) -> list[Pixels]:
        """Draws n captions, each distinct one once: n images (height, width, 3) of uint8. An image depends only on its
        caption and the settings. The model's text tower truncates long captions.
        """
        import torch

        distinct = sorted(set(captions), key=lambda caption: (len(caption), caption))
        drawn: dict[str, Pixels] = {}
        for start in range(0, len(distinct), self._batch):
            prompts = distinct[start : start + self._batch]
            with torch.inference_mode(), quiet():
                output = self._pipeline(
                    prompts,
                    num_inference_steps=drawing.steps,
                    guidance_scale=drawing.guidance,
                    generator=[_noise(prompt, drawing.seed) for prompt in prompts],
                    output_type="np",
                ).images  # (b, height, width, 3) in [0, 1]
            images = np.nan_to_num(np.asarray(output, np.float32)).clip(0, 1)
            drawn.update(zip(prompts, (images * 255).round().astype(np.uint8), strict=True))
        return [drawn[caption] for caption in captions]


load_text_to_image = load_once(keep=1)(TextToImage)


def _noise(caption: str, seed: int) -> Any:
    """Returns the random numbers for one caption, on the CPU, where every machine draws the same."""
    import torch

    number = xxhash.xxh3_64_intdigest(caption.encode(), seed=seed & (2**64 - 1))
    return torch.Generator("cpu").manual_seed(number & (2**63 - 1))


def load_pipeline(cls: Any, folder: Path, model: str, dtype: Any) -> Any:
    """Returns a diffusers pipeline of class `cls` from components that we load one by one.

    diffusers itself would draw missing weights at random, and let transformers run code from the folder.
    """
    import diffusers
    import transformers

    loaded: dict[str, Any] = {"safety_checker": None}
    with quiet():
        for name, (library, kind, part) in components_in(folder).items():
            component = getattr({"diffusers": diffusers, "transformers": transformers}.get(library), kind, None)
            if name in _UNNEEDED:
                loaded[name] = None
            elif not isinstance(component, type):
                raise ModelError(f"{folder}: its {name}, {library}.{kind}, is not part of diffusers or transformers")
            elif "Tokenizer" in kind:
                loaded[name] = load_tokenizer_in(part, cls=component)
            elif not issubclass(component, diffusers.SchedulerMixin):
                what = f"{model}: its {name}"
                loaded[name] = load_whole(component, part, what, expected=f"a {kind}", dtype=dtype)
        for name, tokenizer in loaded.items():
            network = loaded.get(name.replace("tokenizer", "text_encoder"))
            if name.startswith("tokenizer") and tokenizer.pad_token is None:
                raise ModelError(f"{folder / name}: the tokenizer has no padding token")
            if name.startswith("tokenizer") and network is not None:
                check_tokens(tokenizer, network, folder / name)
        with one_sentence("the pipeline", folder):
            own = loaded | {"dtype": dtype, "requires_safety_checker": False}
            return cls.from_pretrained(folder, local_files_only=True, use_safetensors=True, **own)
