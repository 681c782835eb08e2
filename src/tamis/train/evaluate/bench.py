"""Which filter for this pool? The same small model trained on each subset, several seeds, at equal samples seen.

Model, samples seen, batch, schedule and seeds are equal, so a small subset is seen more often. Intervals are Student's
over the seeds. The gain over the baseline is computed seed by seed and averaged: with one seed, both models start from
the same weights.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.commands.score import Scoring, score
from tamis.commands.select import check_reads, select
from tamis.core.compute import Compute
from tamis.core.errors import RecipeError, RunError, require
from tamis.core.files.checked import read_lines, read_record, write_record
from tamis.core.files.storage import is_run, location
from tamis.core.files.targets import check_own
from tamis.core.hub import stand_in
from tamis.core.machine import cores
from tamis.core.math.statistics import Estimate, detectable_difference, mean_interval
from tamis.core.types import Device
from tamis.models.device import device_for
from tamis.pools import PoolSpec, open_pool
from tamis.recipes.recipe import PathLike, Recipe, RecipeLike, assignment, load
from tamis.recipes.steps.outcome import check_files
from tamis.reports.sections.subsets import intersections, jaccard
from tamis.runs.claims import lock_run
from tamis.runs.makers import models_in_words
from tamis.runs.run import Run, open_run, run_at
from tamis.runs.subset import Subset
from tamis.train.clip import training_rows
from tamis.train.evaluate.cells import (
    CellResult,
    Trainer,
    counted_tasks,
)
from tamis.train.evaluate.tasks import Tasks
from tamis.train.scales import CaptionTraining, Training, at_scale
from tamis.train.towers import digests

log = logging.getLogger(__name__)

#: Name of the results' file in the bench's folder.
RESULT = "bench.json"

#: Names of the results of `tamis choose`, which may use the same folder: both share what is trained.
CHOICE, CURVES = "choose.json", "shares.json"

#: Version of its layout.
FORMAT = 1

#: The baseline, if it is among the subsets.
BASELINE = "no-filter"

#: Index field with the true kind of a pair, if known.
TRUTH = "truth"


#: A run, a pool, or a function that makes a pool in the bench's folder.
Source = PathLike | PoolSpec | Run | Callable[[Path], Path]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One subset and the scores of the models trained on it."""

    name: str  # the recipe's name
    kept: int  # distinct pairs that it keeps
    usable: int  # distinct kept pairs whose image and caption can be read
    epochs: float  # how often a training sees each usable pair on average
    scores: Mapping[int, float]  # {seed: mean score over the tasks}
    score: Estimate | None  # mean over the seeds; None with fewer than two
    tasks: Mapping[str, Estimate]  # {task: mean over the seeds}
    #: mean over the seeds of score - baseline's score; None for the baseline, or with fewer than two common seeds
    gain: Estimate | None
    kinds: Mapping[str, tuple[int, int]]  # {true kind: (kept, total)}; {} if unknown
    scoring_seconds: float | None  # to compute the scores it reads, summed over processes; None if unknown
    training_seconds: float | None  # mean per training; None if there is none
    models: Sequence[str]  # sentences about the models of the scores it was chosen by


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Subsets of one pool, compared by models trained on them."""

    contenders: tuple[Contender, ...]  # highest mean score first, without a score last
    baseline: str  # name of the contender that gains are relative to
    rows: int  # pairs in the pool
    training: Training  # with the first seed
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]  # names of the tasks whose mean counts
    #: {name: {name: intersection over union in [0, 1], None if both subsets are empty}}
    overlap: Mapping[str, Mapping[str, float | None]]
    failed: Mapping[str, str]  # {name of a failed training: reason}

    @property
    def better(self) -> tuple[str, ...]:
        """Contenders whose gain is above 0 in its whole interval."""
        return tuple(one.name for one in self.contenders if one.gain and one.gain.low > 0)

    @property
    def worse(self) -> tuple[str, ...]:
        """Contenders whose gain is below 0 in its whole interval."""
        return tuple(one.name for one in self.contenders if one.gain and one.gain.high < 0)

    @property
    def unclear(self) -> tuple[str, ...]:
        """Contenders whose difference from the baseline is not significant."""
        return tuple(one.name for one in self.contenders if one.gain and one.gain.low <= 0 <= one.gain.high)

    @property
    def detectable(self) -> float | None:
        """The smallest gain that these seeds can show, see `detectable_difference`; None without gains."""
        gains = [one.gain for one in self.contenders if one.gain and one.gain.n == len(self.seeds)]
        return detectable_difference(gains) if gains else None

    def verdict(self) -> list[str]:
        """Sentences that say which subsets differ from the baseline, and what difference is too small to see."""
        kinds = {"better than": self.better, "worse than": self.worse, "not significantly different from": self.unclear}
        sentences = [f"{how} {self.baseline}: {', '.join(names)}" for how, names in kinds.items() if names]
        if self.detectable:
            sentences.append(
                f"{len(self.seeds)} seeds cannot show differences below {self.detectable:.3f} (power 80 %)"
            )
        return sentences

    def rows_of_table(self) -> list[dict[str, str]]:
        """The ranking as a table for people."""
        return [
            {
                "recipe": one.name,
                "kept": f"{one.kept:,}",
                "share": f"{100 * one.kept / self.rows:.1f} %",
                "epochs": f"{one.epochs:.1f}",
                "score": format_estimate(one.score),
                f"gain over {self.baseline}": "" if one.name == self.baseline else format_estimate(one.gain, sign=True),
                **{task: f"{one.tasks[task].value:.3f}" if task in one.tasks else "–" for task in self.tasks},
                "scoring": _seconds(one.scoring_seconds),
                "training": _seconds(one.training_seconds),
            }
            for one in self.contenders
        ]

    def rows_of_kinds(self) -> list[dict[str, str]]:
        """The share of each true kind that each subset keeps; [] if unknown."""
        kinds = self.contenders[0].kinds
        return [
            {
                "true kind": kind,
                "pairs": f"{total:,}",
                **{one.name: f"{100 * one.kinds[kind][0] / total:.0f} %" for one in self.contenders},
            }
            for kind, (_, total) in sorted(kinds.items(), key=lambda item: (-item[1][1], item[0]))
        ]

    def rows_of_overlap(self) -> list[dict[str, str]]:
        """Intersection over union of every two subsets."""
        names = [one.name for one in self.contenders]
        cells = {
            name: {other: "–" if (value := self.overlap[name][other]) is None else f"{value:.2f}" for other in names}
            for name in names
        }
        return [{"shared, of either": name, **cells[name]} for name in names]

    def facts(self) -> dict[str, Any]:
        """Everything for JSON."""
        verdicts = {"better": self.better, "worse": self.worse, "unclear": self.unclear}
        training = {**asdict(self.training), "model": self.training.model}
        facts = {**asdict(self), "training": training, **verdicts, "detectable": self.detectable}
        return {"kind": "tamis bench", "format": FORMAT, **facts}


def bench(
    source: Source,
    recipes: Sequence[RecipeLike] | Callable[[Run], Sequence[Subset]],
    *,
    tasks: Tasks,
    out: PathLike,
    run: PathLike | None = None,
    settings: Sequence[str] = (),
    defaults: Sequence[str] = (),
    fields: Sequence[str] = (),
    training: Training | None = None,
    seeds: int = 3,
    only: Sequence[str] = (),
    workers: int = 1,
    keep_models: bool = False,
    partial: bool = False,
    quiet: bool = False,
    **compute: Unpack[Compute],
) -> Bench:
    """Ranks recipes for a pool: the same small model trained on what each keeps, at equal samples seen.

    Given a pool, computes missing scores first. Training starts when the pairs of all recipes are chosen. The same call
    resumes an interrupted bench.

    Args:
        source: a run; or a pool: a path, a URL or a `PoolSpec`; or a function that makes a pool in the bench's folder.
        recipes: names of shipped recipes, files, or mappings with a `name`; their names must differ. Or a function that
            returns subsets of the run, such as `utility.variants`.
        tasks: a zero-shot task's folder, a folder of tasks, or a function that makes them in the bench's folder. A
            captioner is scored by its CIDEr on those with captions (retrieval).
        out: the folder for results and subsets.
        run: if the source is a pool: its run folder, new or existing; None: `run` in `out`.
        settings: signal settings as for `--set`, such as "signals.clip.model=lab/clip"; each recipe that has the signal
            takes them, in all its entries of that signal or in one ("signals.0.clip.model=..."). Or columns of the run:
            "columns.clip=clip_b32.clip", for each recipe that reads `clip`.
        defaults: like `settings`, but only in place of models that `tamis.core.hub` knows, and it is no error if no
            recipe has the signal.
        fields: if the source is a pool: json fields to store in the index; "truth" is the true kind of each pair.
        training: the model and how to train it; None: the scale `lab`.
        seeds: trainings per recipe, at least 2.
        only: names of the tasks that count; empty: all.
        workers: trainings at once, each in its own process (and processes that score); 1 uses this process.
        keep_models, quiet: keep the trained models; show no progress of scoring.
        partial: use the finished shards of an incomplete run.
        compute: device, precision, batch_size and threads for scoring and training; see `tamis.core.compute.Compute`.
            `threads` is per training, by default the cores divided by the workers. Tasks are evaluated in float32.

    Returns:
        The ranking with its intervals, and facts about the subsets. Also written to bench.json, in `out` and in the run
        folder, where the report reads it.

    Raises:
        RecipeError: a recipe is wrong.
        RunError: a recipe keeps no pair to train on; or `out` is in use, or holds something else.
        StopError: nothing could be done; see `tamis.core.errors`.
    """
    folder = Path(out).expanduser()
    chosen = recipes if callable(recipes) else with_settings(recipes, settings, defaults)
    training = training or at_scale("lab")
    check_request(training, tasks, only, seeds)
    subsets, costs = scored_subsets(
        source, chosen, folder, tasks=tasks, run=run, fields=fields, workers=workers,
        partial=partial, quiet=quiet, compute=compute,
    )  # fmt: skip
    done = compare(
        subsets, tasks=tasks, out=folder, training=training, device=device_per_worker(compute, workers), seeds=seeds,
        only=only, workers=workers, scoring=costs, keep_models=keep_models,
    )  # fmt: skip
    write_into_run(subsets[0].run, RESULT, done.facts())
    return done


def scored_subsets(
    source: Source,
    recipes: Sequence[Recipe] | Callable[[Run], Sequence[Subset]],
    folder: Path,
    *,
    tasks: Tasks,
    run: PathLike | None,
    fields: Sequence[str],
    workers: int,
    partial: bool,
    quiet: bool,
    compute: Compute,
) -> tuple[Sequence[Subset], dict[str, float]]:
    """Opens a run or scores a pool; returns what recipes keep, also saved in a bench's folder, and `_score`'s costs."""
    costs: dict[str, float] = {}
    if not callable(source) and not isinstance(source, PoolSpec | Run):
        source = Run(source) if is_run(source) else PoolSpec(path=os.fspath(source), fields=tuple(fields))
    if isinstance(source, Run) and (run or fields):
        raise RunError(f"{source.path} is a run already: leave out --run and --field, which are for a pool")
    if isinstance(source, PoolSpec):
        open_pool(source)  # a wrong path must not leave a folder
    own = None if run is None else location(run)
    read = source.paths if isinstance(source, PoolSpec) else [source.path] if isinstance(source, Run) else []
    with bench_folder(folder, *read, tasks, own):
        if isinstance(source, Run):
            opened = open_run(source, partial=partial)
        else:
            if not isinstance(source, PoolSpec):
                source = PoolSpec(path=str(source(folder)), fields=tuple(fields))
            needed = [Recipe()] if callable(recipes) else recipes  # a run needs its index
            opened, costs = _score(
                source, needed, own or folder / "run", folder / "scoring.json", workers, quiet, compute
            )
        if callable(recipes):
            subsets = recipes(opened)
        else:
            subsets = [select(opened, recipe, partial=partial) for recipe in recipes]
        for subset in subsets:
            subset.save(folder / "subsets" / f"{subset.name}.parquet", overwrite=True)
    return subsets, costs


def write_into_run(run: Run, name: str, facts: Mapping[str, Any]) -> None:
    """Writes a result where the run's report reads it; warns if that is not possible."""
    try:
        write_record(run.path / name, facts)
    except RunError as error:
        log.warning("the run's report will not show this: %s", error)


