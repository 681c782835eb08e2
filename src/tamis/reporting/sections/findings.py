"""What the report found, in sentences: each number leads to its images."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from tamis.reporting.context import Context, Facts
from tamis.reporting.formats import in_words, status_words
from tamis.reporting.sections.found import TRAITS

#: Disagreements, and pairs of similar scores, that are named.
_NAMED = 3

#: Scores of two signals whose ranks correlate this much say much the same.
_ALIKE = 0.9


def gather(context: Context, sections: Mapping[str, Facts | None]) -> Facts:
    """Collects what the other `sections` show. A number is `rows`, `what` they are, and an `anchor` on the page or "".

    Returns:
        `pool`: numbers of the pool, the largest first; `asked`: whether anything was scored that could find some;
        `subsets`: the numbers that each `drops`; the largest `disagreements`; `alike`: redundant
        scores.
    """
    bad = [(status, rows) for status, rows in context.statuses.items() if status != "ok"]
    numbers = [_number(rows, status_words(status, rows), f"reject-{status}") for status, rows in bad]
    return {
        "rows": context.rows,
        "pool": _largest_first([*numbers, *_found(sections["found"])]),
        "asked": bool(context.numbers or context.words),
        "subsets": [{"subset": subset, "drops": _drops(context, subset["place"])} for subset in context.names],
        "disagreements": _disagreements(sections["overlap"]),
        "alike": _alike(context, sections["correlation"]),
    }


def _number(rows: int, what: str, anchor: str) -> Facts:
    return {"rows": rows, "what": what, "anchor": anchor}


def _largest_first(numbers: list[Facts]) -> list[Facts]:
    return sorted(numbers, key=lambda each: -int(each["rows"]))


def _found(found: Facts | None) -> list[Facts]:
    if found is None:
        return []
    numbers = []
    for kind in found["kinds"]:
        trait = TRAITS[kind["ident"]]
        numbers.append(_number(kind["rows"], trait.one if kind["rows"] == 1 else trait.many, f"found-{kind['ident']}"))
    repeated = found["repeated"]
    if repeated and repeated["pairs"]:
        first = repeated["subsets"][0]["subset"] if repeated["subsets"] else None
        anchor = f"repeated-{first['place'] if first else 'pool'}" if repeated["subsets"] else ""
        numbers.append(_number(repeated["pairs"], "repeat" if repeated["pairs"] == 1 else "repeats", anchor))
    return numbers


def _drops(context: Context, place: int) -> list[Facts]:
    verdict, shown = context.verdicts[place], context.shown_reasons(place)
    return _largest_first([
        _number(rows, in_words(verdict.why[code - 1].text), f"drop-{place}-{code}" if code in shown else "")
        for code, rows in enumerate(context.fallen[place], start=1)
        if rows
    ])  # fmt: skip


def _disagreements(overlap: Facts | None) -> list[Facts]:
    """Returns the largest: two subsets that contradict each other come before one that is part of the other."""
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
    signals = {name: getattr(context.run.columns[name][1], "label", "") for name in names}
    found = [
        {"one": one, "two": two, "correlation": float(matrix[row, column])}
        for row, one in enumerate(names)
        for column, two in enumerate(names[:row])
        if signals[one] != signals[two] and abs(matrix[row, column]) >= _ALIKE
    ]
    return sorted(found, key=lambda each: -abs(float(each["correlation"])))[:_NAMED]
