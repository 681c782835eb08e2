"""The questions of the page by name, each with what it may hold; `queries` and its neighbours answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tamis.arrays import Rows
from tamis.errors import RecipeError
from tamis.explore.copies import copies
from tamis.explore.images import LARGE, NoPicture, Pictures, encoded
from tamis.explore.pair import pair_facts
from tamis.explore.queries import Explorer
from tamis.explore.recent import Recent
from tamis.explore.share import shared_page
from tamis.explore.view import LONGEST, View

#: Pairs that one request for the grid may name.
_MOST = 240

#: Searches whose answers are remembered, those asked for last: a grid asks for its pages one by one.
_SEARCHES = 8


class Pages:
    """What can be asked, by name.

    Args:
        explorer: the run.
        pictures: its pictures: those of the rows that a grid shows are read before they are asked for.
    """

    def __init__(self, explorer: Explorer, pictures: Pictures) -> None:
        self.explorer, self.pictures = explorer, pictures
        self.rows = len(explorer.run)
        self._found: Recent[str, Rows] = Recent(_SEARCHES)
        self.answers: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "facts": lambda asked: explorer.facts(),
            "choose": self._choose,
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
            "share": self._share,
            "save": lambda asked: explorer.save(_recipe(asked["recipe"]), replace=asked.get("replace") is True),
        }

    def _choose(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return self.explorer.chosen(_recipe(asked["recipe"]), _names(asked.get("columns", [])))

    def _rows(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        recipe, compared = _recipe(asked["recipe"]), _recipes(asked.get("compared", []))
        rows, total = self.explorer.view(view_of(asked.get("view", {})), recipe, compared, self._given(asked))
        start = max(0, int(asked.get("start", 0)))
        here = rows[start : start + min(_MOST, max(0, int(asked.get("count", 60))))].tolist()
        self.pictures.read_soon(here)
        return {
            "total": total,
            "listed": int(rows.size),
            "start": start,
            "cards": self.explorer.cards(here, recipe, _names(asked.get("columns", []))),
        }

    def _given(self, asked: Mapping[str, Any]) -> tuple[str, Rows] | None:
        """Returns the rows that a search or a lasso names, with what tells them from others."""
        near, lasso = asked.get("near"), asked.get("lasso")
        if near:
            key = json.dumps(near, sort_keys=True)
            return key, self._nearest(key, near)
        if lasso:
            points = [(float(x), float(y)) for x, y in lasso["points"]]
            return json.dumps(lasso), self.explorer.near.inside(str(lasso["embedding"]), points)
        return None

    def _nearest(self, key: str, near: Mapping[str, Any]) -> Rows:
        """Returns what a search finds, from memory where it was asked for lately."""
        found = self._found.get(key)
        if found is not None:
            return found
        if "text" in near:
            found = self.explorer.near.to_text(str(near["text"]))
        elif "picture" in near:
            found = self.explorer.near.to_picture(str(near["picture"]))
        else:
            found = self.explorer.near.to_row(self._row(near))
        return self._found.put(key, found)

    def _label(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        label = asked["label"]
        if label not in ("good", "bad", None):
            raise ValueError(f"a label is good, bad or null, got {label!r}")
        return self.explorer.set_label(self._row(asked), label)

    def _pair(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        named = [(str(name), _recipe(recipe)) for name, recipe in asked.get("recipes", [])]
        found = pair_facts(self.explorer, self._row(asked), named)
        found["painted"] = self.explorer.painter.problem if found["status"] == "ok" else "the pair has no picture"
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

    def _share(self, asked: Mapping[str, Any]) -> str:
        recipe, compared = _recipe(asked["recipe"]), _recipes(asked.get("compared", []))
        rows, total = self.explorer.view(view_of(asked.get("view", {})), recipe, compared, self._given(asked))
        columns = _names(asked.get("columns", []))
        return shared_page(self.explorer, self.pictures, recipe, rows.tolist(), total, columns)

    def _row(self, asked: Mapping[str, Any]) -> int:
        row = int(asked["row"])
        if not 0 <= row < self.rows:
            raise ValueError(f"the run has the rows 0 to {self.rows - 1:,}, got {row}")
        return row

    def add_picture(self, data: bytes) -> dict[str, Any]:
        """Takes a picture of the user's to search by: what the page names it from then on."""
        return {"picture": self.explorer.near.add_picture(data)}

    def picture(self, kind: str, row: int) -> bytes:
        """Returns an encoded picture of a row: "small", "large", "outlined" or "painted" (its text painted over).

        Raises:
            NoPicture: there is none.
        """
        if kind in ("outlined", "painted"):
            both = self.explorer.painter.paint(self.pictures.pixels(row))
            return encoded(both[kind == "painted"], LARGE)
        if kind not in ("small", "large"):
            raise NoPicture(f"there is no picture called {kind[:20]!r}")
        return self.pictures.large(row) if kind == "large" else self.pictures.small(row)


def view_of(asked: Mapping[str, Any]) -> View:
    """Returns the view that the page asks for.

    Raises:
        TypeError: it has a key that no view has, or a value that is none.
        ValueError: a word that stands for nothing.
        RecipeError: the part of a caption is too long.
    """
    settings = dict(asked)
    for name in ("ranges", "words"):
        settings[name] = tuple(tuple(entry) for entry in settings.get(name) or ())
    settings["region"] = tuple(int(bit) for bit in settings.get("region") or ())
    view = View(**settings)
    for name, text in [("caption", view.caption), *(("words", text) for entry in view.words for text in entry)]:
        if not isinstance(text, str):
            raise ValueError(f"{name} are texts, got {text!r}")
    if len(view.caption) > LONGEST:
        raise RecipeError(
            f"{len(view.caption):,} characters are sought in the captions, at most {LONGEST:,} can be: leave some out"
        )
    return view


def _recipe(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise RecipeError(f"expected a recipe, got a {type(given).__name__}")
    return given


def _recipes(given: Any) -> Sequence[Mapping[str, Any]]:
    return [_recipe(each) for each in given]


def _names(given: Any) -> list[str]:
    return list(dict.fromkeys(str(name) for name in given))
