"""The cells of a bench. Each trains a model on one subset with one seed and evaluates it.

A cell's result is a JSON file named with a fingerprint of everything that affects it: pairs with their multiplicity,
training with its seed, tasks, precision. So subsets of the same pairs share cells, and the same command resumes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tamis.core.errors import DiskFullError, StopError, TamisError
from tamis.core.files.checked import read_record, write_record
from tamis.core.files.remote import known_secrets, take_secrets
from tamis.core.ids import fingerprint
from tamis.core.processes import die_with_parent
from tamis.core.types import Device
from tamis.models.device import use_threads
from tamis.runs.reasons import Verdict
from tamis.runs.run import Run
from tamis.runs.subset import OtherCaptions, Subset
from tamis.train.clip import pool_reading_settings, train_clip, training_rows
from tamis.train.evaluate.captions import caption_tasks, evaluate_captions
from tamis.train.evaluate.tasks import ZeroShotTask, find_tasks
from tamis.train.evaluate.zero_shot import evaluate_zero_shot
from tamis.train.scales import CaptionTraining, ClipTraining, Training
from tamis.train.step import MOST_STATES, How, write_text_states
from tamis.train.towers import build, digests, needs_tokenizer

log = logging.getLogger(__name__)

#: Increase it when the same cell would give another result.
VERSION = 4


#: Replaces a subset's reasons before it is sent to another process.
_NO_REASONS = Verdict(problem="reasons stay with the subset's file")

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training with its evaluation."""

    name: str  # for messages: recipe and seed
    subset: Subset
    training: Training  # with its seed
    tasks: Path  # their folder
    only: tuple[str, ...]  # names of the tasks that count
    device: Device
    folder: Path  # the bench's, with results in `cells` and models in `models`
    ident: str  # see `identity`
    text_states: Path | None = None  # see `shared_text_states`
    keep_model: bool = False
    at_a_time: int = 1  # number of cells that train on this machine at once

    @property
    def path(self) -> Path:
        """The result's file."""
        return self.folder / "cells" / f"{self.ident}.json"


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The part of a cell's result that is compared."""

    scores: Mapping[str, float]  # {task: score}
    #: {task: mean log-probability of the right answers}, see `core.math.likelihood`; {} of a captioner
    likelihoods: Mapping[str, float]
    samples: int  # that the model saw
    training_seconds: float  # including earlier calls
    evaluation_seconds: float

    @property
    def score(self) -> float:
        """The mean over the tasks."""
        return sum(self.scores.values()) / len(self.scores)

    @property
    def likelihood(self) -> float:
        """The mean over the tasks of the log-likelihoods, in nats."""
        return sum(self.likelihoods.values()) / len(self.likelihoods)


def identity(subset: Subset, training: Training, tasks: Sequence[ZeroShotTask], precision: str) -> str:
    """The fingerprint of everything that affects a cell's result."""
    rows, _ = training_rows(subset)
    settings = pool_reading_settings(subset.run)
    return fingerprint(
        {
            "version": VERSION,
            "pairs": rows.digest,
            "training": asdict(training),
            "weights": digests(training),
            "tasks": {task.name: task.digest for task in tasks},
            "precision": precision,
            **({"pool": settings} if settings else {}),
        }
    )


def shared_text_states(run: Run, training: Training, device: Device, folder: Path) -> Path | None:
    """Returns the file with a frozen text tower's states of all captions of a run; computes it if it is missing.

    All cells with alt-texts need the same states, and computing them takes a quarter of the time of a small training.
    """
    if (
        not isinstance(training, ClipTraining)
        or not training.freeze_text
        or needs_tokenizer(training)
        or len(run) > MOST_STATES
    ):
        return None
    what = {
        "weights": digests(training),
        "stamps": run.stamps,
        "shards": run.shards,
        "uids": [facts.uids for facts in run.footers],
        "caption": run.facts["pool"].get("caption"),
    }
    # In its own folder: the file stores its folder's name, and the bench's folder may be renamed.
    path = folder / "text-states" / f"{fingerprint(what)}.npy"
    if not path.is_file():
        use_threads(device)
        towers = build(training)
        towers.model.to(device.kind)
        write_text_states(run, np.arange(len(run)), OtherCaptions(), towers, device.batch_size, path)
    return path


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Trains and evaluates cells: what the cells of a bench have in common."""

    tasks: Path  # their folder
    counted: Sequence[ZeroShotTask]  # that models are measured on
    device: Device
    folder: Path  # the bench's
    workers: int
    keep_models: bool = False

    def identity(self, subset: Subset, training: Training) -> str:
        """The fingerprint of a cell; see `identity`."""
        return identity(subset, training, self.counted, self.device.precision)

    def train(self, wanted: Mapping[Key, tuple[Subset, Training]]) -> tuple[dict[Key, CellResult], dict[Key, str]]:
        """Trains a model on each subset, as each training says, in the order of the mapping, unless that is done.

        Returns the results, and why those that are missing failed. Subsets of the same pairs share a cell.
        """
        cells = {
            key: Cell(
                name=f"{subset.name}, seed {training.seed}",
                subset=replace(subset, funnel=(), verdict=_NO_REASONS),
                training=training,
                tasks=self.tasks,
                only=tuple(task.name for task in self.counted),
                device=self.device,
                folder=self.folder,
                ident=self.identity(subset, training),
                keep_model=self.keep_models,
                at_a_time=max(1, min(self.workers, len(wanted))),
            )
            for key, (subset, training) in wanted.items()
        }
        if waiting := [cell for cell in cells.values() if not cell.path.is_file()]:
            states = shared_text_states(waiting[0].subset.run, waiting[0].training, self.device, self.folder)
            alt = {key: cell for key, cell in cells.items() if cell.subset.caption is None}
            cells |= {key: replace(cell, text_states=states) for key, cell in alt.items()}
        problems = execute_all(cells.values(), self.workers)
        results = {key: result_of(cell.path) for key, cell in cells.items() if cell.path.is_file()}
        return results, {key: problems[cell.ident] for key, cell in cells.items() if cell.ident in problems}


def result_of(path: Path) -> CellResult:
    """Reads a cell's result."""
    facts = read_record(path, "delete it and repeat `tamis bench`")
    return CellResult(**{name: facts[name] for name in CellResult.__dataclass_fields__})


