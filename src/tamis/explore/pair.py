"""Everything that is known of one pair, for its panel."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.errors import ModelError, TamisError
from tamis.reporting.pairs import Painter, read_pairs
from tamis.reporting.sections.text import painter
from tamis.store.stream import samples_of

if TYPE_CHECKING:
    from tamis.explore.queries import Explorer
    from tamis.store.run import Run

log = logging.getLogger(__name__)

#: Characters of a text, and lines of a list, that the panel shows; neighbours beside the pair itself.
_TEXT, _LINES, _NEIGHBOURS = 20_000, 40, 8


class TextPainter:
    """Paints over the text of images as the run's T-MARS did. The detector is loaded with the first picture.

    Args:
        run: the run.

    Attributes:
        problem: why there is nothing to paint; "" where there is.
    """

    def __init__(self, run: Run) -> None:
        groups = [group for group in run.scores.values() if group.facts["name"] == "tmars"]
        self.problem = "" if groups else "the run has no T-MARS scores"
        self._group = groups[0] if groups else None
        self._paint: Painter | None = None
        self._guard = threading.Lock()

    def paint(self, image: Pixels) -> tuple[Pixels, Pixels]:
        """Returns an image with its text outlined, and with the text painted over.

        Raises:
            ModelError: it cannot be done here, or the detector failed.
        """
        if self._group is None:
            raise ModelError(self.problem)
        try:
            with self._guard:  # the page asks for both pictures at once, and detectors do one image at a time
                self._paint = self._paint or painter(self._group)
                return self._paint(image)
        except Exception as error:  # whatever a model may raise
            raise ModelError(f"the text could not be painted over: {error}") from error


def pair_facts(explorer: Explorer, row: int, named: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns what the panel shows of a pair.

    Args:
        explorer: of the run.
        row: which.
        named: recipes by name, whose verdicts are told.
    """
    run, numbers, words = explorer.run, explorer.numbers, explorer.words
    pair = read_pairs(run, [row], numbers, words, None)[row]
    inside = row - int(run.table().starts[run.shards.index(pair.shard)])
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
        "scores": _places(explorer, pair.numbers),
        "words": [[name, (value or "")[:_TEXT]] for name, value in pair.words.items() if name != "sieve_caption"],
        "texts": [
            {
                "name": name.rpartition("-")[0].replace("_", " "),
                "lines": [line[:500] for line in lines[:_LINES]],
                "nearest": lines.index(nearest) if nearest in lines else None,
            }
            for name in run.texts
            for lines in [_texts(run, name, pair.shard, inside)]
            if lines
        ],
        "verdicts": [_verdict(explorer, name, recipe, row) for name, recipe in named],
        "neighbours": _neighbours(explorer, row),
    }


def _places(explorer: Explorer, values: Mapping[str, float]) -> list[dict[str, Any]]:
    """Returns scores with the share of judged pairs whose score is lower, and half of those that have the same."""

    def count(place: slice, columns: dict[str, Any]) -> dict[str, NDArray[np.float64]]:
        return {
            name: np.array([(column < value).sum() + (column == value).sum() / 2, (~np.isnan(column)).sum()])
            for name, value in values.items()
            for column in [columns[name]]
        }

    totals = {name: np.zeros(2) for name in values}
    for part in explorer.run.table().map(list(values), count):
        for name, counts in part.items():
            totals[name] += counts
    return [
        {
            "name": name,
            "value": float(value) if np.isfinite(value) else None,
            "percentile": float(totals[name][0] / totals[name][1]) if np.isfinite(value) else None,
        }
        for name, value in values.items()
    ]


def _texts(run: Run, name: str, shard: str, inside: int) -> list[str]:
    if not (run.texts[name] / f"{shard}.parquet").is_file():
        return []
    return run.texts_of(name, shard)[inside] or []


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
    captions = read_pairs(explorer.run, [one for one, _ in others], [], [], None)
    return [
        {"row": one, "cosine": cosine, "caption": (captions[one].caption or "")[:200], "status": captions[one].status}
        for one, cosine in others[:_NEIGHBOURS]
    ]


def _url(explorer: Explorer, row: int) -> str | None:
    """Returns the url in the pair's json, or among the fields of the run; None where there is none. It is only text."""
    run = explorer.run
    if "url" in run.facts["pool"]["fields"]:
        found = read_pairs(run, [row], [], ["url"], None)[row].words["url"]
        return None if found is None else found[:_TEXT]
    if explorer.pool is None or not explorer.pool.has_images:
        return None
    try:
        for sample in samples_of(run, explorer.pool, order=[row], fields={"files"}, errors="mark", threads=1):
            said = json.loads((sample.files or {}).get("json", b"{}"))
            url = said.get("url") if isinstance(said, dict) else None
            return url[:_TEXT] if isinstance(url, str) else None
    except (TamisError, ValueError, RecursionError) as error:
        log.info("the json of row %d cannot be read: %s", row, error)
    return None
