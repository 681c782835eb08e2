"""Image captioners by beam search: the likeliest captions of a picture, several of them, the same every time."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.data import Device, ModelRef, Pixels
from tamis.errors import ModelError
from tamis.models.captioners.sampled import LoadedCaptioner
from tamis.models.loading import loaded_once, model_type
from tamis.models.preprocess import load_preprocess

#: `model_type` of the checkpoints whose captions can begin with a prompt.
_WITH_PROMPT = ("blip", "blip-2", "git")


class BeamCaptioner(LoadedCaptioner):
    """A BLIP, BLIP-2, GIT or other image-to-text checkpoint through its own `generate`."""

    def __init__(self, model: str, device: Device, kind: str) -> None:
        super().__init__(model, device, kind)
        self._preprocess = load_preprocess(model)

    def check(self, prompt: str, max_tokens: int) -> None:
        """Says before any work that captions cannot be written so.

        Raises:
            ModelError: the model takes no prompt, or has no room for so many tokens.
        """
        kind = self.model.config.model_type
        if prompt and kind not in _WITH_PROMPT:
            raise ModelError(
                f"{self.name} is a {kind!r} model, which takes no prompt here: only {', '.join(_WITH_PROMPT)} do. "
                "Leave the prompt out"
            )
        text = self.model.config.get_text_config(decoder=True)
        room = int(getattr(text, "max_position_embeddings", 0) or 10**9)
        queries = int(self.model.config.num_query_tokens) if kind == "blip-2" else 0
        begun = max(1, len(self._prompt_ids(prompt)), queries + 1 if not prompt else 0)
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
        beginning = self._prompt_ids(prompt)
        # As the tokenizer writes it, in lower case perhaps.
        begun = self.texts([self.tokenizer(prompt, add_special_tokens=False)["input_ids"]])[0] if prompt else ""
        captions: list[list[str]] = []
        for start in range(0, len(images), at_once):
            resized = [self._preprocess.resize(image) for image in images[start : start + at_once]]
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

    def _prompt_ids(self, prompt: str) -> list[int]:
        """Returns what `generate` is given of a prompt, as the model's processor makes it."""
        if not prompt:
            return []
        config = self.model.config
        if config.model_type == "blip-2":  # its queries stand where these first tokens are
            own: list[int] = self.tokenizer(prompt)["input_ids"]
            return [config.image_token_index] * config.num_query_tokens + own
        if config.model_type == "blip":  # which drops the last token, an end that its processor writes
            return [*self.prompt_ids(prompt, config.text_config.bos_token_id), config.text_config.sep_token_id]
        return self.prompt_ids(prompt, config.bos_token_id)


@loaded_once(keep=1)
def load_beam_captioner(model: ModelRef, device: Device) -> BeamCaptioner:
    """Returns a loaded captioner.

    Raises:
        ModelError: it is not here, or captions no images.
        DependencyError: torch or transformers is not installed.
    """
    return BeamCaptioner(model, device, model_type(model))
