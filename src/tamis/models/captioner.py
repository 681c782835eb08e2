"""Image captioners: repeatable nucleus sampling, or beam search.

BLIP and GIT are sampled by our own loop (`decoder`), the other `ARCHITECTURES` by transformers' own `generate`: slower,
but repeatable by the same random numbers. Models that take an instruction are in `chat`.

To add an architecture, add a line to `ARCHITECTURES`, a tiny checkpoint to `captioner_folder` of
`tests/helpers/tiny_models.py`, and its fixture to `EXAMPLES` in `tests/models/test_captioners.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError
from tamis.core.types import Device, ModelRef
from tamis.models.chat import KINDS, ChatModel, load_chat, unknown_model_message
from tamis.models.decoder import CaptionDecoder, Parts, blip_parts, git_parts
from tamis.models.device import dtype_of, each_core, use_threads
from tamis.models.loading import load_once, load_tokenizer_in, load_whole, model_type, quiet
from tamis.models.nucleus import Sampling, token_drawer
from tamis.models.packed import for_inference
from tamis.models.preprocess import check_side, load_preprocess
from tamis.models.reference import resolve

if TYPE_CHECKING:
    import torch

#: Limit in bytes on the keys and values of a batch of images; larger batches are not faster.
_IMAGE_BYTES = 512 << 20

_CPU_ROWS = 64  # captions decoded together on a CPU, by each of its cores; more are hardly faster and take more memory


def word_tokens(prompt: str, tokenizer: Any) -> list[int]:
    """Returns a prompt's tokens, without special tokens."""
    tokens: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else []
    return tokens


def _blip_prompt(prompt: str, config: Any, tokenizer: Any) -> list[int]:
    # BLIP's `generate` drops the last token: its processor appends an end token.
    return [config.text_config.bos_token_id, *word_tokens(prompt, tokenizer), config.text_config.sep_token_id]


def _blip2_prompt(prompt: str, config: Any, tokenizer: Any) -> list[int]:
    tokens: list[int] = tokenizer(prompt)["input_ids"]
    return [config.image_token_index] * config.num_query_tokens + tokens  # the queries replace the image tokens


def _git_prompt(prompt: str, config: Any, tokenizer: Any) -> list[int]:
    return [config.bos_token_id, *word_tokens(prompt, tokenizer)]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How a family of image-to-text models is loaded and decoded. The defaults leave both to transformers."""

    #: The class of transformers that loads it.
    loader: str = "AutoModelForImageTextToText"
    #: (prompt, config, tokenizer) -> `input_ids`, as the model's processor makes them; None: beams take no prompt.
    prompt: Callable[[str, Any, Any], list[int]] | None = None
    #: config -> number of positions before a caption's first word, without a prompt.
    start: Callable[[Any], int] = lambda config: 1
    #: model -> its parts for our own loop; None: `generate` decodes it.
    parts: Callable[[Any], Parts] | None = None


#: `model_type` in a checkpoint's config.json -> architecture.
ARCHITECTURES: Mapping[str, Architecture] = {
    # Li et al. 2022: a BERT whose layers attend to the image.
    "blip": Architecture(loader="BlipForConditionalGeneration", prompt=_blip_prompt, parts=blip_parts),
    # Li et al. 2023: any language model; it reads an image as a few learned queries.
    "blip-2": Architecture(prompt=_blip2_prompt, start=lambda config: int(config.num_query_tokens) + 1),
    # Wang et al. 2022: a BERT that reads the image as if it were the start of the text.
    "git": Architecture(loader="GitForCausalLM", prompt=_git_prompt, parts=git_parts),
    # Any image encoder with any text decoder, such as ViT with GPT-2; no AutoModel for image-to-text loads it.
    "vision-encoder-decoder": Architecture(loader="VisionEncoderDecoderModel"),
}


def architecture_of(model: str) -> Architecture:
    """Returns the architecture of a checkpoint; ModelError if it has none here."""
    kind = model_type(model) or ""
    if kind in KINDS and kind not in ARCHITECTURES:
        raise ModelError(f"{model} is a {kind!r} model, which captions by sampling but has no beam search here")
    if kind not in ARCHITECTURES:
        raise ModelError(unknown_model_message(model, kind, ARCHITECTURES))
    return ARCHITECTURES[kind]


def takes_decoded_images(model: str) -> bool:
    """Whether a captioner's own processor resizes its images, so that nothing may be resized before."""
    kind = model_type(model)
    return kind in KINDS and kind not in ARCHITECTURES


