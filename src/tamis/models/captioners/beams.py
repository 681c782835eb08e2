"""Image captioners by beam search: the likeliest captions of a picture, several of them, the same every time."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.arrays import Pixels
from tamis.data import Device, ModelRef
from tamis.errors import ModelError
from tamis.models.captioners import ARCHITECTURES
from tamis.models.captioners.architecture import words
from tamis.models.captioners.loaded import LoadedCaptioner
from tamis.models.loading import loaded_once


class BeamCaptioner(LoadedCaptioner):
    """A BLIP, BLIP-2, GIT or other image-to-text checkpoint through its own `generate`."""

    def check(self, prompt: str, max_tokens: int) -> None:
        """Says before any work that captions cannot be written so.

        Raises:
            ModelError: the model takes no prompt, or has no room for so many tokens.
        """
        if prompt and not self.architecture.takes_prompt:
            some = ", ".join(kind for kind, one in ARCHITECTURES.items() if one.takes_prompt)
            raise ModelError(
                f"{self.name} is a {self.model.config.model_type!r} model, which takes no prompt here: only {some} do. "
                "Leave the prompt out"
            )
        text = self.model.config.get_text_config(decoder=True)
        room = int(getattr(text, "max_position_embeddings", 0) or 10**9)
        begun = len(self._beginning(prompt)) if prompt else self.architecture.taken(self.model.config)
        if begun + max_tokens > room:
            raise ModelError(
                f"{self.name} has room for {room} tokens, {begun} of which captions begin with: max_tokens must be at "
                f"most {room - begun}, got {max_tokens}"
            )

    def __call__(self, images: Sequence[Pixels], *, prompt: str, beams: int, max_tokens: int) -> list[list[str]]:
        """Captions images.

        Args:
            images: n arrays (height, width, 3) of uint8, of any size.
            prompt: what every caption begins with ("a photo of"); it is not in the results.
            beams: beams, and captions per image.
            max_tokens: new tokens of a caption.

        Returns:
            n lists of `beams` captions, the likeliest first.
        """
        import torch

        at_once = max(1, self.batch // beams)
        beginning = self._beginning(prompt)
        # As the tokenizer writes it, in lower case perhaps.
        begun = self.texts([words(prompt, self.tokenizer)])[0] if prompt else ""
        captions: list[list[str]] = []
        for start in range(0, len(images), at_once):
            resized = [self.preprocess.resize(image) for image in images[start : start + at_once]]
            given = {"pixel_values": self.pixels(resized)}
            if beginning:
                given["input_ids"] = torch.tensor([beginning] * len(resized), device=self.device)
                given["attention_mask"] = torch.ones_like(given["input_ids"])
            with torch.inference_mode():
                rows = self.model.generate(
                    **given,
                    do_sample=False,
                    num_beams=beams,
                    num_return_sequences=beams,
                    max_new_tokens=max_tokens,
                )
            texts = [text.removeprefix(begun).strip() for text in self.texts(rows)]
            captions += [texts[n : n + beams] for n in range(0, len(texts), beams)]
        return captions

    def _beginning(self, prompt: str) -> list[int]:
        return self.architecture.beginning(prompt, self.model.config, self.tokenizer) if prompt else []


@loaded_once(keep=1)
def load_beam_captioner(model: ModelRef, device: Device) -> BeamCaptioner:
    """Returns a loaded captioner.

    Raises:
        ModelError: it is not here, or captions no images.
        DependencyError: torch or transformers is not installed.
    """
    return BeamCaptioner(model, device)
