"""Groups of pictures that a recipe takes to be the same: the pair that stayed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.cards import card, cards
from tamis.reporting.context import GALLERIES, Context
from tamis.reporting.formats import plural
from tamis.reporting.groups import groups_of
from tamis.reporting.html import Markup, join, tag
from tamis.reporting.pairs import Pair
from tamis.reporting.subset_names import SubsetName, colour, swatched


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Pairs of one picture.

    Attributes:
        size: how many there are.
        pairs: some of them, the one that stayed first.
    """

    size: int
    pairs: Sequence[Pair]


@dataclass(frozen=True, kw_only=True)
class RepeatsOfSubset:
    """The largest groups that a subset keeps one pair of."""

    subset: SubsetName
    groups: Sequence[Repeats]


@dataclass(frozen=True, kw_only=True)
class RepeatedFacts:
    """The subsets whose recipe looked for repeated pictures."""

    subsets: Sequence[RepeatsOfSubset]


def gather(context: Context) -> RepeatedFacts | None:
    """Reads the groups that the subsets tell of; None where none does."""
    found = [
        (name, groups)
        for name, subset in zip(context.names[:GALLERIES], context.subsets, strict=False)
        if (groups := groups_of(subset, context.table))
    ]
    if not found:
        return None
    context.read([row for _, groups in found for group in groups for row in group.rows])
    return RepeatedFacts(
        subsets=[
            RepeatsOfSubset(
                subset=name,
                groups=[Repeats(size=each.size, pairs=[context.pair(row) for row in each.rows]) for each in groups],
            )
            for name, groups in found
        ]
    )


def draw(facts: RepeatedFacts) -> Markup:
    """Draws the groups of each subset side by side."""
    about = "The largest groups of pictures that a recipe takes to be the same. The pair that stays comes first."
    return join(tag("p", about, class_="quiet"), [_subset(each) for each in facts.subsets])


def _subset(each: RepeatsOfSubset) -> Markup:
    groups = [tag("div", tag("h4", f"{plural(group.size, 'pair')}, one stays"), _group(group)) for group in each.groups]
    return tag(
        "article",
        tag("h3", swatched(each.subset)),
        tag("div", groups, class_="groups"),
        class_=f"card gallery {colour(each.subset)}",
    )


def _group(group: Repeats) -> Markup:
    first, *others = group.pairs
    return cards([card(first, stays="stays"), *(card(pair, why="repeats it") for pair in others)])
