"""Results of `tamis bench` (scores of trained models) and of `tamis look` (recipes worth trying)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tamis.core.files.checked import read_result
from tamis.reports.context import Context, Facts
from tamis.reports.formats import NONE, colours, fixed, share


def look(context: Context) -> Facts | None:
    """Reads the result of `tamis look`, which sampled `shards` `of` the pool's shards; None if there is none."""
    facts = read_result(context.run.path / "look.json", "tamis look")
    return facts and {name: facts[name] for name in ("pairs", "shards", "of", "seconds", "proposals", "race")}


def gather(context: Context) -> Facts | None:
    """Reads the result of the last `tamis bench` on this run, the highest score first; None if there is none.

    `overlap` is intersection over union, in the order of the lines; `samples`: training samples per model.
    """
    facts = read_result(context.run.path / "bench.json", "tamis bench")
    if facts is None:
        return None
    names = [each["name"] for each in facts["contenders"]]
    known = colours(context.run.subset_names, [each["label"] for each in context.names], names)
    return {
        "lines": [_line(known[each["name"]], each, facts["rows"]) for each in facts["contenders"]],
        "baseline": facts["baseline"],
        "seeds": len(facts["seeds"]),
        "samples": facts["training"]["samples"],
        "model": facts["training"]["model"],
        "overlap": [[facts["overlap"][one][two] for two in names] for one in names],
        "failed": facts["failed"],
    }


def _line(colour: str, each: Mapping[str, Any], rows: int) -> Facts:
    estimates = {name: each[name] and {end: each[name][end] for end in ("value", "low", "high")}
                 for name in ("score", "gain")}  # fmt: skip
    return {
        "subset": {"colour": colour, "label": each["name"], "kept": each["kept"]},
        "share": each["kept"] / rows if rows else 0.0,
        **estimates,
        "tasks": {task: measured["value"] for task, measured in each["tasks"].items()},
        **{name: each[name] for name in ("epochs", "kinds", "scoring_seconds", "training_seconds")},
    }


def tables(facts: Facts) -> dict[str, list[tuple[str, list[tuple[str, float]]]]]:
    """Returns the tables below the ranking: title -> rows of (name, a (text, filled share) cell per recipe)."""
    lines = facts["lines"]

    def rows(names: list[str], cell: Callable[[Facts, str], tuple[str, float]]) -> list[Any]:
        return [(name, [cell(line, name) for line in lines]) for name in names]

    def value(number: float | None, form: str) -> tuple[str, float]:
        return (NONE, 0.0) if number is None else (fixed(number, form), number)

    def kind(line: Facts, name: str) -> tuple[str, float]:
        kept, total = line["kinds"][name]
        return share(kept, total), kept / total

    tasks = sorted({task for line in lines for task in line["tasks"]})
    found = {"Mean score by task": rows(tasks, lambda line, task: value(line["tasks"].get(task), ".3f"))}
    totals = {name: total for name, (_, total) in lines[0]["kinds"].items()}
    if totals:
        found["Kept of each true kind"] = rows(sorted(totals, key=lambda name: (-totals[name], name)), kind)
    if len(lines) > 1:
        found["Shared pairs by pairs in either"] = [
            (line["subset"]["label"], [value(each, ".2f") for each in shares])
            for line, shares in zip(lines, facts["overlap"], strict=True)
        ]
    return found