def with_settings(recipes: Sequence[RecipeLike], settings: Sequence[str], usual: Sequence[str]) -> list[Recipe]:
    """Loads recipes, each with the settings for its signals. Unused settings are an error, except in `usual`."""
    chosen = [load(recipe) for recipe in recipes]
    if not chosen:
        raise RecipeError("there is no recipe to compare: name some, such as no-filter,random,clip-50")
    names = [recipe.name for recipe in chosen]
    for recipe in chosen:
        if not recipe.selects:
            raise RecipeError(f"the recipe {recipe.name!r} has no 'select': nothing says which pairs to keep")
        if names.count(recipe.name) > 1:
            raise RecipeError(f"two recipes are called {recipe.name!r}: change the key 'name' of one")
    of_recipe: list[list[str]] = [[] for _ in chosen]
    for setting in (*usual, *settings):
        found = [_settings_of(recipe, setting, replaces_own=setting not in usual) for recipe in chosen]
        if setting not in usual and not any(found):
            raise RecipeError(f"--set {setting!r}: no recipe of the bench has that signal, or reads that column")
        of_recipe = [its + more for its, more in zip(of_recipe, found, strict=True)]
    return [
        load({**recipe.text, "name": recipe.name}, its) if its else recipe
        for recipe, its in zip(chosen, of_recipe, strict=True)
    ]


