"""Columns made for one recipe's cut: an expensive score where it can still change what is kept, else a cheaper one.

`adaptive` SIEVE draws one caption of every pair, and all of them near the cut. `tamis.distilled` predicts other scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import xxhash

from tamis.arrays import U64, Float32s, Float64s, Mask, Rows
from tamis.data import Column, Signal, settings
from tamis.derived.columns import add_columns, sources_of
from tamis.errors import RecipeError, RunError
from tamis.ids import json_ready, scramble
from tamis.math.distil import Choice, settle
from tamis.recipe import Recipe, names_of_columns
from tamis.selectors.outcome import Outcome, describe, run_steps
from tamis.selectors.steps import AtLeast, TopFraction, TopN
from tamis.signals import Sieve
from tamis.store import Run
from tamis.store.run import ScoreSet

#: A label and a signal.
Entry = tuple[str, Any]

_PILOT = 0.05, 100, 2000  # the share of the candidates that the sample has, and the fewest and the most
_WRONG = 0.05  # expected wrong decisions on each side, as a share of the kept rows: see benchmarks/adaptive.py
_NAME = "adaptive"
#: What the columns of `tamis distil` are called in `signal.json`.
DISTILLED = "distil"
_LACKING = "the row was dropped before the cut, or no caption of it can be compared"


def entries(label: str, signal: Signal) -> tuple[Entry, Entry]:
    """Returns the entries for one caption and for all captions, whose labels name their number."""
    assert isinstance(signal, Sieve)
    one = dataclasses.replace(signal, sampling=dataclasses.replace(signal.sampling, captions=1))
    label = label or signal.name
    return (f"{label}_1", one), (f"{label}_{signal.sampling.captions}", signal)


def names_of(label: str) -> set[str]:
    """Returns the names that recipes have for the score."""
    return {f"{label or 'sieve'}.sieve", *(["sieve"] if label in ("", "sieve") else [])}


def cut_of(recipe: Recipe, label: str, signal: Signal) -> tuple[int, AtLeast | TopFraction | TopN]:
    """Returns the step of a recipe that cuts on a SIEVE score, and its place; RecipeError if it is not the only one."""
    if not isinstance(signal, Sieve) or signal.sampling.captions < 2 or signal.captions_from is not None:
        raise RecipeError(f"{label or signal.name}: only sieve with 2 or more captions of a captioner can be adaptive")
    return only_cut(recipe, names_of(label), "adaptive", AtLeast, TopFraction, TopN)


def only_cut(recipe: Recipe, names: set[str], reader: str, *kinds: type[Any]) -> tuple[int, Any]:
    """Returns the step that reads a score of these names, and its place; RecipeError unless nothing else reads it."""
    for label, signal in recipe.derived:
        if found := names & recipe.unaliased(signal.reads):
            of_all = f"{label or signal.name} reads {min(found)!r} of all rows"
            raise RecipeError(f"recipe {recipe.name!r}: {of_all}, so {reader} saves nothing")
    reads = [recipe.unaliased(step.reads) & names for step in recipe.steps]
    steps = [one for one, some in zip(enumerate(recipe.steps), reads, strict=True) if some]
    if len(steps) == 1:
        ((place, step),) = steps
        if isinstance(step, kinds) and {step.score} == step.reads:
            return place, step
    *most, last = [kind.name for kind in kinds]
    score = " and ".join(map(repr, sorted(set().union(*reads)) or [min(sorted(names), key=len)]))
    raise RecipeError(
        f"{score}: {reader} needs exactly one step that reads a score of this signal, and that must be "
        f"{', '.join(most)} or {last} by this score alone, without 'per'; steps of recipe "
        f"{recipe.name!r} that read one: {len(steps)}"
    )


def made_for(recipe: Recipe, place: int, signal: Signal) -> dict[str, Any]:
    """Returns what a column was made for: the signal, and the steps up to the cut."""
    steps = [describe(step) for step in recipe.steps[: place + 1]]
    return {"signal": settings(signal, recorded=True), "steps": steps, "columns": dict(recipe.columns)}


def column_for(run: Run, name: str, wanted: Mapping[str, Any]) -> ScoreSet | None:
    """Returns the scores of a signal of this name in a run with these settings; None if there are none."""
    plain = json_ready(wanted)
    found = (group for group in run.scores.values() if group.facts["name"] == name)
    return next((group for group in found if group.facts.get("settings") == plain), None)


def add_made_for(
    run: Run, name: str, label: str, made_for: Mapping[str, Any], columns: Sequence[Column],
    values: Mapping[str, Float32s], rows: Rows, *, lacking: str, reads: Sequence[str],
    bound: Mapping[str, Any] | None = None,
) -> Run:  # fmt: skip
    """Adds columns made for one cut, whose candidates are `rows`; they replace those with other values."""
    digest = xxhash.xxh3_64_hexdigest(b"".join(one.tobytes() for one in values.values()))
    missing = int(np.isnan(values[columns[0].name][rows]).sum())
    return add_columns(
        run, name, label, made_for, columns, lambda _: (values, {}), more={"values": digest}, lacking=lacking,
        reads=reads,
        bound={**(bound or {}), "candidates": rows.size, "missing": missing},
    )[0]  # fmt: skip


def with_bounds(run: Run, recipe: Recipe, columns: Mapping[str, str], outcome: Outcome) -> Outcome:
    """Adds the bounds of `tamis distil` to a funnel; RunError if a step reads a column that is for another choice."""
    funnel = list(outcome.funnel)
    for step, name in [(one, name) for one in recipe.steps for name in one.reads]:
        inner, group, _ = run.locate(columns.get(name, name))
        if group is None or group.facts["name"] not in (_NAME, DISTILLED) or inner != group.columns[0].name:
            continue
        cut, bound = group.facts["settings"]["steps"][-1], group.facts.get("bound") or {}
        place = next((number for number, line in enumerate(funnel) if line["step"] == describe(step) == cut), 0)
        line, distilled = funnel[place], group.facts["name"] == DISTILLED
        now = line["step"], line["before"], line["dropped"].get("missing", 0)
        if now != (cut, bound.get("candidates"), bound.get("missing")):
            raise RunError(
                f"'{describe(step)}' reads {group.label}.{inner}, which is for '{cut}' alone, of other candidates than "
                "this run, the tags or the files of the recipe give now: repeat "
                f"`tamis {'distil' if distilled else 'score'}` with this recipe"
            )
        funnel[place] = {**line, "facts": bound} if distilled else line
    return dataclasses.replace(outcome, funnel=tuple(funnel))


def adaptive_column(run: Run, recipe: Recipe, entry: Entry) -> str | None:
    """Returns the column that `score_near_cut` added to a run for a recipe's entry; None if it has not."""
    group = column_for(run, _NAME, made_for(recipe, cut_of(recipe, *entry)[0], entry[1]))
    return None if group is None else f"{group.label}.sieve"


