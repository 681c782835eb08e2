"""What may be wrong with the pool, the most harmful first, and the summary of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from tamis.reports.context import Context, Facts
from tamis.reports.formats import in_words
from tamis.reports.page_pairs import Group
from tamis.reports.traits import TRAITS, Finding, Findings

#: Maximum number of disagreements, and of pairs of similar scores, in the summary.
_NAMED = 3

#: Rank correlation from which two scores are called alike.
_ALIKE = 0.9


def gather(context: Context, sections: Mapping[str, Facts | None]) -> Facts:
    """Sums up the other `sections`. Each has `rows`, a `sentence` or `what` they are, and perhaps an `anchor`.

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
        "disagreements": _disagreements(sections["overlap"]),
        "alike": _alike(context, sections["correlation"]),
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


def _disagreements(overlap: Facts | None) -> list[Facts]:
    """Returns the largest disagreements; subsets of which one contains the other come last."""
    if overlap is None:
        return []
    shared = overlap["shared"]
    linked = {(each["keeps"]["place"], each["drops"]["place"]) for each in overlap["only"]}

    def only(keeps: Facts, drops: Facts) -> Facts:
        here, there = keeps["place"], drops["place"]
        anchor = f"only-{here}-{there}" if (here, there) in linked else ""
        return _number(int(shared[here, here]) - int(shared[here, there]), f"only {keeps['label']} keeps", anchor)

    found = []
    for one, two in combinations(overlap["subsets"], 2):
        sides = {"only_one": only(one, two), "only_two": only(two, one)}
        rows = [int(side["rows"]) for side in sides.values()]
        if any(rows):
            both = int(shared[one["place"], two["place"]])
            found.append(((-min(rows), -sum(rows)), {"one": one, "two": two, **sides, "both": both}))
    return [each for _, each in sorted(found, key=lambda item: item[0])[:_NAMED]]


def _alike(context: Context, correlation: Facts | None) -> list[Facts]:
    if correlation is None:
        return []
    names, matrix = correlation["names"], correlation["matrix"]
    groups = {name: context.run.columns[name][1] for name in names}
    signals = {name: group.label if group else "" for name, group in groups.items()}
    found = [
        {"one": one, "two": two, "correlation": float(matrix[row, column])}
        for row, one in enumerate(names)
        for column, two in enumerate(names[:row])
        if signals[one] != signals[two] and abs(matrix[row, column]) >= _ALIKE
    ]
    return sorted(found, key=lambda each: -abs(float(each["correlation"])))[:_NAMED]