def _settings_of(recipe: Recipe, setting: str, *, replaces_own: bool) -> list[str]:
    """Returns a bench's setting as a recipe takes it: for each of its entries of the signal, or for a column it reads.

    Without `replaces_own`, only models that have a built-in stand-in are replaced, not the recipe's own.
    """
    path, (_, _, value) = assignment(setting)[0].split("."), setting.partition("=")
    if path[0] == "columns" and len(path) == 2:
        return [setting] if path[1] in recipe.reads else []
    number = int(path.pop(1)) if len(path) > 3 and path[1].isdecimal() else None
    if len(path) < 3 or path[0] != "signals":
        raise RecipeError(
            f"--set {setting!r}: a bench sets signals, such as signals.clip.model=lab/clip, and columns, such as "
            "columns.clip=clip_b32.clip"
        )
    _, name, *inner = path
    made = []
    for place, entry in enumerate(recipe.text.get("signals") or ()):
        its = {entry: {}} if isinstance(entry, str) else entry
        own = (its.get(name) or {}).get(inner[0])
        if name in its and number in (None, place) and (replaces_own or own is None or stand_in(str(own))):
            made.append(f"signals.{place}.{name}.{'.'.join(inner)}={value}")
    return made


def _score(
    spec: PoolSpec, recipes: Sequence[Recipe], path: Path, notes: Path, workers: int, quiet: bool, compute: Compute
) -> tuple[Run, dict[str, float]]:
    """Computes the scores that recipes read, one recipe after the other, to measure what each costs.

    Returns the run, and seconds of scoring per recipe, for recipes whose scores were all computed here. Scores that two
    recipes share count for both.
    """
    pool = open_pool(spec)
    for recipe in recipes:
        check_reads(recipe, run_at(path), pool)
        check_files(recipe.steps)
    steps: list[dict[str, Any]] = read_record(notes)["steps"] if notes.is_file() else []
    parts: dict[str, set[str]] = {}
    for recipe in recipes:
        missing = Scoring(spec, path, recipe, **compute).preview().missing
        parts[recipe.name] = {part.folder for part in missing if part.kind != "index"}
        if any(part.shards for part in missing):
            before = _seconds_of_events(path)
            score(spec, run=path, recipe=recipe, workers=workers, quiet=quiet, **compute)
            new = sorted(part.folder for part in missing if part.shards and part.kind != "index")
            steps.append({"parts": new, "seconds": round(_seconds_of_events(path) - before, 2)})
            write_record(notes, {"steps": steps})
    known = {part for step in steps for part in step["parts"]}
    return Run(path), {
        name: sum(step["seconds"] for step in steps if needed & set(step["parts"]))
        for name, needed in parts.items()
        if needed <= known
    }