def distilled_cut(recipe: Recipe, entry: Entry) -> tuple[int, TopFraction | TopN]:
    """Returns the step of a recipe that cuts on a score that `tamis distil` may predict, and its place."""
    return only_cut(recipe, names_of_columns(*entry), "tamis distil", TopFraction, TopN)


def distilled_for(run: Run, recipe: Recipe, entry: Entry, columns: Mapping[str, str]) -> dict[str, Any]:
    """Returns what a column of `tamis distil` was made for: as `made_for`, and the columns that were read."""
    place, _ = distilled_cut(recipe, entry)
    reads = {name for step in recipe.steps[: place + 1] for name in step.reads}
    return {**made_for(recipe, place, entry[1]), "reads": sources_of(reads, run, columns)}


def distilled_column(run: Run, recipe: Recipe, columns: Mapping[str, str]) -> tuple[Any, ScoreSet] | None:
    """Returns the cut of a recipe for which `tamis distil` added a column to a run, and its scores."""
    for entry in recipe.signals if any(group.facts["name"] == DISTILLED for group in run.scores.values()) else ():
        with suppress(RecipeError):  # this one has no such cut
            _, step = distilled_cut(recipe, entry)
            group = column_for(run, DISTILLED, distilled_for(run, recipe, entry, columns))
            if group is not None and group.shards >= set(run.shards):
                return step, group
    return None


def sampled_rows(order: U64, share: float, fewest: int, most: int) -> Rows:
    """Returns the rows that are first in an order: a share of them, but not fewer or more than two limits."""
    return np.argsort(order)[: min(max(round(share * order.size), fewest), most)]


def scores_of(run: Run, column: str, rows: Rows, wanted: Mask) -> Float64s:
    """Returns the scores of those of some rows that are wanted, NaN for the others, which a command may have scored."""
    return np.where(wanted, run[column][rows].astype(np.float64), np.nan)


def score_near_cut(
    run: Run, recipe: Recipe, entry: Entry, names: Mapping[str, str], score: Callable[[Entry, Mask], Run]
) -> Run:
    """Adds the column of an adaptive SIEVE to a run that holds the scores of one caption.

    Its values put every row on the right side of the cut as far as is known: the score of all captions where they were
    drawn, else the score of one caption plus a constant.

    Args:
        run: without missing shards.
        recipe: with the step of `cut_of`.
        entry: of the recipe.
        names: {name that steps read: column of the run}, where they differ.
        score: scores rows of the run, (rows,) bool, by an entry; returns the run, opened again.
    """
    (one, _), complete = entries(*entry)
    place, step = cut_of(recipe, *entry)
    table = run.table({**names, step.score: f"{one}.sieve"})  # stands in for the column that we make
    candidates, stay = (run_steps(table, recipe.steps[:number]).keep for number in (place, place + 1))
    rows = np.flatnonzero(candidates)
    cheap = run[f"{one}.sieve"][rows].astype(np.float64)
    order = scramble(*table.uids(rows))
    sample = sampled_rows(order, *_PILOT)
    fixed = float(np.nextafter(np.float32(step.value), np.float32(-np.inf))) if isinstance(step, AtLeast) else None

    def ask(wanted: Mask) -> Float64s:
        nonlocal run
        asked = np.zeros(len(run), bool)
        asked[rows[wanted]] = True
        run = score(complete, asked)
        return scores_of(run, f"{complete[0]}.sieve", rows, wanted)

    kept = int(np.count_nonzero(stay))
    wrong = max(_WRONG * kept, rows.size / max(sample.size, 1))  # the sample cannot see less
    choice = Choice(cheap=cheap, kept=kept, order=order, sample=sample, cut=fixed, never_lower=True)
    found, asked = settle(choice, ask, wrong)
    values, captions = (np.full(len(run), np.nan, np.float32) for _ in range(2))
    values[rows] = np.where(np.isfinite(found.values), found.values, np.nan)
    captions[rows] = np.where(asked, complete[1].sampling.captions, 1)
    columns = (
        Column("sieve", "cosine", "high", about="best cosine with as many generated captions as its cut needs"),
        Column("captions_drawn", "captions", "neither", about="number of captions that were drawn for the image"),
    )
    return add_made_for(
        run, _NAME, entry[0] or entry[1].name, made_for(recipe, place, entry[1]), columns,
        {"sieve": values, "captions_drawn": captions}, rows, lacking=_LACKING, reads=[f"{one}.sieve"],
    )  # fmt: skip
