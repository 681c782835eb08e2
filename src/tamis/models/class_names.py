"""Lists of class names, their embeddings for zero-shot classification, and WordNet's nouns."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device
from tamis.errors import RecipeError, nearest, unknown_message, without_effect
from tamis.math.similarity import unit_rows

#: The lists in Tamis: the names of ImageNet-1k's classes, in the order of their numbers.
BUILT_IN = ("imagenet",)


def check_classes(signal: Any) -> None:
    """Raises ValueError if a signal has both `classes` and `classes_from`, or `classes` is no built-in list.

    A file must be in `classes_from`, because only there does the fingerprint include its contents.
    """
    if signal.classes_from is not None:
        without_effect(signal, "classes", because="classes_from gives the classes")
    if signal.classes not in BUILT_IN:
        raise ValueError(f"{unknown_message('list of classes', signal.classes, BUILT_IN)}; name a file as classes_from")


#: Sentences around a class name, by name. A class's embedding is the mean over its sentences.
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

#: How a noun's ending is removed, in WordNet's order (the "detachment rules" of its program morphy).
_ENDINGS = (
    *(("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z")),
    *(("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y")),
)

#: WordNet's id of a noun at the beginning of a line: an n and eight digits.
_ID = re.compile(r"n(\d{8})(?:\s+|$)")


def class_names(classes: str) -> tuple[str, ...]:
    """Returns the first name of each class of a list; see `class_synonyms`."""
    return tuple(names[0] for names in class_synonyms(classes))


def class_synonyms(classes: str) -> tuple[tuple[str, ...], ...]:
    """Returns all names of each class of "imagenet" (built in), or of a text file with one class per line.

    Names are separated by commas; an id and a tab (or WordNet's id and a space) may come first.
    """
    lines = (_ID.sub("", line).rpartition("\t")[2].split(",") for line in _list_of(classes).splitlines())
    every_name = tuple(names for line in lines if (names := tuple(name.strip() for name in line if name.strip())))
    if not every_name:
        raise RecipeError(
            f"the file {classes!r} is empty, or holds ids without names: write one class name per line, or give "
            "class_mentions the folder of WordNet's files as 'wordnet' as well"
        )
    return every_name


def synset_names(classes: str) -> dict[int, str]:
    """Returns the synsets of a text file: number -> first name, or its id if it has no name.

    Each line has the id of a noun in WordNet ("n02084071") or its number alone; names may follow.
    """
    synsets: dict[int, str] = {}
    for number, line in enumerate(map(str.strip, _list_of(classes).splitlines()), 1):
        match = re.fullmatch(r"n?([0-9]{1,8})(?:\s+(.*))?", line)
        if match:
            synsets.setdefault(int(match[1]), (match[2] or "").split(",")[0].strip() or f"n{int(match[1]):08d}")
        elif line:
            # We do not quote the file: a recipe may name any file, even one with secrets.
            raise RecipeError(f"line {number} of {classes!r} must begin with an id of WordNet, such as n02084071")
    if not synsets:
        raise RecipeError(f"the file {classes!r} holds no ids: write one per line, such as n02084071")
    return synsets


def _list_of(classes: str) -> str:
    if classes in BUILT_IN:
        return (files("tamis.models") / "classes" / f"{classes}.txt").read_text(encoding="utf-8")
    path = Path(classes).expanduser()
    if not path.is_file():
        raise RecipeError(
            f"{unknown_message('list of classes', classes, BUILT_IN)}; a file of your own has one class per line"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "the file is not UTF-8 text")
        raise RecipeError(f"the class names {classes!r} cannot be read: {reason}") from error


def templates_of(templates: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the templates with a name in `TEMPLATES`, or checks and returns the user's own (ValueError)."""
    if isinstance(templates, str):
        if templates not in TEMPLATES:
            raise ValueError(
                f"unknown templates {templates!r}{nearest(templates, TEMPLATES)}; known: {', '.join(TEMPLATES)}, or a "
                "list of your own such as ['a photo of a {}.']"
            )
        return TEMPLATES[templates]
    for template in templates:
        if template.count("{}") != 1:
            raise ValueError(f"a template needs {{}} exactly once, in place of the class's name; got {template!r}")
    if not templates:
        raise ValueError("give at least one template, such as 'a photo of a {}.'")
    return tuple(templates)


@lru_cache(maxsize=8)
def class_vectors(
    model: str, names: tuple[str, ...], templates: tuple[str, ...], device: Device
) -> NDArray[np.float32]:
    """Returns (K, d) float32 unit rows: the embedding of each of K classes, the mean of its sentences' unit rows.

    `templates` are sentences with {} for the name. Source: Radford et al. 2021 (CLIP), section 3.1.4.
    """
    from tamis.models.texts.sentence import load_sentence_encoder

    encode = load_sentence_encoder(model, device)
    sentences = [template.replace("{}", name) for name in names for template in templates]
    rows = encode(sentences).reshape(len(names), len(templates), -1)  # (K, templates, d)
    return unit_rows(rows.mean(1))


#: A noun, singular or plural -> the number of its first synset; None for other words.
Nouns = Callable[[str], int | None]


@lru_cache(maxsize=2)
def load_nouns(wordnet: str) -> Nouns:
    """Reads WordNet's nouns from a folder with `index.noun` and `noun.exc`, or from NLTK's zip file of it.

    A noun's first synset is its most frequent sense in WordNet, as in NLTK. The word itself comes before its singular
    ("glasses" are spectacles), irregular singulars before endings, and at most one ending is removed. ImageNet's ids
    are from WordNet 3.0. Source: WordNet's manual pages wndb(5) for the files and morphy(7) for the endings.
    """
    path, first = Path(wordnet).expanduser(), dict[str, int]()
    try:
        index, exceptions = (_wordnet_file(path, name) for name in ("index.noun", "noun.exc"))
        for line in index.splitlines():
            if line and not line.startswith(" "):  # the licence
                # lemma, part of speech, senses, pointers, their symbols, senses, tagged senses, a synset per sense
                fields = line.split()
                first[fields[0]] = int(fields[-int(fields[2])])
    except (OSError, zipfile.BadZipFile, ValueError, IndexError):
        first = {}
    if not first:  # we do not quote the file: a recipe may name any
        raise RecipeError(
            f"{wordnet} holds no index.noun that can be read: name the folder of WordNet's files, such as "
            "nltk_data/corpora/wordnet"
        )
    irregular = {words[0]: tuple(words[1:]) for words in map(str.split, exceptions.splitlines()) if words}

    def first_synset(word: str) -> int | None:
        word = word.lower()
        forms = irregular.get(word)
        if forms is None:
            forms = tuple(word[: -len(old)] + new for old, new in _ENDINGS if word.endswith(old))
        return next((first[form] for form in (word, *forms) if form in first), None)

    return first_synset


def _wordnet_file(path: Path, name: str) -> str:
    """Returns the text of a file in a folder or a zip file, "" if there is none."""
    if path.is_dir():
        return (path / name).read_text(encoding="utf-8") if (path / name).is_file() else ""
    with zipfile.ZipFile(path) as archive:
        inside = [member for member in archive.namelist() if Path(member).name == name]
        return archive.read(inside[-1]).decode("utf-8") if inside else ""