def _seconds_of_events(run: Path) -> float:
    """Returns how many seconds workers have spent on a run's shards."""
    files = sorted(run.glob("events*.jsonl"))  # one file per rank
    return float(sum(event.get("seconds", 0.0) for path in files for event in read_lines(path)))


@contextmanager
def bench_folder(folder: Path, *read: PathLike | Tasks | None) -> Iterator[None]:
    """Locks a bench's folder while the block runs. The folder may hold the paths in `read`, which the bench reads."""
    also = ["lock", "run", "subsets", "cells", "models", "pool-*", "lab-tasks-*", "text-states", "text-states-*.npy"]
    marks = [RESULT, CHOICE, CURVES, "scoring.json", "subsets/*.parquet", "cells/*.json"]
    paths = [Path(one) for one in read if one is not None and not callable(one)]
    check_own(folder, what="bench", marks=marks, also=also, read=paths)
    with lock_run(folder / "cells"):  # the folder itself may be a run's
        yield


def check_request(training: Training, tasks: Tasks, only: Sequence[str], seeds: int) -> None:
    """Raises early, before a pool is scored, the errors that would stop a bench later."""
    if seeds < 2:
        raise ValueError(f"seeds must be at least 2, got {seeds}: one training cannot show how much seeds differ")
    require("scipy", extra="evaluate")  # for the intervals at the end
    if isinstance(training, CaptionTraining):
        require("pycocoevalcap.cider.cider", extra="captions")
    digests(training)
    if not callable(tasks):
        counted_tasks(training, tasks, only)


