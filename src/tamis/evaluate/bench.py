"""Which filter for this pool? The same small model trained on each subset, several seeds, at equal samples seen.

What differs between two lines of the result is the subset alone: model, samples seen, batch, schedule and seeds are the
same, so a small subset is seen more often. Intervals are Student's over the seeds; the gain over the baseline is the
mean of differences between runs of one seed, which share their first weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.data import Device
from tamis.errors import PoolError, RecipeError, require, unknown
from tamis.evaluate.cells import Cell, CellResult, carry_out_all, identity, result_of, shared_text_states
from tamis.evaluate.tasks import Task, find_tasks
from tamis.evaluate.zero_shot import LAB
from tamis.lab.pool import make_pool
from tamis.lab.tasks import SIZE, make_tasks
from tamis.math.intervals import Estimate, mean
from tamis.reporting.sections.overlap import intersections, jaccard
from tamis.store.atomic import write_json
from tamis.store.claims import locked
from tamis.store.reasons import Verdict
from tamis.store.records import with_hash
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.store.targets import check_own, inside
from tamis.train.clip import training_rows
from tamis.train.scales import ClipTraining
from tamis.train.towers import pretrained

#: Of the file of results, in the bench's folder.
RESULT = "bench.json"

#: Version of that file's layout.
FORMAT = 1

#: The subset that the others are compared with, where it is among them.
BASELINE = "no-filter"

#: Says that the lab's pool is there as a whole.
_DRAWN = "drawn.json"

#: Why a subset that travels to another process carries no reasons.
_UNTOLD = Verdict(problem="reasons stay with the subset's file")

#: The field of the index that says the true kind of a pair, where somebody knows it.
TRUTH = "truth"


@dataclass(frozen=True)
class Size:
    """How large a bench on the lab's world is.

    Attributes:
        pairs: of the drawn pool.
        samples: that each model sees, repeats counted; None: the scale's.
        images: of each of the lab's tasks.
    """

    pairs: int
    samples: int | None
    images: int


#: For an answer, and for a first look: docs/bench.md says how they were chosen.
FULL, QUICK = Size(10_000, None, 480), Size(2_000, 12_288, 240)

#: What recipes' scorers take in the lab's world, where the checkpoints that they name know nothing of it.
LAB_MODELS = ("scores.clip.model=lab/clip", "scores.tmars.model=lab/clip", "scores.sieve.captioner=lab/captioner")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One subset: what it keeps, and what models that are trained on it score.

    Attributes:
        name: the recipe's.
        kept: pairs that it keeps, repeats counted.
        usable: distinct ones among them that can be trained on: image and caption can be read.
        epochs: how often a training sees each of them on average.
        scores: the mean over the tasks of each seed that is done, by seed.
        score: their mean with its interval; None of fewer than two seeds.
        tasks: the same for each task.
        gain: score minus the baseline's, seed by seed; None for the baseline, or where fewer than two seeds are shared.
        kinds: of each true kind of pair how many are kept, and how many there are; empty where nobody knows.
        scoring_seconds: of all processes, that the scores it reads took, where that is known.
        training_seconds: of one training, on average; None where there is none.
    """

    name: str
    kept: int
    usable: int
    epochs: float
    scores: Mapping[int, float]
    score: Estimate | None
    tasks: Mapping[str, Estimate]
    gain: Estimate | None
    kinds: Mapping[str, tuple[int, int]]
    scoring_seconds: float | None
    training_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Subsets of one pool, compared by models trained on them.

    Attributes:
        contenders: the highest mean first; those without a result last.
        baseline: which of them `gain` is measured from.
        rows: pairs of the pool.
        training: the model and how it learned; the seed of each run is its own.
        seeds: of the runs.
        tasks: names of the tasks whose mean counts.
        overlap: of each two subsets, by name, intersection over union in [0, 1]; None of two empty ones.
        failed: runs without a result, with why.
    """

    contenders: tuple[Contender, ...]
    baseline: str
    rows: int
    training: ClipTraining
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    overlap: Mapping[str, Mapping[str, float | None]]
    failed: Mapping[str, str]

    @property
    def better(self) -> tuple[str, ...]:
        """Those whose gain over the baseline is above 0 in its whole interval."""
        return tuple(one.name for one in self.contenders if one.gain and one.gain.low > 0)

    @property
    def worse(self) -> tuple[str, ...]:
        """Those whose gain over the baseline is below 0 in its whole interval."""
        return tuple(one.name for one in self.contenders if one.gain and one.gain.high < 0)

    @property
    def unclear(self) -> tuple[str, ...]:
        """Those that these runs do not tell from the baseline."""
        return tuple(one.name for one in self.contenders if one.gain and one.gain.low <= 0 <= one.gain.high)

    def verdict(self) -> list[str]:
        """Returns what may be said, in sentences: which subsets differ from the baseline, and which do not."""
        kinds = {"better than": self.better, "worse than": self.worse, "not told from": self.unclear}
        return [f"{how} {self.baseline}: {', '.join(names)}" for how, names in kinds.items() if names]

    def rows_of_table(self) -> list[dict[str, str]]:
        """Returns the ranking as a table for people."""
        return [
            {
                "recipe": one.name,
                "kept": f"{one.kept:,}",
                "share": f"{100 * one.kept / self.rows:.1f} %",
                "epochs": f"{one.epochs:.1f}",
                "score": shown(one.score),
                f"gain over {self.baseline}": "" if one.name == self.baseline else shown(one.gain, sign=True),
                **{task: f"{one.tasks[task].value:.3f}" if task in one.tasks else "–" for task in self.tasks},
                "scoring": _seconds(one.scoring_seconds),
                "training": _seconds(one.training_seconds),
            }
            for one in self.contenders
        ]

    def rows_of_kinds(self) -> list[dict[str, str]]:
        """Returns what each subset keeps of each true kind of pair; [] where nobody knows the truth."""
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
        """Returns intersection over union of each two subsets."""
        names = [one.name for one in self.contenders]
        cells = {
            name: {other: "–" if (value := self.overlap[name][other]) is None else f"{value:.2f}" for other in names}
            for name in names
        }
        return [{"shared, of either": name, **cells[name]} for name in names]

    def facts(self) -> dict[str, Any]:
        """Returns everything as JSON takes it."""
        return {
            "kind": "tamis bench",
            "format": FORMAT,
            **asdict(self),
            "better": self.better,
            "worse": self.worse,
            "unclear": self.unclear,
        }


def lab_pool(out: Path, pairs: int, workers: int = 1) -> Path:
    """Draws the lab's pool of a bench, where it is not there yet, and returns its folder."""
    folder = out / f"pool-{pairs}"
    if not (folder / _DRAWN).is_file():
        make_pool(folder, pairs=pairs, workers=workers)
        write_json(folder / _DRAWN, {"pairs": pairs})
    return folder


