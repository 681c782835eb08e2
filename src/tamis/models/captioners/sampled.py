"""Image captioners: images to several captions each, by nucleus sampling that anybody can repeat.

BLIP and GIT are decoded by our own loop (`caption_decoder`). Any other image-to-text model of transformers goes through
its own `generate`, slower, with the same random numbers: its columns and its repeatability are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device, ModelRef, Pixels
from tamis.errors import ModelError
from tamis.models.captioners.decoder import CaptionDecoder, Sampling
from tamis.models.captioners.nucleus import draw, numbers_of
from tamis.models.device import dtype_of, use_threads
from tamis.models.loading import from_folder, load_whole, loaded_once, model_type
from tamis.models.preprocess import load_preprocess
from tamis.models.reference import resolve

if TYPE_CHECKING:
    import torch

#: `model_type` of the checkpoints that our own loop decodes.
FAST = ("blip", "git")

#: Bytes that the keys and values of one batch of images may take; more images at once gain nothing beyond.
_SEEN_BYTES = 512 << 20


_CPU_ROWS = 128  # captions decoded together on a CPU


class Captioner(Protocol):
    """What captions images."""

    def __call__(
        self, images: Sequence[Pixels], uids: NDArray[np.uint64], prompt: str, sampling: Sampling
    ) -> list[list[str]]:
        """Captions images.

        Args:
            images: n arrays of uint8 as the checkpoint's own preprocessing resizes them.
            uids: (n, 2) halves of the uids of their pairs.
            prompt: what every caption begins with ("a picture of"); it is not in the results.
            sampling: how captions are drawn.

        Returns:
            For each image `sampling.count` captions. One of an image depends on nothing but image, uid and settings.
        """
        ...

    def check(self, prompt: str, sampling: Sampling) -> None:
        """Says before any work that captions cannot be drawn so.

        Raises:
            ModelError: the model takes no prompt, or has no room for so many tokens.
        """
        ...


class LoadedCaptioner:
    """What all ways share: weights, tokenizer, pixels."""

    def __init__(self, model: str, device: Device, kind: str) -> None:
        import torch
        import transformers

        path = resolve(model).path
        self.device = torch.device(device.kind)
        self.dtype = dtype_of(device)
        self.batch = device.batch_size
        use_threads(device)
        cls = {
            "blip": transformers.BlipForConditionalGeneration,
            "git": transformers.GitForCausalLM,
            "vision-encoder-decoder": transformers.VisionEncoderDecoderModel,
        }.get(kind, transformers.AutoModelForImageTextToText)
        self.model = load_whole(cls, path, model, expected="a captioner of images", dtype=self.dtype).to(self.device)
        self.name = model
        self.tokenizer: Any = from_folder(transformers.AutoTokenizer, path)
        preprocess = load_preprocess(model)
        self._mean = torch.tensor(preprocess.mean).view(1, 3, 1, 1).to(self.device)
        self._std = torch.tensor(preprocess.std).view(1, 3, 1, 1).to(self.device)
        self._scale = preprocess.scale

    def pixels(self, images: Sequence[Pixels]) -> Any:
        """Returns (n, 3, height, width), normalised, in the model's precision."""
        import torch

        stack = torch.from_numpy(np.stack(images)).to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        return stack.float().mul_(self._scale).sub_(self._mean).div_(self._std).to(self.dtype)

    def texts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Returns n texts without special tokens."""
        found: list[str] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [text.strip() for text in found]

    def prompt_ids(self, prompt: str, start: int) -> list[int]:
        """Returns the prompt's tokens after the start token."""
        return [start, *self.tokenizer(prompt, add_special_tokens=False)["input_ids"]] if prompt else [start]


class FastCaptioner(LoadedCaptioner):
    """BLIP and GIT by our own decoding."""

    def __init__(self, model: str, device: Device, kind: str) -> None:
        super().__init__(model, device, kind)
        self.decoder = CaptionDecoder(self.model)
        if kind == "git":
            self._start = int(self.model.config.bos_token_id)
            vision = self.model.config.vision_config
            layers, width = self.model.config.num_hidden_layers, self.model.config.hidden_size
        else:
            self._start = int(self.model.config.text_config.bos_token_id)
            vision = self.model.config.vision_config
            layers, width = self.model.config.text_config.num_hidden_layers, self.model.config.text_config.hidden_size
        patches = (vision.image_size // vision.patch_size) ** 2 + 1
        each = 2 * layers * patches * width * (2 if device.precision == "bf16" else 4)
        self._at_once = max(1, min(self.batch, _SEEN_BYTES // each))

    def see(self, images: Sequence[Pixels]) -> Any:
        """Returns what the image encoder sees: (n, t, d)."""
        import torch

        with torch.inference_mode():
            tower = self.model.git.image_encoder if self.decoder.is_git else self.model.vision_model
            return tower(pixel_values=self.pixels(images)).last_hidden_state

    def check(self, prompt: str, sampling: Sampling) -> None:
        beginning = len(self.prompt_ids(prompt, self._start))
        if not beginning < sampling.max_tokens <= self.decoder.longest:
            raise ModelError(
                f"{self.name}: max_tokens must be above the {beginning} tokens of the start and the prompt, and at "
                f"most {self.decoder.longest}, got {sampling.max_tokens}"
            )

    def __call__(
        self, images: Sequence[Pixels], uids: NDArray[np.uint64], prompt: str, sampling: Sampling
    ) -> list[list[str]]:
        beginning = self.prompt_ids(prompt, self._start)
        captions: list[list[str]] = []
        # On CPUs the rows of more captions no longer fit the caches.
        size = min(self._at_once, max(1, _CPU_ROWS // sampling.count)) if self.device.type == "cpu" else self._at_once
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

    def check(self, prompt: str, sampling: Sampling) -> None:
        if prompt:
            raise ModelError(f"{self.name} takes no prompt here: only BLIP and GIT do. Leave the prompt out")
        if sampling.max_tokens < 2:
            raise ModelError(f"max_tokens must be at least 2, the start token and another, got {sampling.max_tokens}")

    def __call__(
        self, images: Sequence[Pixels], uids: NDArray[np.uint64], prompt: str, sampling: Sampling
    ) -> list[list[str]]:
        import torch
        from transformers import LogitsProcessorList

        captions: list[list[str]] = []
        at_once = max(1, self.batch // sampling.count)
        for start in range(0, len(images), at_once):
            pixels = self.pixels(images[start : start + at_once]).repeat_interleave(sampling.count, 0)
            high, low = np.repeat(uids[start : start + at_once], sampling.count, axis=0).T
            which = np.arange(len(pixels)) % sampling.count

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
            captions += [texts[n : n + sampling.count] for n in range(0, len(texts), sampling.count)]
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
    kind = model_type(model)
    return (FastCaptioner if kind in FAST else PlainCaptioner)(model, device, kind)