class Captioner:
    """A captioner's network, tokenizer and preprocessing, on its device. `name` is the model as the user wrote it."""

    def __init__(self, model: ModelRef, device: Device) -> None:
        """Loads a checkpoint; ModelError if it is missing or damaged, or does not caption images."""
        self.architecture = architecture_of(model)
        import torch
        import transformers

        path = resolve(model).path
        self.name, self.batch = model, device.batch_size
        self.device, self.dtype = torch.device(device.kind), dtype_of(device)
        use_threads(device)
        cls = getattr(transformers, self.architecture.loader)
        self.model = load_whole(cls, path, model, expected="a captioner of images", dtype=self.dtype).to(self.device)
        self.tokenizer: Any = load_tokenizer_in(path, network=self.model)
        self.preprocess = load_preprocess(model)
        config = self.model.config
        check_side(self.preprocess, getattr(config, "vision_config", None) or getattr(config, "encoder", None), model)
        mean, std = torch.tensor(self.preprocess.mean), torch.tensor(self.preprocess.std)
        self._mean, self._std = (one.view(1, 3, 1, 1).to(self.device) for one in (mean, std))

    def pixels(self, images: Sequence[Pixels]) -> torch.Tensor:
        """Returns resized images, normalised, in the model's precision: (n, 3, height, width)."""
        import torch

        stack = torch.from_numpy(np.stack(images)).to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        return stack.float().mul_(self.preprocess.scale).sub_(self._mean).div_(self._std).to(self.dtype)

    def inputs(self, images: Sequence[Pixels], prompt: str) -> dict[str, torch.Tensor]:
        """Returns what `generate` takes of n resized images and a prompt for all of them."""
        import torch

        inputs = {"pixel_values": self.pixels(images)}
        if tokens := self.prompt_tokens(prompt):
            inputs["input_ids"] = torch.tensor([tokens] * len(images), device=self.device)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        return inputs

    def prompt_tokens(self, prompt: str) -> list[int]:
        """Returns the `input_ids` of a prompt; none without one."""
        encode = self.architecture.prompt
        return encode(prompt, self.model.config, self.tokenizer) if prompt and encode else []

    def check_prompt(self, prompt: str) -> None:
        """Raises ModelError if the model takes no prompt."""
        if prompt and self.architecture.prompt is None:
            kinds = ", ".join(name for name, one in ARCHITECTURES.items() if one.prompt)
            kind = self.model.config.model_type
            raise ModelError(f"{self.name} is a {kind!r} model, which takes no prompt: only {kinds} do")

    def normalise_prompt(self, prompt: str) -> str:
        """Returns a prompt as it stands in captions: the tokenizer may lower-case it."""
        return self.texts([word_tokens(prompt, self.tokenizer)])[0] if prompt else ""

    def texts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Decodes tokens and leaves out special tokens."""
        return [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]


class SamplingCaptioner(Captioner):
    """Samples captions through the model's own `generate`."""

    def check(self, sampling: Sampling) -> None:
        """Raises ModelError if the model takes no prompt, or not this many tokens."""
        self.check_prompt(sampling.prompt)
        if sampling.max_tokens < (least := self._before(sampling) + 1):
            raise ModelError(f"max_tokens must be at least {least}, with the prompt, got {sampling.max_tokens}")

    def _before(self, sampling: Sampling) -> int:
        return 1 + len(word_tokens(sampling.prompt, self.tokenizer))

    def __call__(self, images: Sequence[Pixels], uids: NDArray[np.uint64], sampling: Sampling) -> list[list[str]]:
        """Draws `sampling.captions` captions, without the prompt, for each of n resized images (uint8).

        They depend only on the image, its pair's uid (`uids`: (n, 2) halves) and the settings.
        """
        import torch

        captions: list[list[str]] = []
        at_once = max(1, self.batch // sampling.captions)
        before, said = self._before(sampling), self.normalise_prompt(sampling.prompt)
        for start in range(0, len(images), at_once):
            inputs = self.inputs(images[start : start + at_once], sampling.prompt)
            with torch.inference_mode(), quiet():  # of tokens that are both padding and start
                rows = self.model.generate(
                    **{name: value.repeat_interleave(sampling.captions, 0) for name, value in inputs.items()},
                    do_sample=False,
                    num_beams=1,
                    # Not min_length, which would also count BLIP-2's image tokens before the text.
                    min_new_tokens=max(0, sampling.min_tokens - before),
                    max_new_tokens=sampling.max_tokens - before,
                    repetition_penalty=sampling.repetition_penalty,
                    logits_processor=[token_drawer(uids[start : start + at_once], sampling)],
                )
            texts = [text.removeprefix(said).strip() for text in self.texts(rows)]
            captions += _group(texts, sampling.captions)
        return captions


def _group(texts: list[str], count: int) -> list[list[str]]:
    return [texts[n : n + count] for n in range(0, len(texts), count)]


class FastCaptioner(SamplingCaptioner):
    """Samples captions of BLIP and GIT in our own loop."""

    def __init__(self, model: ModelRef, device: Device) -> None:
        super().__init__(model, device)
        assert self.architecture.parts is not None
        parts = self.architecture.parts(self.model)
        self.decoder = CaptionDecoder(parts)
        self._tower = for_inference(parts.tower, device)
        vision = self.model.config.vision_config
        patches = (vision.image_size // vision.patch_size) ** 2 + 1
        width = self.decoder.words.shape[1]
        bytes_each = 2 * len(self.decoder.layers) * patches * width * (2 if device.precision == "bf16" else 4)
        self._at_once = max(1, min(self.batch, _IMAGE_BYTES // bytes_each))

    def encode(self, images: Sequence[Pixels]) -> torch.Tensor:
        """Returns the image states (n, t, d)."""
        import torch

        with torch.inference_mode():
            states: torch.Tensor = self._tower(pixel_values=self.pixels(images)).last_hidden_state
            return states

    def check(self, sampling: Sampling) -> None:
        start, positions = len(self._prompt(sampling)), self.decoder.positions
        if not start < sampling.max_tokens <= positions:
            raise ModelError(f"{self.name}: max_tokens must be {start + 1} to {positions}, got {sampling.max_tokens}")

    def _prompt(self, sampling: Sampling) -> list[int]:
        return [self.decoder.start, *word_tokens(sampling.prompt, self.tokenizer)]

    def __call__(self, images: Sequence[Pixels], uids: NDArray[np.uint64], sampling: Sampling) -> list[list[str]]:
        size = self._at_once
        if self.device.type == "cpu":
            size = min(size, max(1, _CPU_ROWS // sampling.captions))

        def caption(rows: Sequence[int]) -> list[list[list[int]]]:
            batch = slice(rows[0], rows[-1] + 1)
            states = self.encode(images[batch])
            return self.decoder.captions(states, uids[batch], self._prompt(sampling), sampling)

        tokens = each_core(range(len(images)), caption, size, self.device.type)
        return [self.texts(some) for some in itertools.chain.from_iterable(tokens)]


class BeamCaptioner(Captioner):
    """The likeliest captions of an image, by beam search through the model's own `generate`."""

    def check(self, prompt: str, max_tokens: int) -> None:
        """Raises ModelError if the model takes no prompt, or not this many tokens."""
        self.check_prompt(prompt)
        if max_tokens > (most := self.most_tokens(prompt)):
            raise ModelError(f"{self.name}: max_tokens must be at most {most}, got {max_tokens}")

    def most_tokens(self, prompt: str) -> int:
        """Returns how many new tokens fit after a prompt."""
        config = self.model.config
        text = config.get_text_config(decoder=True)
        positions = int(getattr(text, "max_position_embeddings", 0) or 10**9)
        start = len(self.prompt_tokens(prompt)) if prompt else self.architecture.start(config)
        return positions - start

    def __call__(self, images: Sequence[Pixels], *, prompt: str, beams: int, max_tokens: int) -> list[list[str]]:
        """Returns the `beams` likeliest captions, best first, for each of n images (uint8, any size).

        `max_tokens` limits the new tokens of a caption. The prompt is removed from the results.
        """
        import torch

        at_once = max(1, self.batch // beams)
        said = self.normalise_prompt(prompt)
        captions: list[list[str]] = []
        for start in range(0, len(images), at_once):
            inputs = self.inputs([self.preprocess.resize(image) for image in images[start : start + at_once]], prompt)
            with torch.inference_mode(), quiet():
                rows = self.model.generate(
                    **inputs, do_sample=False, num_beams=beams, num_return_sequences=beams, max_new_tokens=max_tokens
                )
            captions += _group([text.removeprefix(said).strip() for text in self.texts(rows)], beams)
        return captions


@load_once(keep=2)
def _load(model: ModelRef, device: Device) -> SamplingCaptioner:
    return (FastCaptioner if architecture_of(model).parts else SamplingCaptioner)(model, device)


def load_captioner(model: str, device: Device) -> SamplingCaptioner | ChatModel:
    """Loads a captioner for sampling; ModelError if it is missing, damaged, or not a captioner."""
    return load_chat(model, device) if takes_decoded_images(model) else _load(model, device)


load_beam_captioner = load_once(keep=1)(BeamCaptioner)
