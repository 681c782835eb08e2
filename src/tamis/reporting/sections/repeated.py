"""Groups of pictures that are much the same: the pair that a recipe keeps beside those that repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.cards import card, cards
from tamis.reporting.context import Context
from tamis.reporting.formats import plural
from tamis.reporting.groups import Group
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
    """The largest groups that a subset keeps one pair of.

    Attributes:
        subset: None of what was looked for in the pool, where no recipe does.
    """

    subset: SubsetName | None
    groups: Sequence[Repeats]


@dataclass(frozen=True, kw_only=True)
class RepeatedFacts:
    """The subsets whose recipe looked for repeated pictures; the pool where none does."""

    subsets: Sequence[RepeatsOfSubset]


def gather(context: Context) -> RepeatedFacts | None:
    """Reads the groups that the subsets tell of, else those of the pool; None where there is none."""
    found: list[tuple[SubsetName | None, Sequence[Group]]] = [
        (context.names[place], groups) for place, groups in context.groups.items()
    ]
    if not found and context.repeats is not None and context.repeats.groups:
        found = [(None, context.repeats.groups)]
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


def anchor(subset: SubsetName | None) -> str:
    """Returns where the groups of a subset stand on the page; of the pool with None."""
    return "repeated-pool" if subset is None else f"repeated-{subset.place}"


def draw(facts: RepeatedFacts) -> Markup:
    """Draws the groups of each subset side by side."""
    about = "The largest groups of pictures that are taken to be the same. The pair that stays comes first."
    return join(tag("p", about, class_="quiet"), [_subset(each) for each in facts.subsets])


def _subset(each: RepeatsOfSubset) -> Markup:
    groups = [tag("div", tag("h4", f"{plural(group.size, 'pair')}, one stays"), _group(group)) for group in each.groups]
    who = "As the recipe distinct would tell them" if each.subset is None else swatched(each.subset)
    return tag(
        "article",
        tag("h3", who),
        tag("div", groups, class_="groups"),
        class_="card gallery" if each.subset is None else f"card gallery {colour(each.subset)}",
        id=anchor(each.subset),
    )


def _group(group: Repeats) -> Markup:
    first, *others = group.pairs
    return cards([card(first, stays="stays"), *(card(pair, why="repeats it") for pair in others)])
