"""The head of the page, what the pool is like, what was scored; at the foot the run's folder and recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from tamis.data import flat
from tamis.ids import format_uid, scramble
from tamis.reporting.context import CAPTION, Context, Facts
from tamis.reporting.pairs import scrambled
from tamis.store.run import INDEX_NUMBERS, ScoreSet
from tamis.store.table import Table


def heading(context: Context) -> Facts:
    """Reads what run.json says of the run. `created` is in seconds since 1970; `readable` rows have the status ok."""
    run = context.run
    pool = run.facts["pool"]
    paths = pool["path"] if isinstance(pool["path"], list) else [pool["path"]]
    return {
        "name": PurePath(str(run.path.resolve())).name,
        "paths": [str(path) for path in paths],
        "kind": str(pool.get("kind", "pool")),
        "created": float(run.facts.get("created", 0)),
        "tamis": str(run.facts.get("tamis", "?")),
        "rows": context.rows,
        "readable": context.statuses.get("ok", 0),
        "shards": len(run.shards),
        "subsets": len(context.subsets),
    }


def notes(context: Context) -> Facts:
    """Returns what the reader must know before the numbers.

    `incomplete` has how many of the `shards` have a score; `unexplained` subsets cannot say why pairs were dropped.
    """
    no_images = ""
    if context.pool is None:
        no_images = "The pool's files are not where the run read them, so there are no images."
    elif not context.pool.has_images:
        no_images = "The pool is metadata only, so there are no images."
    run, subsets = context.run, zip(context.names, context.verdicts, context.keeps, strict=True)
    return {
        "failures": run.failures,
        "incomplete": context.incomplete,
        "shards": len(run.shards),
        "missing": len(run.missing),
        "listed": len(run.urls),
        "unexplained": [
            {"subset": name["label"], "problem": verdict.problem}
            for name, verdict, keep in subsets
            if verdict.problem and not keep.all()
        ],
        "no_images": no_images,
    }


def run_facts(context: Context) -> Facts:
    """Reads the recipe that the run was scored by ("": none), and lists what is stored next to the scores."""
    run = context.run
    path = run.path / "recipe.yaml"
    return {
        "folder": str(run.path.resolve()),
        "pool_fingerprint": run.facts.get("pool_fingerprint"),
        "format": run.facts.get("format"),
        "embeddings": list(run.embeddings),
        "texts": list(run.texts),
        "recipe": path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "",
    }


#: What the numbers of captions and images count.
_ABOUT: Mapping[str, str] = {
    CAPTION: "",
    "characters": "of the caption",
    "words": "of the caption",
    "width": "pixels",
    "height": "pixels",
    "original_width": "pixels, before it was resized",
    "original_height": "pixels, before it was resized",
    "image_bytes": "of the file",
}


def gather(context: Context) -> Facts:
    """Counts statuses and shared uids, and reads the exact quantiles of those sizes that some pair has."""
    histograms = context.histograms
    return {
        "rows": context.rows,
        "statuses": dict(sorted(context.statuses.items(), key=lambda item: (item[0] != "ok", -item[1], item[0]))),
        # An order of its own, since it is sorted in place: the galleries' would need 8 more bytes per row meanwhile.
        "duplicates": duplicates(context.table, scrambled(context.table)),
        "quantities": [
            {"name": name, "about": _ABOUT[name], "low": each.low, "quantiles": each.quantiles, "high": each.high}
            for name in (*context.lengths, *INDEX_NUMBERS)
            if (each := histograms.get(name)) is not None and each.judged
        ],
        "signals": [_signal(group) for group in context.run.scores.values()],
    }


def _signal(group: ScoreSet) -> Facts:
    """Returns a signal of the run: its settings on one level (`boxes.side`), and its models apart."""
    models = group.facts.get("models") or {}
    settings = flat(group.facts.get("settings", {}))
    return {
        "label": group.label,
        "columns": [column.name for column in group.columns],
        "models": [str(model) for model in models],
        "settings": {
            key: str(value) if isinstance(value, list) else value
            for key, value in settings.items()
            if isinstance(value, list) or value not in models
        },
        "precision": group.facts.get("precision"),
        "fingerprint": group.folder.name.rpartition("-")[2],
    }


def duplicates(table: Table, order: NDArray[np.uint64], *, examples: int = 5) -> Facts:
    """Counts the `uids` that more than one row has, the `rows` that have one of them, and lists some `examples`.

    `order`, the scrambled uids, is sorted in place. Different uids hardly ever scramble to one number.
    """
    order.sort()
    twice = np.unique(order[1:][order[1:] == order[:-1]])
    found: dict[tuple[int, int], list[int]] = {}
    for block in range(len(table.sizes)) if twice.size else ():
        high, low = table.read_uids(block)
        for row in np.flatnonzero(np.isin(scramble(high, low), twice)) if high.size else ():
            found.setdefault((int(high[row]), int(low[row])), []).append(int(table.starts[block]) + int(row))
    shared = {uid: rows for uid, rows in found.items() if len(rows) > 1}
    first = sorted(shared.items(), key=lambda item: (-len(item[1]), item[0]))[:examples]
    return {
        "uids": len(shared),
        "rows": sum(map(len, shared.values())),
        "examples": [(format_uid(*uid), rows[:6]) for uid, rows in first],
    }