def compare(
    subsets: Sequence[Subset],
    *,
    tasks: Tasks,
    out: PathLike,
    training: Training,
    device: Device,
    seeds: int = 3,
    only: Sequence[str] = (),
    workers: int = 1,
    scoring: Mapping[str, float] | None = None,
    keep_models: bool = False,
) -> Bench:
    """Trains a model on each of several subsets with each of several seeds, and compares their scores.

    The same call again does what is missing; a changed subset, training or task repeats its own trainings only.

    Args:
        subsets: subsets of one run, with different names.
        training: the model and how to train it, with the first seed; seeds - 1 more follow.
        device: device, precision, and threads per training.
        scoring: {name of a subset: seconds to compute its scores}, where known.
        tasks, out, seeds, only, workers, keep_models: see `bench`.

    Raises:
        RecipeError: there is no subset, two have one name, or their runs differ; or a name in `only` is no task.
        PoolError, RunError, ValueError: as `bench`.
    """
    names = [subset.name for subset in subsets]
    if not subsets or len(set(names)) < len(names):
        raise RecipeError(f"expected one or more subsets with different names, got {names}")
    run = subsets[0].run
    if any(subset.run.path.resolve() != run.path.resolve() for subset in subsets):
        raise RecipeError("the subsets are of different runs: choose all of them from one")
    check_request(training, tasks, only, seeds)
    folder = Path(out).expanduser()
    with bench_folder(folder, run.path, tasks):
        trainer = trainer_for(training, tasks, folder, device=device, only=only, workers=workers)
        numbers = tuple(range(training.seed, training.seed + seeds))
        # Seed by seed: a bench that stops early has results for every subset.
        wanted = {(subset.name, seed): (subset, replace(training, seed=seed)) for seed in numbers for subset in subsets}
        results, problems = replace(trainer, keep_models=keep_models).train(wanted)
        failed = {f"{name}, seed {seed}": why for (name, seed), why in problems.items()}
        done = summarise(
            subsets, results, training, numbers, [task.name for task in trainer.counted], failed, scoring or {}
        )
        write_record(folder / RESULT, done.facts())
        return done


