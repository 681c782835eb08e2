"""Names of the shipped recipes."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

_COUNT = re.compile(r"(.+)-([1-9][0-9]{0,3})([kM])")
_UNITS = {"k": 1_000, "M": 1_000_000}


def shipped_names() -> list[str]:
    """Returns the names of the shipped recipes."""
    names = (entry.name for entry in files("tamis.recipes.shipped").iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def split_count(name: str) -> tuple[str, int | None]:
    """Returns a recipe's name without its number of pairs, and the number: pac-100k is pac and 100,000."""
    match = _COUNT.fullmatch(name)
    return (match[1], int(match[2]) * _UNITS[match[3]]) if match else (name, None)


def shipped_name(recipe: str) -> str | None:
    """Returns the name of a shipped recipe, perhaps with a number of pairs, else None.

    tmars∩c_rho is the older name of tmars-and-c_rho.
    """
    name = recipe.replace("∩", "-and-")
    return name if split_count(name)[0] in shipped_names() else None


def is_recipe(name: str, run: Path) -> bool:
    """Whether a name means a recipe, next to a run folder: a subset of the run that has its name comes first."""
    there = (run / "subsets" / f"{name}.parquet").is_file()
    return name.endswith((".yaml", ".yml")) or (shipped_name(name) is not None and not there)
