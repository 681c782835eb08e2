"""Lists of class names, and their embeddings: zero-shot classification without a training set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device
from tamis.errors import RecipeError, nearest, unknown
from tamis.math.similarity import unit_rows

#: Lists that come with Tamis: the names of ImageNet-1k's classes, in the order of their numbers.
BUILT_IN = ("imagenet",)

#: Sentences that a class name is put into, by name. A class's embedding is the mean of them all.
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "name": ("{}",),
    "photo": ("a photo of a {}.",),
    "scenes": (
        "a photo of a {}.",
        "a picture with several {} in it.",
        "a {} seen from nearby.",
        "a {} far away.",
        "a {} in poor light.",
        "a drawing of a {}.",
        "part of a {}.",
        "a {} for sale.",
    ),
}

#: WordNet's id of a noun at the beginning of a line: an n and eight digits.
_ID = re.compile(r"n(\d{8})(?:\s+|$)")


def class_names(classes: str) -> tuple[str, ...]:
    """Returns one name for each class of a list: the first on its line. Arguments as in `class_synonyms`."""
    return tuple(names[0] for names in class_synonyms(classes))


def class_synonyms(classes: str) -> tuple[tuple[str, ...], ...]:
    """Returns all names of each class of a list.

    Args:
        classes: "imagenet" (built in), or a text file with one class per line: its names with commas between them,
            optionally after an id and a tab (or WordNet's id and a space). Empty lines do not count.

    Raises:
        RecipeError: there is no such list or file, or it holds no names.
    """
    lines = (_ID.sub("", line).rpartition("\t")[2].split(",") for line in _text(classes).splitlines())
    found = tuple(names for line in lines if (names := tuple(name.strip() for name in line if name.strip())))
    if not found:
        raise RecipeError(
            f"the file {classes!r} is empty, or holds ids without names: write one class name per line, or give "
            "class_mentions the folder of WordNet's files as 'wordnet' as well"
        )
    return found


def synset_names(classes: str) -> dict[int, str]:
    """Returns the synsets that a file lists: the number of each to its first name, or to its id where it has none.

    Args:
        classes: a text file with one synset per line: WordNet's id of a noun ("n02084071") or its number alone,
            optionally with names after it.

    Raises:
        RecipeError: there is no such file, it is empty, or a line begins otherwise.
    """
    found: dict[int, str] = {}
    for place, line in enumerate(map(str.strip, _text(classes).splitlines()), 1):
        number, _, rest = line.replace("\t", " ").partition(" ")
        digits = number.removeprefix("n")
        if line and not (digits.isascii() and digits.isdigit() and len(digits) <= 8):
            # We do not quote the file: a recipe may name any file, even one with secrets.
            raise RecipeError(f"line {place} of {classes!r} begins with none of WordNet's ids, such as n02084071")
        if line:
            found.setdefault(int(digits), rest.split(",")[0].strip() or f"n{int(digits):08d}")
    if not found:
        raise RecipeError(f"the file {classes!r} holds no ids: write one per line, such as n02084071")
    return found


def _text(classes: str) -> str:
    if classes in BUILT_IN:
        return (files("tamis.models") / "classes" / f"{classes}.txt").read_text(encoding="utf-8")
    path = Path(classes).expanduser()
    if not path.is_file():
        raise RecipeError(f"{unknown('list of classes', classes, BUILT_IN)}; a file of your own has one class per line")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"the class names {classes!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"the class names {classes!r} cannot be read: the file is no text in UTF-8") from error


def templates_of(templates: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the templates of a name in `TEMPLATES`, or the given ones after a check.

    Raises:
        ValueError: the name is unknown, or a template has no {} for the class's name.
    """
    if isinstance(templates, str):
        if templates not in TEMPLATES:
            raise ValueError(
                f"unknown templates {templates!r}{nearest(templates, TEMPLATES)}; known: {', '.join(TEMPLATES)}, or a "
                "list of your own such as ['a photo of a {}.']"
            )
        return TEMPLATES[templates]
    for template in templates:
        if template.count("{}") != 1:
            raise ValueError(f"a template holds {{}} once, where the class's name goes; got {template!r}")
    if not templates:
        raise ValueError("give at least one template, such as 'a photo of a {}.'")
    return tuple(templates)


def class_vectors(model: str, names: Sequence[str], templates: Sequence[str], device: Device) -> NDArray[np.float32]:
    """Returns the embedding of each class: the mean of its sentences' unit rows, made a unit row again.

    Args:
        model: a CLIP or SigLIP checkpoint, or any sentence encoder.
        names: of K classes.
        templates: sentences with {} for the name.
        device: where and in which precision.

    Returns:
        (K, d) float32 unit rows.

    Source: Radford et al. 2021 (CLIP), section 3.1.4: prompts ensembled over the embedding space.
    """
    return _vectors(model, tuple(names), tuple(templates), device)


@lru_cache(maxsize=8)
def _vectors(model: str, names: tuple[str, ...], templates: tuple[str, ...], device: Device) -> NDArray[np.float32]:
    from tamis.models.texts.sentence import load_sentence_encoder

    encode = load_sentence_encoder(model, device)
    sentences = [template.replace("{}", name) for name in names for template in templates]
    rows = encode(sentences).reshape(len(names), len(templates), -1)  # (K, templates, d)
    return unit_rows(rows.mean(1))
