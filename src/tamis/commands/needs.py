"""What choosing by a recipe takes of this machine, before it starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tamis.core.files.scratch import IN_MEMORY
from tamis.recipes.steps.outcome import describe
from tamis.runs.table import Table


@dataclass(frozen=True)
class Needs:
    """What a step takes, at the most: as if no step before it dropped a row.

    Attributes:
        step: its description.
        passes: how often it reads columns of words or numbers, or uids.
        readings: how often it reads embeddings.
        memory, scratch: bytes in memory beyond those of every choice, and in temporary files.
        seconds: expected time on this machine.
    """

    step: str
    passes: int
    readings: int
    memory: float
    scratch: float
    seconds: float


@dataclass(frozen=True)
class _Work:
    """As `Needs`: bytes per row of each array (in a file if it is large), other bytes, multiplications, and
    microseconds per row of one core, with embeddings of 64 numbers.
    """

    passes: int = 1
    readings: int = 0
    arrays: tuple[float, ...] = ()
    held: float = 0
    products: float = 0
    micros: float = 0.05


#: What of `regroup` is in memory: groups as they are read, and sorted.
_BUCKETS = 3 * 2**27


def _clusters(step: Any, rows: int, width: int) -> tuple[int, _Work]:
    """Returns the number of clusters, and what k-means takes."""
    from tamis.recipes.steps.clusters import trained_on, usual_count  # with other steps' packages

    count = min(step.clusters or usual_count(rows), max(rows, 1))
    sample = min(trained_on(count), rows)
    products = (20 * sample + rows) * count * width
    return count, _Work(1, 3, (1, 4, 4), 6 * sample * width, products, 1.0)


def _semdedup(step: Any, rows: int, width: int) -> _Work:
    count, found = _clusters(step, rows, width)
    inside = rows / count * width
    arrays = (*found.arrays, 28 + 2 * width, 28, 1)
    return _Work(2, 4, arrays, found.held + 6 * inside + _BUCKETS, found.products + rows * inside / 2, 3)


def _d2(step: Any, rows: int, width: int) -> _Work:
    count, found = _clusters(step, rows, width)
    inside = rows / count
    arrays = (*found.arrays, 1, 36 + 2 * width, 24, 1)
    held, products = found.held + 6 * inside * width + _BUCKETS, found.products + rows * inside * width
    return _Work(3, 4, arrays, held, products, 6 + 2 * step.k + 0.015 * inside * step.k)  # the nearest of a cluster


def _density(step: Any, rows: int, width: int) -> _Work:
    count, found = _clusters(step, rows, width)
    return _Work(7, 3, found.arrays, found.held + 2**27, found.products + count * count * width, 1.5)


def _image_based(step: Any, rows: int, width: int) -> _Work:
    return _clusters(step, rows, width)[1]


def _clipcov(step: Any, rows: int, width: int) -> _Work:
    levels = max(len(str(rows)) - 4, 1)  # samples of samples, from which the floor of gains is estimated
    chosen = _BUCKETS + 200.0 * min(step.n or round((step.fraction or 0) * rows), rows)
    return _Work(1, 4 + levels, (4, 28 + 4 * width, 1), chosen, 0, 10 * width / 64)


def _sample(step: Any, rows: int, width: int) -> _Work:
    passes, copies = 2 + 2 * step.epochs, step.n or round(step.fraction * rows)
    order = step.epochs * (2 * rows + 8 * copies) if step.epochs > 1 else 0
    return _Work(passes, 0, (8, 24 + 2 * step.epochs), 2 * rows + order, 0, passes / 4)


#: By the name of a step; others look at columns once. Microseconds: `python -m benchmarks.steps`.
_WORK: dict[str, Callable[[Any, int, int], _Work]] = {
    "semdedup": _semdedup,
    "d2": _d2,
    "density": _density,
    "image_based": _image_based,
    "clipcov": _clipcov,
    "norm_sim_d": lambda step, rows, width: _Work(1, 3, (), rows * (2 * width + 26), 2 * rows * width**2, 8),
    "not_in": lambda step, rows, width: _Work(1, 1, (1,), 0, 0, 12),
    "distinct": lambda step, rows, width: _Work(3, 0, (1024,), 2**28 + 350 * rows, 0, 50),
    "cabs": lambda step, rows, width: _Work(1, 0, (), 200 * rows, 0, 7 + 16 * step.epochs),
    "balance": lambda step, rows, width: _Work(3, 0, (2,), 2**28, 0, 3.6),
    "sample": _sample,
    "choose_caption": lambda step, rows, width: _Work(3, 0, (2,), rows, 0, 0.3),
    "random_fraction": lambda step, rows, width: _Work(3, 0, (), 0, 0, 0.1),
    "top_n": lambda step, rows, width: _Work(3 if step.per is None else 5, 0, (), 2**27, 0, 0.3),
    "top_fraction": lambda step, rows, width: _Work(3 if step.per is None else 5, 0, (), 2**27, 0, 0.3),
}


def needs_of(table: Table, steps: Iterable[Any]) -> list[Needs]:
    """Returns what each step needs on this machine, those inside groups first."""
    rate = _rate()
    return [needs for step in steps for needs in _of(step, table, rate)]


def space_for(table: Table, steps: Iterable[Any]) -> float:
    """Returns how many bytes of temporary files the steps need at most at once."""
    return max((needs.scratch for step in steps for needs in _of(step, table, 1.0)), default=0.0)


def _of(step: Any, table: Table, rate: float) -> list[Needs]:
    parts = [needs for part in getattr(step, "parts", ()) for one in part for needs in _of(one, table, rate)]
    rows = len(table)
    names = [name for name in sorted(step.reads) if table.kind(name) == "vector"] if not parts else []
    width = max((table.vectors(name, np.empty(0, np.int64)).shape[1] for name in names), default=0)
    work = _WORK[step.name](step, rows, width) if step.name in _WORK else _Work()
    codes = 2 * rows if rows > IN_MEMORY else 0  # why each row was dropped
    files = codes + sum(rows * each for each in work.arrays if rows * each > IN_MEMORY)
    held = work.held + sum(rows * each for each in work.arrays if rows * each <= IN_MEMORY)
    seconds = rows * work.micros * 1e-6 * max(width / 64, 1) + 2 * work.products / rate
    return [*parts, Needs(describe(step), work.passes, work.readings, held, files, seconds)]


def _rate() -> float:
    """Returns how many multiplications and additions of float32 this machine does per second, in products."""
    some = np.ones((1024, 1024), np.float32)
    some @ some
    start = time.perf_counter()
    for _ in range(4):
        some @ some
    return 8 * 1024**3 / (time.perf_counter() - start)
