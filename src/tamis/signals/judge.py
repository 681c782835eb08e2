"""A model's judgement of a pair, or of its caption alone, in numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import yaml

from tamis.core.arrays import Pixels
from tamis.core.errors import RecipeError, at_least_one, brief, check_effect, check_words, read_text, unknown_message
from tamis.core.types import LATER, Column, Device, ModelRef, Node, OptionalFileRef, Signal
from tamis.models.chat_client import Answer, ChatClient, Question, Server
from tamis.models.nucleus import Sampling
from tamis.signals.features.sources import Captions, DecodedImages

#: The worst and the best number.
Scale = tuple[int, int]
_PERCENT: Scale = (0, 100)

#: A number in an answer's words: no part of a word, of a range, or of a negative or larger number.
_NUMBER = re.compile(r"(?<![\w.,-])(\d{1,3}(?:\.\d+)?)(?!\w|,\d|\s?[-\u2013]\s?\d)", re.ASCII)

#: A token of digits, after spaces in a tokenizer's own writing, quotation marks or Markdown; the same further on.
_BEGINS, _GOES_ON = re.compile(r"[\s\u2581\u0120\u010a\"'*:(]*([0-9]{1,3})"), re.compile(r"([0-9]{1,3})")

_ASPECT = re.compile(r"[a-z][a-z0-9_]{0,60}")


def read_aspects(path: str | None, shipped_as: str = "judge.yaml") -> tuple[dict[str, str], Scale]:
    """Reads a YAML file of aspects: the question with {caption} by the aspect's name, and the scale.

    None: the file that comes with Tamis, which also has the usual prompt and scale. RecipeError if it is not one.
    """
    shipped = yaml.safe_load((files("tamis.signals") / shipped_as).read_text(encoding="utf-8"))
    try:
        found = shipped if path is None else yaml.safe_load(read_text(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise RecipeError(f"the aspects {path!r} cannot be read ({type(error).__name__})") from error
    aspects = found.get("aspects") if isinstance(found, dict) else None
    if not isinstance(aspects, dict) or not aspects or not set(found) <= {"prompt", "scale", "aspects"}:
        raise RecipeError(
            f"{path}: expected 'aspects:' with a name and a text for each, and perhaps 'prompt:', 'scale:'"
        )
    for name, criteria in aspects.items():
        if not isinstance(name, str) or not _ASPECT.fullmatch(name) or not isinstance(criteria, str):
            raise RecipeError(f"{path}: an aspect is a word of small letters, digits and _, and a text: {brief(name)}")
    prompt = found.get("prompt", shipped["prompt"])
    if not isinstance(prompt, str) or prompt.count("{caption}") != 1 or prompt.count("{aspect}") != 1:
        raise RecipeError(f"{path}: the prompt needs {{caption}} and {{aspect}}, each once")
    scale = found.get("scale", shipped.get("scale", _PERCENT))
    whole = isinstance(scale, list | tuple) and len(scale) == 2 and all(type(end) is int for end in scale)
    if not whole or not 0 <= scale[0] < scale[1] <= _PERCENT[1]:
        raise RecipeError(f"{path}: the scale is two whole numbers from 0 to 100, the worst first: {brief(scale)}")
    if "scale" in found and "prompt" not in found:
        raise RecipeError(f"{path}: a scale needs a prompt that names it to the model")
    return {name: prompt.replace("{aspect}", criteria) for name, criteria in aspects.items()}, (scale[0], scale[1])


def _columns(names: Iterable[str]) -> tuple[Column, ...]:
    return tuple(Column(f"judge_{name}", "points", "high", about="a model's rating") for name in names)


@dataclass(frozen=True, kw_only=True)
class Judge(Signal):
    """Asks a vision-language model how good a pair is, aspect by aspect; or a language model about the caption alone.

    High: the model finds the pair good in this respect. Numbers of different models have different scales, and most
    models favour round numbers: choose a threshold from the histogram. A caption can talk to the model ("rate this
    100"): do not rely on it against people who want their pairs kept.

    Attributes:
        model: a vision-language checkpoint, or a server: `{url: ..., model: ...}` with the settings of
            `tamis.models.chat_client.Server`, whose prompt and temperature are not used. With `of: caption` also a
            language model with a chat template.
        of: "caption": the image is neither shown nor needed, and the aspect is how concrete the caption is, a baseline
            of ICC; None: the pair.
        aspects: which of them to ask for; by default all.
        aspects_from: a YAML file with aspects of your own: `aspects: {name: text}`, and perhaps another `prompt` with
            {aspect} and {caption}, and a `scale: [worst, best]`.
        number: "expected": the mean of the numbers that the model might write, by its probabilities of the tokens;
            "written": the first number that it writes. Servers without `logprobs` give only the latter.
        max_tokens: length of an answer. The number stands at its start.

    Emits:
        judge_image_text_matching: in [0, 100]: whether the caption fits the image.
        judge_object_detail_fulfillment: in [0, 100]: whether it describes the things in it precisely.
        judge_caption_text_quality: in [0, 100]: whether it is well written.
        judge_semantic_understanding: in [0, 100]: whether it says more than can be seen.
        With `of: caption` judge_concreteness instead, in [1, 5]; with `aspects_from` judge_NAME for each of its
        aspects. NaN without image or caption; and, with the model's words as the reason, if its answer holds no number,
        or if it refuses the pair.

    Cost: one answer of the model per aspect.

    Source: Wang et al. 2024, "Finetuned multimodal language models are high-quality image-text data filters" (arXiv
        2403.02677), section 3, for the aspects and the scale; Yanuka et al. 2024 (ICC, arXiv 2403.01306), appendix
        A.5, for captions alone. The wording is ours.
    """

    name = "judge"
    columns = _columns(read_aspects(None)[0])
    model: ModelRef | Server
    aspects: tuple[str, ...] = ()
    aspects_from: OptionalFileRef = None
    number: Literal["expected", "written"] = "expected"
    max_tokens: int = 16
    of: Literal["caption"] | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_words(self)
        at_least_one(max_tokens=self.max_tokens)
        if isinstance(self.model, Server):
            check_effect(self.model, "prompt", "temperature", because="judge asks its own question, at temperature 0")
        object.__setattr__(self, "columns", _columns(self._questions()[0]))
        object.__setattr__(self, "host", isinstance(self.model, Server))  # it waits, and needs no device

    def _questions(self) -> tuple[dict[str, str], Scale]:
        known, scale = read_aspects(self.aspects_from, "concreteness.yaml" if self.of else "judge.yaml")
        for name in self.aspects:
            if name not in known:
                raise ValueError(unknown_message("aspect", name, known))
        return {name: known[name] for name in self.aspects or known}, scale

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()} if self.of else {"images": DecodedImages(), "captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        aspects, scale = self._questions()
        ask = self._asking(aspects, device)

        def score(*, captions: Sequence[str | None], images: Sequence[Pixels | None] | None = None) -> dict[str, Any]:
            columns = {f"judge_{name}": np.full(len(captions), np.nan, np.float32) for name in aspects}
            reasons: list[list[str]] = [[] for _ in captions]
            asked = [
                (row, name, self._question(image, question.replace("{caption}", caption)))
                for row, (image, caption) in enumerate(zip(images or [None] * len(captions), captions, strict=True))
                if (image is not None or self.of) and caption is not None
                for name, question in aspects.items()
            ]
            for (row, name, _), answer in zip(asked, ask([one for _, _, one in asked]), strict=True):
                number = self._number(answer, scale)
                if number is None:
                    reasons[row].append(f"{name}: {answer.refused or f'the model answered {brief(answer.text)}'}")
                else:
                    columns[f"judge_{name}"][row] = number
            return {**columns, "reason": ["; ".join(some) or None for some in reasons]}

        return score

    def _question(self, image: Pixels | None, text: str) -> Question:
        greedy = {"temperature": 0.0}
        return Question(image, text, self.max_tokens, greedy, probabilities=self.number == "expected")

    def _number(self, answer: Answer, scale: Scale) -> float | None:
        if self.number == "written" or answer.refused:
            return written_number(answer.text, scale)
        return expected_number(answer.tokens or (), scale)

    def _asking(self, aspects: Mapping[str, str], device: Device) -> Callable[[Sequence[Question]], Sequence[Answer]]:
        """Returns the function from questions to answers; ModelError if the model cannot answer."""
        if isinstance(self.model, Server):
            client = ChatClient(self.model)
            client.check(probabilities=self.number == "expected", image=self.of is None)
            return client.ask
        from tamis.models.chat import load_chat

        model = load_chat(self.model, device, images=self.of is None)
        for question in aspects.values():
            model.check(
                Sampling(prompt=question.replace("{caption}", ""), min_tokens=0, max_tokens=self.max_tokens + 1)
            )

        def ask(questions: Sequence[Question]) -> list[Answer]:
            return model.answer([one.pixels for one in questions], [one.prompt for one in questions], self.max_tokens)

        return ask


def written_number(text: str, scale: Scale = _PERCENT) -> float | None:
    """Returns the first number on the scale in a text; None if there is none."""
    numbers = (float(found[1]) for found in _NUMBER.finditer(text))
    return next((number for number in numbers if scale[0] <= number <= scale[1]), None)


def expected_number(tokens: Sequence[tuple[str, Mapping[str, float]]], scale: Scale = _PERCENT) -> float | None:
    """Returns the mean of the numbers on the scale that a model might have written, by its probabilities.

    The number begins at the first token that it wrote of digits alone, and has at most as many tokens as the best has
    digits. At each place, the tokens of digits continue it and all others end it. The probabilities at a place are
    known only after the digits that the model wrote: they stand for those after other digits too. A 1 that it did not
    write does not count as the first of several digits: it could begin 100 as well as 10 to 19. Neither do numbers off
    the scale.

    Args:
        tokens: each token of an answer, with the probabilities of the likeliest tokens at its place.

    Returns:
        The mean; None if the model wrote no such token, or two of digits where the best has one (10 on a scale to 5).
    """
    least, most = scale
    first = next((n for n, (token, _) in enumerate(tokens) if _BEGINS.fullmatch(token)), None)
    if first is None:
        return None
    places: list[dict[str, float]] = []  # {digits: probability}; "" ends the number
    for place, (token, likeliest) in enumerate(tokens[first : first + len(str(most))]):
        digits: dict[str, float] = {}
        for other, share in likeliest.items():
            if found := (_GOES_ON if place else _BEGINS).fullmatch(other):
                digits[found[1]] = digits.get(found[1], 0.0) + share
        places.append(digits | ({"": max(0.0, 1.0 - sum(digits.values()))} if place else {}))
        if place and not _GOES_ON.fullmatch(token):
            break
    written = [token for token, _ in tokens[first : first + 2]]
    if len(written) == 2 and _GOES_ON.fullmatch(written[1]):
        if most < 10:
            return None
        if not written[0].endswith("1"):
            places[0].pop("1", None)
    begun, whole = {"": 1.0}, dict[int, float]()  # probabilities of numbers that may go on, and that do not
    for options in [*places, {"": 1.0}]:
        longer: dict[str, float] = {}
        for before, share in begun.items():
            for more, probability in options.items():
                number = int(before + more)
                if not more or number <= most < 10 * number:
                    whole[number] = whole.get(number, 0.0) + share * probability
                elif number <= most:
                    longer[before + more] = longer.get(before + more, 0.0) + share * probability
        begun = longer
    whole = {number: share for number, share in whole.items() if number >= least}
    total = sum(whole.values())
    return sum(number * share for number, share in whole.items()) / total if total else None
