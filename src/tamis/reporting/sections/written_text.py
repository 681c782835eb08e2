"""Pairs whose match was mostly text: the picture with the text outlined, beside what T-MARS scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.cards import cards, painted_card
from tamis.reporting.context import Context
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.pairs import Pair
from tamis.reporting.written import written


@dataclass(frozen=True, kw_only=True)
class WrittenTextFacts:
    """The pairs that lose most of their CLIP cosine without their text.

    Attributes:
        column: how much they lose, a column of the run.
        pairs: the largest loss first.
        problem: why their pictures cannot be painted here; "" where they can.
    """

    column: str
    pairs: Sequence[Pair]
    problem: str


def gather(context: Context) -> WrittenTextFacts | None:
    """Finds the pairs and paints their pictures; None where T-MARS was not run, or found no text."""
    found = written(context.run, context.table, context.numbers)
    if found is None:
        return None
    context.read(found.rows, painted=found.rows, painter=found.painter)
    pairs = [context.pair(row, painted=True) for row in found.rows]
    return WrittenTextFacts(column=found.column, pairs=pairs, problem=found.problem)


def draw(facts: WrittenTextFacts) -> Markup:
    """Draws the pairs as cards with two pictures each."""
    about = (
        "The pairs that lose most of their CLIP cosine when the text found in their image is painted over. Left: "
        "where the text was found; right: what T-MARS scored; the number is the loss."
    )
    return join(
        tag("p", about, class_="quiet"),
        tag("p", f"The pictures cannot be painted here: {facts.problem}", class_="quiet") if facts.problem else None,
        cards([painted_card(pair, facts.column) for pair in facts.pairs], "wide"),
    )
