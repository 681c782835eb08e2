"""Text-to-image pipelines of `diffusers`: captions to pictures, the same picture of a caption every time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from tamis.arrays import Pixels
from tamis.data import Device, ModelRef
from tamis.errors import ModelError, at_least_one, require
from tamis.models.device import dtype_of, use_threads
from tamis.models.loading import from_settings, loaded_once
from tamis.models.pipelines import load_pipeline
from tamis.models.quiet import no_progress_bar
from tamis.models.reference import resolve


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How pictures are drawn: the settings that recipes nest as `drawing`.

    Attributes:
        steps: of the denoiser.
        guidance: how strongly the caption pulls; 1 switches classifier-free guidance off.
        seed: of the first picture of a caption; further ones take the seeds after it.

    Raises:
        ValueError: a number lies outside its range.
    """

    steps: int = 20
    guidance: float = 9.0
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one(steps=self.steps)
        if self.guidance < 1:
            raise ValueError(f"guidance must be at least 1 (which switches it off), got {self.guidance}")


class TextToImage:
    """Any text-to-image pipeline, with the solver DPM-Solver++ where the pipeline's scheduler can be replaced by it."""

    def __init__(self, model: str, device: Device) -> None:
        """Loads a pipeline.

        Raises:
            ModelError: it is not here, or draws nothing from a text.
        """
        import torch
        from diffusers import AutoPipelineForText2Image, DPMSolverMultistepScheduler

        path = resolve(model).path
        if not (path / "model_index.json").is_file():
            raise ModelError(f"{model} is not a pipeline of diffusers: its folder holds no model_index.json")
        self._torch = torch
        self._batch = device.batch_size
        use_threads(device)
        with no_progress_bar(), _hushed():
            found: Any = load_pipeline(AutoPipelineForText2Image, path, model, dtype_of(device))
        if any(kind.__name__ == "DPMSolverMultistepScheduler" for kind in getattr(found.scheduler, "compatibles", ())):
            found.scheduler = from_settings(DPMSolverMultistepScheduler, found.scheduler.config)
        found.set_progress_bar_config(disable=True)
        self._pipeline = found.to(device.kind)

    def __call__(self, captions: Sequence[str], drawing: Drawing) -> list[Pixels]:
        """Draws each distinct caption once.

        Args:
            captions: n texts; a model's text tower cuts long ones.
            drawing: how.

        Returns:
            n pictures (height, width, 3) of uint8. One depends on its caption and the settings alone.
        """
        distinct = sorted(set(captions), key=lambda caption: (len(caption), caption))
        drawn: dict[str, Pixels] = {}
        for start in range(0, len(distinct), self._batch):
            prompts = distinct[start : start + self._batch]
            noise = [self._noise(prompt, drawing.seed) for prompt in prompts]
            with self._torch.inference_mode(), _hushed():
                found = self._pipeline(
                    prompts,
                    num_inference_steps=drawing.steps,
                    guidance_scale=drawing.guidance,
                    generator=noise,
                    output_type="np",
                ).images  # (b, height, width, 3) in [0, 1]
            pictures = np.nan_to_num(np.asarray(found, np.float32)).clip(0, 1)
            drawn.update(zip(prompts, (pictures * 255).round().astype(np.uint8), strict=True))
        return [drawn[caption] for caption in captions]

    def _noise(self, caption: str, seed: int) -> Any:
        """Returns the random numbers of one caption; on the CPU, where they are the same on every machine."""
        number = xxhash.xxh3_64_intdigest(caption.encode(), seed=seed & (2**64 - 1))
        return self._torch.Generator("cpu").manual_seed(number & (2**63 - 1))


@contextmanager
def _hushed() -> Iterator[None]:
    """Keeps diffusers from drawing bars and telling of every caption that is cut, and numpy of its schedulers."""
    from diffusers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="__array__ implementation", category=DeprecationWarning)
            yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


@loaded_once(keep=1)
def load_text_to_image(model: ModelRef, device: Device) -> TextToImage:
    """Returns a loaded pipeline.

    Raises:
        ModelError: it is not here, or draws nothing from a text.
        DependencyError: torch, transformers or diffusers is not installed.
    """
    require("diffusers", "torch", "transformers", extra="diffusion")
    return TextToImage(model, device)
