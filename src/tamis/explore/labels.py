"""Labels (good or bad) given by a person: stored as a column of the run, which recipes read as `label`."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tamis import __version__
from tamis.arrays import Float32s, Float64s, Mask
from tamis.data import Column
from tamis.errors import RecipeError, RunError
from tamis.explore.columns import HeldRun
from tamis.ids import fingerprint
from tamis.math.statistics import share_interval
from tamis.store import manifest, parts
from tamis.store.claims import check_same_rows, held, locked

#: What recipes call the column, and its values.
LABEL = "label"
GOOD, BAD = 1.0, 0.0

COLUMN = Column(name=LABEL, unit="1 good, 0 bad", better="high", about="what a person said of the pair")

_FACTS: dict[str, Any] = {"name": LABEL, "version": 1, "settings": {}}


class Labels:
    """The labels of a run: read once, written to the shard's file when one is set; `version` counts changes.

    `values`: (rows,) 1 good, 0 bad, NaN unlabelled. Several explorers may label one run, so a shard's labels are read
    again before one is added. Labels belong to row numbers, so setting one fails if the shard's rows have changed.
    """

    def __init__(self, run: HeldRun) -> None:
        self._run = run
        self._folder = f"label-{fingerprint(_FACTS)}"
        group = run.scores.get(LABEL)
        if group is not None and group.folder.name != self._folder:
            raise RunError(f"{run.path} has another score that is called {LABEL!r}, so pairs cannot be labelled")
        self.values: Float32s = np.full(len(run), np.nan, np.float32)
        self.version = 0
        self._lock = threading.Lock()
        self._undo: list[tuple[int, float]] = []  # rows labelled here, with their values before
        for shard, place in run.row_ranges.items():
            if group is not None and shard in group.shards:
                self.values[place] = self._read(shard)

    def _path(self, shard: str) -> Path:
        return self._run.path / "scores" / self._folder / f"{shard}.parquet"

    def _read(self, shard: str) -> Float32s:
        column = parts.read_columns(self._path(shard), [LABEL], self._run.owner(shard)).column(LABEL)
        return np.array(parts.numbers(column), np.float32)

    def count(self, among: Mask | None = None) -> dict[str, int]:
        """Returns the number of good and of bad rows, in a mask or in all."""
        values = self.values if among is None else self.values[among]
        return {"good": int(np.count_nonzero(values == GOOD)), "bad": int(np.count_nonzero(values == BAD))}

    def set(self, row: int, value: float | None) -> float:
        """Labels a row, or removes its label with None; returns the value on disk before, NaN if none.

        RunError, with nothing set: another command is writing, the run is gone or has other rows, or the disk is full.
        """
        with self._lock:
            before = self._set(row, value)
            if self.values[row] != before and not (value is None and np.isnan(before)):
                self._undo.append((row, before))
        return before

    @property
    def last(self) -> int | None:
        """The row that `undo` changes next; None if no label was set here."""
        return self._undo[-1][0] if self._undo else None

    def undo(self) -> int:
        """Undoes the last change made here, and returns its row."""
        with self._lock:
            if not self._undo:
                raise RecipeError("there is no label to take back: none was set since the page was opened")
            row, before = self._undo[-1]
            self._set(row, None if np.isnan(before) else before)
            self._undo.pop()
        return row

    def _set(self, row: int, value: float | None) -> float:
        if not (self._run.path / "run.json").is_file():  # else we would create a folder where the run was
            raise RunError(f"{self._run.path} is gone: open the run again where it is now")
        shard, place = next(each for each in self._run.row_ranges.items() if row < each[1].stop)
        with locked(self._run.path, doing="writes a label"):
            # A column needs a part for every shard.
            missing = {other for other in self._run.shards if not self._path(other).is_file()}
            check_same_rows(self._run, {shard, *missing})
            if not (self._run.path / "scores" / self._folder / "signal.json").is_file():
                facts = {**_FACTS, "label": LABEL, "tamis": __version__, "columns": [dataclasses.asdict(COLUMN)]}
                manifest.describe(self._run.path, {f"scores/{self._folder}": facts})
            for other in sorted(missing - {shard}):
                with held(self._run, other) as uids:
                    self._write(other, self.values[self._run.row_ranges[other]], uids)
            with held(self._run, shard) as uids:
                here = self._read(shard) if self._path(shard).is_file() else self.values[place].copy()
                before = float(here[row - place.start])
                here[row - place.start] = np.nan if value is None else value
                self._write(shard, here, uids)
            self.values[place] = here
            self.version += 1
        self._run.forget(self._folder)
        return before

    def _write(self, shard: str, values: Float32s, uids: str) -> None:
        reasons = [None if there else "not labelled" for there in np.isfinite(values).tolist()]
        parts.write_scores(self._path(shard), [COLUMN], {LABEL: values}, reasons, uids=uids)


def kept_shares(labels: Labels, keep: Mask) -> dict[str, Any]:
    """Returns the share of the good and of the bad pairs that a subset keeps, with its 95 % interval."""
    kept, found = labels.count(keep), {}
    for kind, n in labels.count().items():
        estimate = share_interval(kept[kind], n) if n else None
        interval = estimate and [estimate.value, estimate.low, estimate.high]
        found[kind] = {"kept": kept[kind], "of": n, "share": interval}
    return found


def best_threshold(values: Float32s, labels: Float32s, *, draws: int = 200, seed: int = 0) -> dict[str, Any] | None:
    """Returns the threshold that maximises the share of good pairs kept minus the share of bad pairs kept (Youden's J).

    `low` and `high`: 95 % bootstrap interval (percentiles of `draws` resamples); `n`: labelled pairs with a score. None
    if fewer than two good or two bad pairs have a score, or all scores are equal.

    Source: Youden 1950, "Index for rating diagnostic tests"; Efron and Tibshirani 1993, section 13.3.
    """
    there = np.isfinite(values) & np.isfinite(labels)
    score, good = values[there].astype(np.float64), labels[there] == GOOD
    if min(np.count_nonzero(good), np.count_nonzero(~good)) < 2 or score.min() == score.max():
        return None
    upwards, downwards = _youden(score, good), _youden(-score, good)
    sign = 1.0 if upwards[1] >= downwards[1] else -1.0
    value = sign * (upwards if sign > 0 else downwards)[0]
    random = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        drawn = random.integers(0, score.size, score.size)
        if 0 < np.count_nonzero(good[drawn]) < drawn.size:
            found.append(sign * _youden(sign * score[drawn], good[drawn])[0])
    low, high = np.quantile(found, [0.025, 0.975]).tolist()
    keep = sign * score >= sign * value
    kept = {"good": float(keep[good].mean()), "bad": float(keep[~good].mean())}
    return {
        "keeps": "at_least" if sign > 0 else "at_most", "value": float(value), "low": low, "high": high, **kept,
        "n": int(score.size), "gain": kept["good"] - kept["bad"],
    }  # fmt: skip


def _youden(score: Float64s, good: Mask) -> tuple[float, float]:
    """Returns the threshold (half-way between two scores) that maximises Youden's J of `score >= threshold`, and J."""
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], good[order]
    j = np.cumsum(hits) / np.count_nonzero(hits) - np.cumsum(~hits) / np.count_nonzero(~hits)
    ends = np.append(ranked[1:] < ranked[:-1], True)  # no threshold separates equal scores
    best = int(np.argmax(np.where(ends, j, -np.inf)))
    below = ranked[best + 1] if best + 1 < ranked.size else ranked[best]
    return float((ranked[best] + below) / 2), float(j[best])
