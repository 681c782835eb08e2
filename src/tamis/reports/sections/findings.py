"""What may be wrong with the pool, the most harmful first, and the summary of the page."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.reports.context import Context, Facts
from tamis.reports.formats import in_words
from tamis.reports.page_pairs import Group
from tamis.reports.traits import TRAITS, Finding, Findings


def gather(context: Context) -> Facts:
    """Returns findings of the `pool`, and per subset what it drops: `rows`, `what` they are, and an `anchor` or "".

    `repeated`: groups of repeated images, by each `subset` whose recipe looked for them, else by `distinct` (None).
    """
    found = Findings(context)
    groups: list[tuple[Facts | None, Sequence[Group]]] = [(context.names[at], of) for at, of in context.groups.items()]
    repeated = [
        {
            "subset": subset,
            "groups": [{"size": one["size"], "pairs": [context.pair(row) for row in one["rows"]]} for one in of],
        }
        for subset, of in groups or [(None, found.groups)]
        if of
    ]
    return {
        "rows": context.rows,
        "pool": [_finding(each, context) for each in found.every],
        "repeated": repeated,
        "scored": bool(context.numbers or context.words),
        "subsets": [{"subset": subset, "drops": drops(context, subset["place"])} for subset in context.names],
    }


def _finding(found: Finding, context: Context) -> Facts:
    trait = TRAITS[found.ident]
    judged = "Of {1} that we checked by eye{2}, {0} were right."
    return {
        **{name: value for name, value in vars(found).items() if name != "first"},
        "about": trait.noun,
        "harm": trait.harm,
        "rule": trait.rule,
        "share": found.rows / context.rows,
        "pairs": [context.pair(row) for row in found.first],
        "precision": judged.format(*trait.judged, trait.among) if trait.judged else None,
    }


def _number(rows: int, what: str, anchor: str) -> Facts:
    return {"rows": rows, "what": what, "anchor": anchor}


def _largest_first(numbers: list[Facts]) -> list[Facts]:
    return sorted(numbers, key=lambda each: -int(each["rows"]))


def drops(context: Context, position: int) -> list[Facts]:
    """Returns why a subset drops pairs, the most frequent reason first."""
    verdict, shown = context.verdicts[position], context.shown_reasons(position)
    return _largest_first([
        _number(rows, in_words(verdict.why[code - 1].text), f"drop-{position}-{code}" if code in shown else "")
        for code, rows in enumerate(context.dropped[position], start=1)
        if rows
    ])  # fmt: skip
