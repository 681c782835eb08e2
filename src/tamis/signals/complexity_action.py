"""Complexity and action: does a caption relate things to one another, and does anything happen in it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from tamis.data import Column, Device, Node, ParserRef, Scorer
from tamis.features.sources import Captions

#: Verbs of being and having: nothing is seen to happen.
STATES = frozenset(
    [
        "be",
        "have",
        "do",
        "seem",
        "appear",
        "look",
        "become",
        "remain",
        "stay",
        "get",
        "need",
        "want",
        "like",
        "love",
        "hate",
        "know",
        "think",
        "believe",
        "mean",
        "own",
        "belong",
        "contain",
        "include",
        "consist",
        "cost",
        "matter",
        "exist",
    ]
)


#: Characters of a caption that are parsed. A parser takes memory and time with the square of what it gets at once.
LONGEST = 2_000


class Token(Protocol):
    """What is used of a spaCy token; i is its place, head the token above it (itself at the root)."""

    i: int
    pos_: str
    dep_: str
    lemma_: str

    @property
    def head(self) -> Token:
        """The token that this one depends on."""
        ...


@dataclass(frozen=True, kw_only=True)
class ComplexityAction(Scorer):
    """Counts the relations and the action verbs of a caption in its parse (CAT's first two letters).

    A relation joins two things by a verb or a preposition ("a dog chases a ball", "a cup on a table"). Captions without
    any are lists of words and names; those without an action tend to be titles. The counts say nothing of whether it
    can be seen: that is `icc`.

    Attributes:
        parser: an installed spaCy package or a folder. Its contents tell it from others, as every model's do.

    Emits:
        complexity: relations of the thing that has most of them, 0 and up. NaN where there is no caption.
        actions: action verbs, 0 and up. NaN likewise.

    Of a caption that is longer the first 2,000 characters count.

    Cost: about 1 ms per caption, one CPU core; the parser reads about 10,000 words per second.

    Source: Radenovic et al. 2023, "Filtering, distillation, and hard negatives for vision-language pre-training" (arXiv
        2301.02280), section 3.1. They parse scene graphs by rules on a dependency tree; these rules are ours.
    """

    name: ClassVar[str] = "complexity_action"
    version: ClassVar[int] = 2
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="complexity", unit="relations", better="high", about="relations of the thing that has most"),
        Column(name="actions", unit="verbs", better="high", about="action verbs"),
    )
    parser: ParserRef = "en_core_web_sm"

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions()}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.parser import load_parser

        parse = load_parser(self.parser)

        def score(*, captions: Sequence[str | None]) -> dict[str, Any]:
            present = sorted({caption for caption in captions if caption is not None})
            found = parse([text[:LONGEST] for text in present], lambda tokens: (complexity(tokens), actions(tokens)))
            counts = dict(zip(present, found, strict=True))
            rows = [(np.nan, np.nan) if caption is None else counts[caption] for caption in captions]
            both = np.array(rows, np.float32).reshape(-1, 2)
            return {"complexity": both[:, 0], "actions": both[:, 1]}

        return score


def complexity(tokens: Sequence[Token]) -> int:
    """Returns how many relations the thing has that has most of them; 0 where nothing is related."""
    ends = Counter(end for pair in relations(tokens) for end in pair)
    return max(ends.values(), default=0)


def relations(tokens: Iterable[Token]) -> set[tuple[int, int]]:
    """Returns the pairs of things (places of their nouns) that a verb or a preposition joins.

    Joined are: subject and object of a verb; subject (or object, where there is no subject) and what a preposition
    below the verb governs; a noun and what a preposition below it governs. The subject of a verb that describes a noun
    ("a dog chasing a ball") is that noun; a verb beside another one has the other's subject.
    """
    words = list(tokens)
    below: dict[int, list[Token]] = {}
    for word in words:
        if word.head.i != word.i:
            below.setdefault(word.head.i, []).append(word)
    found: set[tuple[int, int]] = set()

    def governed(word: Token) -> list[Token]:
        """What the prepositions below a word govern, those in a chain ("in front of") too."""
        things, chain = [], [word]
        while chain:
            for child in below.get(chain.pop().i, []):
                if child.dep_ in ("prep", "agent"):
                    things += [one for one in below.get(child.i, []) if one.dep_ == "pobj"]
                    chain.append(child)
        return things

    def subjects(verb: Token) -> list[Token]:
        for _ in words:  # upwards, which ends
            own = [child for child in below.get(verb.i, []) if child.dep_ in ("nsubj", "nsubjpass")]
            if real := [one for one in own if _is_thing(one)]:
                return real
            if verb.dep_ in ("acl", "relcl") and _is_thing(verb.head):
                return [verb.head]
            if verb.dep_ not in ("conj", "xcomp", "advcl", "ccomp") or verb.head.i == verb.i:
                return []
            if _is_thing(verb.head):
                return [verb.head]
            verb = verb.head
        return []

    for word in words:
        if word.pos_ in ("VERB", "AUX"):
            objects = [child for child in below.get(word.i, []) if child.dep_ in ("dobj", "obj", "dative", "attr")]
            doers = subjects(word) or objects[:1]
            pairs = [(one, other) for one in doers for other in [*objects, *governed(word)]]
        elif _is_thing(word):
            pairs = [(word, other) for other in governed(word)]
        else:
            continue
        found |= {(min(a.i, b.i), max(a.i, b.i)) for a, b in pairs if a.i != b.i and _is_thing(a) and _is_thing(b)}
    return found


def actions(tokens: Iterable[Token]) -> int:
    """Returns how many verbs tell of something that happens: all but auxiliaries and `STATES`."""
    return sum(word.pos_ == "VERB" and word.lemma_.lower() not in STATES for word in tokens)


def _is_thing(word: Token) -> bool:
    return word.pos_ in ("NOUN", "PROPN", "PRON", "NUM")
