"""Signals that are scored within a subset: what is read, what is kept, what goes on, and what `select` refuses."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import parts_of, score
from odd_signals import Brightness
from processes import command, die_at_file

import tamis
from tamis.data import Sample
from tamis.errors import RecipeError, RunError
from tamis.run import shard as reading
from tamis.store import Run, parts, writers
from tamis.store.subset import Subset


def subset(run: Run, *rows: int, name: str = "some") -> Subset:
    keep = np.zeros(len(run), bool)
    keep[list(rows)] = True
    return Subset(run=run, keep=keep, recipe={"name": name})


def within(pool: Path, run: Path, rows: Any, *signals: Any, **how: Any) -> Run:
    signals = signals or (Brightness(),)
    return tamis.score(pool, run=run, signals=list(signals), within=rows, quiet=True, **how)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the samples whose images are decoded."""
    keys: list[str] = []
    fill = reading.fill_pixels
    monkeypatch.setattr(reading, "fill_pixels", lambda sample, **how: (keys.append(sample.key), fill(sample, **how)))
    return keys


@pytest.fixture
def whole(pool: Path, tmp_path: Path) -> Run:
    return score(pool, tmp_path / "whole", "caption_length", Brightness())


@pytest.fixture
def run(pool: Path, tmp_path: Path) -> Run:
    return score(pool, tmp_path / "run", "caption_length")


def test_only_the_subset_s_rows_are_scored_and_wider_ones_add_only_what_is_missing(
    pool: Path, run: Run, whole: Run, decoded: list[str]
) -> None:
    expected = whole["brightness"]
    rows = [1, 2, 6, 7, 20]
    done = within(pool, run.path, subset(run, *rows))
    assert sorted(decoded) == ["000000001", "000000002", "000000006", "000010000", "000020006"]
    assert np.flatnonzero(~np.isnan(done["brightness"])).tolist() == rows
    np.testing.assert_array_equal(done["brightness"][rows], expected[rows])
    part = parts.read_columns(done.scores["brightness"].folder / "00000.parquet", ["reason"])["reason"].to_pylist()
    assert part == ["not asked: outside some", None, None, *["not asked: outside some"] * 3, None]
    assert [parts.asked_of(done.scores["brightness"].folder / f"0000{shard}.parquet") for shard in range(3)] == [3, 1, 1]
    assert done.scores["brightness"].folder.name == whole.scores["brightness"].folder.name
    decoded.clear()
    done = within(pool, run.path, subset(run, 0, *rows, 8, name="more"))
    assert sorted(decoded) == ["000000000", "000010001"]
    np.testing.assert_array_equal(done["brightness"][[0, 1, 8]], expected[[0, 1, 8]])
    decoded.clear()
    within(pool, run.path, subset(run, 0, 1))
    assert decoded == []
    score(pool, run.path, Brightness())
    assert len(decoded) == 21 - 7
    assert parts_of(run.path) == parts_of(whole.path)
