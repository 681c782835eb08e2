"""The label of a subset, the same in every section.

The label lists the overridden settings: "clip-30, fraction 0.2".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tamis import recipe as recipes
from tamis.reporting.formats import clip
from tamis.store.subset import Subset

#: Colours of subsets; style.css has as many, which colour-blind readers can tell apart.
_COLOURS = 8

#: Changed settings that a label names, and characters of a value.
_NAMED, _VALUE = 2, 24


def names_of(subsets: Sequence[Subset]) -> list[dict[str, Any]]:
    """Returns `place` (from 0), `label` and `kept` rows of each subset. A second subset of one label gets a number."""
    seen: Counter[str] = Counter()
    names = []
    for place, subset in enumerate(subsets):
        label = f"{subset.name}{_changed(subset, subsets)}"
        seen[label] += 1
        label = label if seen[label] == 1 else f"{label} ({seen[label]})"
        names.append({"place": place, "label": label, "kept": len(subset)})
    return names


def colour(subset: Mapping[str, Any]) -> str:
    """Returns the class that colours a subset."""
    return f"c{subset['place'] % _COLOURS + 1}"


def _changed(subset: Subset, others: Sequence[Subset]) -> str:
    """Returns ", fraction 0.2" if a recipe differs from the shipped one, or from others of its name; else ""."""
    shipped = subset.name in recipes.shipped()
    same = [other.recipe for other in others if other.name == subset.name]
    known = [recipes.load(subset.name).text] if shipped else same
    if any(_steps(each) != _steps(subset.recipe) for each in known):
        return ", other steps" if shipped else ""
    mine, theirs = _settings(subset.recipe), [_settings(each) for each in known]
    changed = [path for path in mine if any(path not in each or each[path] != mine[path] for each in theirs)]
    named = [f", {path[-1].replace('_', ' ')} {clip(_written(mine[path]), _VALUE)}" for path in changed[:_NAMED]]
    return "".join(named) + (f", {len(changed) - _NAMED} more" if len(changed) > _NAMED else "")


def _steps(recipe: Mapping[str, Any]) -> list[str]:
    return [next(iter(step), "") if isinstance(step, Mapping) else str(step) for step in recipe.get("select") or []]


def _settings(recipe: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Returns every value in the steps of a recipe by its path."""

    def walk(value: Any, path: tuple[str, ...]) -> dict[tuple[str, ...], Any]:
        if isinstance(value, Mapping):
            inner = value.items()
        elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
            inner = dict(enumerate(value)).items()
        else:
            return {path: value}
        return {place: leaf for key, each in inner for place, leaf in walk(each, (*path, str(key))).items()}

    return walk(recipe.get("select") or {}, ())


def _written(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
