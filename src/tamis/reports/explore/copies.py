"""Groups of repeated images in the explorer: those that a recipe finds, and those of `distinct` at other distances."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Lock, Thread
from typing import Any

import numpy as np

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import RecipeError, TamisError
from tamis.core.files.checked import LABEL
from tamis.recipes.recipe import load
from tamis.recipes.steps import Distinct
from tamis.recipes.steps.distinct import Looked
from tamis.recipes.steps.outcome import describe
from tamis.recipes.steps.semdedup import repeats
from tamis.reports.explore.queries import Explorer
from tamis.reports.page_pairs import read_pairs
from tamis.runs.reasons import Repeats
from tamis.runs.tags import TAGS

#: Maximum number of pairs that are compared at distances other than the recipe's: 150 bytes a pair, and 1 kB on disk.
COMPARED = 200_000

#: The distances of the page's slider. Each is computed once, the cheapest first.
DISTANCES = range(11)

#: Members of a group in an answer, the original first.
MEMBERS = 24

Recipe = Mapping[str, Any]


class Copies:
    """Groups of repeated images, by the first step of a recipe that looks for them, or by `distinct` as its last."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer, self._guard = explorer, Lock()
        self._newest: Recipe = {}
        self._key = ""  # of what was read: a recipe, and the version of the tags if it reads them
        self._read: Looked
        self._found: dict[int, Repeats] = {}  # by distance

    def page(self, recipe: Recipe, distance: int | None, start: int, most: int) -> dict[str, Any]:
        """Returns some groups, the largest first; and how many there are, and how many copies."""
        number, step, among = self._source(recipe)
        run, own, pairs = self._explorer.run, getattr(step, "distance", None), int(np.count_nonzero(among))
        slider = own is not None and pairs <= COMPARED
        facts = {"step": number, "text": step and describe(step), "distance": own, "pairs": pairs, "limit": COMPARED}
        facts |= {"most": max(DISTANCES[-1], own or 0) if slider else None, "prefer": getattr(step, "prefer", None)}
        if not number and not slider:
            return {**facts, "groups": None, "shown": []}
        self._newest = recipe
        rows, originals = self.groups(recipe, distance)
        if slider:
            Thread(target=self._read_ahead, args=(recipe,), daemon=True).start()
        heads, sizes = np.unique(originals, return_counts=True)
        largest = np.lexsort((heads, -sizes))[start : start + most]
        groups = [[int(head), *rows[originals == head][: MEMBERS - 1].tolist()] for head in heads[largest]]
        every = sorted({row for group in groups for row in group})
        cards = {card["row"]: card for card in self._explorer.cards(every, recipe, [])}
        name = getattr(step, "hash", "image_hash")
        pairs_read = read_pairs(run, every, [], [name] if name in run.columns else [])
        hashes = {row: pair.words.get(name) for row, pair in pairs_read.items()}
        shown = []
        for group, size in zip(groups, sizes[largest].tolist(), strict=True):
            members = [{**cards[row], "bits": differing_bits(hashes[group[0]], hashes[row])} for row in group]
            members[1:] = sorted(members[1:], key=lambda member: member["bits"] or 0)
            shown.append({"size": size + 1, "members": members})
        return {**facts, "groups": int(heads.size), "copies": int(rows.size), "shown": shown}

    def members(self, recipe: Recipe, distance: int | None, row: int) -> Rows:
        """Returns all rows of the group of a row."""
        rows, originals = self.groups(recipe, distance)
        head = originals[rows == row][0] if row in rows else row
        return np.union1d([head], rows[originals == head])

    def groups(self, recipe: Recipe, distance: int | None) -> Repeats:
        """Returns the rows that the step drops, or would drop at a distance, and the row that each of them repeats."""
        (number, step, among), subset = self._source(recipe), self._explorer.choose(recipe)
        if number and distance in (None, getattr(step, "distance", None)):
            return subset.verdict.repeats[number]
        if not isinstance(step, Distinct):
            raise RecipeError("copies have a distance in bits where 'distinct' finds them by the column image_hash")
        distance = step.distance if distance is None else distance
        version = 0 if {TAGS, LABEL}.isdisjoint(subset.reads) else self._explorer.tags.version
        with self._guard:
            if self._key != (key := json.dumps([recipe, version])):
                table = self._explorer.run.table(subset.verdict.names)
                self._key, self._read, self._found = key, step.look(table.with_candidates(among)), {}
            if distance not in self._found:
                heads = replace(step, distance=distance).heads(self._read)
                self._found[distance] = repeats(self._read.order, heads)
            return self._found[distance]

    def _read_ahead(self, recipe: Recipe) -> None:
        """Computes the distances of the slider while the page is looked at."""
        for distance in DISTANCES:
            time.sleep(0.1)  # requests and images go first
            with suppress(TamisError, OSError, RuntimeError):  # a request says what is wrong; or Python ends
                if recipe == self._newest:
                    self.groups(recipe, distance)

    def _source(self, recipe: Recipe) -> tuple[int, Any, Mask]:
        """Returns the number of the step that finds copies, the step, and its candidates; 0 if the recipe has none."""
        subset = self._explorer.choose(recipe)
        number = min(subset.verdict.repeats, default=0)
        if not number:
            return 0, Distinct(missing="drop") if "image_hash" in self._explorer.run.columns else None, subset.keep
        step = next(step for step in load(recipe).steps if describe(step) == subset.funnel[number - 1]["step"])
        later = [code for code, why in enumerate(subset.verdict.why, start=1) if (why.step or 0) >= number]
        return number, step, subset.keep | np.isin(np.asarray(subset.verdict.dropped_by), later)


def differing_bits(original: str | None, other: str | None) -> int | None:
    """Returns the smallest distance in bits between one image's first hash and a hash of the other; None without."""
    if original is None or other is None:
        return None
    return min(
        (int(one.split()[0], 16) ^ int(word, 16)).bit_count()
        for one, two in ((original, other), (other, original))
        for word in two.split()
    )
