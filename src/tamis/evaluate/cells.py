"""The cells of a bench: a model trained on one subset with one seed, and what it scores.

A cell's result is a JSON file named for what decides it: the pairs with their multiplicity, the training with its seed,
the tasks, the precision. Subsets of the same pairs share their cells, and the same command goes on where it stopped.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tamis.data import Device
from tamis.errors import DiskFullError, StopError, TamisError
from tamis.evaluate.tasks import Task
from tamis.evaluate.zero_shot import evaluate_zero_shot
from tamis.fingerprint import fingerprint
from tamis.models.device import use_threads
from tamis.processes import die_with
from tamis.remote import remember, secrets
from tamis.storage import write_json
from tamis.store.records import CellFile, read_result, with_hash
from tamis.store.run import Run
from tamis.store.stream import pool_of
from tamis.store.subset import Subset
from tamis.train.clip import read_as, train_clip, training_rows
from tamis.train.scales import ClipTraining
from tamis.train.step import How, write_text_states
from tamis.train.towers import build, needs_tokenizer, pretrained

log = logging.getLogger(__name__)

#: Raised when the same cell would come out otherwise.
VERSION = 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training to be done and evaluated.

    Attributes:
        name: for messages: recipe and seed.
        subset: the pairs.
        training: the model and how it learns, its seed among it.
        tasks: the folder of tasks.
        only: names of the tasks that count.
        device: where, in which precision, with how many threads.
        folder: of the bench; results lie in `cells`, models in `models`.
        ident: the fingerprint of what decides the result.
        text_states: what a frozen text tower makes of the run's captions; None where each training computes it.
        keep_model: whether the model stays after it is evaluated.
        at_a_time: cells that are trained on this machine at a time.
    """

    name: str
    subset: Subset
    training: ClipTraining
    tasks: Path
    only: tuple[str, ...]
    device: Device
    folder: Path
    ident: str
    text_states: Path | None = None
    keep_model: bool = False
    at_a_time: int = 1

    @property
    def path(self) -> Path:
        """The result's file."""
        return self.folder / "cells" / f"{self.ident}.json"


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What came of a cell.

    Attributes:
        seed: of first weights, order and crops.
        samples: pairs seen, repeats counted.
        pairs: distinct pairs that it trained on.
        unreadable: samples that were to be seen and could not be decoded.
        training_seconds, evaluation_seconds: what the training's steps, of all its calls, and the tasks took, whatever
            ran beside them.
        scores: of each task.
    """

    seed: int
    samples: int
    pairs: int
    unreadable: int
    training_seconds: float
    evaluation_seconds: float
    scores: Mapping[str, float]

    @property
    def score(self) -> float:
        """The mean over the tasks."""
        return sum(self.scores.values()) / len(self.scores)


def identity(subset: Subset, training: ClipTraining, tasks: Sequence[Task], precision: str) -> str:
    """Returns the fingerprint of what decides a cell's result: where the files lie and how it is called do not.

    Raises:
        RunError: the subset has no pair to train on.
        ModelError: a model of the training is not here.
    """
    rows, _ = training_rows(subset)
    pairs = xxhash.xxh3_128()
    for part in (rows.high, rows.low, rows.times):
        pairs.update(np.ascontiguousarray(part).tobytes())
    what = {
        "version": VERSION,
        "pairs": pairs.hexdigest(),
        "training": asdict(training),
        "weights": pretrained(training),
        "tasks": {task.name: task.digest for task in tasks},
        "precision": precision,
    }
    # Left out where all is as usual: so results of before this was noted keep their names.
    settings = read_as(subset.run)
    return fingerprint(what | {"pool": settings} if settings else what)


def shared_text_states(run: Run, training: ClipTraining, device: Device, folder: Path) -> Path | None:
    """Returns the file of what a frozen text tower makes of a run's captions, which it computes where it is not there.

    All cells read the same captions with the same tower: a quarter of a small training's time.
    """
    if not training.freeze_text or needs_tokenizer(training):
        return None
    what = {
        "weights": pretrained(training),
        "stamps": run.stamps,
        "shards": run.shards,
        "uids": run.uids,
        "caption": run.facts["pool"].get("caption"),
    }
    # A folder of its own: what stands behind the array tells the folder's name, and that of a bench may change.
    path = folder / "text-states" / f"{fingerprint(what)}.npy"
    if not path.is_file():
        use_threads(device)
        towers = build(training)
        towers.model.to(device.kind)
        if not write_text_states(run, np.arange(len(run)), towers, device.batch_size, path):
            return None
    return path


def result_of(path: Path) -> CellResult:
    """Reads a cell's result.

    Raises:
        DamageError: it is not what was written.
    """
    facts = read_result(path, CellFile, of="a cell", command="`tamis bench`")
    return CellResult(**{name: facts[name] for name in CellResult.__dataclass_fields__})


def carry_out(cell: Cell) -> None:
    """Trains the cell's model, evaluates it, and writes the result; a training that stopped goes on.

    Raises:
        StopError: the training or a task failed; the message says why.
    """
    folder = cell.folder / "models" / cell.ident
    how = How(
        device=cell.device, threads=min(2, cell.device.threads or 2), text_states=cell.text_states,
        trainings=cell.at_a_time,
    )  # fmt: skip
    trained = train_clip(cell.subset, pool=pool_of(cell.subset.run), out=folder, training=cell.training, how=how)
    start = time.perf_counter()
    # As DataComp evaluates, whatever the training's precision was.
    exact = replace(cell.device, precision="float32")
    found = evaluate_zero_shot(str(folder), cell.tasks, exact, only=cell.only)
    scores = {one.task: one.score for one in found.results if one.score is not None}
    if found.failed or len(scores) < len(found.results):
        told = "; ".join(f"{name}: {why}" for name, why in found.failed.items()) or "a task has no score"
        raise StopError(f"it could not be evaluated: {told}")
    result = CellResult(
        seed=cell.training.seed,
        samples=trained.samples,
        pairs=trained.pairs,
        unreadable=trained.unreadable,
        training_seconds=round(trained.seconds, 2),
        evaluation_seconds=round(time.perf_counter() - start, 2),
        scores=scores,
    )
    write_json(cell.path, with_hash({"name": cell.name, **asdict(result), "training": asdict(cell.training)}))
    if not cell.keep_model:
        shutil.rmtree(folder, ignore_errors=True)


def carry_out_all(cells: Iterable[Cell], workers: int) -> dict[str, str]:
    """Carries out every cell that has no result yet, some at a time, each in a process of its own.

    Args:
        cells: those of the same pairs and training are done once.
        workers: processes; 1 works in this one.

    Returns:
        What went wrong with cells that have no result now, by their fingerprint.

    Raises:
        DiskFullError: no space is left: the others would fail like it.
    """
    waiting = deque({cell.ident: cell for cell in cells if not cell.path.is_file()}.values())
    failed: dict[str, str] = {}
    told = _Telling(len(waiting))
    if workers == 1:
        for cell in waiting:
            try:
                carry_out(cell)
            except DiskFullError:
                raise
            except Exception as error:
                log.debug("where it happened:", exc_info=error)
                failed[cell.ident] = _sentence(error)
            told(cell, failed.get(cell.ident))
        return failed
    _in_processes(waiting, workers, failed, told)
    return failed


class _Telling:
    """Says of each cell that is through how it went."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, cell: Cell, problem: str | None) -> None:
        self._done += 1
        what = f"failed: {problem}" if problem else f"{result_of(cell.path).score:.4f}"
        level = logging.WARNING if problem else logging.INFO
        log.log(level, "%d of %d: %s: %s", self._done, self._total, cell.name, what)


