"""Answers about a run: facts, what a recipe keeps, rows, charts, words, regions of several recipes.

`choose` is the function behind `tamis select`, so page and command keep the same pairs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from tamis.arrays import U64, Mask, Rows
from tamis.errors import RecipeError
from tamis.explore.columns import (
    Binned,
    HeldRun,
    View,
    binned,
    check_kind,
    containing,
    counted,
    counted_among,
    heat,
    rows_of,
)
from tamis.explore.images import TextPainter
from tamis.explore.labels import LABEL, Labels, best_threshold, kept_shares
from tamis.explore.near import LARGEST, Near
from tamis.ids import format_uid
from tamis.pool import Pool
from tamis.recipe import load, shipped
from tamis.reporting.context import drop_counts, is_complete, number_columns, word_columns
from tamis.reporting.distributions import whole_column
from tamis.reporting.pairs import read_pairs, scrambled
from tamis.storage import explained_errors
from tamis.store.run import INDEX_NUMBERS
from tamis.store.subset import Subset

#: Chooses rows of a run by a recipe: `tamis.choosing.select`.
Choose = Callable[[HeldRun, Mapping[str, Any]], Subset]
Recipe = Mapping[str, Any]

#: Sizes of the caches: subsets, orders of rows, searches, columns of counted words.
_CHOICES, _ORDERS, _SEARCHES, _COUNTED = 12, 24, 8, 2

#: Maximum bytes of a subset's file name. File systems allow 255; the temporary name is longer.
_LONGEST_NAME = 230

#: Maximum number of words listed, and of characters of such a word and of a caption in the grid.
WORDS, _WORD, CAPTION = 200, 120, 400

#: Maximum number of recipes compared at a time.
COMPARED = 5


class Explorer:
    """A run, the subsets it was opened with, and answers about them. `choose` applies a recipe."""

    def __init__(self, run: HeldRun, subsets: Sequence[Subset], choose: Choose, pool: Pool | None = None) -> None:
        self.run, self.pool = run, pool
        self.labels, self.near, self.painter = Labels(run), Near(run), TextPainter(run)
        self.lasso = ""  # the page's last one, as JSON
        self._opened_with = tuple(subsets)
        self._bins: dict[str, Binned] = {}
        self._guard, self._counting = threading.RLock(), threading.Lock()
        self._choice = lru_cache(_CHOICES)(lambda key: choose(run, _with_steps(json.loads(key))))
        self._ordered = lru_cache(_ORDERS)(self._order_rows)
        self._found = lru_cache(_SEARCHES)(self._search)
        self._words = lru_cache(_COUNTED)(lambda column: counted(run.table(), column))

    @cached_property
    def order(self) -> U64:
        """The random order: (rows,) scrambled uids."""
        return scrambled(self.run.table())

    @property
    def numbers(self) -> list[str]:
        """The number columns that every shard has, scores first."""
        return [*(name for name in number_columns(self.run) if name != LABEL), *INDEX_NUMBERS]

    @property
    def words(self) -> list[str]:
        """The word columns that every shard has: status, fields of the pool, and scores without hashes."""
        return ["status", *word_columns(self.run)]

    def facts(self) -> dict[str, Any]:
        """Returns the facts that the page loads at its start."""
        columns = []
        for name in self.numbers:
            _, group, column = self.run.columns[name]
            facts = {field: getattr(column, field) for field in ("unit", "better", "about")}
            columns.append({"name": name, **facts, "score": group is not None})
        opened = [
            {
                "name": subset.name,
                "recipe": {"name": subset.name, "saved": number},
                "start": dict(subset.recipe) if "select" in subset.recipe else {"saved": number},
                "from": "subset",
                "kept": len(subset),
            }
            for number, subset in enumerate(self._opened_with)
        ]
        return {
            "run": str(self.run.path),
            "rows": len(self.run),
            "columns": columns,
            "words": self.words,
            "embeddings": sorted(self.run.vectors),
            "texts": sorted(self.run.texts),
            "statuses": dict(self.run.statuses),
            "recipes": opened + self._shipped(),
            "labels": self.label_facts(),
            "missing": len(self.run.missing),
            "hashes": "image_hash" in self.run.columns,
            "searchable": self.near.image is not None,
            "largest_image": LARGEST,
            "compared": COMPARED,
        }

    def _shipped(self) -> list[dict[str, Any]]:
        """Returns the shipped recipes whose columns the run has."""
        readable = {name for name in self.run.columns if is_complete(self.run, name)} | set(self.run.vectors)
        found = []
        for name in shipped():
            recipe = load(name)
            if all(recipe.columns.get(column, column) in readable for column in recipe.reads):
                text = dict(recipe.text)
                found.append({"name": name, "recipe": text, "start": text, "from": "shipped", "about": recipe.about})
        return found

    def choose(self, recipe: Recipe) -> Subset:
        """Returns the subset that `tamis select` would write for a recipe.

        {"saved": N} is the N-th subset that the page was opened with; no recipe reproduces a set operation over
        repeated rows.
        """
        if "saved" not in recipe:
            with self._guard:  # concurrent requests about one recipe apply it once
                return self._choice(json.dumps(recipe))
        number = recipe["saved"]
        if not isinstance(number, int) or not 0 <= number < len(self._opened_with):
            raise RecipeError(
                f"the page was opened with {len(self._opened_with)} subsets, there is no number {number!r}"
            )
        return self._opened_with[number]

    def bins(self, column: str) -> Binned:
        """Returns a binned column."""
        with self._guard:
            if column not in self._bins:
                self._bins[column] = binned(self.run.table(), column)
            return self._bins[column]

    def chosen(self, recipe: Recipe, columns: Sequence[str]) -> dict[str, Any]:
        """Returns a recipe's funnel, reasons and YAML, and the kept rows in each bar of some columns."""
        subset = self.choose(recipe)
        why = subset.verdict.why
        return {
            "rows": int(subset.keep.size),
            "kept": int(np.count_nonzero(subset.keep)),
            "times": len(subset),
            "funnel": [dict(line, facts=None) for line in subset.funnel],
            "reasons": [
                {"code": code, "text": reason.sentence, "step": reason.step, "rows": rows}
                for code, (reason, rows) in enumerate(zip(why, drop_counts(subset.verdict), strict=False), start=1)
            ],
            "cuts": [{"score": cut.score, "low": cut.low, "high": cut.high} for cut in subset.verdict.cuts],
            "yaml": "" if "saved" in recipe else as_yaml(recipe),
            "labels": kept_shares(self.labels, subset.keep),
            "bars": {column: self.bins(column).count(subset.keep).tolist() for column in columns},
        }

    def histograms(self, columns: Sequence[str]) -> dict[str, Any]:
        """Returns the bars of columns for the whole pool."""
        found = {}
        for column in columns:
            bins = self.bins(column)
            counts = {"pool": bins.facts.pool.tolist(), "null": bins.facts.null, "whole": bins.whole}
            found[column] = {"edges": _reach(bins), "ends": _ends(bins), **counts}
        return found

    def heat(self, x: str, y: str, recipe: Recipe) -> dict[str, Any]:
        """Returns the number of pairs, and of kept pairs, in each cell of two columns."""
        across, down = self.bins(x), self.bins(y)
        return {
            "x": _reach(across),
            "y": _reach(down),
            "ends": [_ends(across), _ends(down)],
            "pool": heat(across, down, np.ones(len(self.run), bool)).tolist(),
            "kept": heat(across, down, self.choose(recipe).keep).tolist(),
        }

    def view(self, asked: View, recipe: Recipe, compared: Sequence[Recipe] = (), search: str = "") -> tuple[Rows, int]:
        """Returns the first rows of a view, and the number of all: see `rows_of`.

        `compared`: the recipes of its region; `search`: a search or lasso as JSON, see `_search`.
        """
        return self._ordered(asked, json.dumps(recipe), json.dumps(list(compared)), search, self.labels.version)

    def sides(self, rows: Rows, recipe: Recipe) -> dict[str, Any]:
        """Returns how many of some rows a recipe keeps and drops, and its last threshold."""
        subset = self.choose(recipe)
        kept, cut = int(np.count_nonzero(subset.keep[rows])), subset.verdict.ranking
        ends = {"score": cut.score, "low": cut.low, "high": cut.high} if cut else None
        return {"counts": [kept, int(rows.size) - kept], "cut": ends}

    def _order_rows(self, asked: View, recipe: str, compared: str, search: str, version: int) -> tuple[Rows, int]:
        among: Mask | None = None
        if asked.region:
            among = np.ones(len(self.run), bool)
            for wanted, other in zip(asked.region, json.loads(compared), strict=True):
                among &= self.choose(other).keep == bool(wanted)
        subset, rows = self.choose(json.loads(recipe)), self._found(search) if search else None
        return rows_of(asked, self.run, subset, self.labels.values, self.order, among, rows)

    def _search(self, search: str) -> Rows:
        """Returns the rows near a text, an image or a row, or inside a lasso on the map."""
        asked = json.loads(search)
        if "points" in asked:
            return self.near.inside(str(asked["embedding"]), [(float(x), float(y)) for x, y in asked["points"]])
        if "text" in asked:
            return self.near.to_text(str(asked["text"]))
        if "image" in asked:
            return self.near.to_image(str(asked["image"]))
        return self.near.neighbours(self.check_row(asked["row"]))[0]

    def selected(self) -> list[str]:
        """Returns the uids of the pairs that are labelled, or inside the page's lasso, in the order of the run."""
        rows = np.flatnonzero(np.isfinite(self.labels.values))
        if self.lasso:
            rows = np.union1d(rows, self._found(self.lasso))
        return [format_uid(*halves) for halves in zip(*self.run.table().uids(rows), strict=True)]

    def check_row(self, number: Any) -> int:
        """Returns a row number, or raises ValueError."""
        row = int(number)
        if not 0 <= row < len(self.run):
            raise ValueError(f"the run has the rows 0 to {len(self.run) - 1:,}, got {row}")
        return row

    def cards(self, rows: Sequence[int], recipe: Recipe, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the contents of the grid's cards, except their images, in the given order."""
        subset = self.choose(recipe)
        pairs = read_pairs(self.run, rows, list(columns), [], None)
        codes, reasons = subset.verdict.dropped_by, subset.verdict.reasons
        return [
            {
                "row": row,
                "caption": (pair.caption or "")[:CAPTION],
                "cut_off": len(pair.caption or "") > CAPTION,
                "no_caption": pair.caption is None,
                "status": pair.status,
                "kept": bool(subset.keep[row]),
                "reason": reasons[int(codes[row])] if codes is not None else "",
                "label": self.label_of(row),
                "scores": {name: _number(pair.numbers[name]) for name in columns},
            }
            for row, pair in ((row, pairs[row]) for row in rows)
        ]

    def label_of(self, row: int) -> str | None:
        label = self.labels.values[row]
        return None if np.isnan(label) else "good" if label else "bad"

    def set_label(self, row: int, label: str | None) -> dict[str, Any]:
        """Labels a row: "good", "bad" or None."""
        self.labels.set(row, {"good": 1.0, "bad": 0.0, None: None}[label])
        return self._labelled(row)

    def undo_label(self) -> dict[str, Any]:
        """Undoes the last label set through this explorer."""
        return self._labelled(self.labels.undo())

    def _labelled(self, row: int) -> dict[str, Any]:
        with self._guard:
            self._choice.cache_clear()  # recipes may read labels
            self._bins.pop(LABEL, None)
        return {"row": row, "label": self.label_of(row), "labels": self.label_facts()}

    def label_facts(self) -> dict[str, int | None]:
        """Returns the number of good and of bad pairs, and the row that undo changes next."""
        return {**self.labels.count(), "last": self.labels.last}

    def suggestions(self) -> list[dict[str, Any]]:
        """Returns for each score the threshold that best separates good from bad, the best score first."""
        labels, table = self.labels.values, self.run.table()
        there = np.isfinite(labels)
        found = [
            {"column": name, **best}
            for name in self.numbers
            if (best := best_threshold(whole_column(table, name)[there], labels[there])) is not None
        ]
        return sorted(found, key=lambda each: -each["gain"])

    def regions(self, compared: Sequence[Recipe]) -> dict[str, Any]:
        """Returns the number of pairs kept by each combination of 2 to 5 recipes: the data of an UpSet plot."""
        if not 2 <= len(compared) <= COMPARED:
            raise RecipeError(f"between 2 and {COMPARED} recipes can be compared, got {len(compared)}")
        keeps = [self.choose(recipe).keep for recipe in compared]
        pattern = np.zeros(len(self.run), np.uint8)
        for number, keep in enumerate(keeps):
            pattern |= keep.astype(np.uint8) << number
        counts = np.bincount(pattern, minlength=1 << len(compared))
        return {
            "sets": [int(np.count_nonzero(keep)) for keep in keeps],
            "regions": [
                {"pattern": [code >> number & 1 for number in range(len(compared))], "rows": int(counts[code])}
                for code in np.argsort(-counts, kind="stable").tolist()
                if counts[code]
            ],
        }

    def word_counts(self, column: str, part: str, recipe: Recipe) -> dict[str, Any]:
        """Returns the most frequent words that contain a text, with the number of kept pairs of each."""
        check_kind(self.run.table(), column, "word")
        keep = self.choose(recipe).keep
        with self._counting:  # one at a time: counting may take seconds and memory
            pool: pa.Table = self._words(column)
            matches = containing(pool, part)
            top = matches.take(pc.select_k_unstable(matches, WORDS, [("n", "descending"), ("word", "ascending")]))
        kept = counted_among(self.run.table(), column, top.column("word"), keep)
        return {
            "different": pool.num_rows,
            "found": matches.num_rows,
            "words": [
                {"word": word[:_WORD], "whole": len(word) <= _WORD, "pool": rows, "kept": int(those)}
                for word, rows, those in zip(*top.to_pydict().values(), kept, strict=True)
            ],
        }

    def save(self, recipe: Recipe, *, replace: bool = False) -> dict[str, Any]:
        """Writes a subset file (it contains the recipe) to the folder `subsets` of the run."""
        checked = load(_with_steps(recipe))
        subset = self.choose(recipe)
        path = self.run.path / "subsets" / f"{checked.name}.parquet"
        if len(path.name.encode()) > _LONGEST_NAME:
            raise RecipeError(
                f"the name has {len(checked.name):,} characters, too many for a file: choose a shorter one"
            )
        with explained_errors(path):
            path.parent.mkdir(exist_ok=True)
            if not replace and path.exists():
                raise RecipeError(f"{path} exists already: choose another name, or replace it")
            subset.save(path)
        with self._guard:  # from now on the page compares with the new file
            self._opened_with = tuple(subset if one.name == checked.name else one for one in self._opened_with)
            self._ordered.cache_clear()
        return {"subset": str(path), "kept": len(subset)}


def as_yaml(recipe: Recipe) -> str:
    """Returns a recipe file with which `tamis select --recipe` keeps what the page keeps."""
    return yaml.safe_dump(_with_steps(recipe), sort_keys=False, allow_unicode=True, width=100)


def _with_steps(recipe: Recipe) -> dict[str, Any]:
    return {**recipe, "select": recipe.get("select", [])}


def _reach(bins: Binned) -> list[float]:
    return [float(bins.facts.edges[0]), float(bins.facts.edges[-1])]


def _ends(bins: Binned) -> list[float | None]:
    return [_number(bins.facts.low), _number(bins.facts.high)]


def _number(value: float) -> float | None:
    """Returns a number for JSON: None if it is NaN or infinite."""
    return float(value) if np.isfinite(value) else None