@contextmanager
def bench_folder(folder: Path, read: Sequence[Path] = ()) -> Iterator[None]:
    """Holds the folder of a bench while the block runs: all that a bench writes into it is written there.

    Args:
        folder: the one.
        read: what the bench reads, of which something may lie in the folder: a run, tasks.

    Raises:
        RunError: it holds other files and no bench, and nothing is written; or another bench is at work in it.
    """
    also = ["lock", "run", "subsets", "cells", "models", "pool-*", "lab-tasks-*", "text-states", "text-states-*.npy"]
    also += inside(folder, read)
    marks = [RESULT, "scoring.json", "subsets/*.parquet", "cells/*.json"]
    check_own(folder, what="bench", marks=marks, also=also)
    with locked(folder / "cells", what="bench folder", option="--out"):  # the folder itself may be a run's
        yield


def check(training: ClipTraining, tasks: str | os.PathLike[str], only: Sequence[str], seeds: int) -> None:
    """Makes sure, before a pool is scored for a bench, that its models can be trained and its tasks are there.

    Raises:
        ValueError: there are fewer than two seeds.
        ModelError: a model is not here.
        PoolError: there are no tasks, or one is incomplete.
        RecipeError: a name in `only` is no task here.
    """
    if seeds < 2:
        raise ValueError(f"seeds must be at least 2, got {seeds}: one run says nothing of how much runs differ")
    require("scipy", extra="evaluate")  # for the intervals at the end
    pretrained(training)
    if str(tasks) != LAB:
        _counting(Path(tasks), only)


