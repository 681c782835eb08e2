"""`tamis run --lazy`: an expensive signal judges only the rows that can still matter, and the same rows are chosen.

The recipe's own steps say what they need: they are applied until one looks at rows that are not scored yet, the signal
is asked for these, and so on. What signals cost and how many rows steps drop is measured on a sample, which decides the
order of steps that commute.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis.commands.score import Entry, Scoring, derive
from tamis.commands.select import find_columns, scores_of
from tamis.core.arrays import Mask
from tamis.core.errors import RecipeError, RunError
from tamis.core.math.order import round_half_up
from tamis.engines.plan import Within
from tamis.engines.progress import READING
from tamis.pools.open import known_pairs
from tamis.recipes.names import shipped_name
from tamis.recipes.recipe import Recipe, load, names_of_columns
from tamis.recipes.steps.outcome import Step, Unscored, arrange, describe, run_steps
from tamis.runs import Run, open_run
from tamis.runs.run import RunTable
from tamis.signals.graph import Executor, run_on_device, topological

if TYPE_CHECKING:
    from tamis.runs.table import Table

log = logging.getLogger(__name__)

#: How many pairs a shard, and a pool of known size, must have for an estimate of costs.
_SAMPLE, _WORTH_PAIRS = 32, 1000

#: Signals that wait are compared on every such row of the first that a step needs, if that makes `_SAMPLE` rows; and
#: the most rows.
_PILOT_EVERY, _PILOT_MOST = 100, 1000


@dataclass(frozen=True, kw_only=True)
class LazyPlan:
    """Which signals judge only the rows that steps need, and the order of the steps.

    As measured on a sample: `took`, the seconds per pair of nodes and of reading, and the `shares` of the pairs that
    waiting signals will judge; {} if nothing was measured. `pairs`: of the pool, if known.
    """

    recipe: Recipe
    waiting: tuple[Entry, ...]
    order: tuple[Step, ...]
    pairs: int | None = None
    took: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[Entry, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"scored in full      {', '.join(map(self._in_full, self._full))}"] if self._full else []
        for entry in self.waiting:
            where = f"for about {self.shares[entry]:.0%} of the pairs" if self.took else "where steps need it"
            lines.append(f"{_name(entry):<19} {where}")
        lines.append(f"steps in this order {_in_words(self.order)}")
        if self.took:
            lines.append(f"expected cost       {self._costs()}")
        return "\n".join(lines)

    @property
    def _full(self) -> list[Entry]:
        return [entry for entry in self.recipe.signals if entry not in self.waiting]

    def _in_full(self, entry: Entry) -> str:
        step = _find_poolwide_step(self.recipe, entry)
        return _name(entry) if step is None else f"{_name(entry)} ('{describe(step)}' looks at all pairs)"

    def _costs(self) -> str:
        """Returns in words what the lazy and the full run cost."""
        from tamis.engines.progress import duration

        first, full = (self.took[READING] + cost_of(self.took, some) for some in (self._full, self.recipe.signals))
        later = sum(share * (self.took[READING] + cost_of(self.took, [one])) for one, share in self.shares.items())
        lazily, fully = (duration((self.pairs or 1000) * seconds) for seconds in (first + later, full))
        return f"{lazily}{'' if self.pairs else ' per 1,000 pairs'}; of the full run {fully}"

    def describe_result(self, run: Run, order: Sequence[Step], seconds: float) -> str:
        """Returns in words how many pairs the waiting signals have judged, a corrected order, and the true cost."""
        from tamis.engines.progress import duration

        requested = {_name(one): group.requested for one in self.waiting for group in scores_of(run, one[1])[0][:1]}
        counts = ", ".join(f"{name} {len(run) if count is None else count:,}" for name, count in requested.items())
        changed = "" if tuple(order) == self.order else f"; steps went in this order: {_in_words(order)}"
        expected = f"; expected {self._costs()}" if self.took else ""
        return f"scored of {len(run):,} pairs: {counts or 'all'}{changed}; it took {duration(seconds)}{expected}"


def plan_lazily(scoring: Scoring) -> LazyPlan:
    """Returns the plan of a lazy run; if the pool is large enough, it scores a sample into a temporary folder."""
    from tamis.engines.fill import time_pairs

    recipe, path, opened = scoring.recipe, scoring.path, scoring.pool
    plan = scoring.make_plan(recipe.signals).for_run(path)
    sizes = known_pairs(opened.shards)
    if (path / "run.json").is_file() and not (run := Run(path)).missing_shards:
        sizes = dict(zip(run.shards, run.sizes, strict=True))
    pairs = sum(sizes.values()) if len(sizes) >= len(opened.shards) else None
    small = opened.shards and pairs is None and len(list(islice(opened.shards[0].samples(), _SAMPLE))) < _SAMPLE
    if opened.shards and not small and not plan.plugins and (pairs is None or pairs >= _WORTH_PAIRS):
        try:
            with time_pairs(replace(plan, executor=Executor(plan.device)), opened.shards) as (run, took):
                return _plan_by_sample(recipe, run, took, pairs)
        except Exception as error:  # whatever it is, the worker of a shard will report it
            log.debug("the cost cannot be measured: %s", error)
    waiting = tuple(one for one in _may_wait(recipe) if run_on_device([one[1]]))
    order = _arrange(recipe, lambda step: float(any(_reads(step, one, recipe) for one in waiting)))
    return LazyPlan(recipe=recipe, waiting=waiting, order=tuple(order), pairs=pairs)


def score_lazily(scoring: Scoring, plan: LazyPlan, *, partial: bool = False) -> tuple[Run, list[Step]]:
    """Scores some signals in full, the others where the recipe's steps look at rows.

    Returns the run, and the order in which the steps looked at rows.
    """
    recipe, order = plan.recipe, list(plan.order)
    run = scoring.complete([entry for entry in recipe.signals if entry not in plan.waiting])
    run = open_run(derive(run, recipe, partial=True) if partial and run.missing_shards else run, partial=partial)
    masks = {entry: np.zeros(len(run), bool) for entry in plan.waiting}
    read = [entry for entry in masks if any(_reads(step, entry, recipe) for step in order)]
    later = list(read)  # those that have judged no more than the pilot

    def request(entries: Sequence[Entry], rows: Mask) -> None:
        nonlocal run
        by_shard = {shard: rows[span] for shard, span in run.row_ranges.items()}
        run = open_run(scoring.score(entries, Within(recipe.name, by_shard)), partial=partial)

    def rows_before(among: Mask | None) -> Mask:
        """Returns the rows that the steps leave which come before those that need more scores."""
        first = takewhile(lambda step: not any(_reads(step, entry, recipe) for entry in later), order)
        return run_steps(run.table(columns).with_candidates(among), list(first)).keep

    def correct() -> None:
        nonlocal order
        took = {**plan.took, **{name: seconds / scoring.spent[1][name] for name, seconds in scoring.spent[0].items()}}
        try:
            rows = rows_before(pilot)
            if rows.sum() >= _SAMPLE:
                price = {entry: cost_of(took, [entry]) or 1.0 for entry in later}
                order = _order_by_price(recipe, run.table(columns).with_candidates(rows), price)
        except RecipeError:  # rows without a value: the step that meets all of them will report it
            pass

    if masks:
        request(plan.waiting, np.zeros(len(run), bool))  # makes the columns, without a value
    columns, pilot = find_columns(recipe, run), np.zeros(len(run), bool)
    # Two steps that wait: a sample of the rows before them tells which drops more for its price.
    if len(read) > 1:
        rows = np.flatnonzero(rows_before(None))
        pilot[rows[:: max(_PILOT_EVERY, -(-rows.size // _PILOT_MOST))]] = True
    if pilot.sum() >= _SAMPLE:
        request(read, pilot)
        correct()
    # Each turn ends at the first step that meets rows without a score, and scores those.
    while (unscored := (outcome := run_steps(run.table(columns), order)).unscored) is not None:
        entry = _add_request(unscored, columns, run, masks)
        request([entry], unscored.rows)
        later[:] = [one for one in later if one != entry]
        correct()
    # What no step reads is wanted for the pairs that stay.
    if unread := [entry for entry in masks if entry not in read]:
        request(unread, outcome.keep)
    return run, order


def _add_request(unscored: Unscored, columns: Mapping[str, str], run: Run, masks: dict[Entry, Mask]) -> Entry:
    """Adds rows to the `masks` of rows that each signal is to score, and returns the signal that lacks them."""
    entry = _entry_of(columns.get(unscored.column, unscored.column), run, masks)
    if entry is None or not (unscored.rows & ~masks[entry]).any():
        raise RunError(f"{unscored}, and they could not be scored")
    masks[entry] |= unscored.rows
    return entry


def _order_by_price(recipe: Recipe, table: Table, price: Mapping[Entry, float]) -> list[Step]:
    """Returns the steps; those that commute by the price of what they read over the share of candidates they drop."""
    rows = np.count_nonzero(table.candidates)

    def rank(step: Step) -> float:
        cost = sum(one for entry, one in price.items() if _reads(step, entry, recipe))
        try:
            kept = np.count_nonzero(run_steps(table, [step]).keep) if cost else 0
        except RecipeError:  # it needs an earlier step
            kept = rows
        return cost / (1 - (kept + 1) / (rows + 2))

    return _arrange(recipe, rank)


def _arrange(recipe: Recipe, rank: Callable[[Step], float]) -> list[Step]:
    """Returns the steps in the order of a rank; last are those by scores of some rows, which the others may leave."""
    return arrange(
        recipe.steps, lambda step: math.inf if any(_reads(step, one, recipe) for one in recipe.within) else rank(step)
    )


class _Sampled(RunTable):
    """The rows of a scored sample, as if only some rows were scored by the signals that wait."""

    def __init__(self, run: Run, columns: Mapping[str, str], masks: Mapping[Entry, Mask]) -> None:
        super().__init__(run, columns)
        self._masks = masks

    def requested(self, name: str) -> Mask | None:
        entry = _entry_of(self._name(name), self.run, self._masks)
        return None if entry is None else self._masks[entry]


def _plan_by_sample(recipe: Recipe, run: Run, took: Mapping[str, float], pairs: int | None) -> LazyPlan:
    """Returns the plan by a scored sample: its costs, and the rows that its steps need."""
    rows, reading = max(1, len(run)), took[READING]
    price = {entry: cost_of(took, [entry]) for entry in recipe.signals}
    waiting = sorted(_may_wait(recipe), key=price.__getitem__)
    run = derive(run, recipe) if recipe.derived else run
    columns = find_columns(recipe, run)
    table, scale = run.table(columns), rows / pairs if pairs else 1.0

    def share_of_rows(order: Any) -> dict[Entry, float]:
        """Returns the share of the sample that each waiting signal judges."""
        masks: dict[Any, Mask] = {entry: np.zeros(len(run), bool) for entry in waiting}
        steps = [replace(one, n=round_half_up(scale, one.n)) if getattr(one, "n", None) else one for one in order]
        some = _Sampled(run, columns, masks)
        while (unscored := (outcome := run_steps(some, steps)).unscored) is not None:
            _add_request(unscored, columns, run, masks)
        return {entry: float((mask if mask.any() else outcome.keep).mean()) for entry, mask in masks.items()}

    while True:  # the signal that gains least by waiting does not wait, if judging all rows with the first costs less
        order = _order_by_price(recipe, table, {entry: price[entry] for entry in waiting})
        shares, full = share_of_rows(order), [entry for entry in recipe.signals if entry not in waiting]
        later = {entry: max(reading, shares[entry] * (price[entry] + reading)) for entry in waiting}
        gain = {entry: cost_of(took, [*full, entry]) - cost_of(took, full) - later[entry] for entry in waiting}
        if not waiting or min(gain.values()) > 0:
            break
        waiting.remove(min(waiting, key=gain.__getitem__))
    return LazyPlan(recipe=recipe, waiting=tuple(waiting), order=tuple(order), pairs=pairs, took=took, shares=shares)


def _may_wait(recipe: Recipe) -> list[Entry]:
    """Returns the signals without limits or stored features that nothing reads but steps, and these not of all rows."""
    read = {name for _, signal in recipe.derived for name in signal.reads}
    for rows in recipe.within.values():  # chosen before any signal that waits is scored
        if rows.endswith((".yaml", ".yml")) or shipped_name(rows):
            read |= (chosen := load(rows)).resolve_aliases(chosen.reads)
    return [
        entry
        for entry in recipe.signals
        if not read & names_of_columns(*entry)
        and entry not in recipe.within
        and _find_poolwide_step(recipe, entry) is None
        and not any(node.stored_as in recipe.keep for node in topological([entry[1]]))
    ]


def _find_poolwide_step(recipe: Recipe, entry: Entry) -> Step | None:
    """Returns the first step, outside groups, that looks at a signal's scores of all pairs wherever it stands."""
    looks = ((step, getattr(step, "poolwide", step.reads)) for step in recipe.steps if not hasattr(step, "parts"))
    return next((step for step, names in looks if recipe.resolve_aliases(names) & names_of_columns(*entry)), None)


def cost_of(took: Mapping[str, float], entries: Sequence[Entry]) -> float:
    """Returns the seconds of signals and of what they need."""
    return sum(took.get(name, 0.0) for name in {node.name for node in topological([one for _, one in entries])})


def _reads(step: Step, entry: Entry, recipe: Recipe) -> bool:
    return bool(recipe.resolve_aliases(step.reads) & names_of_columns(*entry))


def _in_words(steps: Iterable[Step]) -> str:
    return "; ".join(map(describe, steps)) or "none"


def _name(entry: Entry) -> str:
    return entry[0] or entry[1].name


def _entry_of(column: str, run: Run, entries: Iterable[Entry]) -> Entry | None:
    """Returns which of some signals makes a column of a run."""
    group = run.locate(column)[1]
    return next((entry for entry in entries if group in scores_of(run, entry[1])[0]), None)