def execute(cell: Cell) -> None:
    """Trains the cell's model (or resumes), evaluates it, and writes the result."""
    folder = cell.folder / "models" / cell.ident
    how = How(
        device=cell.device, threads=min(2, cell.device.threads or 2), text_states=cell.text_states,
        trainings=cell.at_a_time,
    )  # fmt: skip
    trained = train_clip(cell.subset, out=folder, training=cell.training, how=how)
    start = time.perf_counter()
    scores, likelihoods = _scores(cell, str(folder))
    facts = {
        "name": cell.name, "seed": cell.training.seed, "samples": trained.samples, "pairs": trained.pairs,
        "unreadable": trained.unreadable, "training_seconds": round(trained.seconds, 2),
        "evaluation_seconds": round(time.perf_counter() - start, 2), "scores": scores,
        "likelihoods": likelihoods, "training": asdict(cell.training),
    }  # fmt: skip
    write_record(cell.path, facts)
    if not cell.keep_model:
        shutil.rmtree(folder, ignore_errors=True)


def _scores(cell: Cell, model: str) -> tuple[dict[str, float], dict[str, float]]:
    """Returns {task: score} of a trained model, CIDEr of a captioner, else each task's own metric; and likelihoods."""
    device = replace(cell.device, precision="float32")  # as DataComp evaluates
    if isinstance(cell.training, CaptionTraining):
        captioned = evaluate_captions(model, cell.tasks, device, only=cell.only, metrics=["CIDEr"])
        return {one.task: one.metrics["CIDEr"] for one in captioned}, {}
    shared = None
    if isinstance(cell.training, ClipTraining) and cell.training.freeze_text and cell.training.text:
        shared = cell.folder / "text-states" / fingerprint({"weights": digests(cell.training)})
    evaluated = evaluate_zero_shot(model, cell.tasks, device, only=cell.only, text_states=shared)
    scores = {one.task: one.score for one in evaluated.results if one.score is not None}
    if evaluated.failed or len(scores) < len(evaluated.results):
        why = "; ".join(f"{name}: {reason}" for name, reason in evaluated.failed.items()) or "a task has no score"
        raise StopError(f"it could not be evaluated: {why}")
    return scores, {one.task: one.log_likelihood for one in evaluated.results}


def counted_tasks(training: Training, tasks: str | os.PathLike[str], only: Sequence[str]) -> list[ZeroShotTask]:
    """Returns the tasks that a trained model is measured on; a captioner takes those with captions."""
    return caption_tasks(tasks, only) if isinstance(training, CaptionTraining) else find_tasks(tasks, only=only)[0]


def execute_all(cells: Iterable[Cell], workers: int) -> dict[str, str]:
    """Executes cells without a result, with several workers each in its own process; returns {ident: error}."""
    waiting = list({cell.ident: cell for cell in cells if not cell.path.is_file()}.values())
    started: list[BaseProcess] = []
    failed: dict[str, str] = {}
    threads = ThreadPoolExecutor(workers)
    alone = workers == 1
    errors = map(_execute_here, waiting) if alone else threads.map(partial(_execute_in_process, started), waiting)
    try:
        for number, (cell, error) in enumerate(zip(waiting, errors, strict=True), 1):
            if isinstance(error, DiskFullError):
                raise error
            if error is not None:
                failed[cell.ident] = str(error)
                log.warning("%d of %d: %s: failed: %s", number, len(waiting), cell.name, error)
            else:
                log.info("%d of %d: %s: %.4f", number, len(waiting), cell.name, result_of(cell.path).score)
    finally:
        for process in started:
            process.terminate()
        threads.shutdown(cancel_futures=True)
    return failed


def _execute_here(cell: Cell) -> Exception | None:
    """Executes a cell and returns its error, None if it succeeded."""
    try:
        execute(cell)
    except (TamisError, ValueError) as error:
        return error
    except Exception as error:
        log.debug("traceback:", exc_info=error)
        return StopError(f"{type(error).__name__}: {error}")
    return None


def _execute_in_process(started: list[BaseProcess], cell: Cell) -> Exception | None:
    context = multiprocessing.get_context("spawn")  # fork and torch's threads do not mix
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(there, cell, known_secrets()), daemon=True)
    process.start()
    started.append(process)
    there.close()
    try:
        error: Exception | None = here.recv()
    except EOFError:
        process.join()
        error = StopError(f"its process died (exit code {process.exitcode}); -9 is too little memory: fewer --workers")
    process.join()
    return error


def _work(pipe: Any, cell: Cell, hidden: Mapping[str, str]) -> None:
    """Executes one cell in a process that ends with its parent."""
    die_with_parent()
    take_secrets(hidden)
    try:
        pipe.send(_execute_here(cell))
    except KeyboardInterrupt:
        os._exit(130)
