"""What the report found, in sentences: each number leads to its images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamis.reporting.context import Context, Facts
from tamis.reporting.in_words import in_words, status_words
from tamis.reporting.sections.found import TRAITS

#: Disagreements, and pairs of similar scores, that are named.
_NAMED = 3

#: Scores of two signals whose ranks correlate this much say much the same.
_ALIKE = 0.9


def gather(context: Context, sections: Mapping[str, Facts | None]) -> Facts:
    """Collects what the other sections show. A number is `rows`, `what` they are, and an `anchor` on the page or "".

    Args:
        context: the run and its subsets.
        sections: what the other sections say.

    Returns:
        `pool`: numbers of the pool, the largest first; `asked`: whether anything was scored that could find some;
        `subsets`: the numbers that each `drops`; the largest `disagreements`; `alike`: scores that need not both be
        computed.
    """
    bad = [(status, rows) for status, rows in context.statuses.items() if status != "ok"]
    numbers = [_number(rows, status_words(status, rows), f"reject-{status}") for status, rows in bad]
    numbers += _found(sections["found"])
    return {
        "rows": context.rows,
        "pool": sorted(numbers, key=lambda each: -int(each["rows"])),
        "asked": bool(context.numbers or context.words),
        "subsets": [{"subset": subset, "drops": _drops(context, subset["place"])} for subset in context.names],
        "disagreements": _disagreements(sections["overlap"]),
        "alike": _alike(context, sections["correlation"]),
    }


def _number(rows: int, what: str, anchor: str) -> Facts:
    return {"rows": rows, "what": what, "anchor": anchor}


def _found(found: Facts | None) -> list[Facts]:
    if found is None:
        return []
    numbers = []
    for kind in found["kinds"]:
        trait = TRAITS[kind["ident"]]
        what = trait.one if kind["rows"] == 1 else trait.many
        numbers.append(_number(kind["rows"], what, f"found-{kind['ident']}"))
    repeated = found["repeated"]
    if repeated and repeated["pairs"]:
        first = repeated["subsets"][0]["subset"] if repeated["subsets"] else None
        anchor = f"repeated-{first['place'] if first else 'pool'}" if repeated["subsets"] else ""
        numbers.append(_number(repeated["pairs"], "repeat" if repeated["pairs"] == 1 else "repeats", anchor))
    return numbers


def _drops(context: Context, place: int) -> list[Facts]:
    verdict, shown = context.verdicts[place], context.shown_reasons(place)
    drops = [
        _number(rows, in_words(verdict.why[code - 1].text), f"drop-{place}-{code}" if code in shown else "")
        for code, rows in enumerate(context.fallen[place], start=1)
        if rows
    ]
    return sorted(drops, key=lambda each: -int(each["rows"]))


def _disagreements(overlap: Facts | None) -> list[Facts]:
    if overlap is None:
        return []
    names, shared = overlap["subsets"], overlap["shared"]
    linked = {(each["keeps"]["place"], each["drops"]["place"]) for each in overlap["only"]}

    def only(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Facts:
        places = mine["place"], theirs["place"]
        rows = int(shared[places[0], places[0]]) - int(shared[places])
        anchor = f"only-{places[0]}-{places[1]}" if places in linked else ""
        return _number(rows, f"only {mine['label']} keeps", anchor)

    found = []
    for place, one in enumerate(names):
        for two in names[place + 1 :]:
            sides = {"only_one": only(one, two), "only_two": only(two, one)}
            if sides["only_one"]["rows"] or sides["only_two"]["rows"]:
                both = int(shared[one["place"], two["place"]])
                found.append({"one": one, "two": two, **sides, "both": both})

    def order(each: Facts) -> tuple[int, int]:
        """Two that contradict each other come before one that is part of the other."""
        sides = int(each["only_one"]["rows"]), int(each["only_two"]["rows"])
        return -min(sides), -sum(sides)

    return sorted(found, key=order)[:_NAMED]


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
