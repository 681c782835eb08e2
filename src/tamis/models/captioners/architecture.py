"""What may differ between kinds of captioners."""

from __future__ import annotations

from typing import Any, ClassVar

from tamis.models.captioners.decoder import Parts


class Architecture:
    """Any image-to-text model of transformers: its own `generate` decodes it, and it takes no prompt.

    Kinds that can do more override what is different.

    Attributes:
        takes_prompt: whether captions can begin with a prompt in a beam search.
        fast: whether our own loop decodes it: `parts` says what that takes over.
    """

    takes_prompt: ClassVar[bool] = False
    fast: ClassVar[bool] = False

    def cls(self) -> Any:
        """Returns the class of transformers that loads it."""
        import transformers

        return transformers.AutoModelForImageTextToText

    def beginning(self, prompt: str, config: Any, tokenizer: Any) -> list[int]:
        """Returns the tokens that `generate` is given of a prompt, as the model's processor makes them."""
        raise AssertionError("only an architecture that takes a prompt is asked how")

    def taken(self, config: Any) -> int:
        """Returns how many positions a caption without a prompt begins with."""
        return 1

    def parts(self, model: Any) -> Parts:
        """Returns what our own loop takes over of a loaded model."""
        raise AssertionError("only an architecture that our own loop decodes is asked for its parts")


def words(prompt: str, tokenizer: Any) -> list[int]:
    """Returns a prompt's tokens without special ones."""
    found: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else []
    return found
