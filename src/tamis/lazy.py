"""`tamis run --lazy`: an expensive signal judges only the rows that can still matter, and the same rows are chosen.

The recipe's own steps say what they need: they are applied until one looks at rows that nobody asked for, the signal
is asked for these, and so on. What signals cost and how many rows steps drop is measured on a sample, which decides the
order of steps that commute.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from tamis.arrays import Mask
from tamis.choosing import columns_read
from tamis.compute import Compute
from tamis.data import Node, Signal, settings
from tamis.errors import RecipeError, RunError
from tamis.graph import Executor, Identities, topological
from tamis.ids import json_ready
from tamis.math.order import round_half_up
from tamis.models.device import device_for
from tamis.pool import PoolSpec, open_pool
from tamis.pool.open import known_pairs
from tamis.recipe import Recipe
from tamis.scoring import assembled, derive, score
from tamis.store import Run, manifest, open_run

if TYPE_CHECKING:
    from tamis.run.plan import Plan
    from tamis.selectors import Step

log = logging.getLogger(__name__)

#: How many pairs are scored to estimate costs, of how many shards, after how many that only warm up; and how many
#: pairs a pool must have for that.
_SAMPLE, _SHARDS, _WARMS_UP, _WORTH_PAIRS = 32, 4, 2, 1000

#: A signal that costs less than reading, or than this share of the most expensive one, judges all rows at once.
_CHEAP = 0.05

Entry = tuple[str, Signal]


@dataclass(frozen=True, kw_only=True)
class LazyPlan:
    """Which signals judge only the rows that steps need, and the order of the steps.

    As measured on a sample: `seconds` per pair of each signal and of `reading`, and the `shares` of the pairs that
    waiting signals will judge; {} if nothing was measured. `pairs`: of the pool, if known.
    """

    recipe: Recipe
    waiting: tuple[Entry, ...]
    order: tuple[Step, ...]
    pairs: int | None = None
    reading: float = 0.0
    seconds: Mapping[Entry, float]
    shares: Mapping[Entry, float]

    def __str__(self) -> str:
        from tamis.selectors.outcome import describe

        full = ", ".join(_name(entry) for entry in self.recipe.signals if entry not in self.waiting)
        lines = [f"scored in full      {full}"] if full else []
        for entry in self.waiting:
            share = self.shares.get(entry)
            where = "where steps need it" if share is None else f"for about {share:.0%} of the pairs"
            lines.append(f"{_name(entry):<19} {'in full: a step needs all' if share == 1 else where}")
        lines.append(f"steps in this order {'; '.join(map(describe, self.order)) or 'none'}")
        if self.seconds:
            lines.append(f"expected cost       {self._cost(self.shares)}; of the full run {self._cost({})}")
        return "\n".join(lines)

    def _cost(self, shares: Mapping[Entry, float]) -> str:
        """Returns what the signals cost in words; those without a share judge all pairs."""
        from tamis.run.progress import duration

        later = [share * (self.seconds[entry] + self.reading) for entry, share in shares.items()]
        first = self.reading + sum(cost for entry, cost in self.seconds.items() if entry not in shares)
        each = f"{duration((self.pairs or 1000) * (first + sum(later)))}"
        return each if self.pairs else f"{each} per 1,000 pairs"

    def done(self, run: Run, seconds: float) -> str:
        """Returns in words how many pairs the waiting signals have judged, and the true cost."""
        from tamis.run.progress import duration

        asked = {_name(entry): group.asked for entry in self.waiting if (group := _scores_of(entry, run))}
        counts = ", ".join(f"{name} {len(run) if count is None else count:,}" for name, count in asked.items())
        full = f"; expected {self._cost(self.shares)}, of the full run {self._cost({})}" if self.seconds else ""
        return f"scored of {len(run):,} pairs: {counts or 'all'}; it took {duration(seconds)}{full}"


def planned_lazily(
    spec: PoolSpec, path: Path, recipe: Recipe, *, grow: bool = False, **compute: Unpack[Compute]
) -> LazyPlan:
    """Returns the plan of a lazy run; if the pool is large enough, it scores a sample into a temporary folder."""
    from tamis.run.fill import sampled
    from tamis.selectors.lazily import arranged

    opened, identities = open_pool(spec, manifest.shards_of(path)), Identities(device_for(**compute))
    plan = assembled(opened, path, recipe=recipe, keep=(), identities=identities, grow=grow)
    sizes = known_pairs(opened.shards)
    if (path / "run.json").is_file() and not (run := Run(path)).missing:
        sizes = dict(zip(run.shards, run.sizes, strict=True))
    pairs = sum(sizes.values()) if len(sizes) >= len(opened.shards) else None
    small = opened.shards and pairs is None and len(list(islice(opened.shards[0].samples(), _SAMPLE))) < _SAMPLE
    if opened.shards and not small and not plan.plugins and (pairs is None or pairs >= _WORTH_PAIRS):
        shards = opened.shards[:: -(-len(opened.shards) // _SHARDS)]
        plan = replace(plan, executor=Executor(plan.device))
        try:
            with sampled(plan, shards, _WARMS_UP):  # the first batch of a network is slow
                pass
            with sampled(plan, shards, _SAMPLE) as (run, status):
                return _measured(plan, recipe, run, status, pairs)
        except Exception as error:  # whatever it is, the worker of a shard will report it
            log.debug("the cost cannot be measured: %s", error)
    waiting = tuple(one for one in _may_wait(recipe) if not all(node.host for node in topological([one[1]])))
    order = tuple(arranged(recipe.steps, lambda step: float(any(_reads(step, one, recipe) for one in waiting))))
    return LazyPlan(recipe=recipe, waiting=waiting, order=order, pairs=pairs, seconds={}, shares={})


def score_lazily(spec: PoolSpec, path: Path, plan: LazyPlan, *, partial: bool = False, **how: Any) -> Run:
    """Scores some signals in full, the others where the recipe's steps look at rows; `how`: see `tamis.score`."""
    from tamis.selectors.outcome import NotAskedError, run_steps
    from tamis.store.subset import Subset

    recipe = plan.recipe
    full = tuple(entry for entry in recipe.signals if entry not in plan.waiting)
    run = score(spec, run=path, recipe=replace(recipe, signals=full), **how)
    run = open_run(derive(run, recipe, partial=True) if partial and run.missing else run, partial=partial)
    masks = {entry: np.zeros(len(run), bool) for entry in plan.waiting}

    def ask() -> Run:
        rows = {entry: Subset(run=run, keep=mask, recipe={"name": recipe.name}) for entry, mask in masks.items()}
        score(spec, run=path, recipe=replace(recipe, within={**recipe.within, **rows}), **how)
        return Run(path, partial=partial)

    now = ask()  # makes the columns, without a value
    while True:
        columns = columns_read(recipe, now)
        try:
            keep = run_steps(now.table(columns), plan.order).keep
            break
        except NotAskedError as error:
            entry = _entry_of(columns.get(error.column, error.column), now, plan.waiting)
            if entry is None or not (error.rows & ~masks[entry]).any():
                raise RunError(f"{error}, and they could not be scored") from error
            masks[entry] |= error.rows
            now = ask()
    if unread := [entry for entry, mask in masks.items() if not mask.any()]:  # by any step: for the pairs that stay
        masks |= dict.fromkeys(unread, keep)
        now = ask()
    return now


