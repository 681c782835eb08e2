"""How each recipe arrives at its subset: a bar per step, with what the step dropped and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamis.reporting.context import Context, Facts
from tamis.reporting.formats import number


def gather(context: Context) -> Facts | None:
    """Reads the funnels that the subsets hold; None where there is no subset.

    Returns:
        `rows` of the run, and of each subset a funnel: `subset`, the recipe's `about` and `source`, whether it was
        `changed` (then these describe another), its `lines` (see `_line`) and the `recipe`.
    """
    if not context.subsets:
        return None
    funnels = [
        {
            "subset": name,
            "about": str(subset.recipe.get("about") or "").strip(),
            "source": str(subset.recipe.get("source") or "").strip(),
            "changed": name["label"].startswith(f"{subset.name}, "),
            "lines": [_line(context, name["place"], step, each) for step, each in enumerate(subset.funnel, start=1)],
            "recipe": dict(subset.recipe),
        }
        for name, subset in zip(context.names, context.subsets, strict=True)
    ]
    return {"rows": context.rows, "funnels": funnels}


def _line(context: Context, place: int, step: int, entry: Mapping[str, Any]) -> Facts:
    """Returns one step: rows `before` it and `kept`, rows `dropped` by reason, the `cut`, and its own `facts`.

    `codes`: reason text to code, for reasons with a gallery.
    """
    why, cut = context.verdicts[place].why, entry.get("cut")
    codes = {}
    for code in context.shown_reasons(place):
        reason = why[code - 1]
        if reason.step == step:
            codes["missing" if reason.text.startswith("no value for ") else reason.text] = code
    return {
        "step": str(entry.get("step", "")),
        "before": int(entry["before"]),
        "kept": int(entry["kept"]),
        "dropped": {str(reason): int(rows) for reason, rows in dict(entry.get("dropped") or {}).items()},
        "codes": codes,
        "cut": float(cut) if cut is not None else None,
        "facts": dict(entry.get("facts") or {}),
    }


def says(step: str, *cuts: float) -> bool:
    """Whether the words for a step hold the values it cuts at ("words >= 3"), so that they need not be added."""
    return all(number(cut) in step.replace("-", "−") for cut in cuts)
