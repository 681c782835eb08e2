"""Answers about a run: facts, what a recipe keeps, rows, charts, words, regions of several recipes.

`choose` is the function behind `tamis select`, so page and command keep the same pairs.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from numpy.typing import NDArray

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import RecipeError, needs_extra
from tamis.core.files.checked import LABEL
from tamis.core.files.storage import explain_errors
from tamis.core.ids import format_uid
from tamis.core.math.statistics import LEAST_LABELLED, find_cut
from tamis.core.types import INDEX_NUMBERS, USABLE
from tamis.recipes.names import shipped_names
from tamis.recipes.recipe import at_share, load
from tamis.reports.context import Context, number_columns, word_columns
from tamis.reports.distributions import whole_column
from tamis.reports.explore.cached_run import (
    NONE,
    Binned,
    CachedRun,
    View,
    bin_column,
    check_kind,
    count_words,
    count_words_among,
    heat,
    mask_of,
    release,
    rows_of,
    word_codes,
    words_containing,
)
from tamis.reports.explore.image_cache import TextPainter
from tamis.reports.explore.layout import top_words
from tamis.reports.explore.near import LARGEST, Near
from tamis.reports.explore.tagging import Tags, kept_shares
from tamis.reports.formats import colours, names_of
from tamis.reports.page_pairs import read_pairs, smallest
from tamis.reports.sections.race import curves_of, draw_curve
from tamis.reports.traits import TRAITS, Findings
from tamis.runs.makers import chosen_by, drawn_world
from tamis.runs.reasons import Verdict
from tamis.runs.subset import OtherCaptions, Subset, captions_of
from tamis.runs.tags import BAD, GOOD, TAGS

#: Chooses rows of a run by a recipe: `tamis.commands.select.select`.
Choose = Callable[[CachedRun, Mapping[str, Any]], Subset]
Recipe = Mapping[str, Any]

#: Returns recipes worth trying on the explorer's run: `tamis.commands.look.proposals`.
Propose = Callable[["Explorer"], list[dict[str, Any]]]

#: Facts, and arrays that are sent after them.
Framed = tuple[dict[str, Any], list[NDArray[Any]]]

#: Sizes of the caches: subsets (with fewer of large runs: so many rows in all), orders of rows, masks of filters,
#: searches, columns of counted words.
_CHOICES, _KEPT, _ORDERS, _MASKS, _SEARCHES, _COUNTED = 12, 1 << 26, 24, 2, 8, 2

#: Maximum bytes of a subset's file name. File systems allow 255; the temporary name is longer.
_LONGEST_NAME = 230

#: Maximum number of words listed, and of characters of such a word and of a caption in the grid.
WORDS, _WORD, CAPTION = 200, 120, 400

#: Maximum number of recipes compared at a time.
COMPARED = 5

#: Maximum number of changed pairs whose tags an answer lists, and of tagged pairs that decide about cuts.
FEW, JUDGED = 500, 2_000

#: Colours of a map: of words or combinations (one more is for all others), and of numbers; points that are ranked.
SHADES, LEVELS, _RANKED = 9, 16, 100_000

#: Points of a map whose captions name its regions, and regions, coarse and fine.
_NAMED, _REGIONS = 20_000, (10, 50)


class Explorer:
    """A run, the subsets it was opened with, and answers about them. `choose` applies a recipe."""

    def __init__(
        self, run: CachedRun, subsets: Sequence[Subset], choose: Choose, propose: Propose = lambda explorer: []
    ) -> None:
        self.run, self._propose = run, propose
        self.tags, self.near, self.painter = Tags(run), Near(run), TextPainter(run)
        self.lasso = ""  # the page's last one, as JSON
        self._opened_with = tuple(subsets)
        self._bins: dict[str, Binned] = {}
        self._guard, self._counting = threading.RLock(), threading.Lock()
        choices = max(COMPARED + 2, min(_CHOICES, _KEPT // max(len(run), 1)))
        self._choice = lru_cache(choices)(lambda key: _fold(choose(run, _with_steps(json.loads(key)))))
        self._ordered = lru_cache(_ORDERS)(self._order_rows)
        self._masks, self._filtering = lru_cache(_MASKS)(self._mask), threading.RLock()
        self._found = lru_cache(_SEARCHES)(self._search)
        self.map_names = lru_cache(_ORDERS)(self._name_regions)
        self._words = lru_cache(_COUNTED)(lambda column: count_words(run.shown, column))

    @property
    def numbers(self) -> list[str]:
        """The number columns that every shard has, scores first."""
        return [*(name for name in number_columns(self.run) if name != LABEL), *INDEX_NUMBERS]

    @property
    def words(self) -> list[str]:
        """The word columns that every shard has: status, fields of the pool, and scores without hashes."""
        return ["status", *(name for name in word_columns(self.run) if name != TAGS)]

    def facts(self) -> dict[str, Any]:
        """Returns the facts that the page loads at its start."""
        columns = []
        for name in self.numbers:
            _, group, column = self.run.columns[name]
            score = column.is_score and name not in INDEX_NUMBERS
            facts = {"better": column.better, "about": column.about, "score": score}
            columns.append({"name": name, **facts, "signal": group and group.label})
        columns.sort(key=lambda column: not column["score"])
        opened = [
            {
                "name": subset.name,
                "recipe": {"name": subset.name, "saved": number},
                "start": dict(subset.recipe) if "select" in subset.recipe else {"saved": number},
                "from": "subset",
                "kept": subset.kept,
            }
            for number, subset in enumerate(self._opened_with)
        ]
        given = [(subset.name, subset.recipe.get("select")) for subset in self._opened_with]  # perhaps as a recipe
        recipes = opened + [one for one in self._shipped() if (one["name"], one["start"].get("select")) not in given]
        labels = [each["label"] for each in names_of(self._opened_with)]
        known = colours(self.run.subset_names, labels, [each["name"] for each in recipes])
        for each, label in zip_longest(recipes, labels):
            each["colour"] = known[label or each["name"]]
        return {
            "run": str(self.run.path),
            "rows": len(self.run),
            "columns": columns,
            "words": self.words,
            "maps": [{"name": name, "method": method} for name, (method, _) in self.near.maps().items()],
            "texts": sorted(self.run.texts),
            "statuses": dict(self.run.statuses),
            "readable": sorted(USABLE),
            "recipes": recipes,
            "tags": self.tag_facts(),
            "missing": len(self.run.missing_shards),
            "drawn": drawn_world(self.run.models),
            "hashes": "image_hash" in self.run.columns,
            "commands": {
                "embeddings": self.run.embed_command(),
                "hashes": f"{self.run.score_command()} --signals image_hash",
                "recipes": f"{self.run.score_command()} --recipe basic",
            },
            "searchable": self.near.image is not None,
            "largest_image": LARGEST,
            "compared": COMPARED,
            "curves": self._curves(),
        }

    def _curves(self) -> list[dict[str, Any]]:
        """Returns the steps at some share, the shapes and the verdict of each curve whose recipe is known here."""
        known, found = {subset.name: subset.recipe for subset in self._opened_with}, []
        for curve in curves_of(self.run):
            with suppress(RecipeError):  # its recipe was a file
                recipe = at_share(load(known.get(curve["recipe"]) or curve["recipe"]), curve["point"])
                about = {"shapes": draw_curve(curve)["shapes"], **{name: curve[name] for name in ("shares", "verdict")}}
                found += [{"select": recipe.text["select"], **about}] if recipe else []
        return found

    def _shipped(self) -> list[dict[str, Any]]:
        """Returns the shipped recipes whose columns the run has."""
        readable = {name for name in self.run.columns if self.run.is_complete(self.run.columns[name][1])} | set(
            self.run.vectors
        )
        found = []
        for name in shipped_names():
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
                subset, verdict = self._choice(json.dumps(recipe))
            if verdict is None:
                return subset
            return replace(subset, keep=np.asarray(verdict.dropped_by) == 0, verdict=verdict)
        number = recipe["saved"]
        if not isinstance(number, int) or not 0 <= number < len(self._opened_with):
            raise RecipeError(f"the page has {len(self._opened_with)} subsets, there is no number {number!r}")
        return self._opened_with[number]

    def bins(self, column: str) -> Binned:
        """Returns a binned column."""
        with self._guard:
            if column not in self._bins:
                check_kind(self.run.table(), column, "number")
                self._bins[column] = bin_column(self.run.table(), column)
            return self._bins[column]

    def chosen(self, recipe: Recipe, columns: Sequence[str], among: Mask | None = None) -> dict[str, Any]:
        """Returns a recipe's funnel, reasons and YAML, and the kept rows in each bar of some columns.

        With a mask `among` the bars are of its rows, and its rows in each bar are there, too.
        """
        subset = self.choose(recipe)
        keep = subset.keep if among is None else subset.keep & among
        why = subset.verdict.why
        # What the recipe named before the models of the run took their place.
        saved = {
            maker["fingerprint"]: maker for each in self._opened_with if each.name == subset.name for maker in each.used
        }
        return {
            "rows": int(subset.keep.size),
            "kept": subset.kept,
            "times": len(subset),
            "funnel": [dict(line, facts=None) for line in subset.funnel],
            "reasons": [
                {"code": code, "text": reason.sentence, "step": reason.step, "rows": rows}
                for code, (reason, rows) in enumerate(zip(why, subset.verdict.drop_counts, strict=False), start=1)
            ],
            "cuts": [
                {"score": cut.score, "low": cut.low, "high": cut.high, "dropped": subset.verdict.drops(cut)}
                for cut in subset.verdict.cuts
            ],
            "models": chosen_by([saved.get(maker["fingerprint"], maker) for maker in subset.used]),
            "yaml": "" if "saved" in recipe else as_yaml(recipe),
            "labels": kept_shares(self.tags, subset.keep),
            "bars": {column: self.bins(column).count(keep).tolist() for column in columns},
            "shown": None if among is None else {c: self.bins(c).count(among).tolist() for c in columns},
        }

    def histograms(self, columns: Sequence[str]) -> dict[str, Any]:
        """Returns the bars of columns for the whole pool."""
        return {column: bar_facts(self.bins(column)) for column in columns}

    def heat(self, x: str, y: str, recipe: Recipe, among: Mask | None = None) -> dict[str, Any]:
        """Returns the number of pairs, and of kept pairs (among the rows of a mask), in each cell of two columns."""
        across, down = self.bins(x), self.bins(y)
        keep = self.choose(recipe).keep
        return {
            "x": _reach(across),
            "y": _reach(down),
            "ends": [_ends(across), _ends(down)],
            "pool": heat(across, down, np.ones(len(self.run), bool)).tolist(),
            "kept": heat(across, down, keep if among is None else keep & among).tolist(),
        }

    def view(
        self, asked: View, recipe: Recipe, compared: Sequence[Recipe] = (), search: str = "", most: int | None = None
    ) -> tuple[Rows, int]:
        """Returns the first rows of a view, and the number of all: see `rows_of`.

        `compared`: the recipes of its region; `search`: a search or lasso as JSON, see `_search`.
        """
        order = self._ordered if most is None else self._order_rows  # the cache has no room for all rows of large runs
        return order(asked, json.dumps(recipe), json.dumps(list(compared)), search, most, self.tags.version)

    def sides(self, rows: Rows, recipe: Recipe) -> dict[str, Any]:
        """Returns how many of some rows a recipe keeps and drops, and its threshold that drops most."""
        subset = self.choose(recipe)
        kept, cut = int(np.count_nonzero(subset.keep[rows])), subset.verdict.ranking
        return {"counts": [kept, int(rows.size) - kept], "cut": cut and [cut.score, cut.low, cut.high]}

    def _order_rows(
        self, asked: View, recipe: str, compared: str, search: str, most: int | None, version: int
    ) -> tuple[Rows, int]:
        mask = self.passing(asked, json.loads(recipe), json.loads(compared))
        subset, rows = self.choose(json.loads(recipe)), self._found(search) if search else None
        return rows_of(asked, self.run, subset, self.run.order, mask, rows, most)

    def passing(self, asked: View, recipe: Recipe, compared: Sequence[Recipe] = (), search: str = "") -> Mask | None:
        """Returns the rows that pass the filters of a view except `show`: (rows,) bool; None if it has none.

        Arguments as of `view`; `search` can only be a lasso.
        """
        filters = replace(asked, show="all", sort="random", column="", descending=True)
        if filters == View() and not search:
            return None
        which = (json.dumps(recipe) if filters.reason else "", json.dumps(list(compared)) if filters.region else "")
        with self._filtering:  # one at a time: charts and pairs ask for the same
            return self._masks(filters, *which, search, self.tags.version)

    def _mask(self, filters: View, recipe: str, compared: str, search: str, version: int) -> Mask:
        mask = np.full(len(self.run), not search)
        if search:
            mask[self._found(search)] = True
        for wanted, other in zip(filters.region, json.loads(compared) if filters.region else (), strict=True):
            mask &= self.choose(other).keep == bool(wanted)
        subset = self.choose(json.loads(recipe)) if recipe else None
        return mask_of(filters, self.run, subset, self.tags.having, mask)

    def _search(self, search: str) -> Rows:
        """Returns the rows near a text, an image or a row, inside a lasso on the map, or of a finding."""
        asked = json.loads(search)
        if "finding" in asked:
            return self.findings.rows(asked["finding"])
        if "points" in asked:
            return self.near.inside(str(asked["map"]), [(float(x), float(y)) for x, y in asked["points"]])
        if "text" in asked:
            return self.near.to_text(str(asked["text"]))
        if "image" in asked:
            return self.near.to_image(str(asked["image"]))
        return self.near.neighbours(self.check_row(asked["row"]))[0]

    @cached_property
    def findings(self) -> Findings:
        """What may be wrong with pairs of the run."""
        return Findings(Context(self.run, self._opened_with))

    def found(self) -> dict[str, Any]:
        """Returns what may be wrong with pairs, the most harmful first, and the recipes worth trying."""
        with self._counting:
            every = self.findings.every
        found = [{name: getattr(each, name) for name in ("ident", "sentence", "drops", "rows")} for each in every]
        rules = [{"harm": TRAITS[each.ident].harm, "rule": TRAITS[each.ident].rule} for each in every]
        both = [{**one, **other} for one, other in zip(found, rules, strict=True)]
        pool = self.run.readable_pool
        race = self.findings.race(str(self.run.path)) if len(self.run) and (pool is None or pool.has_images) else ""
        return {"rows": len(self.run), "findings": both, "proposals": self._propose(self), "race": race}

    def selected(self) -> list[str]:
        """Returns the uids of the pairs that are tagged, or inside the page's lasso, in the order of the run."""
        rows = np.flatnonzero(self.tags.having())
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
        pairs = read_pairs(self.run, rows, list(columns), [])
        release()
        return [
            {
                "row": row,
                "caption": (pair.caption or "")[:CAPTION],
                "cut_off": len(pair.caption or "") > CAPTION,
                "no_caption": pair.caption is None,
                "status": pair.status,
                "kept": bool(subset.keep[row]),
                "reason": subset.verdict.reason_of(row) or "",
                "repeats": subset.verdict.original_of(row),
                "tags": self.tags.of(row),
                "scores": {name: _number(pair.numbers[name]) for name in columns},
            }
            for row, pair in ((row, pairs[row]) for row in rows)
        ]

    def retag(self, change: Callable[[], Rows]) -> dict[str, Any]:
        """Calls `change`, which changes tags; returns the number of its rows, and their tags unless they are many."""
        with self._guard:  # a recipe that reads tags is applied to those before or after the change
            try:
                rows = change()
            finally:
                self._choice.cache_clear()
                self._bins.pop(LABEL, None)
        few = {str(row): self.tags.of(row) for row in rows.tolist()} if rows.size <= FEW else None
        return {"changed": int(rows.size), "rows": few, "tags": self.tag_facts()}

    def tag_facts(self) -> dict[str, Any]:
        """Returns each tag with its number of pairs, and the rows that undo changes next: how many, and the first."""
        last = self.tags.changes[-1][0] if self.tags.changes else None
        undo = None if last is None else {"rows": int(last.size), "row": int(last[0])}
        return {"counts": list(self.tags.counts().items()), "undo": undo}

    def suggestions(self) -> dict[str, Any]:
        """Returns for each score the cut that best separates good from bad, the best score first.

        Of more than `JUDGED` good and bad pairs, as many at random decide.
        """
        good, cuts = self.tags.having(GOOD), []
        rows = np.flatnonzero(good | self.tags.having(BAD))
        rows = smallest(rows, self.run.order[rows], self.run.order.__getitem__, JUDGED)
        for name in (name for name in self.numbers if self.run.columns[name][2].is_score):
            values = whole_column(self.run.table(), name)[rows].astype(np.float64)
            values[~np.isfinite(values)] = np.nan
            if (cut := find_cut(values[good[rows]], values[~good[rows]])) is not None and cut["gain"] > 0:
                shares = {key: cut[key] and asdict(cut[key]) for key in ("precision", "recall", "fallout")}
                cuts.append({**cut, **shares, "column": name})
        return {"needed": LEAST_LABELLED, "cuts": sorted(cuts, key=lambda cut: -cut["gain"])}

    def map_facts(self, name: str) -> Framed:
        """Returns facts of a map, and x, y and row of its points."""
        layout, (method, columns) = self.near.layout(name), self.near.maps()[name]
        facts = {"name": name, "method": method, "points": int(layout.rows.size), "of": len(self.run)}
        facts["ends"] = [float(end) for axis in layout.points.T for end in (axis.min(), axis.max())]
        if method == "PCA":
            command = shlex.join(["tamis", "map", str(self.run.path), "--of", name.removesuffix("_embedding")])
            facts |= {"explained": layout.explained, "columns": columns, "command": command}
        x, y = np.ascontiguousarray(layout.points.T)
        return facts, [x, y, layout.rows.astype(np.uint32)]

    def map_colours(self, name: str, by: str, recipe: Recipe, compared: Sequence[Recipe]) -> Framed:
        """Returns a legend, and the number of its entry for each point of a map: (n,) uint8, `NONE` without a value.

        `by`: a column, "kept", or "disagreement": the combination of verdicts of the compared recipes. The values of a
        number column are coloured by rank.
        """
        rows = self.near.layout(name).rows
        facts: dict[str, Any] = {"by": by}
        entries: list[dict[str, Any]] = [{"text": "dropped"}, {"text": "kept"}]
        if by == "kept":
            codes = self.choose(recipe).keep[rows].astype(np.uint8)
        elif by == "disagreement":
            pattern = self._patterns(compared)
            order = np.argsort(-np.bincount(pattern, minlength=1 << len(compared)), kind="stable")
            codes = np.minimum(np.argsort(order), SHADES).astype(np.uint8)[pattern[rows]]
            bits = range(len(compared))
            entries = [{"pattern": [code >> number & 1 for number in bits]} for code in order[:SHADES].tolist()]
        elif self.run.holds_numbers(by):
            values = whole_column(self.run.table(), by)[rows]
            some = values[:_RANKED][np.isfinite(values[:_RANKED])]  # points are in random order
            edges = np.quantile(some, np.linspace(0, 1, LEVELS + 1)) if some.size else np.zeros(LEVELS + 1)
            codes = np.searchsorted(edges[1:-1], values, side="right").astype(np.uint8)
            codes[~np.isfinite(values)] = NONE
            facts["ends"] = edges[[0, LEVELS // 2, LEVELS]].tolist()
            entries = [{}] * LEVELS
        else:
            check_kind(self.run.table(), by, "word")
            counts = self._words(by)
            top = counts.take(pc.select_k_unstable(counts, SHADES, [("n", "descending"), ("word", "ascending")]))
            codes = word_codes(self.run.shown, by, top.column("word"), other=SHADES)[rows]
            entries = [{"text": word[:_WORD]} for word in top.column("word").to_pylist()]
        shown = np.bincount(codes, minlength=256)
        facts["legend"] = [{**entry, "rows": int(n)} for entry, n in zip(entries, shown, strict=False)]
        facts["others"], facts["none"] = int(shown[len(entries) : NONE].sum()), int(shown[NONE])
        return facts, [codes]

    def _name_regions(self, name: str) -> list[dict[str, Any]]:
        """Returns the best words of a map's regions, coarse ones (level 0) before fine ones, the largest first."""
        try:
            from sklearn.cluster import KMeans
            from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
        except ImportError as error:
            raise needs_extra("scikit-learn", "map") from error
        layout = self.near.layout(name)
        order = np.argsort(layout.rows[:_NAMED])  # points are in random order
        order = order[~self.run.hidden[layout.rows[order]]]
        rows, points = layout.rows[order], layout.points[order]
        texts = list(captions_of(self.run, rows, OtherCaptions()))
        found = []
        for level, most in enumerate(_REGIONS):
            count = min(most, len(np.unique(points, axis=0)), -(-rows.size // 10))
            classes = KMeans(count, n_init=1, max_iter=50, random_state=0).fit_predict(points)
            for number, words in enumerate(top_words(texts, classes.tolist(), count, stop=ENGLISH_STOP_WORDS)):
                if words:
                    inside = points[classes == number]
                    x, y = np.median(inside, axis=0).tolist()
                    found.append({"level": level, "x": x, "y": y, "words": words, "points": len(inside)})
        return sorted(found, key=lambda region: (region["level"], -region["points"]))

    def _patterns(self, compared: Sequence[Recipe]) -> NDArray[np.uint8]:
        """Returns for each row the recipes that keep it: bit k is the k-th recipe's."""
        if not 2 <= len(compared) <= COMPARED:
            raise RecipeError(f"between 2 and {COMPARED} recipes can be compared, got {len(compared)}")
        pattern = np.zeros(len(self.run), np.uint8)
        for number, recipe in enumerate(compared):
            pattern |= self.choose(recipe).keep.astype(np.uint8) << number
        return pattern

    def regions(self, compared: Sequence[Recipe]) -> dict[str, Any]:
        """Returns the number of pairs kept by each combination of 2 to 5 recipes: the data of an UpSet plot."""
        counts = np.bincount(self._patterns(compared), minlength=1 << len(compared))
        return {
            "sets": [int(np.count_nonzero(self.choose(recipe).keep)) for recipe in compared],
            "regions": [
                {"pattern": [code >> number & 1 for number in range(len(compared))], "rows": int(counts[code])}
                for code in np.argsort(-counts, kind="stable").tolist()
                if counts[code]
            ],
        }

    def word_counts(self, column: str, part: str, recipe: Recipe, among: Mask | None = None) -> dict[str, Any]:
        """Returns the most frequent words that contain a text, with the number of kept pairs (of a mask) of each."""
        check_kind(self.run.table(), column, "word")
        keep = self.choose(recipe).keep if among is None else self.choose(recipe).keep & among
        with self._counting:  # one at a time: counting may take seconds and memory
            pool: pa.Table = self._words(column)
            matches = words_containing(pool, part)
            top = matches.take(pc.select_k_unstable(matches, WORDS, [("n", "descending"), ("word", "ascending")]))
        kept = count_words_among(self.run.shown, column, top.column("word"), keep)
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
            raise RecipeError(f"the name has {len(checked.name):,} characters, too many for a file")
        with explain_errors(path):
            path.parent.mkdir(exist_ok=True)
            if not replace and path.exists():
                raise RecipeError(f"{path} exists already: choose another name, or replace it")
            subset.save(overwrite=True)
        with self._guard:  # from now on the page compares with the new file
            self._opened_with = tuple(subset if opened.name == checked.name else opened for opened in self._opened_with)
            for cache in (self._ordered, self._masks, self._found):
                cache.cache_clear()
            vars(self).pop("findings", None)
        return {"subset": str(path), "kept": subset.kept, "colour": colours(self.run.subset_names)[checked.name]}


def _fold(subset: Subset) -> tuple[Subset, Verdict | None]:
    """Returns a subset without its mask and its verdict, which has the mask; or the subset, if it needs more."""
    release()
    if subset.verdict.dropped_by is None or any(
        values is not None for values in (subset.times, subset.caption, subset.order)
    ):
        return subset, None
    return replace(subset, keep=np.zeros(0, bool), verdict=Verdict()), subset.verdict


def as_yaml(recipe: Recipe) -> str:
    """Returns a recipe file with which `tamis select --recipe` keeps what the page keeps."""
    return yaml.safe_dump(_with_steps(recipe), sort_keys=False, allow_unicode=True, width=100)


def _with_steps(recipe: Recipe) -> dict[str, Any]:
    return {**recipe, "select": recipe.get("select", [])}


def bar_facts(bins: Binned) -> dict[str, Any]:
    """Returns the bars of a column as the page draws them."""
    facts = bins.facts
    counts = {"pool": facts.pool.tolist(), "null": facts.null, "whole": bins.whole}
    return {"edges": _reach(bins), "ends": _ends(bins), **counts}


def _reach(bins: Binned) -> list[float]:
    return [float(bins.facts.edges[0]), float(bins.facts.edges[-1])]


def _ends(bins: Binned) -> list[float | None]:
    return [_number(bins.facts.low), _number(bins.facts.high)]


def _number(value: float) -> float | None:
    """Returns a number for JSON: None if it is NaN or infinite."""
    return float(value) if np.isfinite(value) else None