def compare(
    subsets: Sequence[Subset],
    *,
    tasks: str | os.PathLike[str],
    out: str | os.PathLike[str],
    training: ClipTraining,
    device: Device,
    seeds: int = 3,
    only: Sequence[str] = (),
    size: int = SIZE,
    workers: int = 1,
    scoring: Mapping[str, float] | None = None,
    keep_models: bool = False,
    held: bool = False,
) -> Bench:
    """Trains a model on each of several subsets with each of several seeds, and compares what they score.

    The same call again does what is missing. Everything about a run that decides its result is in the name of its
    file, so a changed subset, training or task begins its runs anew and leaves the others.

    Args:
        subsets: of one run, each under a name of its own.
        tasks: a task's folder, a folder of tasks, or "lab" for the small ones that are drawn.
        out: the folder for results.
        training: the model and how it learns; its seed is the first, seeds - 1 follow.
        device: where, in which precision; its threads are those of one run.
        seeds: runs of each subset, at least 2; three tell large differences.
        only: names of the tasks that count; all where empty.
        size: images of each of the lab's tasks, where they are drawn.
        workers: runs at a time, each in a process of its own; 1 works in this one.
        scoring: seconds that the scores of a subset took, by its name, where they are known.
        keep_models: whether the trained models stay, in `models`.
        held: whether the caller is in the block of `bench_folder` already, and has called `check` before it.

    Returns:
        The comparison, with runs that failed named in `failed`; it is written to bench.json in `out` too.

    Raises:
        RecipeError: no subset, two of one name or of different runs; a task in `only` is none.
        PoolError: there are no tasks, or one is incomplete.
        RunError: a subset has nothing to train on; the folder is in use, or holds something else; the pool is gone.
        ValueError: there are fewer than two seeds.
    """
    names = [subset.name for subset in subsets]
    if not subsets or len(set(names)) < len(names):
        twice = next((name for name in names if names.count(name) > 1), None)
        raise RecipeError(f"two subsets are called {twice!r}: give one another name" if twice else "there is no subset")
    run = subsets[0].run
    if any(subset.run.path.resolve() != run.path.resolve() for subset in subsets):
        raise RecipeError("the subsets are of different runs: choose all of them from one")
    if not held:
        check(training, tasks, only, seeds)
    folder = Path(out).expanduser()
    with nullcontext() if held else bench_folder(folder, [run.path, Path(tasks)]):
        place = make_tasks(folder / f"lab-tasks-{size}", size=size, again=False) if str(tasks) == LAB else Path(tasks)
        counting = _counting(place, only)
        numbers = tuple(range(training.seed, training.seed + seeds))
        cells = {
            (subset.name, seed): _cell(
                subset, replace(training, seed=seed), place, counting, device, folder, keep_models
            )
            for seed in numbers  # seed by seed: a bench that is stopped early has every subset
            for subset in subsets
        }
        if any(not cell.path.is_file() for cell in cells.values()):
            states = shared_text_states(run, training, device, folder)
            at_a_time = max(1, min(workers, len(cells)))
            cells = {key: replace(cell, text_states=states, at_a_time=at_a_time) for key, cell in cells.items()}
        problems = carry_out_all(cells.values(), workers)
        results = {key: result_of(cell.path) for key, cell in cells.items() if cell.path.is_file()}
        failed = {cell.name: problems[cell.ident] for cell in cells.values() if cell.ident in problems}
        found = summed_up(subsets, results, training, numbers, [task.name for task in counting], failed, scoring or {})
        write_json(folder / RESULT, with_hash(found.facts()))
    return found


def _counting(place: Path, only: Sequence[str]) -> list[Task]:
    """Returns the tasks whose mean counts."""
    found, _ = find_tasks(place)
    known = {task.name: task for task in found}
    for name in only:
        if name not in known:
            raise RecipeError(unknown("task", name, known))
    chosen = [task for task in found if not only or task.name in only]
    if not chosen:
        raise PoolError(f"there is no task at {place}")
    return chosen


