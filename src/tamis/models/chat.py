"""Vision-language models that answer an instruction about an image, each with its own processor, and language models
that answer without one.

To add a type, add a line to `KINDS`, a tiny checkpoint to `tests/helpers/tiny_captioners.py`, and its name to
docs/models.md.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError, TamisError, first_line
from tamis.core.types import Device, ModelRef
from tamis.models.chat_client import LIKELIEST, Answer
from tamis.models.device import dtype_of, use_threads
from tamis.models.loading import (
    load_once,
    load_tokenizer_in,
    load_whole,
    model_type,
    one_sentence,
    settings_in,
    without_array_warning,
)
from tamis.models.nucleus import Sampling, token_drawer
from tamis.models.preprocess import LARGEST_SIDE
from tamis.models.reference import resolve

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a type of model is asked about an image.

    Attributes:
        processor: its class in transformers.
        default: the instruction where the settings name none.
        plain: the prompt, with {} for the instruction; None: the checkpoint's chat template makes it.
        equal: whether the prompts of a batch must have the same length.
    """

    processor: str
    default: str = "Describe this image in one short sentence."
    plain: str | None = None
    equal: bool = False


#: `model_type` in a checkpoint's config.json -> how it is asked.
KINDS: Mapping[str, Kind] = {
    "blip-2": Kind(processor="Blip2Processor", default="", plain="{}"),
    "florence2": Kind(processor="Florence2Processor", default="<CAPTION>", plain="{}"),
    "gemma3": Kind(processor="Gemma3Processor"),
    "gemma4": Kind(processor="Gemma4Processor"),
    "idefics2": Kind(processor="Idefics2Processor"),
    "idefics3": Kind(processor="Idefics3Processor"),
    "internvl": Kind(processor="InternVLProcessor"),
    # In transformers 5.24 its later tokens are wrong next to a shorter or longer prompt, on either side of padding.
    "kosmos-2": Kind(processor="Kosmos2Processor", default="An image of", plain="{}", equal=True),
    "llava": Kind(processor="LlavaProcessor"),
    "llava_next": Kind(processor="LlavaNextProcessor"),
    "llava_onevision": Kind(processor="LlavaOnevisionProcessor"),
    "paligemma": Kind(processor="PaliGemmaProcessor", default="caption en", plain="<image>{}"),
    "qwen2_vl": Kind(processor="Qwen2VLProcessor"),
    "qwen2_5_vl": Kind(processor="Qwen2_5_VLProcessor"),
    "qwen3_vl": Kind(processor="Qwen3VLProcessor"),
    "qwen3_vl_moe": Kind(processor="Qwen3VLProcessor"),
    "qwen3_5": Kind(processor="Qwen3VLProcessor"),
    "qwen3_5_moe": Kind(processor="Qwen3VLProcessor"),
    # Not SmolVLMProcessor, which needs a package for videos and makes the same tensors of an image.
    "smolvlm": Kind(processor="Idefics3Processor"),
}

#: A language model without images: its tokenizer is all it needs.
_LANGUAGE = Kind(processor="")

#: Settings of a checkpoint's generation_config.json that we keep; all others (sampling, beams, penalties) are ours.
_MARKS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id"),
    *("forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids"),
)

#: Parts of a processor that read videos and sounds.
_NOT_IMAGES = {"video_processor", "feature_extractor"}


def load_processor(kind: Kind, folder: Path, network: Any) -> Any:
    """Returns a model's processor of images and texts, without a video processor, which would need torchvision."""
    import transformers

    cls: Any = getattr(transformers, kind.processor)
    tokenizer = load_tokenizer_in(folder, network=network)
    with one_sentence("the image processor", folder):
        auto: Any = transformers.AutoImageProcessor
        images = auto.from_pretrained(folder, backend="pil", local_files_only=True, trust_remote_code=False)
        own, _ = cls.get_processor_dict(folder, local_files_only=True)
        _check_sizes(folder, {**images.to_dict(), "own": own}, areas=kind.processor.startswith("Qwen"))
    parameters = inspect.signature(cls.__init__).parameters
    settings = {name: value for name, value in own.items() if name in parameters}
    if network.config.model_type.startswith("llava"):  # older folders lack what it needs at the first batch
        vision = network.config.vision_config
        found = {
            "patch_size": vision.patch_size,
            "vision_feature_select_strategy": network.config.vision_feature_select_strategy,
            "num_additional_image_tokens": int("clip" in vision.model_type),
        }
        settings |= {name: value for name, value in found.items() if name in parameters and settings.get(name) is None}
    with one_sentence("the processor", folder):
        parts = {"image_processor": images, "tokenizer": tokenizer, **dict.fromkeys(_NOT_IMAGES & parameters.keys())}
        processor = type(cls.__name__, (cls,), {"check_argument_for_proper_class": lambda *_: None})(**settings | parts)
    tokenizer.chat_template = processor.chat_template or tokenizer.chat_template
    return processor


