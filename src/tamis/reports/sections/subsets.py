"""What the subsets keep and drop: funnels of steps, galleries of pairs, and overlaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Mask
from tamis.core.errors import RunError
from tamis.core.math.texts import trigram_diversity
from tamis.reports.context import GALLERIES, Context, Facts
from tamis.reports.formats import number
from tamis.reports.page_pairs import first_by, nearest_to_cut, salted
from tamis.runs.audit import Group, audit
from tamis.runs.expression import parse
from tamis.runs.makers import models_in_words
from tamis.runs.reasons import Cut
from tamis.runs.subset import OtherCaptions, Subset, captions_of, other_captions


def funnels(context: Context) -> Facts | None:
    """Returns the funnels; None without subsets. `changed`: `about` and `source` describe the recipe before changes."""
    if not context.subsets:
        return None
    found = [
        {
            "subset": name,
            "about": str(subset.recipe.get("about") or "").strip(),
            "source": str(subset.recipe.get("source") or "").strip(),
            "changed": name["label"].startswith(f"{subset.name}, "),
            "lines": [_step(context, name["place"], step, each) for step, each in enumerate(subset.funnel, start=1)],
            "shrinks": _shrinks(groups),
            "recipe": dict(subset.recipe),
            "models": models_in_words(subset.used),
            "captions": _diversity(context, subset),
        }
        for name, subset, groups in zip(context.names, context.subsets, audit(context.run, context.keeps), strict=True)
    ]
    return {"rows": context.rows, "funnels": found}


def _shrinks(groups: Sequence[Group]) -> Facts:
    """Returns the number of `groups` that were tested, and those that the subset keeps too rarely, at most `STRIP`."""
    shrunk = [group for group in groups if group.shrinks]
    return {"groups": len(groups), "shrunk": len(shrunk), "first": [vars(group) for group in shrunk[:STRIP]]}


def _step(context: Context, position: int, step: int, entry: Mapping[str, Any]) -> Facts:
    """Returns one step of a funnel; `codes`: the codes of reasons with a gallery."""
    why = context.verdicts[position].why
    codes = {}
    for code in context.shown_reasons(position):
        reason = why[code - 1]
        if reason.step == step:
            codes["missing" if reason.text.startswith("no value for ") else reason.text] = code
    blank = {"step": "", "before": 0, "kept": 0, "times": None, "dropped": {}, "codes": {}, "cut": None, "facts": {}}
    return {**blank, **entry, "codes": codes}


#: Number of pairs, the first by their scrambled uids, whose captions are compared.
_COMPARED = 10_000


def _diversity(context: Context, subset: Subset) -> Facts | None:
    """Compares alt-texts with the captions that some pairs carry instead; None without such a pair that has both."""
    if subset.caption is None:
        return None
    rows = np.sort(first_by(context.order, _COMPARED, subset.caption > 0))
    alt = list(captions_of(context.run, rows, OtherCaptions()))
    try:
        pairs = zip(alt, captions_of(context.run, rows, other_captions(subset)), strict=True)
        both = [(one, other) for one, other in pairs if one]
    except RunError:  # the run no longer has the column
        return None
    diversity = {name: trigram_diversity(text[side] for text in both) for side, name in enumerate(("alt", "other"))}
    return {"pairs": len(both), **diversity} if both else None


def says(step: str, *cuts: float) -> bool:
    """Whether the text of a step already contains its thresholds ("words >= 3")."""
    return all(number(cut) in step.replace("-", "−") for cut in cuts)


#: Number of pairs per strip.
STRIP = 8

#: Maximum number of cuts per reason that are shown with strips.
CUTS = 4


def galleries(context: Context) -> Facts | None:
    """Picks the pairs of each gallery; None without subsets. `left_out`: number of subsets without a gallery.

    Each gallery also has random `kept` and `dropped` pairs; their cards show the `columns` without a click.
    """
    if not context.subsets:
        return None
    places = range(min(GALLERIES, len(context.subsets)))
    return {
        "rows": context.rows,
        "galleries": [_gallery(context, position) for position in places],
        "left_out": len(context.subsets) - len(places),
    }


def _shown_pair(context: Context, row: int, score: float | None = None, why: str | None = None) -> Facts:
    return {"pair": context.pair(row), "score": score, "why": why}


def _gallery(context: Context, position: int) -> Facts:
    subset, verdict, keep = context.subsets[position], context.verdicts[position], context.keeps[position]
    of_step: dict[int | None, list[Facts]] = {}
    label = context.names[position]["label"]
    for code in context.shown_reasons(position):
        of_step.setdefault(verdict.why[code - 1].step, []).append(_reason_gallery(context, position, code))
    steps = [
        {"number": number, "step": line.get("step", ""), "before": line["before"], "kept": line["kept"],
         "fallen": of_step.get(number, [])}
        for number, line in enumerate(subset.funnel, start=1)
    ]  # fmt: skip
    return {
        "subset": context.names[position],
        "steps": steps,
        "kept": [_shown_pair(context, row) for row in context.draw(STRIP, keep, "kept", label)],
        "dropped": [
            _shown_pair(context, row, why=verdict.reason_of(row))
            for row in context.draw(STRIP, ~keep, "dropped", label)
        ],
        "columns": context.shown([name for name in subset.reads if name in context.run.columns]),
    }


def _reason_gallery(context: Context, position: int, code: int) -> Facts:
    """Returns what a step drops for one reason: `lines` has its cuts with the nearest pairs.

    Without cuts: random `dropped` pairs, or `repeats` if the page shows the groups of repeated images.
    """
    verdict, rows = context.verdicts[position], context.dropped[position][code - 1]
    assert verdict.dropped_by is not None, "rows are counted by reason"
    fell = verdict.dropped_by == code
    reason = verdict.why[code - 1]
    cuts = [cut for cut in verdict.cuts if cut.code == code][:CUTS]
    lines = [line for cut in cuts if (line := _cut(context, position, cut, fell)) is not None]
    funnel = context.subsets[position].funnel
    step = funnel[reason.step - 1] if reason.step is not None and reason.step <= len(funnel) else {}
    grouped = position in context.groups and bool((step.get("facts") or {}).get("largest_groups"))
    repeats = bool(rows) and not lines and grouped
    random = context.draw(STRIP, fell, position, code) if rows and not lines and not repeats else []
    return {
        "code": code,
        "reason": reason.text,
        "rows": rows,
        "lines": lines,
        "dropped": [_shown_pair(context, row) for row in random],
        "repeats": repeats,
    }


def _cut(context: Context, position: int, cut: Cut, fell: Mask) -> Facts | None:
    """Returns a cut and the nearest pairs; None if the run lacks the score. `beside` explains `columns`."""
    names, known = context.verdicts[position].names, context.run.columns
    values = context.values(cut.score, names)
    if values is None:
        return None
    order = salted(context.order, position, cut.code, cut.score)
    kept, dropped = nearest_to_cut(order, values, cut, context.keeps[position], fell, STRIP)
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
        "just_kept": [_shown_pair(context, row, score) for row, score in kept],
        "just_dropped": [_shown_pair(context, row, score) for row, score in dropped],
        "columns": context.shown(columns),
        "beside": context.shown([name for name in beside if name in known]),
    }


#: Number of pairs in all cells together; minimum and maximum per cell.
_PAIRS, _LEAST, _MOST = 160, 3, 8


def overlap(context: Context) -> Facts | None:
    """Counts the pairs that each two subsets share, (k, k), and shows some that `only` one keeps.

    None if less than two subsets look at pairs: `random` disagrees with any.

    `columns`: the scores that the two recipes rank by; `jaccard` is in [0, 1], NaN for two empty subsets.
    """
    if len(context.judging) < 2:
        return None
    shared = intersections(context.keeps)
    names = context.judging[:GALLERIES]
    cells = [(one, two) for one in names for two in names if one is not two]
    shown = min(_MOST, max(_LEAST, _PAIRS // len(cells)))
    only = [each for one, two in cells if (each := _only(context, one, two, shown))["rows"]]
    return {"subsets": context.judging, "shared": shared, "jaccard": jaccard(shared), "only": only}


def _only(context: Context, keeps: Facts, drops: Facts, shown: int) -> Facts:
    one, two = keeps["place"], drops["place"]
    among = context.keeps[one] & ~context.keeps[two]
    rows = context.draw(shown, among, keeps["label"], drops["label"])
    return {
        "keeps": keeps,
        "drops": drops,
        "rows": int(np.count_nonzero(among)),
        "pairs": [context.pair(row) for row in rows],
        "why": [context.verdicts[two].reason_of(row) for row in rows],
        "columns": list(dict.fromkeys([*_ranked_by(context, one), *_ranked_by(context, two)])),
    }


def _ranked_by(context: Context, position: int) -> list[str]:
    """Returns the page's names of the columns in the recipe's threshold that drops most."""
    verdict = context.verdicts[position]
    columns = sorted(parse(verdict.ranking.score).columns) if verdict.ranking is not None else []
    return [short for name in columns if (short := context.short(verdict.names.get(name, name))) in context.numbers]


def intersections(keeps: Sequence[Mask]) -> NDArray[np.int64]:
    """Returns how many rows each two masks share: (k, k), with the size of each mask on the diagonal."""
    return np.array([[np.count_nonzero(one & two) for two in keeps] for one in keeps], np.int64)


def jaccard(shared: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns intersection over union: (k, k) in [0, 1]; NaN for two empty sets."""
    sizes = np.diagonal(shared)
    union = sizes[:, None] + sizes[None, :] - shared
    return np.where(union > 0, shared / np.maximum(union, 1), np.nan)


def disagreements(facts: Facts) -> list[list[Facts]]:
    """Groups `only` by two subsets; first those in which each keeps many pairs that the other drops."""
    by_two: dict[tuple[int, ...], list[Facts]] = {}
    for each in facts["only"]:
        by_two.setdefault(tuple(sorted((each["keeps"]["place"], each["drops"]["place"]))), []).append(each)

    def order(both: list[Facts]) -> tuple[int, int]:
        rows = [each["rows"] for each in both]
        return -min(rows) if len(rows) == 2 else 0, -sum(rows)

    return sorted(by_two.values(), key=order)
