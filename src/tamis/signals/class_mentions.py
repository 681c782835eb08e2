"""Does a caption name one of a list of things?"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.data import Column, Device, Node, OptionalFileRef, Scorer
from tamis.errors import without_effect
from tamis.features.sources import Captions
from tamis.models.class_names import class_synonyms, synset_names
from tamis.models.wordnet import Nouns, load_nouns

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class ClassMentions(Scorer):
    """Counts the classes of a list that a caption names, in the singular or in the plural.

    Names count as whole words, whatever their case; of names that overlap the longest one counts ("fire truck" is no
    "truck"). A word that means something else as well ("crane", "drumstick") counts too.

    With `wordnet` it is DataComp's rule instead, for nouns: words are what stands between white space ("dog," is none),
    and one counts where the first synset of it, as WordNet orders them, is on the list.

    Attributes:
        classes: a list that is built in: "imagenet".
        classes_from: a text file instead: a class a line, names with commas between them, perhaps behind an id and a
            tab (WordNet's synsets). With `wordnet` a synset a line: its id, such as n02084071, perhaps names behind.
        wordnet: the folder of WordNet's files (index.noun and noun.exc; NLTK: corpora/wordnet), or a zip of it.

    Emits:
        class_mentions: how many different classes, 0 and up. NaN where there is no caption.
        mentioned_class: the first that is named; empty where none is.

    Cost: 10 microseconds per caption.

    Source: Gadre et al. 2023, DataComp (arXiv 2304.14108), baseline "text-based": every word of a caption is looked up
        in WordNet, and its first meaning counts if ImageNet-21k has it. Not the same set: its code compares offsets of
        synsets without their part of speech, so a word that is no noun counts where ImageNet-21k has a noun of that
        number. Here nouns alone are looked up.
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
        if self.classes_from is not None:
            without_effect(self, "classes", because="classes_from gives the classes")
        if self.wordnet is not None and self.classes_from is None:
            raise ValueError(
                "wordnet looks for synsets by their ids: give classes_from as well, a file with an id such as "
                "n02084071 a line (ImageNet-21k's, for DataComp's rule)"
            )

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        if self.wordnet is not None and self.classes_from is not None:
            find = synset_finder(load_nouns(self.wordnet), synset_names(self.classes_from))
        else:
            find = finder(class_synonyms(self.classes_from or self.classes))

        def score(*, captions: Sequence[str | None]) -> dict[str, Any]:
            found = [None if caption is None else list(dict.fromkeys(find(caption))) for caption in captions]
            return {
                "class_mentions": np.array([np.nan if each is None else len(each) for each in found], np.float32),
                "mentioned_class": [None if each is None else each[0] if each else "" for each in found],
            }

        return score


def finder(synonyms: Sequence[Sequence[str]]) -> Callable[[str], Iterator[str]]:
    """Returns a function of a text to the classes that it names, in the order of the text.

    Args:
        synonyms: the names of each class; a class is called by its first. A name of several classes is the first's.
    """
    known: dict[tuple[str, ...], str] = {}
    for names in synonyms:
        for name in names:
            words = _words(name)
            for form in (words, (*words[:-1], words[-1] + "s"), (*words[:-1], words[-1] + "es")) if words else ():
                known.setdefault(form, names[0])
    lengths: dict[str, list[int]] = {}
    for form in known:
        if len(form) not in lengths.setdefault(form[0], []):
            lengths[form[0]].append(len(form))
    longest_first = {word: sorted(found, reverse=True) for word, found in lengths.items()}

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
    """Returns a function of a text to the synsets that its words mean first, in the order of the text.

    Args:
        nouns: of WordNet.
        synsets: number of each that counts to its name.
    """

    def find(text: str) -> Iterator[str]:
        for word in text.split():
            synset = nouns.synset(word)
            if synset is not None and synset in synsets:
                yield synsets[synset]

    return find


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