def device_per_worker(compute: Compute, workers: int) -> Device:
    """Returns the device of each of several trainings at once, which share the cores."""
    each: Compute = {**compute, "threads": compute.get("threads") or max(1, cores() // workers)}
    return device_for(**each)


def trainer_for(
    training: Training, tasks: Tasks, folder: Path, *, device: Device, only: Sequence[str], workers: int
) -> Trainer:
    """Returns what trains a bench's cells; draws tasks that a function makes."""
    made = tasks(folder) if callable(tasks) else Path(tasks)
    return Trainer(
        tasks=made, counted=counted_tasks(training, made, only), device=device, folder=folder, workers=workers
    )


def summarise(
    subsets: Sequence[Subset],
    results: Mapping[tuple[str, int], CellResult],
    training: Training,
    seeds: Sequence[int],
    tasks: Sequence[str],
    failed: Mapping[str, str],
    scoring: Mapping[str, float],
) -> Bench:
    """Compares subsets of one run by the results of their cells, {(name, seed): result}."""
    run = subsets[0].run
    names = [subset.name for subset in subsets]
    baseline = BASELINE if BASELINE in names else names[0]
    truth = truth_of(run)
    done = {name: {seed: results[name, seed] for seed in seeds if (name, seed) in results} for name in names}
    contenders = []
    for subset in subsets:
        own = done[subset.name]
        rows, _ = training_rows(subset)
        contenders.append(
            Contender(
                name=subset.name,
                kept=subset.kept,
                usable=int(rows.rows.size),
                epochs=training.steps * training.batch / rows.rows.size,
                scores={seed: one.score for seed, one in own.items()},
                score=_mean([one.score for one in own.values()]),
                tasks={task: score for task in tasks if (score := _mean([one.scores[task] for one in own.values()]))},
                gain=None if subset.name == baseline else gain(own, done[baseline]),
                kinds=shares_of_kinds(subset, truth),
                scoring_seconds=scoring.get(subset.name),
                training_seconds=sum(one.training_seconds for one in own.values()) / len(own) if own else None,
                models=models_in_words(subset.used),
            )
        )
    alike = jaccard(intersections([subset.keep for subset in subsets]))
    return Bench(
        contenders=tuple(sorted(contenders, key=lambda one: -one.score.value if one.score else 1.0)),
        baseline=baseline,
        rows=len(run),
        training=training,
        seeds=tuple(seeds),
        tasks=tuple(tasks),
        overlap={
            one: {other: None if np.isnan(share) else float(share) for other, share in zip(names, row, strict=True)}
            for one, row in zip(names, alike, strict=True)
        },
        failed=dict(failed),
    )


def gain(one: Mapping[int, CellResult], other: Mapping[int, CellResult]) -> Estimate | None:
    """Mean difference between cells of the same seed; None with fewer than two common seeds."""
    return _mean([one[seed].score - other[seed].score for seed in one if seed in other])


def truth_of(run: Run) -> NDArray[np.object_] | None:
    """Returns the true kind of every row; None if the run lacks the field or has no values in it."""
    if TRUTH not in run.columns:
        return None
    table = run.table()
    words = [table.read(block, [TRUTH])[TRUTH].cast("string") for block in range(len(run.shards))]
    kinds = np.concatenate([column.to_numpy(zero_copy_only=False) for column in words])
    return kinds if any(pc.count(column).as_py() for column in words) else None


def shares_of_kinds(subset: Subset, truth: NDArray[np.object_] | None) -> dict[str, tuple[int, int]]:
    """Returns {true kind: (distinct pairs that the subset keeps, pairs in the run)}."""
    if truth is None:
        return {}
    kinds = sorted({kind for kind in truth if kind is not None})
    return {kind: (int(((truth == kind) & subset.keep).sum()), int((truth == kind).sum())) for kind in kinds}


def format_estimate(value: Estimate | None, *, sign: bool = False) -> str:
    """Formats an estimate with its interval."""
    if value is None:
        return "–"
    form = "+.3f" if sign else ".3f"
    return f"{value.value:{form}} [{value.low:{form}}, {value.high:{form}}]"


def _mean(values: Sequence[float]) -> Estimate | None:
    return mean_interval(values) if len(values) > 1 else None


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} s"
