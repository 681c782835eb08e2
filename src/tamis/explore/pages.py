"""The questions of the page by name, each checked for what it may hold; `queries` and others answer them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tamis.errors import RecipeError
from tamis.explore.images import LARGE, Images, NoImage, encoded
from tamis.explore.pair import copies, pair_facts
from tamis.explore.queries import Explorer
from tamis.explore.view import View

#: Pairs that one request for the grid may name.
_MOST = 240


class Pages:
    """What can be asked, by name. The images of rows that a grid shows are read before they are asked for."""

    def __init__(self, explorer: Explorer, images: Images) -> None:
        self.explorer, self.images = explorer, images
        self.rows = len(explorer.run)
        self.answers: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "facts": lambda asked: explorer.facts(),
            "choose": lambda asked: explorer.chosen(_recipe(asked["recipe"]), _names(asked.get("columns", []))),
            "histograms": lambda asked: explorer.histograms(_names(asked["columns"])),
            "rows": self._rows,
            "heat": lambda asked: explorer.heat(str(asked["x"]), str(asked["y"]), _recipe(asked["recipe"])),
            "words": lambda asked: explorer.word_counts(
                str(asked["column"]), str(asked.get("part", "")), _recipe(asked["recipe"])
            ),
            "regions": lambda asked: explorer.regions(_recipes(asked["compared"])),
            "label": self._label,
            "undo_label": lambda asked: explorer.undo_label(),
            "suggestions": lambda asked: explorer.suggestions(),
            "pair": self._pair,
            "map": self._map,
            "copies": lambda asked: copies(explorer, _recipe(asked["recipe"])),
            "save": lambda asked: explorer.save(_recipe(asked["recipe"]), replace=asked.get("replace") is True),
        }

    def _rows(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        recipe, compared = _recipe(asked["recipe"]), _recipes(asked.get("compared", []))
        search = asked.get("near") or asked.get("lasso")
        view = view_of(asked.get("view", {}))
        rows, total = self.explorer.view(view, recipe, compared, json.dumps(search) if search else "")
        start = max(0, int(asked.get("start", 0)))
        here = rows[start : start + min(_MOST, max(0, int(asked.get("count", 60))))].tolist()
        self.images.read_soon(here)
        cards = self.explorer.cards(here, recipe, _names(asked.get("columns", [])))
        return {"total": total, "listed": int(rows.size), "start": start, "cards": cards}

    def _label(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        label = asked["label"]
        if label not in ("good", "bad", None):
            raise ValueError(f"a label is good, bad or null, got {label!r}")
        return self.explorer.set_label(self.explorer.check_row(asked["row"]), label)

    def _pair(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        recipes = [(str(name), _recipe(recipe)) for name, recipe in asked.get("recipes", [])]
        found = pair_facts(self.explorer, self.explorer.check_row(asked["row"]), recipes)
        found["painted"] = self.explorer.painter.problem if found["status"] == "ok" else "the pair has no image"
        return found

    def _map(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        subset = self.explorer.choose(_recipe(asked["recipe"]))
        projected = self.explorer.near.projection(str(asked["embedding"]))
        return {
            "x": np.round(projected.points[:, 0], 4).tolist(),
            "y": np.round(projected.points[:, 1], 4).tolist(),
            "row": projected.rows.tolist(),
            "kept": subset.keep[projected.rows].astype(int).tolist(),
            "explained": list(projected.explained),
            "of": projected.of,
        }

    def add_image(self, data: bytes) -> dict[str, Any]:
        """Takes an image of the user's to search by, and returns its key."""
        return {"image": self.explorer.near.add_image(data)}

    def image(self, kind: str, row: int) -> bytes:
        """Returns an encoded image of a row: "small", "large", "outlined" or "painted" (its text painted over)."""
        if kind in ("outlined", "painted"):
            both = self.explorer.painter.paint(self.images.pixels(row))
            return encoded(both[kind == "painted"], LARGE)
        if kind not in ("small", "large"):
            raise NoImage(f"there is no image called {kind[:20]!r}")
        return encoded(self.images.pixels(row), LARGE) if kind == "large" else self.images.small(row)


def view_of(asked: Mapping[str, Any]) -> View:
    """Returns the view that the page asks for; a key or a value that views do not have raises."""
    settings = dict(asked)
    for name in ("ranges", "words"):
        settings[name] = tuple(tuple(entry) for entry in settings.get(name) or ())
    settings["region"] = tuple(int(bit) for bit in settings.get("region") or ())
    return View(**settings)


def _recipe(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RecipeError(f"expected a recipe, got a {type(value).__name__}")
    return value


def _recipes(value: Any) -> Sequence[Mapping[str, Any]]:
    return [_recipe(each) for each in value]


def _names(value: Any) -> list[str]:
    return list(dict.fromkeys(str(name) for name in value))
