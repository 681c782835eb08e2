"""Which recipe suits this pool? A race of small models, and an answer with an error that one can state.

Arms are recipes at shares of the pool. Each round trains every arm left with new seeds, twice as long as the round
before, and drops arms as `core.math.race.standing` says. The answer is a set: what the data cannot tell apart.
Ranks go by a continuous score, the mean log-likelihood of the tasks' right answers; of a captioner by CIDEr.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np

from tamis.commands.lazy import cost_of
from tamis.core.compute import Compute
from tamis.core.errors import RecipeError, RunError, StopError
from tamis.core.files.checked import read_lines, write_record
from tamis.core.math.race import ALPHA, Standing, dunnett_bound, standing
from tamis.core.math.statistics import spearman
from tamis.recipes.names import split_count
from tamis.recipes.recipe import PathLike, Recipe, RecipeLike, at_share
from tamis.runs.run import Run
from tamis.runs.subset import Subset
from tamis.train.clip import training_rows
from tamis.train.evaluate.bench import (
    BASELINE,
    CHOICE,
    Source,
    bench_folder,
    check_request,
    device_per_worker,
    scored_subsets,
    trainer_for,
    with_settings,
    write_into_run,
)
from tamis.train.evaluate.cells import CellResult, Trainer
from tamis.train.evaluate.tasks import Tasks
from tamis.train.scales import Training, at_scale

log = logging.getLogger(__name__)

#: Version of the result's layout.
FORMAT = 1

#: Seeds of each round; later rounds have as many as the last.
SEEDS = (2, 2, 3, 4)

#: Samples that the models of the last of four rounds see at the scale `lab`: 12,288 in the first.
SAMPLES = 98_304

#: The same for the last of two rounds of `--quick`.
QUICK = 16_384


RANDOM = "random"

T = TypeVar("T")

Results = dict[str, list[CellResult]]  # of a round: {arm: result of each seed}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A recipe at a share, and how it did."""

    name: str
    kept: int  # distinct pairs
    same: tuple[str, ...]  # other arms that keep exactly these pairs
    state: str  # "best", "not told apart", "excluded", "set aside" for cost, or "failed"
    left: int | None  # the round after which it left, from 1
    scores: Mapping[int, Sequence[float]]  # {round: score of each seed}, in nats, or CIDEr of a captioner
    accuracies: Mapping[int, Sequence[float]]  # the same for the tasks' own metrics
    epochs: Mapping[int, float]  # {round: how often a model saw each usable pair, on average}
    scoring_seconds: float | None  # to compute the scores that it reads, summed over processes; None if unknown


