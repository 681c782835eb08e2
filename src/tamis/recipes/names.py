"""Names of the shipped recipes."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def shipped_names() -> list[str]:
    """Returns the names of the shipped recipes."""
    names = (entry.name for entry in files("tamis.recipes.shipped").iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def shipped_name(recipe: str) -> str | None:
    """Returns the name of a shipped recipe, else None. tmars∩c_rho is the older name of tmars-and-c_rho."""
    name = recipe.replace("∩", "-and-")
    return name if name in shipped_names() else None
