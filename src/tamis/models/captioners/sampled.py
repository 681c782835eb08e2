"""Image captioners: images to several captions each, by nucleus sampling that anybody can repeat.

BLIP and GIT are decoded by our own loop (`decoder`). Any other image-to-text model of transformers goes through its own
`generate`, slower, with the same random numbers: its columns and its repeatability are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device, ModelRef
from tamis.errors import ModelError
from tamis.models.captioners import ARCHITECTURES, architecture_of
from tamis.models.captioners.architecture import words
from tamis.models.captioners.decoder import CaptionDecoder
from tamis.models.captioners.loaded import LoadedCaptioner
from tamis.models.captioners.nucleus import draw, numbers_of
from tamis.models.captioners.sampling import Sampling
from tamis.models.linear import for_inference
from tamis.models.loading import loaded_once

if TYPE_CHECKING:
    import torch

#: Bytes that the keys and values of one batch of images may take; more images at once gain nothing beyond.
_SEEN_BYTES = 512 << 20

_CPU_ROWS = 128  # captions decoded together on a CPU


class Captioner(Protocol):
    """What captions images."""

    def __call__(self, images: Sequence[Pixels], uids: NDArray[np.uint64], sampling: Sampling) -> list[list[str]]:
        """Captions images.

        Args:
            images: n arrays of uint8 as the checkpoint's own preprocessing resizes them.
            uids: (n, 2) halves of the uids of their pairs.
            sampling: how captions are drawn; its prompt is not in the results.

        Returns:
            For each image `sampling.captions` captions. One of an image depends on nothing but image, uid and settings.
        """
        ...

    def check(self, sampling: Sampling) -> None:
        """Says before any work that captions cannot be drawn so.

        Raises:
            ModelError: the model takes no prompt, or has no room for so many tokens.
        """
        ...


class FastCaptioner(LoadedCaptioner):
    """BLIP and GIT by our own decoding."""

    def __init__(self, model: str, device: Device) -> None:
        super().__init__(model, device)
        parts = self.architecture.parts(self.model)
        self.decoder = CaptionDecoder(parts, rounded=device.precision == "int8")
        self._tower, self._start = for_inference(parts.tower, device), parts.start
        vision = self.model.config.vision_config
        patches = (vision.image_size // vision.patch_size) ** 2 + 1
        width = parts.embeddings.word_embeddings.weight.shape[1]
        each = 2 * len(parts.layers) * patches * width * (2 if device.precision == "bf16" else 4)
        self._at_once = max(1, min(self.batch, _SEEN_BYTES // each))

    def see(self, images: Sequence[Pixels]) -> Any:
        """Returns what the image encoder sees: (n, t, d)."""
        import torch

        with torch.inference_mode():
            return self._tower(pixel_values=self.pixels(images)).last_hidden_state

    def check(self, sampling: Sampling) -> None:
        beginning = len(self._beginning(sampling.prompt))
        if not beginning < sampling.max_tokens <= self.decoder.longest:
            raise ModelError(
                f"{self.name}: max_tokens must be above the {beginning} tokens of the start and the prompt, and at "
                f"most {self.decoder.longest}, got {sampling.max_tokens}"
            )

    def _beginning(self, prompt: str) -> list[int]:
        return [self._start, *words(prompt, self.tokenizer)]

    def __call__(self, images: Sequence[Pixels], uids: NDArray[np.uint64], sampling: Sampling) -> list[list[str]]:
        beginning = self._beginning(sampling.prompt)
        captions: list[list[str]] = []
        size = self._at_once
        if self.device.type == "cpu":  # the rows of more captions no longer fit the caches
            size = min(size, max(1, _CPU_ROWS // sampling.captions))
        for start in range(0, len(images), size):
            states = self.see(images[start : start + size])
            for said in self.decoder.captions(states, uids[start : start + size], beginning, sampling):
                captions.append(self.texts(said))
        return captions


class _Drawn:
    """Leaves of the scores of `generate` only the token that is drawn, so that its search for the best one takes it."""

    def __init__(
        self, high: NDArray[np.uint64], low: NDArray[np.uint64], which: NDArray[np.int64], sampling: Sampling
    ) -> None:
        self._who = (high, low, which)
        self._sampling = sampling

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        of = self._sampling
        numbers = numbers_of(*self._who, step=input_ids.shape[1], seed=of.seed)
        rows = np.arange(len(scores))
        chosen = draw(scores.float(), rows, numbers, top_p=of.top_p, top_k=of.top_k)
        only = torch.full_like(scores, -torch.inf)
        only[torch.arange(len(scores)), torch.from_numpy(chosen)] = 0
        return only


class PlainCaptioner(LoadedCaptioner):
    """Any other model through its own `generate`, told at every step which token was drawn."""

    def check(self, sampling: Sampling) -> None:
        if sampling.prompt:
            some = " and ".join(kind for kind, one in ARCHITECTURES.items() if one.fast)
            raise ModelError(f"{self.name} takes no prompt here: only {some} models do. Leave the prompt out")
        if sampling.max_tokens < 2:
            raise ModelError(f"max_tokens must be at least 2, the start token and another, got {sampling.max_tokens}")

    def __call__(self, images: Sequence[Pixels], uids: NDArray[np.uint64], sampling: Sampling) -> list[list[str]]:
        import torch
        from transformers import LogitsProcessorList

        captions: list[list[str]] = []
        at_once = max(1, self.batch // sampling.captions)
        for start in range(0, len(images), at_once):
            pixels = self.pixels(images[start : start + at_once]).repeat_interleave(sampling.captions, 0)
            high, low = np.repeat(uids[start : start + at_once], sampling.captions, axis=0).T
            which = np.arange(len(pixels)) % sampling.captions

            with torch.inference_mode():
                rows = self.model.generate(
                    pixel_values=pixels,
                    do_sample=False,
                    num_beams=1,
                    # What some models put before the text (BLIP-2: what stands for the image) counts as length too.
                    min_new_tokens=max(0, sampling.min_tokens - 1),
                    max_new_tokens=sampling.max_tokens - 1,
                    repetition_penalty=sampling.repetition_penalty,
                    logits_processor=LogitsProcessorList([_Drawn(high, low, which, sampling)]),
                )
            texts = self.texts(rows)
            captions += [texts[n : n + sampling.captions] for n in range(0, len(texts), sampling.captions)]
        return captions


@loaded_once(keep=2)
def load_captioner(model: ModelRef, device: Device) -> Captioner:
    """Returns a loaded captioner.

    Args:
        model: a BLIP, GIT or other image-to-text checkpoint: Hugging Face id, local folder or built-in name.
        device: where and in which precision.

    Raises:
        ModelError: it is not here, or captions no images.
        DependencyError: torch or transformers is not installed.
    """
    return (FastCaptioner if architecture_of(model).fast else PlainCaptioner)(model, device)