def _cell(
    subset: Subset, training: ClipTraining, place: Path, tasks: Sequence[Task], device: Device, folder: Path, keep: bool
) -> Cell:
    return Cell(
        name=f"{subset.name}, seed {training.seed}",
        subset=replace(subset, funnel=(), verdict=_UNTOLD),
        training=training,
        tasks=place,
        only=tuple(task.name for task in tasks),
        device=device,
        folder=folder,
        ident=identity(subset, training, tasks, device.precision),
        keep_model=keep,
    )


def summed_up(
    subsets: Sequence[Subset],
    results: Mapping[tuple[str, int], CellResult],
    training: ClipTraining,
    seeds: Sequence[int],
    tasks: Sequence[str],
    failed: Mapping[str, str],
    scoring: Mapping[str, float],
) -> Bench:
    """Returns the comparison of subsets from the results of their runs, by (name, seed).

    Args:
        subsets: of one run.
        results: of the runs that are done.
        training: of all of them.
        seeds: of the runs.
        tasks: names of the tasks.
        failed: runs without a result, with why.
        scoring: seconds that the scores of a subset took.
    """
    run = subsets[0].run
    names = [subset.name for subset in subsets]
    baseline = BASELINE if BASELINE in names else names[0]
    truth = truth_of(run)
    done = {
        name: {seed: results[name, seed] for seed in seeds if (name, seed) in results} for name in names
    }  # by name, then by seed
    contenders = []
    for subset in subsets:
        mine = done[subset.name]
        rows, _ = training_rows(subset)
        contenders.append(
            Contender(
                name=subset.name,
                kept=len(subset),
                usable=int(rows.rows.size),
                epochs=training.steps * training.batch / rows.epoch_size,
                scores={seed: one.score for seed, one in mine.items()},
                score=_mean([one.score for one in mine.values()]),
                tasks={task: told for task in tasks if (told := _mean([one.scores[task] for one in mine.values()]))},
                gain=None if subset.name == baseline else gain(mine, done[baseline]),
                kinds=shares_of_kinds(subset, truth),
                scoring_seconds=scoring.get(subset.name),
                training_seconds=sum(one.training_seconds for one in mine.values()) / len(mine) if mine else None,
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
        overlap={one: {other: _number(alike[i, j]) for j, other in enumerate(names)} for i, one in enumerate(names)},
        failed=dict(failed),
    )


def gain(mine: Mapping[int, CellResult], theirs: Mapping[int, CellResult]) -> Estimate | None:
    """Returns the mean difference between runs of one seed, with its interval; None of fewer than two."""
    return _mean([mine[seed].score - theirs[seed].score for seed in mine if seed in theirs])


def truth_of(run: Run) -> NDArray[np.object_] | None:
    """Returns the true kind of every row, None where it is unknown; None where the run does not carry the field."""
    if TRUTH not in run.columns:
        return None
    table = run.table()
    words = [table.read(block, [TRUTH])[TRUTH].cast("string") for block in range(len(run.shards))]
    found = np.concatenate([column.to_numpy(zero_copy_only=False) for column in words])
    return found if any(pc.count(column).as_py() for column in words) else None


def shares_of_kinds(subset: Subset, truth: NDArray[np.object_] | None) -> dict[str, tuple[int, int]]:
    """Returns of each true kind how many distinct pairs a subset keeps, and how many there are."""
    if truth is None:
        return {}
    kinds = sorted({kind for kind in truth if kind is not None})
    return {kind: (int(((truth == kind) & subset.keep).sum()), int((truth == kind).sum())) for kind in kinds}


def shown(value: Estimate | None, *, sign: bool = False) -> str:
    """Returns a number with its interval for people."""
    if value is None:
        return "–"
    form = "+.3f" if sign else ".3f"
    return f"{value.value:{form}} [{value.low:{form}}, {value.high:{form}}]"


def _mean(values: Sequence[float]) -> Estimate | None:
    return mean(values) if len(values) > 1 else None


def _number(value: float) -> float | None:
    return None if value != value else float(value)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} s"
