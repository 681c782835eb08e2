"""Generated captions of images, and images drawn from captions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tamis.core.arrays import Pixels
from tamis.core.errors import at_least_one, check_effect, check_words
from tamis.core.ids import format_uid, uniforms
from tamis.core.types import Device, FileRef, ModelRef, Node, Sample, Samples
from tamis.models.chat_client import ChatClient, Question, Server
from tamis.models.nucleus import Sampling
from tamis.models.text_to_image import Drawing, load_text_to_image
from tamis.pools.text_files import read_captions_file
from tamis.signals.features.embeddings import Fit, ModelPixels
from tamis.signals.features.sources import Captions, DecodedImages, of_distinct


@dataclass(frozen=True, kw_only=True)
class GeneratedCaptions(Node):
    """Captions of each image, drawn by nucleus sampling: n lists of texts, None if an image does not decode.

    The list is empty if the model's own processor refuses the image.

    A caption depends only on the image, the pair's uid and these settings.

    Attributes:
        model: a BLIP, GIT, BLIP-2 or vision-language checkpoint.
        sampling: number of captions, and how to draw them.
        of: which images: as decoded, or with their text painted over.
        fit: how to resize images for the model; see `ModelPixels`.

    Cost: docs/performance.md.
    """

    name: ClassVar[str] = "generated_captions"
    version: ClassVar[int] = 3  # 3: the nucleus's probabilities are summed in blocks of float32
    stored_as: ClassVar[str] = "captions"
    model: ModelRef
    sampling: Sampling = Sampling()
    of: Node = DecodedImages()
    fit: Fit = "model"

    def __post_init__(self) -> None:
        if not self.sampling.top_p:  # every caption of an image would be the same
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.sampling.top_p}")
        check_words(self)

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples(), "pixels": ModelPixels(model=self.model, of=self.of, fit=self.fit)}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.captioner import load_captioner

        captioner = load_captioner(self.model, device)
        captioner.check(self.sampling)

        def captions(*, samples: Sequence[Sample], pixels: Sequence[Pixels | None]) -> list[list[str] | None]:
            present = [(sample.uid, image) for sample, image in zip(samples, pixels, strict=True) if image is not None]
            uids = np.array([uid for uid, _ in present], np.uint64).reshape(-1, 2)
            texts = iter(captioner([image for _, image in present], uids, self.sampling))
            return [None if image is None else next(texts) for image in pixels]

        return captions


@dataclass(frozen=True, kw_only=True)
class ServedCaptions(Node):
    """Captions of each image by a model behind a server: n lists of texts, None if an image does not decode.

    Each caption is one request, whose seed depends only on the pair's uid and the caption's number: with a server that
    honours seeds, captions depend neither on other requests nor on their order. An image that the server refuses gets
    no captions.

    Attributes:
        server: where the model is, and how it is asked.
        sampling: number of captions and how to draw them: `top_p`, `max_tokens` and `seed`.
        of: which images: as decoded, or with their text painted over.

    Cost: `sampling.captions` requests per image.
    """

    name: ClassVar[str] = "served_captions"
    stored_as: ClassVar[str] = "captions"
    host: ClassVar[bool] = True
    server: Server
    sampling: Sampling = Sampling()
    of: Node = DecodedImages()

    def __post_init__(self) -> None:
        outside = "the chat protocol of a server has no such setting (the prompt belongs in captioner)"
        check_effect(self.sampling, "top_k", "min_tokens", "repetition_penalty", "prompt", because=outside)

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples(), "images": self.of}

    def load(self, device: Device) -> Callable[..., Any]:
        client = ChatClient(self.server)
        client.check()

        def captions(*, samples: Sequence[Sample], images: Sequence[Pixels | None]) -> list[list[str] | None]:
            present = [(sample, image) for sample, image in zip(samples, images, strict=True) if image is not None]
            count = self.sampling.captions
            asked = [self._question(image, sample.uid, number) for sample, image in present for number in range(count)]
            answers = iter(client.ask(asked))
            return [
                None if image is None else [text for _ in range(count) if (text := next(answers).text)]
                for image in images
            ]

        return captions

    def _question(self, image: Pixels, uid: tuple[int, int], number: int) -> Question:
        high, low = (np.array([half], np.uint64) for half in uid)
        seed = int(uniforms(high, low, seed=self.sampling.seed, counters=[np.array([number])])[0] * 2**31)
        sampling = {"temperature": self.server.temperature, "top_p": self.sampling.top_p, "seed": seed}
        return Question(image, self.server.prompt, self.sampling.max_tokens, sampling)


@dataclass(frozen=True, kw_only=True)
class GivenCaptions(Node):
    """Captions from a file: n lists of texts, None for a pair that is not in it.

    Attributes:
        file: Parquet, CSV or JSON Lines with a column `uid` (32 hex digits) or `key`, and a column `captions` (a list
            of texts, in CSV as JSON) or `caption` (one text; a pair may have several rows). Pairs with the same key in
            several shards share their captions: use uids if keys repeat.
    """

    name: ClassVar[str] = "given_captions"
    host: ClassVar[bool] = True
    in_index: ClassVar[bool] = True
    file: FileRef

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        by, known = read_captions_file(Path(self.file).expanduser())

        def captions(*, samples: Sequence[Sample]) -> list[list[str] | None]:
            names = (format_uid(*sample.uid) if by == "uid" else sample.key for sample in samples)
            return [known.get(name) for name in names]

        return captions


_DECODED = DecodedImages()


def captions_by(signal: Any, of: Node = _DECODED) -> GeneratedCaptions | ServedCaptions | GivenCaptions:
    """Returns the captions that a signal's `captioner`, `sampling`, `fit` and `captions_from` ask for.

    With `captions_from` the signal's captioner becomes None, which keeps an unused default out of fingerprints.

    Raises:
        ValueError: the settings contradict each other.
    """
    if signal.captions_from is not None:
        reason = "captions_from reads captions from a file and no captioner runs"
        unused = [name for name in ("sampling", "mask_text", "fit") if hasattr(signal, name)]
        check_effect(signal, *unused, because=reason)
        if signal.captioner is not None:
            check_effect(signal, "captioner", because=reason)
        object.__setattr__(signal, "captioner", None)
        return GivenCaptions(file=signal.captions_from)
    if signal.captioner is None:
        raise ValueError("set captioner, or captions_from: a file of captions")
    if isinstance(signal.captioner, Server):
        check_effect(signal, "fit", because="the server resizes images for its model")
        return ServedCaptions(server=signal.captioner, sampling=signal.sampling, of=of)
    return GeneratedCaptions(model=signal.captioner, sampling=signal.sampling, of=of, fit=signal.fit)


@dataclass(frozen=True, kw_only=True)
class DrawnImages(Node):
    """Images drawn from each caption: n lists of `count` arrays (height, width, 3) of uint8, None without a caption.

    An image depends only on its caption and these settings; equal captions in a batch are drawn once.

    Attributes:
        model: a text-to-image pipeline of diffusers.
        count: number of images per caption.
        drawing: how to draw them.

    Cost: `count` times `drawing.steps` passes of the denoiser for each distinct caption.
    """

    name: ClassVar[str] = "drawn_images"
    model: ModelRef
    count: int = 1
    drawing: Drawing = Drawing()

    def __post_init__(self) -> None:
        at_least_one(count=self.count)

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        draw = load_text_to_image(self.model, device)

        def images(texts: Sequence[str]) -> list[list[Pixels] | None]:
            seeds = range(self.drawing.seed, self.drawing.seed + self.count)
            one_of_each = [draw(texts, replace(self.drawing, seed=seed)) for seed in seeds]
            return [list(drawn) for drawn in zip(*one_of_each, strict=True)]

        return lambda *, captions: of_distinct(captions, images, None)
