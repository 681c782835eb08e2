"""What the page calls a subset: its label and its colour, the same in every section.

A recipe that was overridden is called by what was changed: "clip-30, fraction 0.2".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tamis import recipe as recipes
from tamis.reporting.html import Markup, tag
from tamis.store.subset import Subset

#: Colours of subsets; style.css has as many, told apart by colour-blind readers too.
_COLOURS = 8

#: Changed settings that a label names, and characters of a value.
_NAMED, _VALUE = 2, 24

#: A setting's path in the steps of a recipe, and its value.
Leaves = Mapping[tuple[str, ...], Any]


@dataclass(frozen=True, kw_only=True)
class SubsetName:
    """A subset as the sections name it.

    Attributes:
        place: its number on the page, from 0.
        label: its name, with what was changed of its recipe; with a number where another has the same.
        kept: how many rows it keeps.
    """

    place: int
    label: str
    kept: int


def names_of(subsets: Sequence[Subset]) -> tuple[SubsetName, ...]:
    """Returns what the page calls subsets, each differently."""
    labels = [f"{subset.name}{_changed(subset, subsets)}" for subset in subsets]
    seen: Counter[str] = Counter()
    names = []
    for place, (subset, label) in enumerate(zip(subsets, labels, strict=True)):
        seen[label] += 1
        again = seen[label]
        names.append(SubsetName(place=place, label=label if again == 1 else f"{label} ({again})", kept=len(subset)))
    return tuple(names)


def _changed(subset: Subset, others: Sequence[Subset]) -> str:
    """Returns ", fraction 0.2" where the steps of a recipe are not those that its name stands for; else "".

    A name of a shipped recipe stands for its steps; another one for what all subsets of that name have in common.
    """
    shipped = subset.name in recipes.shipped()
    same = [other.recipe for other in others if other.name == subset.name]
    known = [recipes.load(subset.name).text] if shipped else same
    if any(_steps(each) != _steps(subset.recipe) for each in known):
        return ", other steps" if shipped else ""
    mine, theirs = _leaves(subset.recipe), [_leaves(each) for each in known]
    changed = [path for path in mine if any(path not in each or each[path] != mine[path] for each in theirs)]
    said = [f"{path[-1].replace('_', ' ')} {_short(mine[path])}" for path in changed[:_NAMED]]
    if len(changed) > _NAMED:
        said.append(f"{len(changed) - _NAMED} more")
    return "".join(f", {each}" for each in said)


def _steps(recipe: Mapping[str, Any]) -> list[str]:
    """Returns the names of the steps."""
    return [next(iter(step), "") if isinstance(step, Mapping) else str(step) for step in recipe.get("select") or []]


def _leaves(recipe: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Returns every value in the steps of a recipe by its path."""

    def walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from walk(inner, (*path, str(key)))
        elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
            for place, inner in enumerate(value):
                yield from walk(inner, (*path, str(place)))
        else:
            yield path, value

    return dict(walk(recipe.get("select") or [], ()))


def _short(value: Any) -> str:
    words = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return words if len(words) <= _VALUE else words[: _VALUE - 1] + "…"


def colour(name: SubsetName) -> str:
    """Returns the class that colours a subset."""
    return f"c{name.place % _COLOURS + 1}"


def swatched(name: SubsetName) -> Markup:
    """Returns a subset's label behind a spot of its colour."""
    return tag("span", tag("i", class_="swatch"), tag("bdi", name.label), class_=f"who {colour(name)}")
