"""Which classes of a list a caption names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.data import Column, Device, Node, OptionalFileRef, Signal
from tamis.features.sources import Captions
from tamis.models.class_names import Nouns, check_classes, class_synonyms, load_nouns, synset_names

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class ClassMentions(Signal):
    """Counts the classes of a list that a caption names, in the singular or in the plural.

    Names match whole words in any case; of names that overlap only the longest counts ("fire truck" is not "truck"). A
    word with other meanings ("crane", "drumstick") counts too.

    With `wordnet` it is DataComp's rule for nouns instead: words are split at white space only ("dog," is not one), and
    a word counts if its first synset, in WordNet's order, is on the list.

    Attributes:
        classes: a built-in list: "imagenet".
        classes_from: a text file instead: one class per line, names separated by commas, optionally after an id and a
            tab (WordNet's synsets). With `wordnet` one synset per line: its id, such as n02084071, and optional names.
        wordnet: the folder of WordNet's files (index.noun and noun.exc; NLTK: corpora/wordnet), or a zip of it.

    Emits:
        class_mentions: number of different classes. NaN where there is no caption.
        mentioned_class: the first class in the caption; empty where there is none.

    Cost: 10 microseconds per caption.

    Source: Gadre et al. 2023, DataComp (arXiv 2304.14108), baseline "text-based". Its code compares synset offsets
        without their part of speech, so verbs and adjectives count too; only nouns count here.
    """

    name: ClassVar[str] = "class_mentions"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="class_mentions",
            unit="classes",
            better="high",
            beside="mentioned_class",
            about="classes of a list that the caption names",
        ),
        Column(name="mentioned_class", unit="text", better="neither", kind="word", about="the first class named"),
    )
    classes: str = "imagenet"
    classes_from: OptionalFileRef = None
    wordnet: OptionalFileRef = None

    def __post_init__(self) -> None:
        check_classes(self)
        if self.wordnet is not None and self.classes_from is None:
            raise ValueError(
                "wordnet needs classes_from: a file with one synset id per line, such as n02084071 "
                "(ImageNet-21k's, for DataComp's rule)"
            )

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        if self.wordnet is not None and self.classes_from is not None:
            find = synset_finder(load_nouns(self.wordnet), synset_names(self.classes_from))
        else:
            find = finder(class_synonyms(self.classes_from or self.classes))

        def score(*, captions: Sequence[str | None]) -> dict[str, Any]:
            named = [None if caption is None else list(dict.fromkeys(find(caption))) for caption in captions]
            return {
                "class_mentions": np.array([np.nan if some is None else len(some) for some in named], np.float32),
                "mentioned_class": [None if some is None else next(iter(some), "") for some in named],
            }

        return score


def finder(synonyms: Sequence[Sequence[str]]) -> Callable[[str], Iterator[str]]:
    """Returns a function from a text to the classes that it names, in the order of the text.

    `synonyms` are the names of each class: the first is returned. A name of several classes belongs to the first class.
    """
    known: dict[tuple[str, ...], str] = {}
    for names in synonyms:
        for name in names:
            words = _words(name)
            for form in (words, (*words[:-1], words[-1] + "s"), (*words[:-1], words[-1] + "es")) if words else ():
                known.setdefault(form, names[0])
    lengths: dict[str, set[int]] = {}  # of the names that begin with a word
    for form in known:
        lengths.setdefault(form[0], set()).add(len(form))
    longest_first = {word: sorted(some, reverse=True) for word, some in lengths.items()}

    def find(text: str) -> Iterator[str]:
        words = _words(text)
        place = 0
        while place < len(words):
            for length in longest_first.get(words[place], ()):
                name = known.get(words[place : place + length])
                if name is not None:
                    yield name
                    place += length - 1
                    break
            place += 1

    return find


def synset_finder(nouns: Nouns, synsets: Mapping[int, str]) -> Callable[[str], Iterator[str]]:
    """Returns a function from a text to the names of the first synsets of its words, in the order of the text.

    `synsets` maps the offset of each synset that counts to its name.
    """

    def find(text: str) -> Iterator[str]:
        for word in text.split():
            synset = nouns.synset(word)
            if synset is not None and synset in synsets:
                yield synsets[synset]

    return find


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
