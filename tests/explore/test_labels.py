"""Labels are a part of the run, and the threshold that they propose is the best there is."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from factories import pair, write_pool, write_tar
from hypothesis import given
from hypothesis import strategies as st

import tamis
from tamis.errors import RecipeError, RunError
from tamis.explore.columns import HeldRun
from tamis.explore.labels import Labels, best_threshold
from tamis.store import claims, manifest
from tamis.store.claims import claimed


@pytest.fixture
def run(run_folder: Path, tmp_path: Path) -> HeldRun:
    shutil.copytree(run_folder, tmp_path / "run")
    return HeldRun(tmp_path / "run")


def test_recipes_read_labels(run: HeldRun) -> None:
    labels = Labels(run)
    for row, value in [(3, 1.0), (40, 0.0), (5, 1.0), (5, None)]:
        labels.set(row, value)
    recipe = {"select": [{"equals": {"score": "label", "value": 1, "missing": "drop"}}]}
    assert tamis.select(run, recipe).rows().tolist() == [3]
    assert tamis.select(run.path, recipe).rows().tolist() == [3]
    assert np.array_equal(Labels(HeldRun(run.path)).values, labels.values, equal_nan=True)
    assert tamis.check(run.path).exit_code == 0


def test_a_label_that_cannot_be_written_is_not_given(run: HeldRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from tamis.explore import labels as module

    labels = Labels(run)
    labels.set(3, 1.0)

    def refuse(*arguments: object, **named: object) -> None:
        raise RunError("the disk is full")

    monkeypatch.setattr(module.parts, "write_scores", refuse)
    for row in (3, 4):
        with pytest.raises(RunError, match="full"):
            labels.set(row, 0.0)
    assert labels.count() == {"good": 1, "bad": 0}
    assert Labels(HeldRun(run.path)).count() == {"good": 1, "bad": 0}


def test_two_explorers_keep_each_others_labels(run: HeldRun) -> None:
    one, other = Labels(run), Labels(HeldRun(run.path))
    one.set(3, 1.0)
    other.set(4, 0.0)
    other.set(40, 0.0)
    one.set(5, 1.0)
    assert np.flatnonzero(np.isfinite(one.values)).tolist() == [3, 4, 5]
    assert other.set(3, 0.0) == 1.0  # the run's value: undo gives it back
    assert one.set(3, 1.0) == 0.0
    assert np.flatnonzero(np.isfinite(Labels(HeldRun(run.path)).values)).tolist() == [3, 4, 5, 40]


def test_labels_are_taken_back_one_by_one(run: HeldRun) -> None:
    labels = Labels(run)
    for row, value in [(3, 1.0), (40, 0.0), (3, 0.0), (3, 0.0)]:  # the last says nothing new
        labels.set(row, value)
    assert [labels.undo() for _ in range(2)] == [3, 40]
    assert np.flatnonzero(Labels(HeldRun(run.path)).values == 1).tolist() == [3]
    assert labels.last == 3
    assert labels.undo() == 3
    assert labels.last is None
    assert not np.isfinite(Labels(HeldRun(run.path)).values).any()
    with pytest.raises(RecipeError, match="no label to take back"):
        labels.undo()


def test_labels_that_are_given_at_once_wait_for_each_other(run: HeldRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the run's lock, which gives up after a while: 11 of 58 labels were refused."""
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.0)
    labels = Labels(run)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda row: labels.set(row, 1.0), range(60)))
    assert Labels(HeldRun(run.path)).count() == {"good": 60, "bad": 0}


def test_a_run_that_is_gone_is_not_made_anew_by_a_label(run: HeldRun, tmp_path: Path) -> None:
    labels = Labels(run)
    labels.set(3, 1.0)
    run.path.rename(tmp_path / "moved")
    with pytest.raises(RunError, match="is gone"):
        labels.set(4, 1.0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["moved"]


def test_no_label_is_written_for_rows_that_the_run_no_longer_has(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=2)
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True).path
    labels, unlabelled = Labels(HeldRun(run)), Labels(HeldRun(run))
    labels.set(0, 1.0)
    write_tar(pool / "00000.tar", [(f"new{number}", pair(500 + number)) for number in range(7)])
    manifest.forget(run, ["00000"])
    tamis.score(pool, run=run, signals=["caption_length"], quiet=True)
    for each, row in [(labels, 0), (labels, 8), (unlabelled, 0)]:
        with pytest.raises(RunError, match=r"shard 00000 has other rows now.*open the run again"):
            each.set(row, 0.0)
    assert not (next((run / "scores").glob("label-*")) / "00000.parquet").exists()
    again = Labels(HeldRun(run))
    again.set(8, 0.0)
    assert tamis.check(run).exit_code == 0


def test_no_label_is_written_while_another_process_is_at_the_shard(
    run: HeldRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that holds the claim may remove the shard's files, and with them a label just written."""
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.2)
    labels = Labels(run)
    for row in (3, 40):  # the first label of a run writes parts of every shard
        with claimed(run.path, run.shards[1]) as mine:
            assert mine
            with pytest.raises(RunError, match="shard 00001"):
                labels.set(row, 1.0)
        labels.set(3, 1.0)
    assert Labels(HeldRun(run.path)).count() == {"good": 1, "bad": 0}


def test_a_threshold_by_hand() -> None:
    """Goods at 3, 4, 5 and 1; bads at 0, 2, 2: `>= 2.5` keeps 3 of 4 goods and no bad."""
    score = np.array([3, 4, 5, 1, 0, 2, 2, np.nan], np.float32)
    label = np.array([1, 1, 1, 1, 0, 0, 0, 1], np.float32)
    found = best_threshold(score, label)
    assert found is not None
    assert [found[name] for name in ("keeps", "value", "good", "bad", "n")] == ["at_least", 2.5, 0.75, 0.0, 7]
    assert found["low"] <= 2.5 <= found["high"]
    turned = best_threshold(-score, label)
    assert turned is not None
    assert [turned[name] for name in ("keeps", "value")] == ["at_most", -2.5]
    # None without two of both, or without a difference.
    assert best_threshold(np.arange(4, dtype=np.float32), np.array([1, 1, 1, 0], np.float32)) is None
    assert best_threshold(np.ones(4, np.float32), np.array([1, 1, 0, 0], np.float32)) is None


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=4, max_size=30))
def test_no_threshold_separates_better(pairs: list[tuple[int, bool]]) -> None:
    """Against every threshold between two scores, in both directions: the slow, obvious way."""
    score = np.array([value for value, _ in pairs], np.float32)
    good = np.array([kind for _, kind in pairs])
    found = best_threshold(score, good.astype(np.float32), draws=5)
    if found is None:
        return
    best = max(
        keep[good].mean() - keep[~good].mean()
        for value in np.arange(-5, 5.5, 0.5)
        for keep in (score >= value, score <= value)
    )
    assert found["gain"] == pytest.approx(best)
