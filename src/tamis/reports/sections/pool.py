"""The heading and notes of the page, and the sections about the pool and the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from tamis.core.ids import format_uid, scramble
from tamis.core.types import INDEX, INDEX_NUMBERS, flat
from tamis.reports.context import CAPTION, Context, Facts
from tamis.reports.page_pairs import no_images, scramble_uids
from tamis.runs import Run
from tamis.runs.makers import drawn_world
from tamis.runs.run import ScoreSet
from tamis.runs.table import Table


def heading(context: Context) -> Facts:
    """Returns the facts of run.json. `created` is in seconds since 1970; `readable` rows have the status ok."""
    run = context.run
    pool = run.facts["pool"]
    paths = pool["path"] if isinstance(pool["path"], list) else [pool["path"]]
    return {
        "title": context.title or PurePath(str(run.path.resolve())).name,
        "name": PurePath(str(run.path.resolve())).name,
        "paths": [str(path) for path in paths],
        "kind": str(pool.get("kind", "pool")),
        "created": float(run.facts.get("created", 0)),
        "tamis": str(run.facts.get("tamis", "?")),
        "rows": context.rows,
        "readable": context.run.statuses.get("ok", 0),
        "shards": len(run.shards),
        "subsets": len(context.subsets),
    }


def mosaic(context: Context) -> Facts | None:
    """Picks random readable pairs for the mosaic; None without images, and with a first page that shows others."""
    rows = [] if no_images(context.run) or context.chosen is not None else context.of_status.get("ok", [])
    return {"pairs": [context.pair(row) for row in rows]} if rows else None


def notes(context: Context) -> Facts:
    """Returns the warnings above the sections.

    `incomplete`: how many of the `shards` have a score; `unexplained`: subsets without reasons for their drops.
    """
    no_images, pool = "", context.run.readable_pool
    if pool is None:
        no_images = "The pool's files are not where the run read them, so there are no images."
    elif not pool.has_images:
        no_images = "The pool is metadata only, so there are no images."
    run, subsets = context.run, zip(context.names, context.verdicts, context.keeps, strict=True)
    return {
        "failures": run.failures,
        "incomplete": context.incomplete,
        "shards": len(run.shards),
        "missing": len(run.missing_shards),
        "listed": len(run.urls),
        "unexplained": [
            {"subset": name["label"], "problem": verdict.problem}
            for name, verdict, keep in subsets
            if verdict.problem and not keep.all()
        ],
        "no_images": no_images,
        "mixed": pool.mixed if pool else "",
        "drawn": drawn_world(run.models),
    }


def _run_facts(run: Run) -> Facts:
    """Returns the recipe that the run was scored by ("" for none), and the stored embeddings and texts."""
    path = run.path / "recipe.yaml"
    return {
        "folder": str(run.path.resolve()),
        "pool_fingerprint": run.facts.get("pool_fingerprint"),
        "format": run.facts.get("format"),
        "embeddings": list(run.embeddings),
        "texts": list(run.texts),
        "recipe": path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "",
    }


#: Words for the unit of each size.
_ABOUT: Mapping[str, str] = {
    CAPTION: "",
    "characters": "of the caption",
    "words": "of the caption",
    **{name: INDEX[name].about for name in INDEX_NUMBERS},
}


def gather(context: Context) -> Facts:
    """Counts statuses and shared uids, and returns the exact quantiles of sizes, and the `run`'s folder and recipe."""
    histograms = context.histograms
    return {
        "rows": context.rows,
        "statuses": dict(sorted(context.run.statuses.items(), key=lambda item: (item[0] != "ok", -item[1], item[0]))),
        # Not `context.order`: `duplicates` sorts in place, and a copy would take as much memory.
        "duplicates": count_duplicates(context.table, scramble_uids(context.table)),
        "quantities": [
            {"name": name, "about": _ABOUT[name], "low": each.low, "quantiles": each.quantiles, "high": each.high}
            for name in (*context.lengths, *INDEX_NUMBERS)
            if (each := histograms.get(name)) is not None and each.judged
        ],
        "signals": [_signal(group) for group in context.run.scores.values()],
        "run": _run_facts(context.run),
    }


_EXAMPLES = 5  # of uids that several rows share


def _signal(group: ScoreSet) -> Facts:
    """Returns the facts of a signal, its settings flattened (`boxes.side`) and without its models."""
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


def count_duplicates(table: Table, order: NDArray[np.uint64]) -> Facts:
    """Counts the `uids` shared by several rows, and their `rows`; lists some `examples`.

    Sorts `order`, the scrambled uids, in place. Two uids rarely scramble to the same number, so uids are compared too.
    """
    order.sort()
    twice = np.unique(order[1:][order[1:] == order[:-1]])
    found: dict[tuple[int, int], list[int]] = {}
    for block in range(len(table.sizes)) if twice.size else ():
        high, low = table.read_uids(block)
        for row in np.flatnonzero(np.isin(scramble(high, low), twice)) if high.size else ():
            found.setdefault((int(high[row]), int(low[row])), []).append(int(table.starts[block]) + int(row))
    shared = {uid: rows for uid, rows in found.items() if len(rows) > 1}
    first = sorted(shared.items(), key=lambda item: (-len(item[1]), item[0]))[:_EXAMPLES]
    return {
        "uids": len(shared),
        "rows": sum(map(len, shared.values())),
        "examples": [(format_uid(*uid), rows[:6]) for uid, rows in first],
    }
