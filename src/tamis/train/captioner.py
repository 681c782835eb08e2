"""Builds the captioner to train, a vision tower whose states a language model attends to, and computes its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tamis.core.errors import ModelError
from tamis.models.loading import (
    is_pooler,
    load_config,
    load_tokenizer_in,
    load_whole,
    longest_text,
    model_type,
    one_sentence,
    pad_tokens,
)
from tamis.models.reference import resolve
from tamis.train.loop import ALONE, ProcessGroup
from tamis.train.scales import CaptionTraining
from tamis.train.towers import Cast, Piece, Towers, depthwise_in_float32, image_settings

if TYPE_CHECKING:
    import torch

#: `model_type` of a whole CLIP -> the class of transformers that loads its vision tower alone.
_VISION = {"clip": "CLIPVisionModel", "siglip": "SiglipVisionModel"}

_LONGEST = 128  # tokens of a caption, so that one alt-text does not slow down its whole batch


@dataclass(frozen=True, kw_only=True)
class Captioning(Towers):
    """A `VisionEncoderDecoderModel` in training."""

    @property
    def scale(self) -> None:
        """A captioner has no scale."""
        return None

    def after_step(self) -> None:
        """Nothing needs to be kept within bounds."""

    def tokens(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask, (b, longest) each, on the CPU; every caption has a start and an end."""
        start, end = self.model.config.decoder_start_token_id, self.model.config.eos_token_id
        rows = self.tokenizer(list(captions), add_special_tokens=False)["input_ids"]
        return pad_tokens([[start, *row[: self.length - 2], end] for row in rows], end, "cpu")

    def gradients(
        self, pieces: Sequence[Piece], usable: torch.Tensor, cast: Cast, *, local: bool = True,
        processes: ProcessGroup = ALONE,
    ) -> torch.Tensor:  # fmt: skip
        """Adds the gradients of a batch in pieces and returns this process's share of the loss.

        Averaged over the processes, it is the mean over the tokens of all captions, their ends included.
        """
        import torch

        split = _split(pieces, usable)
        tokens = processes.total(sum(count for *_, count in split))
        total = torch.zeros((), device=self.device)
        for piece, kept, _ in split:
            with cast():
                value = self._surprise(piece, kept) * (processes.count / tokens)
            if value.requires_grad:
                value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return total

    def loss(self, pieces: Sequence[Piece], usable: torch.Tensor, cast: Cast) -> torch.Tensor:
        """The mean over the tokens of a batch, where no gradients are recorded."""
        return self.gradients(pieces, usable, cast)

    def _surprise(self, piece: Piece, usable: torch.Tensor) -> torch.Tensor:
        """Returns the negative log-likelihood of the captions of a piece, summed over their tokens."""
        from torch.nn import functional as F

        pixels, ids, mask = (one.to(self.device, non_blocking=True) for one in piece)
        logits = self._logits(ids, mask, pixel_values=self.pixels(pixels))
        targets = ids[:, 1:].masked_fill((mask[:, 1:] == 0) | ~usable[:, None], -100)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")

    def _logits(self, ids: torch.Tensor, mask: torch.Tensor, **image: Any) -> torch.Tensor:
        """Returns (b, length - 1, vocabulary): the scores of each token after the first."""
        before = {"decoder_input_ids": ids[:, :-1], "decoder_attention_mask": mask[:, :-1]}
        logits: torch.Tensor = self.model(**before, **image).logits
        return logits

    def images(self, pixels: torch.Tensor) -> torch.Tensor:
        """The states (b, places, d) of images, (b, side, side, 3) uint8 on the device."""
        states: torch.Tensor = self.model.encoder(pixel_values=self.pixels(pixels)).last_hidden_state
        return states

    def texts(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The scores of captions of a blank image with one state, to count the operations."""
        import torch

        blank = torch.zeros(len(ids), 1, self.model.encoder.config.hidden_size, device=self.device)
        return self._logits(ids, mask, encoder_outputs=(blank,))


def _split(pieces: Sequence[Piece], usable: torch.Tensor) -> list[tuple[Piece, torch.Tensor, int]]:
    """Returns each piece, which of its pairs are usable, and the number of their tokens after the first."""
    split, start = [], 0
    for piece in pieces:
        kept = usable[start : start + len(piece[0])]
        split.append((piece, kept, int(piece[2][kept.cpu(), 1:].sum())))
        start += len(kept)
    return split


def build(training: CaptionTraining) -> Captioning:
    """Joins the vision tower and the language model, float32 on the CPU, with new layers that attend to the image.

    Raises ModelError if a model is missing or cannot take its part.
    """
    import torch
    import transformers
    from transformers import AutoModel, AutoModelForCausalLM, VisionEncoderDecoderModel

    torch.manual_seed(training.seed)  # of the new layers
    vision, language = training.vision, training.language
    settings: dict[str, Any] = {"dtype": torch.float32}
    tower = getattr(transformers, _VISION.get(model_type(vision) or "", ""), AutoModel)
    encoder = load_whole(tower, resolve(vision).path, vision, expected="a vision tower", unneeded=is_pooler, **settings)
    path = resolve(language).path
    config = load_config(path)
    config.is_decoder = config.add_cross_attention = True
    decoder = load_whole(
        AutoModelForCausalLM, path, language, expected="a language model", unneeded=_attends_to_image, config=config,
        **settings,
    )  # fmt: skip
    if not any(_attends_to_image(name) for name, _ in decoder.named_parameters()):
        kind = decoder.config.model_type
        raise ModelError(f"{language} is a {kind!r} model, which cannot attend to an image: use a GPT-2")
    tokenizer = load_tokenizer_in(path, network=decoder)
    start = tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    end = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    if start is None or end is None:
        raise ModelError(f"{language}: its tokenizer has no tokens for the start and the end of a text")
    images = image_settings(vision)
    side = images["side"]
    with one_sentence("the vision tower", vision), torch.inference_mode():
        states = encoder(pixel_values=torch.zeros(1, 3, side, side)).last_hidden_state
    if states.ndim != 3:
        raise ModelError(f"{vision} returns no sequence of states for an image: use a ViT, a Swin or a CLIP")
    model = VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
    marks = {"decoder_start_token_id": start, "bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    for name, value in marks.items():
        setattr(model.config, name, value)
        setattr(model.generation_config, name, value)
    depthwise_in_float32(model)
    length = min(_LONGEST, longest_text(decoder.config, tokenizer))
    return Captioning(model=model, tokenizer=tokenizer, length=length, **images)


def _attends_to_image(name: str) -> bool:
    """Whether a weight belongs to the layers that a language model alone does not have."""
    return "crossattention" in name or "ln_cross_attn" in name
