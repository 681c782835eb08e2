"""What pairs of a pool have that a curator would look at first, by the rules of the shipped recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Mask
from tamis.reporting.picking import first_by
from tamis.store.table import Table

#: Pairs that are shown of each.
SHOWN = 8

#: What recipes ask of pairs: `basic` of languages and sizes, `text-match` of text in images.
LANGUAGE, SHORTER_SIDE, ASPECT_RATIO, WORDS, SHARED = "en", 200, 3, 3, 5

#: A caption is probably not in English where English has less than this probability, and the caption has so many words
#: at least. Of 10,000 alt-texts of LAION's English part, lid.176 finds another language first in 1,112, of which 61 in
#: 100 are English. This rule takes 162, of which 33 in 100 are English.
ENGLISH, ENOUGH_WORDS = 0.02, 5

#: Languages written without spaces: what counts as one word there may be a sentence.
UNSPACED = ("zh", "ja", "th", "yue", "wuu", "lo", "km", "my", "bo")


@dataclass(frozen=True, kw_only=True)
class Trait:
    """Something that is so of some pairs.

    Attributes:
        ident: its name in `report.json` and in links.
        one, many: what one such pair, and several, are called.
        rule: when it is so.
        column: the column that it is read from.
        others: further columns that it takes. Runs without one of them say nothing of it.
        holds: of values of these columns, which have it: (rows,) bool, False where a value is missing.
    """

    ident: str
    one: str
    many: str
    rule: str
    column: str
    others: tuple[str, ...] = ()
    holds: Callable[..., Mask]


def _another_language(top: Any, english: Any, words: Any) -> Mask:
    top = top if top.type == pa.string() else top.cast(pa.string())
    other = pc.fill_null(pc.not_equal(top, LANGUAGE), False).to_numpy(zero_copy_only=False)
    unspaced = pc.is_in(top, pa.array(UNSPACED)).to_numpy(zero_copy_only=False)
    found: Mask = other & (english < ENGLISH) & ((words >= ENOUGH_WORDS) | unspaced)
    return found


TRAITS = (
    Trait(
        ident="language",
        one="caption probably not in English",
        many="captions probably not in English",
        rule=f"the most probable language is another, English has less than {ENGLISH:.0%}, and there are "
        f"{ENOUGH_WORDS} words or more (any number where a language has no spaces)",
        column="top_language",
        others=("english", "words"),
        holds=_another_language,
    ),
    Trait(
        ident="tiny",
        one="tiny image",
        many="tiny images",
        rule=f"the shorter side has fewer than {SHORTER_SIDE} pixels",
        column="shorter_side",
        holds=lambda side: side < SHORTER_SIDE,
    ),
    Trait(
        ident="hidden",
        one="image of one colour without its transparency",
        many="images of one colour without their transparency",
        rule="such as a black drawing on a transparent ground: tamis score --transparency white shows it on white",
        column="content_hidden",
        holds=lambda hidden: hidden == 1,
    ),
    Trait(
        ident="elongated",
        one="elongated image",
        many="elongated images",
        rule=f"the longer side is more than {ASPECT_RATIO} times the shorter one",
        column="aspect_ratio",
        holds=lambda ratio: ratio > ASPECT_RATIO,
    ),
    Trait(
        ident="short",
        one="short caption",
        many="short captions",
        rule=f"fewer than {WORDS} words",
        column="words",
        holds=lambda words: words < WORDS,
    ),
    Trait(
        ident="spelt",
        one="image that spells out its caption",
        many="images that spell out their captions",
        rule=f"text in the image shares {SHARED} or more consecutive characters with the caption",
        column="text_match",
        holds=lambda shared: shared >= SHARED,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """The pairs of a pool that have a trait.

    Attributes:
        column: its column as the run knows it.
        count: how many.
        rows: some of them, drawn by uid.
    """

    trait: Trait
    column: str
    count: int
    rows: Sequence[int]


def find(table: Table, columns: Mapping[str, str], order: NDArray[np.uint64]) -> list[Found]:
    """Returns the traits that some pair has, the most frequent first, in one pass.

    Args:
        table: the pool's rows.
        columns: names of the table's columns, by the name that the scorer gives each.
        order: (rows,) in which pairs are drawn.
    """
    needed = {trait.ident: (trait.column, *trait.others) for trait in TRAITS}
    asked = [trait for trait in TRAITS if set(needed[trait.ident]) <= set(columns)]
    counts = dict.fromkeys((trait.ident for trait in asked), 0)
    rows = {trait.ident: np.empty(0, np.int64) for trait in asked}

    def look(place: slice, values: dict[str, Any]) -> dict[str, tuple[int, NDArray[np.int64]]]:
        found = {}
        for trait in asked:
            mask = trait.holds(*(values[columns[name]] for name in needed[trait.ident]))
            found[trait.ident] = int(np.count_nonzero(mask)), first_by(order[place], SHOWN, mask) + place.start
        return found

    names = list(dict.fromkeys(columns[name] for trait in asked for name in needed[trait.ident]))
    for some in table.map(names, look) if asked else ():
        for ident, (count, best) in some.items():
            counts[ident] += count
            both = np.concatenate([rows[ident], best])
            rows[ident] = both[np.argsort(order[both], kind="stable")[:SHOWN]]
    found = [
        Found(
            trait=trait,
            column=columns[trait.column],
            count=counts[trait.ident],
            rows=rows[trait.ident].tolist(),
        )
        for trait in asked
        if counts[trait.ident]
    ]
    return sorted(found, key=lambda each: (-each.count, each.trait.ident))
