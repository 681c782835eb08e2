"""The requests of the page by name: checks their arguments and calls the code that answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Mask
from tamis.core.errors import RecipeError, TamisError
from tamis.reports.explore.cached_run import View
from tamis.reports.explore.copies import Copies
from tamis.reports.explore.image_cache import LARGE, Images, NoImage
from tamis.reports.explore.queries import Explorer
from tamis.reports.explore.saved_views import read_views, save_view
from tamis.reports.page_pairs import encode, no_images, read_pairs
from tamis.runs.expression import parse
from tamis.runs.stream import samples_of
from tamis.runs.table import as_numbers

log = logging.getLogger(__name__)

#: Limits of a pair's panel: characters of a text, lines of a stored text, neighbours.
_TEXT, _LINES, _NEIGHBOURS = 20_000, 40, 8

#: The recipe that keeps every pair, and the kind of named recipes.
EMPTY: Mapping[str, Any] = {"select": []}
Named = Sequence[tuple[str, Mapping[str, Any]]]

#: Maximum number of pairs in one answer for the grid.
_MOST = 240


class Pages:
    """`answers` has a function per request. When rows are listed, their images are prefetched."""

    def __init__(self, explorer: Explorer, images: Images) -> None:
        self.explorer, self.images, self.close = explorer, images, images.close
        self.copies = Copies(explorer)
        self.rows = len(explorer.run)
        recipe, among = _asked_recipe, self._among
        self.answers: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "facts": lambda asked: explorer.facts(),
            "choose": lambda asked: explorer.chosen(recipe(asked), _names(asked.get("columns", [])), among(asked)),
            "histograms": lambda asked: explorer.histograms(_names(asked["columns"])),
            "rows": self._rows,
            "heat": lambda asked: explorer.heat(str(asked["x"]), str(asked["y"]), recipe(asked), among(asked)),
            "words": lambda asked: explorer.word_counts(
                str(asked["column"]), str(asked.get("part", "")), recipe(asked), among(asked)
            ),
            "regions": lambda asked: explorer.regions(_recipes(asked["compared"])),
            "tag": self._tag,
            "undo_tags": lambda asked: explorer.retag(explorer.tags.undo),
            "suggestions": lambda asked: explorer.suggestions(),
            "pair": self._pair,
            "map": lambda asked: pack(*explorer.map_facts(str(asked["map"]))),
            "colours": self._colours,
            "names": lambda asked: explorer.map_names(str(asked["map"])),
            "card": self._card,
            "copies": self._copies,
            "warm": lambda asked: Thread(target=explorer.near.warm, daemon=True).start(),
            "views": lambda asked: read_views(explorer.run),
            "save_view": lambda asked: save_view(
                explorer.run, str(asked["name"]), str(asked["address"]), replace=asked.get("replace") is True
            ),
            "delete_view": lambda asked: save_view(explorer.run, str(asked["name"]), None),
            "findings": lambda asked: explorer.found(),
            "progress": lambda asked: None,  # nothing measures this run
            "save": lambda asked: explorer.save(_recipe(asked["recipe"]), replace=asked.get("replace") is True),
        }

    def at(self, version: str) -> Pages:
        """Returns what answers a page that shows a version of the run: there is one."""
        return self

    def _among(self, asked: Mapping[str, Any]) -> Mask | None:
        """Returns the rows that pass the filters of a request's view; None if it has none."""
        view, recipe, compared, lasso = _view({**asked, "near": None})
        return self.explorer.passing(view, recipe, compared, lasso)

    def _rows(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Returns cards of a view, or with `numbers` only rows."""
        view, recipe, _, searched = about = _view(asked)
        rows, total = self.explorer.view(*about)
        self.explorer.lasso = searched if asked.get("lasso") and not asked.get("near") else ""
        start, many = max(0, int(asked.get("start", 0))), max(0, int(asked.get("count", 60)))
        if asked.get("numbers"):
            return {"rows": rows[start : start + many].tolist()}
        here = rows[start : start + min(_MOST, many)].tolist()
        cards = self.explorer.cards(here, recipe, _names(asked.get("columns", [])))
        self.images.read_soon([*here, *(card["repeats"] for card in cards if card["repeats"] is not None)])
        sides = self.explorer.sides(rows, recipe) if view.sort == "cut" else None
        return {"total": total, "listed": int(rows.size), "start": start, "cards": cards, "sides": sides}

    def _copies(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        start, many = max(0, int(asked.get("start", 0))), min(_MOST, max(0, int(asked.get("count", 24))))
        found = self.copies.page(_recipe(asked["recipe"]), _distance(asked), start, many)
        self.images.read_soon([member["row"] for group in found["shown"] for member in group["members"]])
        return found

    def _tag(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Changes the tags of the given `rows`, of all copies in a `group`, or of all rows of a view."""
        if "group" in asked:
            rows = self.copies.members(
                _recipe(asked["recipe"]), _distance(asked), self.explorer.check_row(asked["group"])
            )
        elif "rows" in asked:
            rows = np.array([self.explorer.check_row(row) for row in asked["rows"]], np.int64)
        else:
            unlimited = _view({**asked, "view": {**asked.get("view", {}), "sort": "row"}})
            rows = self.explorer.view(*unlimited, most=self.rows)[0]
        add, remove = _names(asked.get("add", [])), _names(asked.get("remove", []))
        return self.explorer.retag(lambda: self.explorer.tags.change(rows, add=add, remove=remove))

    def _pair(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        recipes = [(str(name), _recipe(recipe)) for name, recipe in asked.get("recipes", [])]
        row, recipe = self.explorer.check_row(asked["row"]), _recipe(asked.get("recipe", EMPTY))
        found = pair_facts(self.explorer, row, recipes, recipe)
        found["painted"] = self.explorer.painter.problem if found["status"] == "ok" else "the pair has no image"
        return found

    def _colours(self, asked: Mapping[str, Any]) -> bytes:
        recipe, compared = _recipe(asked["recipe"]), _recipes(asked.get("compared", []))
        return pack(*self.explorer.map_colours(str(asked["map"]), str(asked["by"]), recipe, compared))

    def _card(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        row = self.explorer.check_row(asked["row"])
        return self.explorer.cards([row], _recipe(asked["recipe"]), _names(asked.get("columns", [])))[0]

    def add_image(self, data: bytes) -> dict[str, Any]:
        """Adds an uploaded image to search by, and returns its key."""
        return {"image": self.explorer.near.add_image(data)}

    def image(self, kind: str, row: int) -> bytes:
        """Returns the image of a row as a file: "small", "large", "outlined" or "painted" (text painted over)."""
        if kind in ("outlined", "painted"):
            both = self.explorer.painter.paint(self.images.pixels(row))
            return encode(both[kind == "painted"], *LARGE)[0]
        if kind not in ("small", "large"):
            raise NoImage(f"there is no image called {kind[:20]!r}")
        return encode(self.images.pixels(row), *LARGE)[0] if kind == "large" else self.images.small(row)


def pack(facts: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> bytes:
    """Returns bytes: the length of the facts as JSON (uint32), the JSON with spaces up to 4 bytes, the arrays."""
    text = json.dumps(facts).encode()
    text += b" " * (-len(text) % 4)
    return b"".join([np.uint32(len(text)).tobytes(), text, *(array.tobytes() for array in arrays)])


def _view(asked: Mapping[str, Any]) -> tuple[View, Mapping[str, Any], Sequence[Mapping[str, Any]], str]:
    """Returns the arguments of `Explorer.view`; raises for an unknown key or value of the view."""
    settings = dict(asked.get("view", {}))
    for name in ("ranges", "words", "tags"):
        settings[name] = tuple(tuple(entry) for entry in settings.get(name) or ())
    settings["captions"] = tuple(settings.get("captions") or ())
    settings["region"] = tuple(int(bit) for bit in settings.get("region") or ())
    search = asked.get("near") or asked.get("lasso")
    if asked.get("finding"):
        search = {"finding": str(asked["finding"])}
    compared = _recipes(asked.get("compared", []))
    return View(**settings), _recipe(asked["recipe"]), compared, json.dumps(search) if search else ""


def _recipe(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RecipeError(f"expected a recipe, got a {type(value).__name__}")
    return value


def _distance(asked: Mapping[str, Any]) -> int | None:
    return None if asked.get("distance") is None else int(asked["distance"])


def _asked_recipe(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    return _recipe(asked["recipe"])


def _recipes(value: Any) -> Sequence[Mapping[str, Any]]:
    return [_recipe(each) for each in value]


def _names(value: Any) -> list[str]:
    return list(dict.fromkeys(str(name) for name in value))


def pair_facts(explorer: Explorer, row: int, named: Named, recipe: Mapping[str, Any] = EMPTY) -> dict[str, Any]:
    """Returns the contents of a pair's panel, with the verdict of each named recipe; the scores of `recipe` first."""
    run, words = explorer.run, explorer.words
    pair = read_pairs(run, [row], explorer.numbers, words)[row]
    inside = row - run.row_ranges[pair.shard].start
    nearest = pair.words.get("sieve_caption")
    return {
        "row": row,
        "shard": pair.shard,
        "key": pair.key,
        "uid": pair.uid,
        "url": _url(explorer, row),
        "caption": None if pair.caption is None else pair.caption[:_TEXT],
        "caption_length": len(pair.caption or ""),
        "status": pair.status,
        "why": [pair.reason, *pair.why_null] if pair.reason else list(pair.why_null),
        "size": [pair.width, pair.height],
        "tags": explorer.tags.of(row),
        "scores": _percentiles(explorer, pair.numbers, recipe),
        "words": [[name, (value or "")[:_TEXT]] for name, value in pair.words.items() if name != "sieve_caption"],
        "texts": [
            {
                "name": name.rpartition("-")[0].replace("_", " "),
                "lines": [line[:500] for line in lines[:_LINES]],
                "nearest": lines.index(nearest) if nearest in lines else None,
            }
            for name, folder in (run.texts.items() if not run.hidden[row] else ())
            if (folder / f"{pair.shard}.parquet").is_file()
            if (lines := run.texts_of(name, pair.shard)[inside])
        ],
        "verdicts": [_verdict(explorer, name, recipe, row) for name, recipe in named],
        "neighbours": _neighbours(explorer, row),
    }


def _percentiles(explorer: Explorer, values: Mapping[str, float], recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns scores with their percentiles, those that a recipe reads first, with its cuts and their percentiles."""
    read, cuts = set[Any](), dict[Any, list[float]]()

    def place(name: str) -> Any:  # a column may have several names
        inner, group, _ = explorer.run.locate(name)
        return inner, group and group.folder

    with suppress(TamisError):  # the page says what is wrong with it
        subset = explorer.choose(recipe)
        read = {place(name) for name in subset.reads}
        for cut in subset.verdict.cuts:
            if (column := parse(cut.score).column) is not None:
                marks = [mark for mark in cut.marks if np.isfinite(mark)]
                cuts.setdefault(place(subset.verdict.names.get(column, column)), []).extend(marks)
    found = []
    for name in sorted(values, key=lambda name: place(name) not in read):
        there, marks = bool(np.isfinite(values[name])), cuts.get(place(name), [])
        places = _shares_below(explorer, name, [*marks, values[name]]) if there or marks else [0.0]
        entry = {"name": name, "value": float(values[name]) if there else None, "read": place(name) in read}
        percentile = places[-1] if there else None
        found.append({**entry, "percentile": percentile, "cuts": [*zip(marks, places, strict=False)]})
    return found


def _shares_below(explorer: Explorer, name: str, limits: Sequence[float]) -> list[float]:
    """Returns the share of a column's values below each limit, plus half the share of those that equal it."""

    def count(span: slice, columns: dict[str, Any]) -> NDArray[np.float64]:
        values = as_numbers(columns[name])
        below = [np.count_nonzero(values < limit) + np.count_nonzero(values == limit) / 2 for limit in limits]
        return np.array([*below, np.count_nonzero(~np.isnan(values))])

    *below, judged = sum(explorer.run.table().map([name], count), np.zeros(len(limits) + 1))
    return [float(rows / max(judged, 1)) for rows in below]


def _verdict(explorer: Explorer, name: str, recipe: Mapping[str, Any], row: int) -> dict[str, Any]:
    try:
        subset = explorer.choose(recipe)
    except TamisError as error:
        return {"name": name, "kept": None, "reason": str(error)}
    kept, reason = bool(subset.keep[row]), subset.verdict.reason_of(row)
    if reason is None:
        reason = "" if kept else "not in the subset"
    original = subset.verdict.original_of(row)
    return {"name": name, "kept": kept, "times": subset.times_of(row), "reason": reason, "repeats": original}


def _neighbours(explorer: Explorer, row: int) -> list[dict[str, Any]]:
    if explorer.near.image is None:
        return []
    rows, cosines = explorer.near.neighbours(row, _NEIGHBOURS + 1)
    others = [(int(other), float(cosine)) for other, cosine in zip(rows, cosines, strict=True) if other != row]
    pairs = read_pairs(explorer.run, [other for other, _ in others], [], [])
    return [
        {"row": other, "cosine": cosine, "caption": (pairs[other].caption or "")[:200], "status": pairs[other].status}
        for other, cosine in others[:_NEIGHBOURS]
    ]


def _url(explorer: Explorer, row: int) -> str | None:
    """Returns the url in the run's fields or in the pair's json, or None. The page shows it as text only."""
    run = explorer.run
    if "url" in run.facts["pool"]["fields"]:
        url: Any = read_pairs(run, [row], [], ["url"])[row].words["url"]
        return None if url is None else str(url)[:_TEXT]
    if no_images(run):
        return None
    try:
        (sample,) = samples_of(run, order=[row], fields={"files"}, errors="mark", threads=1)
        facts = json.loads((sample.files or {}).get("json", b"{}"))
        url = facts.get("url") if isinstance(facts, dict) else None
        return url[:_TEXT] if isinstance(url, str) else None
    except (TamisError, ValueError, RecursionError) as error:
        log.info("the json of row %d cannot be read: %s", row, error)
    return None
