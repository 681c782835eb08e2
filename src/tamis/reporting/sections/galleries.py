"""For each step, pairs next to the cut and random kept and dropped pairs."""

from __future__ import annotations

from tamis.arrays import Mask
from tamis.reporting.context import GALLERIES, Context, Facts
from tamis.reporting.picking import around, first_by
from tamis.selectors.expression import parse
from tamis.store.reasons import Cut

#: Pairs in each strip.
STRIP = 8

#: Cuts of one reason that have strips.
CUTS = 4


def gather(context: Context) -> Facts | None:
    """Picks the pairs of every gallery; None where there is no subset.

    Returns:
        `rows` of the run, how many subsets have no gallery (`left_out`) and `galleries`: of each of the first subsets
        its `steps` (`number` from 1, `step` in words, rows `before` and `kept`, `fallen`: see `_fallen`), then pairs
        `kept` and `dropped`, drawn at random by uid among all, and the `columns` that cards of these show at once. A
        pair in a strip has `pair`, its `score` where the strip is sorted by it, and `why` it is not in the subset.
    """
    if not context.subsets:
        return None
    places = range(min(GALLERIES, len(context.subsets)))
    return {
        "rows": context.rows,
        "galleries": [_gallery(context, place) for place in places],
        "left_out": len(context.subsets) - len(places),
    }


def _shown(context: Context, row: int, score: float | None = None, why: str | None = None) -> Facts:
    return {"pair": context.pair(row), "score": score, "why": why}


def _gallery(context: Context, place: int) -> Facts:
    subset, verdict, keep = context.subsets[place], context.verdicts[place], context.keeps[place]
    of_step: dict[int | None, list[Facts]] = {}
    for code in context.shown_reasons(place):
        of_step.setdefault(verdict.why[code - 1].step, []).append(_fallen(context, place, code))
    steps = [
        {
            "number": number,
            "step": str(line.get("step", "")),
            "before": int(line["before"]),
            "kept": int(line["kept"]),
            "fallen": of_step.get(number, []),
        }
        for number, line in enumerate(subset.funnel, start=1)
    ]
    codes = verdict.dropped_by
    return {
        "subset": context.names[place],
        "steps": steps,
        "kept": [_shown(context, row) for row in first_by(context.order, STRIP, keep).tolist()],
        "dropped": [
            _shown(context, row, why=verdict.reasons[codes[row]] if codes is not None else None)
            for row in first_by(context.order, STRIP, ~keep).tolist()
        ],
        "columns": context.shown([name for name in subset.reads if name in context.run.columns]),
    }


def _fallen(context: Context, place: int, code: int) -> Facts:
    """Returns what a step drops for one reason: `lines` are its cuts of scores with the pairs there.

    Without any, `dropped` are drawn by uid, or `repeats` says that the page shows each group with the pair that stays.
    """
    verdict, rows = context.verdicts[place], context.fallen[place][code - 1]
    assert verdict.dropped_by is not None, "rows are counted by reason"
    fell = verdict.dropped_by == code
    reason = verdict.why[code - 1]
    cuts = [cut for cut in verdict.cuts if cut.code == code][:CUTS]
    lines = [line for cut in cuts if (line := _line(context, place, cut, fell)) is not None]
    funnel = context.subsets[place].funnel
    step = funnel[reason.step - 1] if reason.step is not None and reason.step <= len(funnel) else {}
    grouped = place in context.groups and bool((step.get("facts") or {}).get("largest_groups"))
    repeats = bool(rows) and not lines and grouped
    random = first_by(context.order, STRIP, fell).tolist() if rows and not lines and not repeats else []
    return {
        "code": code,
        "reason": reason.text,
        "rows": rows,
        "lines": lines,
        "dropped": [_shown(context, row) for row in random],
        "repeats": repeats,
    }


def _line(context: Context, place: int, cut: Cut, fell: Mask) -> Facts | None:
    """Returns a cut and the pairs there; None if the run no longer has the score.

    `part` is what cuts `score` at `marks`; `columns` are those of the score, `beside` those that explain them.
    """
    names, known = context.verdicts[place].names, context.run.columns
    values = context.values(cut.score, names)
    if values is None:
        return None
    kept, dropped = around(context.table, values, cut, context.keeps[place], fell, STRIP)
    columns = [name for name in (names.get(name, name) for name in sorted(parse(cut.score).columns)) if name in known]
    beside = [
        f"{group.label}.{column.beside}"
        for _, group, column in (known[name] for name in columns)
        if group and column.beside
    ]
    return {
        "part": cut.step,
        "score": cut.score,
        "marks": cut.marks,
        "just_kept": [_shown(context, row, score) for row, score in kept],
        "just_dropped": [_shown(context, row, score) for row, score in dropped],
        "columns": context.shown(columns),
        "beside": context.shown([name for name in beside if name in known]),
    }