def _measured(plan: Plan, recipe: Recipe, run: Run, status: Mapping[str, Any], pairs: int | None) -> LazyPlan:
    """Returns the plan by a scored sample: its costs, and the rows that its steps need."""
    from tamis.run.failures import READING
    from tamis.selectors.lazily import arranged
    from tamis.selectors.outcome import NotAskedError, run_steps

    took, rows = status["took"], max(1, len(run))

    def cost(nodes: Iterable[Node]) -> float:
        return float(sum(took.get(name, 0.0) for name in {node.name for node in nodes})) / rows

    reading = max(0.0, took.get(READING, 0.0) / rows - cost(node for node in plan.nodes if node.host))
    seconds = {entry: cost(topological([entry[1]])) for entry in recipe.signals}
    may_wait, waiting = _may_wait(recipe), []
    given = topological([entry[1] for entry in recipe.signals if entry not in may_wait])
    for entry in sorted(may_wait, key=seconds.__getitem__):
        more = topological([entry[1]], given)
        if cost(more) <= max(reading, _CHEAP * max(seconds.values())):
            given = [*given, *more]
        else:
            waiting.append(entry)
    run = derive(run, recipe) if recipe.derived else run
    columns = columns_read(recipe, run)
    table, masks = run.table(columns), {entry: np.zeros(len(run), bool) for entry in waiting}

    def asked(name: str) -> Mask | None:
        entry = _entry_of(columns.get(name, name), run, waiting)
        return None if entry is None else masks[entry]

    def rank(step: Step) -> float:
        price = sum(seconds[entry] for entry in waiting if _reads(step, entry, recipe))
        try:
            kept = np.count_nonzero(run_steps(table, [step]).keep) if price else 0
        except RecipeError:  # it needs an earlier step
            kept = rows
        return price / (1 - (kept + 1) / (rows + 2))

    order = arranged(recipe.steps, rank)
    scale = rows / pairs if pairs else 1.0
    numbered: Any = order
    steps = [replace(one, n=round_half_up(scale, one.n)) if getattr(one, "n", None) else one for one in numbered]
    while True:
        try:
            run_steps(replace(table, asked=asked), steps)
            break
        except NotAskedError as error:
            lacking = _entry_of(columns.get(error.column, error.column), run, waiting)
            assert lacking is not None
            masks[lacking] |= error.rows
    shares = {entry: float(mask.mean()) for entry, mask in masks.items()}
    return LazyPlan(
        recipe=recipe, waiting=tuple(waiting), order=tuple(order), pairs=pairs, reading=reading, seconds=seconds,
        shares=shares,
    )  # fmt: skip


def _may_wait(recipe: Recipe) -> list[Entry]:
    """Returns the signals that no derived signal reads, that store no feature and that are not limited already."""
    read = {name for _, signal in recipe.derived for name in signal.reads}
    return [
        entry
        for entry in recipe.signals
        if not read & _columns(entry)
        and entry not in recipe.within
        and not any(node.stored_as in recipe.keep for node in topological([entry[1]]))
    ]


def _columns(entry: Entry) -> set[str]:
    """Returns the names that recipes may call a signal's columns."""
    return {name for one in entry[1].columns for name in (one.name, f"{_name(entry)}.{one.name}")}


def _reads(step: Step, entry: Entry, recipe: Recipe) -> bool:
    return bool({recipe.columns.get(name, name) for name in step.reads} & _columns(entry))


def _name(entry: Entry) -> str:
    return entry[0] or entry[1].name


def _entry_of(column: str, run: Run, entries: Sequence[Entry]) -> Entry | None:
    """Returns which of some signals makes a column of a run."""
    group = run.locate(column)[1]
    return next((entry for entry in entries if group is not None and _scores_of(entry, run) is group), None)


def _scores_of(entry: Entry, run: Run) -> Any:
    """Returns the scores of a signal in a run; None if there are none."""
    wanted = json_ready(settings(entry[1], recorded=True))
    groups = (group for group in run.scores.values() if group.facts["name"] == entry[1].name)
    return next((group for group in groups if group.facts.get("settings") == wanted), None)
