"""The first page, for the person who decides: what one subset keeps and drops, what it gains, why, at what cost."""

from __future__ import annotations

from collections import Counter

from tamis.core.files.checked import read_lines
from tamis.reports.context import Context, Facts
from tamis.reports.formats import in_words
from tamis.reports.sections import bench
from tamis.reports.sections.findings import drops

#: Number of pairs on each side, of reasons, and of signals that took most of the time.
_PAIRS, _REASONS, _SLOWEST = 8, 3, 3


def gather(context: Context) -> Facts | None:
    """Returns the facts of the first page; None without a chosen subset.

    `how`: it was named, or is the first or the only one. `reasons`: the largest causes of drops, `why` those of the
    `dropped` pairs.
    """
    place = context.chosen
    if place is None:
        return None
    subset, verdict, keep = context.names[place], context.verdicts[place], context.keeps[place]
    others = len(context.subsets) - 1
    kept, dropped = (context.draw(_PAIRS, side, "choice", subset["label"]) for side in (keep, ~keep))
    codes = [0 if verdict.dropped_by is None else int(verdict.dropped_by[row : row + 1][0]) for row in dropped]
    return {
        "subset": subset,
        "rows": context.rows,
        "how": "named" if context.named is not None else "first" if others else "only",
        "kept": [context.pair(row) for row in kept],
        "dropped": [context.pair(row) for row in dropped],
        "why": [in_words(verdict.why[code - 1].text) if code else "" for code in codes],
        "reasons": drops(context, place)[:_REASONS],
        "bench": _bench(context, place),
        "cost": _cost(context),
    }


def _bench(context: Context, place: int) -> Facts | None:
    """Returns the subset's line of the last bench with its `baseline` and number of `seeds`; None without one.

    A line of the same name with another number of pairs is of another subset.
    """
    facts = bench.gather(context)
    names, kept = {context.names[place]["label"], context.subsets[place].name}, context.names[place]["kept"]
    if facts is None:
        return None
    own = (each for each in facts["lines"] if each["subset"]["label"] in names and each["subset"]["kept"] == kept)
    line = next(own, {"score": None, "gain": None})
    best = max(
        (line for line in facts["lines"] if line["score"]), key=lambda line: line["score"]["value"], default=None
    )
    return {
        **{name: line[name] for name in ("score", "gain")},
        **{name: facts[name] for name in ("baseline", "seeds", "model")},
        "best": best and best["subset"]["label"],
    }


def _cost(context: Context) -> Facts | None:
    """Returns the seconds of all workers that scored the run, by all commands, and the `slowest` parts.

    Parts that ran at once add up to more than the seconds, which are of the clock. None if the run has no events.
    """
    seconds, took = 0.0, Counter[str]()
    for path in context.run.path.glob("events*.jsonl"):
        for event in read_lines(path):
            seconds += float(event.get("seconds", 0.0))
            took.update(event.get("took", {}))
    return {"seconds": seconds, "slowest": dict(took.most_common(_SLOWEST))} if seconds else None
