"""What the page calls a subset: its label and its colour, the same in every section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tamis.reporting.html import Markup, tag
from tamis.store.subset import Subset

#: Colours of subsets; style.css has as many, told apart by colour-blind readers too.
_COLOURS = 8


@dataclass(frozen=True, kw_only=True)
class SubsetName:
    """A subset as the sections name it.

    Attributes:
        place: its number on the page, from 0.
        label: its name; with a number where another has the same.
        kept: how many rows it keeps.
    """

    place: int
    label: str
    kept: int


def names_of(subsets: Sequence[Subset]) -> tuple[SubsetName, ...]:
    """Returns what the page calls subsets, each differently."""
    seen: Counter[str] = Counter()
    names = []
    for place, subset in enumerate(subsets):
        seen[subset.name] += 1
        again = seen[subset.name]
        label = subset.name if again == 1 else f"{subset.name} ({again})"
        names.append(SubsetName(place=place, label=label, kept=len(subset)))
    return tuple(names)


def colour(name: SubsetName) -> str:
    """Returns the class that colours a subset."""
    return f"c{name.place % _COLOURS + 1}"


def swatched(name: SubsetName) -> Markup:
    """Returns a subset's label behind a spot of its colour."""
    return tag("span", tag("i", class_="swatch"), tag("bdi", name.label), class_=f"who {colour(name)}")
