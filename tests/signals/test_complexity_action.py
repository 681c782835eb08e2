"""Relations and actions of captions whose parse is written out by hand."""

from dataclasses import dataclass, field

import pytest

from tamis.signals.complexity_action import actions, complexity, relations


@dataclass
class Word:
    """A token as spaCy has it."""

    i: int
    text: str
    pos_: str
    dep_: str
    lemma_: str
    head: "Word" = field(init=False, repr=False)


def parse(*rows: str) -> list[Word]:
    """Reads "text/POS/dep/head" with the head's number, counted from 0; a lemma may follow."""
    cells = [row.split("/") for row in rows]
    words = [Word(n, cell[0], cell[1], cell[2], (cell[4:] or [cell[0]])[0]) for n, cell in enumerate(cells)]
    for word, cell in zip(words, cells, strict=True):
        word.head = words[int(cell[3])]
    return words


CHASE = parse("a/DET/det/1", "dog/NOUN/nsubj/2", "chases/VERB/ROOT/2/chase", "a/DET/det/4", "ball/NOUN/dobj/2")
CUP = parse("cup/NOUN/ROOT/0", "on/ADP/prep/0", "a/DET/det/3", "table/NOUN/pobj/1")
LIST = parse("red/ADJ/amod/1", "shoes/NOUN/ROOT/1", "size/NOUN/appos/1", "9/NUM/nummod/2")
RUNNING = parse(
    *("man/NOUN/ROOT/0", "running/VERB/acl/0/run", "in/ADP/prep/1", "front/NOUN/pobj/2", "of/ADP/prep/3"),
    *("a/DET/det/6", "bus/NOUN/pobj/4", "with/ADP/prep/0", "a/DET/det/9", "bag/NOUN/pobj/7"),
)
IS = parse(
    "there/PRON/expl/1", "is/VERB/ROOT/1/be", "a/DET/det/3", "tree/NOUN/attr/1", "by/ADP/prep/1", "lake/NOUN/pobj/4"
)
TWO = parse(
    *("she/PRON/nsubj/1", "sits/VERB/ROOT/1/sit", "and/CCONJ/cc/1", "reads/VERB/conj/1/read", "a/DET/det/5"),
    "book/NOUN/dobj/3",
)


@pytest.mark.parametrize(
    ("tokens", "pairs", "most", "verbs"),
    [
        (CHASE, {(1, 4)}, 1, 1),
        (CUP, {(0, 3)}, 1, 0),
        (LIST, set(), 0, 0),
        # man - front (running in), man - bag (with), front - bus (of)
        (RUNNING, {(0, 3), (0, 9), (3, 6)}, 2, 1),
        (IS, {(3, 5)}, 1, 0),
        (TWO, {(0, 5)}, 1, 2),
        ([], set(), 0, 0),
    ],
)
def test_relations_and_actions_by_hand(tokens: list[Word], pairs: set[tuple[int, int]], most: int, verbs: int) -> None:
    assert relations(tokens) == pairs
    assert complexity(tokens) == most
    assert actions(tokens) == verbs


def test_a_chain_of_prepositions_has_no_end() -> None:
    rows = ["cup/NOUN/ROOT/0", *(f"in/ADP/prep/{number}" for number in range(1_200))]
    assert relations(parse(*rows, "box/NOUN/pobj/1200")) == {(0, 1201)}
    verbs = ["goes/VERB/ROOT/0/go", *(f"goes/VERB/conj/{number}/go" for number in range(1_200))]
    assert relations(parse(*verbs, "ball/NOUN/dobj/1200")) == set()
