"""Pairs of the pool that a curator would look at first, by what is so of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.cards import card, cards
from tamis.reporting.context import Context
from tamis.reporting.formats import count, share
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.pairs import Pair


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Pairs of which something is so.

    Attributes:
        ident: its name in links.
        what: what several such pairs are called.
        rule: when it is so.
        column: what it was told by.
        rows: how many pairs.
        pairs: some of them, drawn by uid.
    """

    ident: str
    what: str
    rule: str
    column: str
    rows: int
    pairs: Sequence[Pair]


@dataclass(frozen=True, kw_only=True)
class FoundFacts:
    """What was found in the pool, the most frequent first."""

    rows: int
    kinds: Sequence[Kind]


def gather(context: Context) -> FoundFacts | None:
    """Reads some pairs of each kind; None where there is nothing to look at."""
    found = context.traits
    if not found:
        return None
    context.read([row for each in found for row in each.rows])
    return FoundFacts(
        rows=context.rows,
        kinds=[
            Kind(
                ident=each.trait.ident,
                what=each.trait.many,
                rule=each.trait.rule,
                column=each.column,
                rows=each.count,
                pairs=[context.pair(row) for row in each.rows],
            )
            for each in found
        ],
    )


def anchor(ident: str) -> str:
    """Returns where the pairs of a kind stand on the page."""
    return f"found-{ident}"


def draw(facts: FoundFacts) -> Markup:
    """Draws a card per kind."""
    about = "Pairs of the pool of which this is so, whatever a recipe says of them; drawn at random, by their uids."
    return join(
        tag("p", about, class_="quiet"),
        tag("div", [_kind(each, facts.rows) for each in facts.kinds], class_="stack"),
    )


def _kind(each: Kind, rows: int) -> Markup:
    total = tag("span", f"{count(each.rows)} · {share(each.rows, rows)}", class_="total")
    return tag(
        "article",
        tag("h3", f"{each.what[0].upper()}{each.what[1:]}", total),
        tag("p", f"{each.rule[0].upper()}{each.rule[1:]}.", class_="quiet"),
        cards([card(pair, first=[each.column]) for pair in each.pairs]),
        class_="card",
        id=anchor(each.ident),
    )