def _check_sizes(folder: Path, settings: Mapping[str, Any], *, areas: bool) -> None:
    """Rejects sizes and counts that would fill the memory; `areas`: edges are numbers of pixels, as Qwen-VL's."""
    edge = LARGEST_SIDE**2 if areas else LARGEST_SIDE
    for name, value in settings_in(settings):
        most = edge if name.endswith("_edge") else LARGEST_SIDE
        counts = name.endswith(("_edge", "height", "width", "_size", "_tokens", "_patches", "seq_len", "seq_length"))
        if counts and type(value) is int and not 0 <= value <= most:
            raise ModelError(f"{folder}: {name} of its processor is {value:,}, and must be 0 to {most:,}")


class ChatModel:
    """A vision-language model on its device: it captions images by sampling, and answers prompts about them.

    With `images=False` it answers prompts alone, and may be any language model with a chat template.

    Images have any size. One that the model's processor refuses (Qwen-VL: a side more than 200 times the other), or
    whose prompt is too long for the model, has no caption and no answer.
    """

    def __init__(self, model: ModelRef, device: Device, images: bool = True) -> None:
        """Loads a checkpoint and tries it; ModelError if it is damaged, or of a type that cannot answer."""
        import torch
        import transformers

        kind = model_type(model) or ""
        if images and kind not in KINDS:
            raise ModelError(unknown_model_message(model, kind))
        self.kind, self.name, self.batch = KINDS.get(kind, _LANGUAGE), model, device.batch_size
        if not images and self.kind.plain is not None:
            raise ModelError(f"{model}, a {kind!r} model, answers only about images: name a model that chats")
        self._grey = np.full((48, 64, 3), 128, np.uint8) if images else None
        self.device, self.dtype = torch.device(device.kind), dtype_of(device)
        use_threads(device)
        path = resolve(model).path
        cls: Any = transformers.AutoModelForImageTextToText
        expected = "a captioner of images"
        if self.kind is _LANGUAGE:
            cls, expected = transformers.AutoModelForCausalLM, "a language model"
        self.model = network = load_whole(cls, path, model, expected=expected, dtype=self.dtype).to(self.device)
        if self.kind is _LANGUAGE:
            self.tokenizer = load_tokenizer_in(path, network=network)
        else:
            self.processor = load_processor(self.kind, path, network)
            self.tokenizer = self.processor.tokenizer
        # The other side gives other logits: by 1 to 3 where it was tried.
        self.tokenizer.padding_side = "right" if network.config.is_encoder_decoder else "left"
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.tokenizer.model_max_length = int(1e30)  # the network's positions are the limit; see `_each`
        for part in network.modules():  # of some, an inner model generates
            if (found := getattr(part, "generation_config", None)) is not None:
                kept: dict[str, Any] = {name: getattr(found, name, None) for name in _MARKS}
                if kept["pad_token_id"] is None:  # else the library warns at each batch
                    kept["pad_token_id"] = self.tokenizer.pad_token_id
                ours: Any = transformers.GenerationConfig
                part.generation_config = ours(**kept)
        text = network.config.get_text_config(decoder=True)
        self._positions = int(getattr(text, "max_position_embeddings", None) or 10**9)
        if self.kind.plain is None and not self.tokenizer.chat_template:
            raise ModelError(f"{path} has no chat template: copy the model's chat_template.jinja into it")
        # Text that stands for an image or for the end of a turn.
        added = (str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special)
        marks = {"<image>", *self.tokenizer.all_special_tokens, *added}
        self._marks = sorted((mark for mark in marks if len(mark) > 1), key=len, reverse=True)
        with one_sentence("the model", model):
            self._generate(self._first(self.kind.default), max_new_tokens=1)

    def _first(self, prompt: str) -> dict[str, Any]:
        """Returns the inputs of a grey image, or of none; ModelError if the processor does not take the prompt."""
        try:
            return self._inputs([self._grey], [prompt])
        except (MemoryError, TamisError):
            raise
        except Exception as error:
            raise ModelError(f"{self.name} does not take the prompt {prompt!r}: {first_line(error)}") from error

    def check(self, sampling: Sampling) -> None:
        """Raises ModelError if the model does not take this prompt, or not this many tokens."""
        if sampling.max_tokens < 2:
            raise ModelError(f"max_tokens must be at least 2 (the start token and another), got {sampling.max_tokens}")
        length = self._length(self._first(sampling.prompt or self.kind.default), sampling.max_tokens)
        if length > self._positions:
            raise ModelError(f"{self.name} has room for {self._positions} tokens, not {length}: lower max_tokens")

    def __call__(self, images: Sequence[Pixels], uids: NDArray[np.uint64], sampling: Sampling) -> list[list[str]]:
        """Draws `sampling.captions` captions for each of n images (uint8, any size); none for a refused image.

        They depend only on the image, its pair's uid (`uids`: (n, 2) halves) and the settings.
        """
        captions: list[list[str]] = [[] for _ in images]
        count, prompts = sampling.captions, [sampling.prompt or self.kind.default] * len(images)
        new = {"min_new_tokens": max(0, sampling.min_tokens - 1), "max_new_tokens": sampling.max_tokens - 1}

        def draw(rows: list[int], inputs: dict[str, Any]) -> list[str]:
            drawn = token_drawer(uids[rows], sampling, self._skip(inputs), penalty=sampling.repetition_penalty)
            # `do_sample`, or several sequences would be refused.
            return self._texts(
                self._generate(inputs, do_sample=True, num_return_sequences=count, logits_processor=[drawn], **new)
            )

        for rows, texts in self._each(images, prompts, sampling.max_tokens - 1, draw, count):
            for place, row in enumerate(rows):
                captions[row] = texts[place * count : (place + 1) * count]
        return captions

    def answer(self, images: Sequence[Pixels | None], prompts: Sequence[str], max_tokens: int) -> list[Answer]:
        """Returns the likeliest answer to each prompt about its image (all None if loaded without), of `max_tokens`."""
        answers = [Answer(refused="the model's processor refuses the image, or its prompt is too long")] * len(images)

        def say(_: list[int], inputs: dict[str, Any]) -> tuple[Any, list[tuple[Any, Any]]]:
            likeliest: list[tuple[Any, Any]] = []  # of each step: probabilities and ids, (n, 20)

            def note(tokens: Any, scores: Any) -> Any:
                likeliest.append(scores.float().softmax(-1).topk(min(LIKELIEST, scores.shape[1])))
                return scores

            return self._generate(inputs, max_new_tokens=max_tokens, logits_processor=[note]), likeliest

        for rows, (made, likeliest) in self._each(images, [self.plain(text) for text in prompts], max_tokens, say):
            texts = self._texts(made)
            for place, row in enumerate(rows):
                steps = [(values[place].tolist(), self._words(ids[place])) for values, ids in likeliest]
                chosen = zip(self._words(made[place]), steps, strict=True)
                tokens = [(word, dict(zip(words, shares, strict=True))) for word, (shares, words) in chosen]
                answers[row] = Answer(texts[place], tokens)
        return answers

    def _words(self, ids: Any) -> list[str]:
        return [str(word) for word in self.tokenizer.convert_ids_to_tokens(ids.tolist())]

    def plain(self, text: str) -> str:
        """Returns a text whose characters stand for nothing else: a caption may hold the mark of a turn's end."""
        for mark in self._marks:
            if mark in text:
                text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text

    def _each(
        self,
        images: Sequence[Pixels | None],
        prompts: Sequence[str],
        new: int,
        work: Callable[[list[int], dict[str, Any]], T],
        count: int = 1,
    ) -> Iterator[tuple[list[int], T]]:
        """Yields rows, and what `work` made of their inputs, batch by batch; refused rows are in none.

        There is room for `new` tokens of `count` texts per row. Without memory for a batch, batches become smaller.
        """
        import torch

        waiting = _chunks(range(len(images)), self.batch // count)
        while waiting:
            rows = waiting.pop(0)
            try:
                if self.kind.equal and len({prompts[row] for row in rows}) > 1:
                    raise ValueError("prompts of different lengths")
                inputs = self._inputs([images[row] for row in rows], [prompts[row] for row in rows])
                if self._length(inputs, new) > self._positions:
                    raise ValueError(f"more than {self._positions} tokens")
            except (MemoryError, TamisError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # of a processor: many kinds, most of them ValueError
                if len(rows) == 1:
                    log.info("%s refuses an image or its prompt: %s", self.name, first_line(error))
                else:
                    waiting[:0] = [[row] for row in rows]
                continue
            try:
                done = work(rows, inputs)
            except torch.OutOfMemoryError:
                if len(rows) == 1:
                    raise
                self.batch = len(rows) // 2 * count
                waiting = _chunks([row for some in (rows, *waiting) for row in some], len(rows) // 2)
                log.warning("%s: no memory for %d images at once, now %d", self.name, len(rows), len(rows) // 2)
                torch.cuda.empty_cache()
                continue
            yield rows, done

    def _inputs(self, images: Sequence[Pixels | None], prompts: Sequence[str]) -> dict[str, Any]:
        texts, settings = [self._text(prompt) for prompt in prompts], dict[str, Any]()
        if self.kind.plain is None:  # a template may write the first token, which the tokenizer would write again
            begun = self.tokenizer.bos_token is not None and texts[0].startswith(self.tokenizer.bos_token)
            settings["add_special_tokens"] = not begun
        settings |= {"text": texts, "padding": True, "return_tensors": "pt"}
        if self._grey is None:
            made = self.tokenizer(**settings, return_token_type_ids=False)
        else:  # a list for each text: some kinds take nothing else
            pictures = [[Image.fromarray(image)] for image in images if image is not None]
            with without_array_warning():
                made = self.processor(images=pictures, **settings)
        # PaliGemma's processor makes labels too, for training.
        return {
            name: value.to(self.device, self.dtype if value.is_floating_point() else None)
            for name, value in made.items()
            if name != "labels"
        }

    def _text(self, prompt: str) -> str:
        if self.kind.plain is not None:
            return self.kind.plain.replace("{}", prompt)
        image = [] if self._grey is None else [{"type": "image"}]
        content = prompt if self.kind is _LANGUAGE else [*image, {"type": "text", "text": prompt}]
        text: str = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True, tokenize=False,
            enable_thinking=False,  # of those that would think aloud first, such as Qwen3.5
        )  # fmt: skip
        return text

    def _skip(self, inputs: Mapping[str, Any]) -> int:
        """Returns the number of tokens before the first new one."""
        return 1 if self.model.config.is_encoder_decoder else int(inputs["input_ids"].shape[1])

    def _length(self, inputs: Mapping[str, Any], new: int) -> int:
        """Returns the positions that a prompt and `new` tokens take, in the decoder or the encoder."""
        return max(int(inputs["input_ids"].shape[1]), self._skip(inputs) + new)

    def _generate(self, inputs: Mapping[str, Any], **settings: Any) -> Any:
        """Returns the new tokens of each row."""
        import torch

        with torch.inference_mode():
            rows = self.model.generate(**inputs, **{"do_sample": False, "num_beams": 1} | settings)
        return rows[:, self._skip(inputs) :]

    def _texts(self, rows: Any) -> list[str]:
        return [text.strip() for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]


def _chunks(rows: Sequence[int], size: int) -> list[list[int]]:
    return [list(rows[start : start + max(1, size)]) for start in range(0, len(rows), max(1, size))]


def unknown_model_message(model: str, kind: str, others: Iterable[str] = ()) -> str:
    """Returns the message about a model that cannot be run here; `others` are more types that can."""
    return f"{model} is a {kind!r} model; types that caption images here: {', '.join(sorted({*KINDS, *others}))}"


load_chat = load_once(keep=1)(ChatModel)
