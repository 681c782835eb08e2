"""Signals for a list of classes: the classes that a caption names, and the nearest one to a caption or an image."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Floats
from tamis.core.errors import RecipeError, check_effect, check_words, nearest, read_text, unknown_message
from tamis.core.math.similarity import nearest_of, unit_rows
from tamis.core.types import CLASS_NAMES, CLASS_VECTORS, LATER, Column, Device, ModelRef, Node, OptionalFileRef, Signal
from tamis.pools.datacomp import PUBLISHED, GivenEmbedding
from tamis.signals.basic import CaptionSignal
from tamis.signals.features.embeddings import GivenVectors, ImageEmbedding

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class ClassMentions(CaptionSignal):
    """Counts the classes of a list that a caption names, in the singular or in the plural.

    Names match whole words in any case; if names overlap, only the longest counts ("fire truck" is not "truck"). A word
    counts even if it has other meanings ("crane", "drumstick").

    With `wordnet` it is DataComp's rule for nouns instead: words are split only at white space ("dog," is no match),
    and a word counts if its first synset, in WordNet's order, is on the list.

    Attributes:
        classes: a built-in list: "imagenet".
        classes_from: a text file instead: one class per line, names separated by commas, optionally after an id and a
            tab (WordNet's synsets). With `wordnet` one synset per line: its id, such as n02084071, and optional names.
        wordnet: the folder with WordNet's files (index.noun and noun.exc; NLTK: corpora/wordnet), or a zip of it.

    Emits:
        class_mentions: number of different classes. NaN without a caption.
        mentioned_class: the first class in the caption; empty if it names none.

    Cost: 10 microseconds per caption.

    Source: Gadre et al. 2023, DataComp (arXiv 2304.14108), baseline "text-based". Its code compares synset offsets
        without their part of speech, so verbs and adjectives count too; only nouns count here.
    """

    name = "class_mentions"
    columns = (
        Column(
            "class_mentions",
            "classes",
            "high",
            beside="mentioned_class",
            about="classes of a list that the caption names",
        ),
        Column("mentioned_class", "text", "neither", kind="word", about="the first class named"),
    )
    classes: str = "imagenet"
    classes_from: OptionalFileRef = None
    wordnet: OptionalFileRef = None

    def __post_init__(self) -> None:
        check_classes(self)
        if self.wordnet is not None and self.classes_from is None:
            raise ValueError("wordnet needs classes_from: a file with one synset id per line, such as n02084071")

    def load(self, device: Device) -> Callable[..., Any]:
        find: Callable[[str], Iterator[str]]
        if self.wordnet is not None and self.classes_from is not None:
            find = partial(_synsets, load_nouns(self.wordnet), synset_names(self.classes_from))
        else:
            find = finder(class_synonyms(self.classes_from or self.classes))

        def mentions(texts: Sequence[str]) -> Iterable[tuple[int, str]]:
            for text in texts:
                named = dict.fromkeys(find(text))
                yield len(named), next(iter(named), "")

        return self.columns_of(mentions)


def finder(synonyms: Sequence[Sequence[str]]) -> Callable[[str], Iterator[str]]:
    """Returns a function that yields the classes that a text names, in the text's order.

    `synonyms` has all names of each class, and the function yields the first. If classes share a name, the first class
    gets it.
    """
    known: dict[tuple[str, ...], str] = {}
    for names in synonyms:
        for name in names:
            words = _words(name)
            for form in (words, (*words[:-1], words[-1] + "s"), (*words[:-1], words[-1] + "es")) if words else ():
                known.setdefault(form, names[0])
    lengths: dict[str, set[int]] = {}  # first word -> numbers of words of the names that begin with it
    for form in known:
        lengths.setdefault(form[0], set()).add(len(form))
    longest_first = {word: sorted(some, reverse=True) for word, some in lengths.items()}

    def find(text: str) -> Iterator[str]:
        words = _words(text)
        start = 0
        while start < len(words):
            for length in longest_first.get(words[start], ()):
                name = known.get(words[start : start + length])
                if name is not None:
                    yield name
                    start += length - 1
                    break
            start += 1

    return find


def _synsets(first_synset: Nouns, names: Mapping[int, str], text: str) -> Iterator[str]:
    """Yields the name of each word's first synset if `names` (offset -> name) has it."""
    synsets = (first_synset(word) for word in text.split())
    return (names[one] for one in synsets if one is not None and one in names)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


@dataclass(frozen=True, kw_only=True)
class ClassSimilarity(CaptionSignal):
    """Scores a caption by its best cosine with the names of a list of classes.

    High: the caption is about something on the list. It says nothing about the image, and selecting by the classes of a
    benchmark favours that benchmark.

    Attributes:
        encoder: embeds both: a sentence-transformers, CLIP or BLIP retrieval checkpoint. CiT keeps captions with a
            cosine of at least 0.55 (YFCC15M) or 0.7 (YFCC100M) under a SimCSE encoder. Every encoder has its own scale:
            look at the histogram, or keep a top share.
        encoder_prompt: text before each text for the encoder, such as "query: " for E5; None: what the encoder's folder
            names as its default; "": none.
        classes: a built-in list: "imagenet".
        classes_from: a text file instead, one class per line.
        templates: sentences around the names; CiT takes the bare "name".

    Emits:
        class_similarity: the largest cosine, in [-1, 1]. NaN without a caption.
        nearest_class: the class with that cosine.

    Cost: the encoder, once per distinct caption of a batch.

    Source: Xu et al. 2023, "CiT: curation in training for effective vision-language data" (arXiv 2301.02241),
        section 3.2.
    """

    name = "class_similarity"
    columns = (
        Column(
            "class_similarity",
            "cosine",
            "high",
            beside="nearest_class",
            about="best cosine of the caption with a class name",
        ),
        Column("nearest_class", "text", "neither", kind="word", about="the nearest class name"),
    )
    encoder: ModelRef = "minilm"
    encoder_prompt: str | None = field(default=None, metadata=LATER)
    classes: str = "imagenet"
    classes_from: OptionalFileRef = None
    templates: str | tuple[str, ...] = "name"

    def __post_init__(self) -> None:
        check_classes(self)
        templates_of(self.templates)

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.sentence import load_sentence_encoder

        names = class_names(self.classes_from or self.classes)
        encode = load_sentence_encoder(self.encoder, device, self.encoder_prompt)
        templates = templates_of(self.templates)
        classes = class_vectors(self.encoder, names, templates, device, self.encoder_prompt)  # (K, d)

        def nearest(texts: Sequence[str]) -> list[tuple[float, str]]:
            which, cosine, _ = nearest_of(encode(texts), classes)
            return [(value, names[k]) for k, value in zip(which.tolist(), cosine.tolist(), strict=True)]

        return self.columns_of(nearest)


@dataclass(frozen=True, kw_only=True)
class ZeroShotClass(Signal):
    """Classifies an image by the class name nearest to it in a joint space.

    A high cosine means that the image shows the class, or its written name. A small margin means that two classes fit
    nearly equally well. An image that shows no listed class gets the closest one.

    The embeddings of the class names are stored with the scores (`class_names.json`, `class_vectors.npy`), so that
    steps which compare captions with them, such as `clipcov`, run no model.

    Attributes:
        model: a CLIP or SigLIP checkpoint; use the run's embedding model to compute nothing twice.
        classes: a built-in list: "imagenet".
        classes_from: a text file instead, one class per line. Classes with the same name are one class.
        templates: sentences around the names: "photo", "scenes", "name", or a list such as ["a photo of a {}."].
        embedding: "image_embedding", from `model`; or DataComp's published "b32_img" or "l14_img", for metadata without
            images. Then only the text tower of `model` runs, and it must match the embeddings.
        embeddings_from: image embeddings made elsewhere by `model`, likewise. See `GivenVectors`.

    Emits:
        zero_shot_class: the name of the class. None if the image does not decode, or has no embedding.
        class_cosine: the cosine of image and class name, in [-1, 1]; 0.2 to 0.35 in practice for OpenAI's models. NaN
            likewise.
        class_margin: that cosine minus the cosine with the second class, at least 0. NaN likewise.

    Cost: the image tower, shared with `clip`, and n k d multiplications. Each worker once runs the text tower for every
        class and template, always in float32.

    Source: Radford et al. 2021 (CLIP, arXiv 2103.00020), section 3.1.
    """

    name = "zero_shot_class"
    columns = (
        Column("zero_shot_class", "text", "neither", kind="word", about="the class whose name is nearest to the image"),
        Column(
            "class_cosine",
            "cosine",
            "high",
            beside="zero_shot_class",
            about="cosine of the image with the name of its class",
        ),
        Column(
            "class_margin",
            "cosine",
            "high",
            beside="zero_shot_class",
            about="cosine with the class minus cosine with the second class",
        ),
    )
    model: ModelRef
    classes: str = "imagenet"
    classes_from: OptionalFileRef = None
    templates: str | tuple[str, ...] = "photo"
    embedding: Literal["image_embedding", "b32_img", "l14_img"] = "image_embedding"
    embeddings_from: OptionalFileRef = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_classes(self)
        templates_of(self.templates)
        check_words(self)
        if self.embeddings_from is not None:
            check_effect(self, "embedding", because="embeddings_from reads image embeddings from a file")

    def needs(self) -> Mapping[str, Node]:
        if self.embedding in PUBLISHED:
            return {"images": GivenEmbedding(array=self.embedding, size=PUBLISHED[self.embedding])}
        if self.embeddings_from is not None:
            return {"images": GivenVectors(file=self.embeddings_from)}
        return {"images": ImageEmbedding(model=self.model)}

    def load(self, device: Device) -> Callable[..., Any]:
        names, vectors = self._classes(device)
        words = np.array([*names, None], object)  # None for rows without a class, -1

        def score(*, images: Floats) -> dict[str, Any]:
            if images.shape[1] != vectors.shape[1]:
                raise RecipeError(f"{self.embedding} has {images.shape[1]} numbers, {self.model} {vectors.shape[1]}")
            nearest, cosine, margin = nearest_of(images, vectors)
            return {"zero_shot_class": words[nearest].tolist(), "class_cosine": cosine, "class_margin": margin}

        return score

    def side_files(self, device: Device) -> Mapping[str, Any]:
        """Returns the files to store with the scores: the k names, and their embeddings, (k, d) float32 unit rows."""
        names, vectors = self._classes(device)
        return {CLASS_NAMES: list(names), CLASS_VECTORS: vectors}

    def _classes(self, device: Device) -> tuple[tuple[str, ...], NDArray[np.float32]]:
        names = tuple(dict.fromkeys(class_names(self.classes_from or self.classes)))
        if len(names) < 2:
            raise RecipeError(f"zero_shot_class: {self.classes_from!r} has one class: expected several, one per line")
        exact = dataclasses.replace(device, precision="float32")
        return names, class_vectors(self.model, names, templates_of(self.templates), exact)


# ---- lists of class names, their embeddings, WordNet's nouns

#: The lists in Tamis: the names of ImageNet-1k's classes, in the order of their numbers.
BUILT_IN = ("imagenet",)


def check_classes(signal: Any) -> None:
    """Raises ValueError if a signal has both `classes` and `classes_from`, or `classes` is no built-in list.

    A file must be in `classes_from`, because only there does the fingerprint include its contents.
    """
    if signal.classes_from is not None:
        check_effect(signal, "classes", because="classes_from gives the classes")
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
        raise RecipeError(f"{classes!r} has no class names, one per line (ids alone need the setting 'wordnet')")
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
        raise RecipeError(f"{unknown_message('list of classes', classes, BUILT_IN)}; a file has one class per line")
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "the file is not UTF-8 text")
        raise RecipeError(f"the class names {classes!r} cannot be read: {reason}") from error


