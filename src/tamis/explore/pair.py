"""Everything known about one pair, for its panel; and groups of repeated images."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis.arrays import Pixels
from tamis.errors import ModelError, TamisError
from tamis.reporting.distributions import whole_column
from tamis.reporting.pairs import Painter, read_pairs
from tamis.reporting.sections.text import painter
from tamis.store.stream import samples_of

if TYPE_CHECKING:
    from tamis.explore.queries import Explorer
    from tamis.store.run import Run

log = logging.getLogger(__name__)

#: Limits of the panel: characters of a text, lines of a list, neighbours.
_TEXT, _LINES, _NEIGHBOURS = 20_000, 40, 8

#: The recipe whose groups are shown if the recipe on the page has no step that looks for repeats.
USUAL: Mapping[str, Any] = {"name": "copies", "select": [{"distinct": {"missing": "drop"}}]}


class TextPainter:
    """Paints over the text of images as the run's T-MARS did; `problem` is why it cannot, or ""."""

    def __init__(self, run: Run) -> None:
        self._group = next((group for group in run.scores.values() if group.facts["name"] == "tmars"), None)
        self.problem = "" if self._group else "the run has no T-MARS scores"
        self._paint: Painter | None = None
        self._guard = threading.Lock()

    def paint(self, image: Pixels) -> tuple[Pixels, Pixels]:
        """Returns an image with its text outlined, and with the text painted over; ModelError if it cannot be done."""
        if self._group is None:
            raise ModelError(self.problem)
        try:
            with self._guard:  # the page asks for both images at once, and detectors process one at a time
                self._paint = self._paint or painter(self._group)
                return self._paint(image)
        except Exception as error:  # a model may raise anything
            raise ModelError(f"the text could not be painted over: {error}") from error


def pair_facts(explorer: Explorer, row: int, named: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns what the panel shows of a pair, with the verdicts of some recipes by name."""
    run, words = explorer.run, explorer.words
    pair = read_pairs(run, [row], explorer.numbers, words, None)[row]
    inside = row - run.places[pair.shard].start
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
        "label": explorer.label_of(row),
        "scores": _percentiles(explorer, pair.numbers),
        "words": [[name, (value or "")[:_TEXT]] for name, value in pair.words.items() if name != "sieve_caption"],
        "texts": [
            {
                "name": name.rpartition("-")[0].replace("_", " "),
                "lines": [line[:500] for line in lines[:_LINES]],
                "nearest": lines.index(nearest) if nearest in lines else None,
            }
            for name, folder in run.texts.items()
            if (folder / f"{pair.shard}.parquet").is_file()
            if (lines := run.texts_of(name, pair.shard)[inside])
        ],
        "verdicts": [_verdict(explorer, name, recipe, row) for name, recipe in named],
        "neighbours": _neighbours(explorer, row),
    }


def _percentiles(explorer: Explorer, values: Mapping[str, float]) -> list[dict[str, Any]]:
    """Returns scores with the share of scored pairs below, counting half of those that have the same score."""
    found = []
    for name, value in values.items():
        there, percentile = bool(np.isfinite(value)), None
        if there:
            column = whole_column(explorer.run.table(), name)
            below = np.count_nonzero(column < value) + np.count_nonzero(column == value) / 2
            percentile = float(below / np.count_nonzero(~np.isnan(column)))
        found.append({"name": name, "value": float(value) if there else None, "percentile": percentile})
    return found


def _verdict(explorer: Explorer, name: str, recipe: Mapping[str, Any], row: int) -> dict[str, Any]:
    try:
        subset = explorer.choose(recipe)
    except TamisError as error:
        return {"name": name, "kept": None, "reason": str(error)}
    codes = subset.verdict.dropped_by
    kept = bool(subset.keep[row])
    reason = subset.verdict.reasons[int(codes[row])] if codes is not None else "" if kept else "not in the subset"
    return {"name": name, "kept": kept, "reason": reason}


def _neighbours(explorer: Explorer, row: int) -> list[dict[str, Any]]:
    if explorer.near.image is None:
        return []
    rows, cosines = explorer.near.neighbours(row, _NEIGHBOURS + 1)
    others = [(int(one), float(cosine)) for one, cosine in zip(rows, cosines, strict=True) if one != row]
    pairs = read_pairs(explorer.run, [one for one, _ in others], [], [], None)
    return [
        {"row": one, "cosine": cosine, "caption": (pairs[one].caption or "")[:200], "status": pairs[one].status}
        for one, cosine in others[:_NEIGHBOURS]
    ]


def _url(explorer: Explorer, row: int) -> str | None:
    """Returns the url among the run's fields or in the pair's json; None if there is none. It is shown as text only."""
    run = explorer.run
    if "url" in run.facts["pool"]["fields"]:
        url: Any = read_pairs(run, [row], [], ["url"], None)[row].words["url"]
        return None if url is None else str(url)[:_TEXT]
    if explorer.pool is None or not explorer.pool.has_images:
        return None
    try:
        (sample,) = samples_of(run, explorer.pool, order=[row], fields={"files"}, errors="mark", threads=1)
        facts = json.loads((sample.files or {}).get("json", b"{}"))
        url = facts.get("url") if isinstance(facts, dict) else None
        return url[:_TEXT] if isinstance(url, str) else None
    except (TamisError, ValueError, RecursionError) as error:
        log.info("the json of row %d cannot be read: %s", row, error)
    return None


def copies(explorer: Explorer, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the largest groups of which a step of a recipe keeps one pair, that pair first.

    If the recipe has no such step and the run has hashes of its images, `distinct` finds the groups.
    """

    def steps(recipe: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [line for line in explorer.choose(recipe).funnel if "groups" in (line.get("facts") or {})]

    hashed = ["image_hash"] if "image_hash" in explorer.run.columns else []
    lines = steps(recipe)
    usual = not lines and bool(hashed)
    if usual:
        lines = steps(USUAL)
    groups = [(line["step"], group) for line in lines for group in line["facts"]["largest_groups"]]
    pairs = read_pairs(explorer.run, {row for _, group in groups for row in group["rows"]}, [], hashed, None)
    shown = []
    for step, group in groups:
        members = [pairs[int(row)] for row in group["rows"]]
        hashes = [pair.words.get("image_hash") for pair in members]
        entries = [
            {"row": pair.row, "caption": (pair.caption or "")[:300], "status": pair.status, "key": pair.key,
             "bits": differing_bits(hashes[0], own)}
            for pair, own in zip(members, hashes, strict=True)
        ]  # fmt: skip
        shown.append({"step": step, "size": group["size"], "members": entries})
    total = sum(int(line["facts"]["groups"]) for line in lines)
    return {"usual": usual, "groups": total, "shown": shown, "step": lines[0]["step"] if lines else ""}


def differing_bits(keeper: str | None, other: str | None) -> int | None:
    """Hamming distance of an image's first hash to the nearest hash of the other; None without hashes."""
    if keeper is None or other is None:
        return None
    return min(
        (int(one.split()[0], 16) ^ int(word, 16)).bit_count()
        for one, two in ((keeper, other), (other, keeper))
        for word in two.split()
    )