@dataclass(frozen=True, kw_only=True)
class Race:
    """A race to its end, or to that of its budget."""

    arms: tuple[Arm, ...]  # the answer first, the best of it at the top; then those that left, the last to leave first
    rows: int  # pairs in the pool
    training: Training  # of the last round, with the first seed
    lengths: tuple[int, ...]  # samples that each model of a round sees, for all rounds planned
    seeds: tuple[int, ...]  # per round planned
    done: int  # rounds run
    tasks: tuple[str, ...]
    errors: tuple[float, ...]  # per round run: standard error of an arm's mean
    margins: tuple[float, ...]  # per round run: how far below the best an arm leaves; infinite in the first
    drift: float  # see `standing`
    raised: tuple[int, ...]
    seconds: float  # of training and evaluation, summed over processes
    workers: int
    budget: float | None  # seconds of the clock
    failed: Mapping[str, str]  # {arm: reason}
    check: Check | None = None

    @property
    def answer(self) -> list[Arm]:
        """The arms that may be the best: those that the data cannot tell apart, and those set aside."""
        return [arm for arm in self.arms if arm.state in ("best", "not told apart", "set aside")]

    @property
    def cheapest(self) -> Arm | None:
        """The arm of the answer whose scores cost least to compute; None if a cost is unknown."""
        costs = [arm.scoring_seconds for arm in self.answer]
        known = [cost for cost in costs if cost is not None]
        return self.answer[costs.index(min(known))] if known and len(known) == len(costs) else None

    @property
    def beats_random(self) -> bool:
        """Whether all random shares, and the whole pool, have left the race."""
        names = [name for arm in self.arms for name in (arm.name, *arm.same)]
        return any(map(is_plain, names)) and not self.unbeaten

    @property
    def unbeaten(self) -> list[str]:
        """The random shares, and the whole pool, that no arm is shown to beat."""
        still = [arm for arm in self.arms if arm.state != "excluded"]
        return [name for arm in still for name in (arm.name, *arm.same) if is_plain(name)]

    def verdict(self) -> list[str]:
        """The answer in sentences."""
        names: dict[str, list[str]] = {}
        for arm in self.arms:
            names.setdefault(arm.state if arm.left is None else f"left {arm.left}", []).append(arm.name)
        if_so = "if orders change no faster later than between the first two lengths"
        so_far = f"highest so far, after {self.lengths[self.done - 1]:,} samples"
        said = {
            "best": f"best at {self.lengths[-1]:,} samples, {if_so}" if self._ended else so_far,
            "not told apart": "not told apart from it",
            "set aside": "set aside for cost, so they may be the best",
            **{f"left {number}": f"excluded after {length:,} samples" for number, length in enumerate(self.lengths, 1)},
            "failed": "no result",
        }
        lines = [f"{words}: {', '.join(names[state])}" for state, words in said.items() if state in names]
        if self.unbeaten:
            lines.append(f"nothing here is shown to beat {' or '.join(self.unbeaten)}")
        if self.cheapest and len(self.answer) > 1:
            lines.append(f"where cost decides: {self.cheapest.name}, whose scores cost least")
        if self.done > 1 and math.isfinite(self.margins[-1]):
            lines.append(
                f"drift of the arms from round to round, beyond noise: {self.drift:.4f}; standard error of a mean in "
                f"round {self.done}: {self.errors[-1]:.4f}; an arm {self.margins[-1]:.4f} below the best leaves"
            )
        if self.raised:
            lines.append(f"orders changed faster in round {', '.join(map(str, self.raised))}, which raised the margins")
        if len(self.answer) > 1:
            lines.append(self._next())
        return [*lines, *(self.check.verdict() if self.check else ())]

    @property
    def _ended(self) -> bool:
        """Whether a larger budget would change nothing."""
        aside = any(arm.state == "set aside" for arm in self.arms)
        return len(self.answer) == 1 or (self.done == len(self.lengths) and not aside)

    def _next(self) -> str:
        """What the next experiment would cost, and what it could show."""
        arms = len(self.answer)
        seen = sum(len(scores) * self.lengths[number - 1] for arm in self.arms for number, scores in arm.scores.items())
        rate = self.seconds / max(1, seen) / self.workers  # seconds of the clock per sample
        if not self._ended:
            planned = enumerate(zip(self.lengths, self.seeds, strict=True), 1)
            missing = [math.prod(each) for number, each in planned for arm in self.answer if number not in arm.scores]
            hours = _hours(rate * sum(missing))
            return f"next: the rounds that these {arms} arms lack, {hours}: repeat the command with a larger --budget"
        if self.errors[-1] < 1e-9:  # as where no model knows more than chance
            return "next: seeds make no difference to these scores; take a larger --samples, or other --tasks"
        seeds = self.seeds[-1]
        more = 3 * seeds
        bound = dunnett_bound(arms - 1, (arms - 1) * (more + seeds - 1), ALPHA)
        shown = bound * self.errors[-1] * math.sqrt(2 * seeds / (more + seeds))
        return (
            f"next: {more} more seeds of these {arms} arms at {self.lengths[-1]:,} samples, "
            f"{_hours(rate * arms * more * self.lengths[-1])}, would tell {shown:.4f} apart"
        )

    def rows_of_table(self) -> list[dict[str, str]]:
        """The arms as a table for people."""
        lengths = dict(enumerate(self.lengths[: self.done], 1))
        return [
            {
                "arm": " = ".join([arm.name, *arm.same]),
                "kept": f"{arm.kept:,}",
                "share": f"{100 * arm.kept / self.rows:.1f} %",
                "state": arm.state if arm.left is None else f"excluded, round {arm.left}",
                **{
                    f"{length:,}": f"{np.mean(arm.scores[number]):.4f}" if number in arm.scores else ""
                    for number, length in lengths.items()
                },
                "accuracy": f"{np.mean(arm.accuracies[max(arm.accuracies)]):.3f}" if arm.accuracies else "–",
                "epochs": f"{arm.epochs[max(arm.epochs)]:.1f}" if arm.epochs else "–",
                "scoring": "–" if arm.scoring_seconds is None else f"{arm.scoring_seconds:,.0f} s",
            }
            for arm in self.arms
        ]

    def facts(self) -> dict[str, Any]:
        """Everything for JSON; the margin of a round in which nothing may leave is null."""
        margins = [None if math.isinf(margin) else margin for margin in self.margins]
        training = {**asdict(self.training), "model": self.training.model}
        return {
            "kind": "tamis choose", "format": FORMAT, **asdict(self), "margins": margins, "training": training,
            "answer": [arm.name for arm in self.answer], "cheapest": self.cheapest and self.cheapest.name,
            "beats_random": self.beats_random, "verdict": self.verdict(),
            "check": self.check and {**asdict(self.check), "race": self.check.race.facts()},
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Check:
    """The same race with another model, and how far the two agree."""

    race: Race
    correlation: float | None  # Spearman's, of the means of the last round that all arms were in; None if undefined
    shared: tuple[str, ...]  # arms in both answers

    def verdict(self) -> list[str]:
        """The agreement in sentences."""
        model = self.race.training.model
        said = "unknown" if self.correlation is None else f"{self.correlation:.2f}"
        both = f"both answers have {', '.join(self.shared)}" if self.shared else "the answers have no arm in common"
        lost = f"; no result: {', '.join(self.race.failed)}" if self.race.failed else ""
        return [f"with {model}: best {self.race.arms[0].name}; rank correlation with the above {said}; {both}{lost}"]


def is_plain(name: str) -> bool:
    """Whether an arm is the whole pool, or a random share or number of its pairs."""
    return split_count(name.split("@")[0])[0] in (BASELINE, RANDOM)


def choose(
    source: Source,
    recipes: Sequence[RecipeLike] = (),
    *,
    shares: Sequence[float] = (),
    tasks: Tasks,
    out: PathLike,
    run: PathLike | None = None,
    budget: float | None = None,
    rounds: int = len(SEEDS),
    training: Training | None = None,
    check: Training | None = None,
    settings: Sequence[str] = (),
    defaults: Sequence[str] = (),
    fields: Sequence[str] = (),
    only: Sequence[str] = (),
    workers: int = 1,
    partial: bool = False,
    quiet: bool = False,
    **compute: Unpack[Compute],
) -> Race:
    """Races recipes at shares of a pool: each round trains the arms left twice as long, and drops those that are worse.

    `no-filter` and `random` race too. Given a pool, computes missing scores first. The same call resumes; `bench` with
    the same folder shares what was trained.

    Args:
        recipes: as `bench`. A recipe whose last step keeps a fraction races at each share; others as they are.
        shares: of the pool, in (0, 1]; empty: each recipe's own.
        budget: hours of the clock for training and evaluation. Arms for which it is too small are set aside, the worst
            so far first, and stay in the answer. None: no limit.
        rounds: at least 2. Each sees half as many samples as the next one; seeds are 2, 2, 3, 4.
        training: the model, and how the last round trains it; None: the scale `lab` with 98,304 samples.
        check: another model, for which the race is run again, with a budget of its own.
        source, tasks, out, run, settings, defaults, fields, only, workers, partial, quiet, compute: as `bench`.

    Returns:
        The arms that may be the best, and why the others left. Also written to choose.json, in `out` and in the run
        folder, where the report reads it.

    Raises:
        as `bench`; ValueError: a share, the budget or the number of rounds is out of range. RecipeError: two recipes
        have one name at a share, such as clip-30 and a recipe of yours called clip.
    """
    if rounds < 2 or (budget is not None and not 0 < budget < math.inf):
        raise ValueError(f"a race needs at least 2 rounds and a budget above 0 hours, got {rounds} and {budget}")
    if wrong := [share for share in shares if not 0 < share <= 1]:
        raise ValueError(f"a share of the pool is above 0 and at most 1, got {wrong[0]:g}")
    if len({f"{share:g}" for share in shares}) < len({*shares}):
        raise ValueError(f"two shares of {[*shares]} are the same in six digits")
    training = training or at_scale("lab", samples=SAMPLES)
    folder = Path(out).expanduser()
    plain = [name for name in (BASELINE, RANDOM) if name not in recipes]
    chosen = _at_shares(with_settings([*plain, *recipes], settings, defaults), shares)
    for one in (training, check or training):
        check_request(one, tasks, only, min(SEEDS))
        _lengths(one, rounds)
    subsets, _ = scored_subsets(
        source, chosen, folder, tasks=tasks, run=run, fields=fields, workers=workers, partial=partial, quiet=quiet,
        compute=compute,
    )  # fmt: skip
    costs = scoring_costs(subsets[0].run, chosen)

    def raced(training: Training) -> Race:
        trainer = trainer_for(
            training, tasks, folder, device=device_per_worker(compute, workers), only=only, workers=workers
        )
        return race(subsets, trainer, training, rounds=rounds, budget=budget and 3600 * budget, scoring=costs)

    with bench_folder(folder, subsets[0].run.path, tasks):
        done = raced(training)
        write_record(folder / CHOICE, done.facts())  # the check may fail
        if check:
            done = replace(done, check=_agreement(done, raced(check)))
            write_record(folder / CHOICE, done.facts())
    write_into_run(subsets[0].run, CHOICE, done.facts())
    return done


def race(
    subsets: Sequence[Subset],
    trainer: Trainer,
    training: Training,
    *,
    rounds: int = len(SEEDS),
    budget: float | None = None,
    scoring: Mapping[str, float] | None = None,
) -> Race:
    """Races subsets of one run; see `choose`.

    The subsets come in the order in which the first round keeps them if the budget is too small for all of them.
    `budget` is in seconds of the clock, for the trainer's workers; `scoring`: {name of a subset: seconds}, where known.
    """
    arms, same, failed = _distinct(subsets, trainer, training)
    if len(arms) - len(failed) < 2:
        why = "; ".join(failed.values()) or f"all keep the same pairs: {', '.join(one.name for one in subsets)}"
        raise StopError(f"a race needs two arms: {why}")
    lengths, seeds = _lengths(training, rounds), [*SEEDS, *SEEDS[-1:] * rounds][:rounds]
    results: list[Results] = []
    aside: set[str] = set()
    found = Standing(means=(), errors=(), margins=(), left={}, drift=0.0, raised=())
    for number, (samples, count) in enumerate(zip(lengths, seeds, strict=True)):
        order = [*found.remaining, *arms] if results else arms
        racing = [arm for arm in dict.fromkeys(order) if arm not in {*found.left, *failed, *aside}]
        first = training.seed + sum(seeds[:number])
        wanted = {
            (arm, seed): (arms[arm], replace(training, samples=samples, seed=seed))
            for seed in range(first, first + count) for arm in racing
        }  # fmt: skip
        if budget is not None and len(racing) > 1:
            known = _all(results)
            if not known:  # one training tells what the others will take
                tried = (trainer.train({key: what})[0] for key, what in wanted.items())
                known = [*next(filter(None, tried), {}).values()]
            left = budget * trainer.workers - _seconds(_all(results))
            carried = max(0, int(left / (count * _expected(known, samples)))) if known else len(racing)
            aside |= set(racing[carried:] if carried > 1 else ())
            racing = racing[:carried]
        if len(racing) < 2:
            break
        done, problems = trainer.train({key: what for key, what in wanted.items() if key[0] in racing})
        failed |= {arm: why for (arm, _), why in problems.items()}
        of_round = {
            arm: [done[arm, seed] for seed in range(first, first + count)] for arm in racing if arm not in failed
        }
        if not of_round:
            raise StopError(f"every training failed, the first because: {next(iter(failed.values()))}")
        results.append(of_round)
        found = standing([values_of(each) for each in results], total=rounds)
        _log(found, number, samples, rounds)
    if not results:
        raise StopError("the budget is too small for two arms: race fewer arms, or name a larger --budget")
    best = found.remaining[0]
    states = dict.fromkeys(arms, "not told apart") | dict.fromkeys(aside, "set aside") | {best: "best"}
    states |= dict.fromkeys(found.left, "excluded") | dict.fromkeys(failed, "failed")
    places = {"best": 0, "not told apart": 1, "set aside": 2, "excluded": 3, "failed": 4}
    raced = {arm for each in results for arm in each}
    sizes = {arm: training_rows(arms[arm])[0].rows.size if arm in raced else 1 for arm in arms}

    def per_round(arm: str, measure: Callable[[list[CellResult]], T]) -> dict[int, T]:
        return {number: measure(each[arm]) for number, each in enumerate(results, 1) if arm in each}

    return Race(
        arms=tuple(
            Arm(
                name=arm, kept=arms[arm].kept, same=tuple(same[arm]), state=states[arm],
                left=found.left.get(arm) if states[arm] == "excluded" else None,
                scores=per_round(arm, lambda cells: [value_of(one) for one in cells]),
                accuracies=per_round(arm, lambda cells: [one.score for one in cells]),
                epochs=per_round(arm, lambda cells, size=sizes[arm]: cells[0].samples / size),  # type: ignore[misc]
                scoring_seconds=(scoring or {}).get(arm),
            )
            for arm in sorted(
                dict.fromkeys([*found.ranked, *arms]), key=lambda arm: (places[states[arm]], -found.left.get(arm, 0))
            )
        ),
        rows=len(subsets[0].run), training=training, lengths=tuple(lengths), seeds=tuple(seeds), done=len(results),
        tasks=tuple(task.name for task in trainer.counted), errors=found.errors, margins=found.margins,
        drift=found.drift, raised=found.raised, seconds=_seconds(_all(results)), workers=trainer.workers,
        budget=budget, failed=failed,
    )  # fmt: skip


def scoring_costs(run: Run, recipes: Sequence[Recipe]) -> dict[str, float]:
    """Returns {recipe: seconds of its signals, summed over the processes that scored the run}, where they are known.

    A recipe without signals may read columns of the run, at an unknown cost.
    """
    took = Counter[str]()
    for path in run.path.glob("events*.jsonl"):
        for event in read_lines(path):
            took.update(event.get("took", {}))
    return {
        recipe.name: cost_of(took, recipe.signals)
        for recipe in recipes
        if (took and recipe.signals) or not recipe.reads
    }


def _at_shares(recipes: Sequence[Recipe], shares: Sequence[float]) -> list[Recipe]:
    """Returns each recipe at each share; recipes without a share, or all if there are no shares, as they are."""
    arms: dict[str, Recipe] = {}
    for recipe in recipes:
        for one in [made for share in shares if (made := at_share(recipe, share))] or [recipe]:
            known = arms.setdefault(one.name, one)
            if (known.steps, known.entries, known.columns) != (one.steps, one.entries, one.columns):
                raise RecipeError(f"two different recipes would race as {one.name!r}: change the key 'name' of one")
    return [*arms.values()]


def _distinct(
    subsets: Sequence[Subset], trainer: Trainer, training: Training
) -> tuple[dict[str, Subset], dict[str, list[str]], dict[str, str]]:
    """Returns the subsets that differ, {name: names of those with the same pairs}, {name: why it cannot be trained}."""
    known: dict[str, Subset] = {}
    same: dict[str, list[str]] = {}
    failed: dict[str, str] = {}
    for subset in subsets:
        ident = subset.name
        try:
            ident = trainer.identity(subset, training)
        except RunError as error:
            failed[subset.name] = str(error)
        first = known.setdefault(ident, subset)
        same.setdefault(first.name, []).extend([] if first is subset else [subset.name])
    return {subset.name: subset for subset in known.values()}, same, failed


def _lengths(training: Training, rounds: int) -> list[int]:
    """Returns the samples of each round, half of the next one's; ValueError if the first has no batch."""
    lengths = [training.samples >> left for left in reversed(range(rounds))]
    if lengths[0] < training.batch:
        raise ValueError(
            f"the first of {rounds} rounds would see {lengths[0]} samples, fewer than a batch of {training.batch}"
        )
    return lengths


def value_of(one: CellResult) -> float:
    """The score by which arms are compared: the mean log-likelihood, or a captioner's CIDEr."""
    return one.likelihood if one.likelihoods else one.score


def values_of(results: Results) -> dict[str, list[float]]:
    """The scores of a round: {arm: score of each seed}."""
    return {arm: [value_of(one) for one in each] for arm, each in results.items()}


def _all(results: Sequence[Results]) -> list[CellResult]:
    return [one for each in results for cells in each.values() for one in cells]


def _seconds(cells: Sequence[CellResult]) -> float:
    return sum(one.training_seconds + one.evaluation_seconds for one in cells)


def _expected(cells: Sequence[CellResult], samples: int) -> float:
    """Returns the seconds of one more training and its evaluation."""
    rate = sum(one.training_seconds for one in cells) / sum(one.samples for one in cells)
    return samples * rate + sum(one.evaluation_seconds for one in cells) / len(cells)


def _agreement(one: Race, other: Race) -> Check:
    """Compares a race with the same race of another model."""
    in_both = [
        number for number in range(1, min(one.done, other.done) + 1)
        if all(number in arm.scores for race in (one, other) for arm in race.arms if arm.state != "failed")
    ]  # fmt: skip
    means = [
        {
            arm.name: float(np.mean(arm.scores[in_both[-1]]))
            for arm in race.arms
            if in_both and in_both[-1] in arm.scores
        }
        for race in (one, other)
    ]
    names = sorted(means[0].keys() & means[1].keys())
    found = spearman(*(np.array([each[name] for name in names]) for each in means)) if len(names) > 2 else math.nan
    answers = [{arm.name for arm in race.answer} for race in (one, other)]
    return Check(
        race=other, shared=tuple(sorted(answers[0] & answers[1])), correlation=None if math.isnan(found) else found
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds > 3600 else f"{seconds / 60:.0f} min"


def _log(found: Standing, number: int, samples: int, rounds: int) -> None:
    gone = [arm for arm, left in found.left.items() if left == number + 1]
    log.info(
        "round %d of %d, %s samples: best %s; %s left", number + 1, rounds, f"{samples:,}", found.remaining[0],
        ", ".join(gone) or "no arm",
    )  # fmt: skip