def templates_of(templates: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the templates with a name in `TEMPLATES`, or checks and returns the user's own (ValueError)."""
    if isinstance(templates, str):
        if templates not in TEMPLATES:
            known = f"{', '.join(TEMPLATES)}, or a list of your own such as ['a photo of a {{}}.']"
            raise ValueError(f"unknown templates {templates!r}{nearest(templates, TEMPLATES)}; known: {known}")
        return TEMPLATES[templates]
    for template in templates:
        if template.count("{}") != 1:
            raise ValueError(f"a template needs {{}} exactly once, in place of the class's name; got {template!r}")
    if not templates:
        raise ValueError("give at least one template, such as 'a photo of a {}.'")
    return tuple(templates)


@lru_cache(maxsize=8)
def class_vectors(
    model: str, names: tuple[str, ...], templates: tuple[str, ...], device: Device, prompt: str | None = None
) -> NDArray[np.float32]:
    """Returns (K, d) float32 unit rows: the embedding of each of K classes, the mean of its sentences' unit rows.

    `templates` are sentences with {} for the name. Source: Radford et al. 2021 (CLIP), section 3.1.4.
    """
    from tamis.models.texts.sentence import load_sentence_encoder

    encode = load_sentence_encoder(model, device, prompt)
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
        raise RecipeError(f"{wordnet} holds no readable index.noun: name WordNet's folder (NLTK: corpora/wordnet)")
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