@dataclass
class _AtWork:
    cell: Cell
    process: multiprocessing.process.BaseProcess
    pipe: multiprocessing.connection.Connection


def _in_processes(
    waiting: deque[Cell], workers: int, failed: dict[str, str], told: Callable[[Cell, str | None], None]
) -> None:
    context = multiprocessing.get_context("spawn")  # fork and threads of torch do not mix
    busy: dict[int, _AtWork] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                cell = waiting.popleft()
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(there, cell, os.getpid(), secrets()), daemon=True)
                process.start()
                there.close()
                busy[process.sentinel] = _AtWork(cell, process, here)
            for sentinel in multiprocessing.connection.wait(list(busy)):
                done = busy.pop(sentinel)  # type: ignore[arg-type]  # we gave it numbers only
                problem = _how_it_ended(done)
                if problem is not None:
                    failed[done.cell.ident] = problem
                told(done.cell, problem)
    finally:
        for one in busy.values():
            one.process.terminate()
            one.process.join(timeout=5)


def _how_it_ended(done: _AtWork) -> str | None:
    """Returns what went wrong with a cell whose process has ended; None where it has its result."""
    done.process.join()
    try:
        said: Any = done.pipe.recv() if done.pipe.poll() else None
    except (EOFError, OSError):
        said = None
    done.pipe.close()
    if isinstance(said, DiskFullError):
        raise said
    if said is not None:
        return _sentence(said)
    if done.cell.path.is_file():
        return None
    code = done.process.exitcode or 0
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    hint = "; signal 9 is usually the system running out of memory: use fewer --workers" if code == -9 else ""
    if code == 1:
        hint = "; a script that calls this with workers > 1 needs the call under `if __name__ == '__main__':`"
    return f"its process died ({how}){hint}"


def _work(pipe: multiprocessing.connection.Connection, cell: Cell, parent: int, hidden: Mapping[str, str]) -> None:
    """What a process does: one cell, or as much of it as its parent lives to see."""
    die_with(parent)
    remember(hidden)
    try:
        carry_out(cell)
    except KeyboardInterrupt:
        os._exit(130)
    except TamisError as error:
        pipe.send(error)
    except Exception as error:
        pipe.send(StopError(_sentence(error)))


def _sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, TamisError | ValueError) else f"{type(error).__name__}: {error}"
