"""What the page asks of a run, answered: facts, a recipe's choice, rows, charts, words, regions of several recipes.

What is kept is decided by the same function as `tamis select`, handed in as `choose`; nothing here applies a recipe.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from tamis import recipe as recipes
from tamis.arrays import Mask, Rows
from tamis.errors import RecipeError
from tamis.explore.bins import Binned, binned, heat
from tamis.explore.columns import HeldRun
from tamis.explore.labels import LABEL, Labels, best_threshold, kept_shares
from tamis.explore.near import LARGEST, Near
from tamis.explore.pair import TextPainter
from tamis.explore.recent import Recent
from tamis.explore.view import View, rows_of
from tamis.explore.words import Words, counted_among
from tamis.pool import Pool
from tamis.reporting.pairs import read_pairs
from tamis.reporting.picking import scrambled
from tamis.storage import explained
from tamis.store.run import INDEX_NUMBERS
from tamis.store.subset import Subset

#: Chooses rows of a run by a recipe: `tamis.api.select`.
Choose = Callable[[HeldRun, Mapping[str, Any]], Subset]

#: Choices, orders and columns of counted words that are remembered.
_CHOICES, _ORDERS, _COUNTED = 12, 24, 4

#: Words of a column that are told, and characters of a caption in the grid.
WORDS, CAPTION = 200, 400

#: Recipes that are compared at a time.
COMPARED = 5

#: Columns of words longer than this are hashes and no words.
_LONG = 120


class Explorer:
    """A run, the subsets it was opened with, and answers about them.

    Args:
        run: the run.
        subsets: what was chosen from it before.
        choose: what decides which rows a recipe keeps.
        pool: where the run's pairs are; None where they cannot be had.
    """

    def __init__(self, run: HeldRun, subsets: Sequence[Subset], choose: Choose, pool: Pool | None = None) -> None:
        self.run, self.pool = run, pool
        self.labels = Labels(run)
        self._choose = choose
        self._given = tuple(subsets)
        self._choices: Recent[str, Subset] = Recent(_CHOICES)
        self._orders: Recent[str, tuple[Rows, int]] = Recent(_ORDERS)
        self._bins: dict[str, Binned] = {}
        self._words: Recent[str, Words] = Recent(_COUNTED)
        self._guard, self._counting = threading.RLock(), threading.Lock()

    @cached_property
    def painter(self) -> TextPainter:
        """Paints over the text of pictures."""
        return TextPainter(self.run)

    @cached_property
    def near(self) -> Near:
        """Search by stored embeddings."""
        return Near(self.run)

    @cached_property
    def order(self) -> NDArray[np.uint64]:
        """The random order: (rows,) scrambled uids."""
        return scrambled(self.run.table())

    @property
    def numbers(self) -> list[str]:
        """Columns of numbers that every shard has, scores first."""
        scores = [name for name in self.run.score_names() if self._whole(name) and self.kind(name) == "number"]
        return [*(name for name in scores if name != LABEL), *INDEX_NUMBERS]

    @property
    def words(self) -> list[str]:
        """Columns of words that every shard has: status, fields of the pool, and scores; hashes are left out."""
        fields = ["status", *self.run.facts["pool"]["fields"]]
        scores = [name for name in self.run.score_names() if self._whole(name) and self.kind(name) == "word"]
        return [name for name in [*fields, *scores] if name in self.run.columns and "hex" not in self._unit(name)]

    def kind(self, name: str) -> str:
        return self.run.locate(name)[2].kind

    def _unit(self, name: str) -> str:
        return self.run.columns[name][2].unit

    def _whole(self, name: str) -> bool:
        group = self.run.columns[name][1]
        return group is None or group.shards >= set(self.run.shards)

    def facts(self) -> dict[str, Any]:
        """Returns what the page needs to know once."""
        columns = [
            {
                "name": name,
                "unit": column.unit,
                "better": column.better,
                "about": column.about,
                "score": group is not None,
            }
            for name in self.numbers
            for _, group, column in [self.run.columns[name]]
        ]
        return {
            "run": str(self.run.path),
            "rows": len(self.run),
            "columns": columns,
            "words": self.words,
            "embeddings": sorted(self.run.vectors),
            "texts": sorted(self.run.texts),
            "statuses": dict(self.run.statuses),
            "recipes": [
                {
                    "name": subset.name,
                    "recipe": {"name": subset.name, "saved": number},
                    "start": dict(subset.recipe) if "select" in subset.recipe else {"saved": number},
                    "from": "subset",
                    "kept": len(subset),
                }
                for number, subset in enumerate(self._given)
            ]
            + self._shipped(),
            "labels": self.label_facts(),
            "missing": len(self.run.missing),
            "hashes": "image_hash" in self.run.columns,
            "searchable": self.near.image is not None,
            "largest_picture": LARGEST,
            "compared": COMPARED,
        }

    def _shipped(self) -> list[dict[str, Any]]:
        """Returns the recipes that come with Tamis and whose columns the run has."""
        found = []
        for name in recipes.shipped():
            recipe = recipes.load(name)
            if all(recipe.columns.get(column, column) in self._readable for column in recipe.reads):
                text = dict(recipe.text)
                found.append({"name": name, "recipe": text, "start": text, "from": "shipped", "about": recipe.about})
        return found

    @cached_property
    def _readable(self) -> set[str]:
        return {name for name in self.run.columns if self._whole(name)} | set(self.run.vectors)

    def choose(self, recipe: Mapping[str, Any]) -> Subset:
        """Returns what a recipe keeps, as `tamis select` would.

        Args:
            recipe: a recipe; or {"saved": the number of a subset that the page was opened with}, which keeps what its
                file keeps: set operations over repeated rows cannot all be chosen again.

        Raises:
            RecipeError: the recipe is wrong.
            RunError: the run lacks a column.
        """
        if "saved" in recipe:
            return self._opened(recipe["saved"])
        key = json.dumps(recipe, sort_keys=True)
        with self._guard:  # several questions of one recipe come at once: it is chosen once for all of them
            found = self._choices.get(key)
            return found if found is not None else self._choices.put(key, self._choose(self.run, _whole(recipe)))

    def _opened(self, number: Any) -> Subset:
        if not isinstance(number, int) or not 0 <= number < len(self._given):
            raise RecipeError(f"the page was opened with {len(self._given)} subsets, there is no number {number!r}")
        return self._given[number]

    def bins(self, column: str) -> Binned:
        """Returns a column cut into bars."""
        with self._guard:
            if column not in self._bins:
                self._bins[column] = binned(self.run.table(), column)
            return self._bins[column]

    def chosen(self, recipe: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
        """Returns what the page shows of a recipe: its funnel, its reasons, its YAML, and the kept of each bar."""
        subset = self.choose(recipe)
        codes = subset.verdict.dropped_by
        counts = np.bincount(codes, minlength=len(subset.verdict.why) + 1) if codes is not None else np.zeros(1)
        return {
            "rows": int(subset.keep.size),
            "kept": int(np.count_nonzero(subset.keep)),
            "times": len(subset),
            "funnel": [dict(line, facts=None) for line in subset.funnel],
            "reasons": [
                {"code": code, "text": reason.sentence, "step": reason.step, "rows": int(counts[code])}
                for code, reason in enumerate(subset.verdict.why, start=1)
            ],
            "cuts": [{"score": cut.score, "low": cut.low, "high": cut.high} for cut in subset.verdict.cuts],
            "yaml": "" if "saved" in recipe else as_yaml(recipe),
            "labels": kept_shares(self.labels, subset.keep),
            "bars": {column: self.bins(column).count(subset.keep).tolist() for column in columns},
        }

    def histograms(self, columns: Sequence[str]) -> dict[str, Any]:
        """Returns the bars of columns of the whole pool."""
        found = {}
        for column in columns:
            bins = self.bins(column)
            found[column] = {
                "edges": [float(bins.edges[0]), float(bins.edges[-1])],
                "pool": bins.pool.tolist(),
                "ends": _ends(bins),
                "null": bins.null,
                "whole": bins.whole,
            }
        return found

    def heat(self, x: str, y: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Returns how many pairs of the pool, and of those kept, lie in each cell of two columns."""
        across, down = self.bins(x), self.bins(y)
        everything = np.ones(len(self.run), bool)
        return {
            "x": [float(across.edges[0]), float(across.edges[-1])],
            "y": [float(down.edges[0]), float(down.edges[-1])],
            "ends": [_ends(across), _ends(down)],
            "pool": heat(across, down, everything).tolist(),
            "kept": heat(across, down, self.choose(recipe).keep).tolist(),
        }

    def view(
        self,
        asked: View,
        recipe: Mapping[str, Any],
        compared: Sequence[Mapping[str, Any]] = (),
        given: tuple[str, Rows] | None = None,
    ) -> tuple[Rows, int]:
        """Returns the rows of a view, in its order, and how many there are in all.

        Args:
            asked: the view.
            recipe: what is kept, and why not.
            compared: the recipes that the view's region speaks of.
            given: only these rows, with what tells them from others.
        """
        named = given[0] if given is not None else ""
        key = json.dumps([repr(asked), recipe, list(compared), named, self.labels.version], sort_keys=True)
        known = self._orders.get(key)
        if known is not None:
            return known
        subset = self.choose(recipe)
        among: Mask | None = None
        if asked.region:
            among = np.ones(len(self.run), bool)
            for wanted, other in zip(asked.region, compared, strict=True):
                among &= self.choose(other).keep == bool(wanted)
        found = rows_of(
            asked, self.run, self.run.table(), subset, self.labels.values, self.order, among,
            None if given is None else given[1],
        )  # fmt: skip
        return self._orders.put(key, found)

    def cards(self, rows: Sequence[int], recipe: Mapping[str, Any], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Returns what the grid shows of rows beside their pictures, in the order asked for."""
        subset = self.choose(recipe)
        pairs = read_pairs(self.run, rows, list(columns), [], None)
        codes, reasons = subset.verdict.dropped_by, subset.verdict.reasons
        cards = []
        for row in rows:
            pair = pairs[row]
            caption = pair.caption or ""
            cards.append(
                {
                    "row": row,
                    "caption": caption[:CAPTION],
                    "cut_off": len(caption) > CAPTION,
                    "no_caption": pair.caption is None,
                    "status": pair.status,
                    "kept": bool(subset.keep[row]),
                    "reason": reasons[int(codes[row])] if codes is not None else "",
                    "label": self.label_of(row),
                    "scores": {name: number(pair.numbers[name]) for name in columns},
                }
            )
        return cards

    def label_of(self, row: int) -> str | None:
        return _word_of(self.labels.values[row])

    def set_label(self, row: int, label: str | None) -> dict[str, Any]:
        """Labels a row and forgets what was chosen by labels before."""
        self.labels.set(row, {"good": 1.0, "bad": 0.0, None: None}[label])
        return self._labelled(row)

    def undo_label(self) -> dict[str, Any]:
        """Takes the last label back that was given through this explorer."""
        return self._labelled(self.labels.undo())

    def _labelled(self, row: int) -> dict[str, Any]:
        with self._guard:
            self._choices.forget(lambda key: LABEL in key)
            self._bins.pop(LABEL, None)
            self.__dict__.pop("_readable", None)
        return {"row": row, "label": self.label_of(row), "labels": self.label_facts()}

    def label_facts(self) -> dict[str, int | None]:
        """Returns how many pairs are good and bad, and the row whose label is taken back next."""
        return {**self.labels.count(), "last": self.labels.last}

    def suggestions(self) -> list[dict[str, Any]]:
        """Returns for each score the threshold that separates good from bad best, the sharpest first."""
        found = []
        labels, names = self.labels.values, self.numbers

        def read(place: slice, columns: dict[str, Any]) -> dict[str, Any]:
            there = np.isfinite(labels[place])
            return {name: columns[name][there] for name in names}

        parts = list(self.run.table().map(names, read))
        labelled = labels[np.isfinite(labels)]
        for name in names:
            best = best_threshold(np.concatenate([part[name] for part in parts]), labelled)
            if best is not None:
                found.append({"column": name, **vars(best), "gain": best.good - best.bad})
        return sorted(found, key=lambda each: -float(each["gain"]))

    def regions(self, compared: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns how many pairs each combination of recipes keeps: an UpSet of 2 to 5 of them.

        Raises:
            RecipeError: there are fewer or more.
        """
        if not 2 <= len(compared) <= COMPARED:
            raise RecipeError(f"between 2 and {COMPARED} recipes can be compared, got {len(compared)}")
        pattern = np.zeros(len(self.run), np.uint8)
        for number, recipe in enumerate(compared):
            pattern |= self.choose(recipe).keep.astype(np.uint8) << number
        counts = np.bincount(pattern, minlength=1 << len(compared))
        return {
            "sets": [int(np.count_nonzero(self.choose(recipe).keep)) for recipe in compared],
            "regions": [
                {"pattern": [code >> number & 1 for number in range(len(compared))], "rows": int(counts[code])}
                for code in np.argsort(-counts, kind="stable").tolist()
                if counts[code]
            ],
        }

    def word_counts(self, column: str, part: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the most frequent words of a column that contain a text, with how many pairs are kept of each."""
        if self.kind(column) != "word":
            raise RecipeError(f"the column {column!r} holds {self.kind(column)}s, words are counted here")
        keep = self.choose(recipe).keep
        with self._counting:  # one at a time: it may take seconds, and memory
            pool = self._words.get(column) or self._words.put(column, Words(self.run.table(), column, WORDS))
            found, top = pool.search(part)
        told = top.column("word")
        kept = counted_among(self.run.table(), column, told, keep)
        return {
            "different": pool.different,
            "found": found,
            "words": [
                {"word": word[:_LONG], "whole": len(word) <= _LONG, "pool": count, "kept": int(those)}
                for word, count, those in zip(told.to_pylist(), top.column("n").to_pylist(), kept, strict=True)
            ],
        }

    def save(self, recipe: Mapping[str, Any], *, replace: bool = False) -> dict[str, Any]:
        """Writes a subset into the run folder's `subsets`: one file, which holds the recipe too.

        Raises:
            RecipeError: the recipe's name will not do as a file name, or is taken.
            RunError: the run folder cannot be written to.
            DiskFullError: no space is left.
        """
        checked = recipes.load(_whole(recipe))
        subset = self.choose(recipe)
        folder = self.run.path / "subsets"
        path = folder / f"{checked.name}.parquet"
        try:
            with explained(path):
                folder.mkdir(exist_ok=True)
                if not replace and path.exists():
                    raise RecipeError(f"{path} is there already: choose another name, or replace it")
                subset.save(path)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            long = f"the name has {len(checked.name):,} characters, too many for a file name: choose a shorter one"
            raise RecipeError(long) from error
        with self._guard:  # a page that is opened anew compares with what is there now
            self._given = tuple(subset if one.name == checked.name else one for one in self._given)
            self._orders.forget()
        return {"subset": str(path), "kept": len(subset)}


def as_yaml(recipe: Mapping[str, Any]) -> str:
    """Returns a recipe as its file: `tamis select --recipe` of it keeps what the page keeps."""
    return yaml.safe_dump(_whole(recipe), sort_keys=False, allow_unicode=True, width=100)


def _whole(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {**recipe, "select": recipe.get("select", [])}


def _word_of(label: float) -> str | None:
    return None if np.isnan(label) else "good" if label else "bad"


def _ends(bins: Binned) -> list[float | None]:
    return [number(end) for end in (bins.low, bins.high)]


def number(value: float) -> float | None:
    """Returns a number as JSON holds it: None where it is missing or infinite."""
    return float(value) if np.isfinite(value) else None
