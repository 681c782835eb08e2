"""`adaptive` SIEVE: one caption of every pair, and all of them only where they can still change what a recipe keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tamis.arrays import Float64s, Mask
from tamis.data import Column, Signal, settings
from tamis.derived.columns import add_columns
from tamis.errors import RecipeError
from tamis.ids import json_ready, scramble
from tamis.math.distil import Choice, settle
from tamis.recipe import Recipe
from tamis.selectors.outcome import describe, run_steps
from tamis.selectors.steps import AtLeast, TopFraction, TopN
from tamis.signals import Sieve
from tamis.store import Run

#: A label and a signal.
Entry = tuple[str, Any]

_PILOT = 0.05, 100, 2000  # the share of the candidates that the sample has, and the fewest and the most
_WRONG = 0.05  # expected wrong decisions on each side, as a share of the kept rows: see benchmarks/adaptive.py
_NAME = "adaptive"
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
    names, own = names_of(label), recipe.columns
    steps = [one for one in enumerate(recipe.steps) if names & {own.get(name, name) for name in one[1].reads}]
    if len(steps) == 1:
        ((place, step),) = steps
        if isinstance(step, AtLeast | TopFraction | TopN) and {step.score} == step.reads:
            return place, step
    raise RecipeError(
        f"{label or signal.name}: adaptive needs exactly one step that reads {min(names, key=len)!r}, and that must be "
        f"top_fraction, top_n or at_least by this score alone; {len(steps)} steps of recipe {recipe.name!r} read it"
    )


def _identity(recipe: Recipe, entry: Entry) -> dict[str, Any]:
    """Returns what an adaptive column was made for: the signal, and the steps up to the cut."""
    place, _ = cut_of(recipe, *entry)
    steps = [describe(step) for step in recipe.steps[: place + 1]]
    return {"signal": settings(entry[1], recorded=True), "steps": steps, "columns": dict(recipe.columns)}


def adaptive_column(run: Run, recipe: Recipe, entry: Entry) -> str | None:
    """Returns the column that `score_near_cut` added to a run for a recipe's entry; None if it has not."""
    wanted = json_ready(_identity(recipe, entry))
    labels = [label for label, group in run.scores.items() if group.facts["name"] == _NAME]
    return next((f"{label}.sieve" for label in labels if run.scores[label].facts["settings"] == wanted), None)


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
    share, fewest, most = _PILOT
    sample = np.argsort(order)[: min(max(round(share * rows.size), fewest), most)]
    fixed = float(np.nextafter(np.float32(step.value), np.float32(-np.inf))) if isinstance(step, AtLeast) else None

    def ask(wanted: Mask) -> Float64s:
        nonlocal run
        asked = np.zeros(len(run), bool)
        asked[rows[wanted]] = True
        run = score(complete, asked)
        found = run[f"{complete[0]}.sieve"][rows].astype(np.float64)
        found[~wanted] = np.nan  # an earlier command may have scored more
        return found

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
    reads = {label: run.scores[label].folder.name for label in (one, complete[0])}
    return add_columns(
        run, _NAME, entry[0] or entry[1].name, _identity(recipe, entry), columns,
        lambda _: ({"sieve": values, "captions_drawn": captions}, {}), more={"reads": reads}, lacking=_LACKING,
    )[0]  # fmt: skip
