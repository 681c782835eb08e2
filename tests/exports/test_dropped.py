"""The list of dropped pairs, compared with a loop over the rows that applies the recipe in Python."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import write_run

import tamis
from tamis.core.errors import RunError
from tamis.core.ids import format_uid
from tamis.runs import Run
from tamis.runs.subset import Subset

NAN = float("nan")
ROWS = 400
RECIPE: dict[str, Any] = {
    "name": "mine",
    "select": [
        {"equals": {"score": "w", "value": ["en", "de"], "missing": "drop"}},
        {"at_least": {"score": "a", "value": 0.2, "missing": "drop"}},
        {"top_fraction": {"score": "minmax(a) + b", "fraction": 0.1, "of": "pool", "missing": "drop"}},
        {"random_fraction": {"fraction": 0.5, "seed": 1}},
    ],
}


def columns(rows: int = ROWS) -> dict[str, list[Any]]:
    rng = np.random.default_rng(4)
    a = rng.choice([0.1, 0.2, 0.4, 0.4, 0.8, NAN], rows).astype(np.float32)
    b = rng.normal(size=rows).astype(np.float32)
    return {"a": a.tolist(), "b": b.tolist(), "w": [[None, "en", "en", "fr"][n] for n in rng.integers(0, 4, rows)]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("dropped") / "run", columns(), shards=7)


def slow(run: Run, subset: Subset) -> list[dict[str, Any]]:
    """What the file must hold, row by row. The last step's rows are known from the subset."""
    data = columns()
    judged = [value for value in data["a"] if not np.isnan(value)]
    low, high = min(judged), max(judged)
    fused = [(a - low) / (high - low) + b for a, b in zip(data["a"], data["b"], strict=True)]
    cut = subset.funnel[2]["cut"]
    found = []
    shards = [(shard, row) for shard, size in zip(run.shards, run.sizes, strict=True) for row in range(size)]
    high_half, low_half = run.table().uids(np.arange(ROWS))
    for n, (shard, row) in enumerate(shards):
        score: float | None = None
        if data["w"][n] is None:
            step, reason = 1, "no value for w"
        elif data["w"][n] not in ("en", "de"):
            step, reason = 1, "w is not en or de"
        elif np.isnan(data["a"][n]):
            step, reason = 2, "no value for a"
        elif data["a"][n] < np.float32(0.2):
            step, reason, score = 2, "a below 0.2", data["a"][n]
        elif fused[n] < cut:
            step, reason, score = 3, "minmax(a) + b below the cut", pytest.approx(fused[n], abs=1e-12)
        elif not subset.keep[n]:
            step, reason = 4, "not drawn"
        else:
            continue
        uid, key = format_uid(high_half[n], low_half[n]), run.index(shard, ["key"])["key"][row].as_py()
        found.append({"uid": uid, "key": key, "shard": shard, "step": step, "reason": reason, "score": score})
    return found


def test_every_dropped_pair_has_step_reason_and_score(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.exports.lists._ROWS", 7)
    subset = tamis.select(run, RECIPE)
    subset.save(tmp_path / "mine.parquet")
    wanted = slow(run, subset)
    assert len({row["reason"] for row in wanted}) == 6
    for number, each in enumerate([subset, Subset.load(tmp_path / "mine.parquet", run)]):
        out = tmp_path / f"{number}.parquet"
        assert tamis.export(each, "dropped", out) == ROWS - len(subset) == len(wanted)
        assert pq.read_table(out).to_pylist() == wanted


def test_the_parts_of_a_step_give_a_score_where_they_judge_by_one(run: Run, tmp_path: Path) -> None:
    parts = [{"at_least": {"score": "mine", "value": 0}}, {"equals": {"score": "w", "value": "en", "missing": "drop"}}]
    named = {"columns": {"mine": "given.b"}, "select": [{"all_of": parts}]}  # under the recipe's own name
    tamis.export(tamis.select(run, named), "dropped", tmp_path / "out")
    table = pq.read_table(tmp_path / "out").to_pylist()
    by_b = [row["score"] for row in table if row["reason"] == "not in mine >= 0"]
    assert by_b == [value for value in columns()["b"] if value < 0]
    assert {row["score"] for row in table if row["reason"] == "not in w is en"} == {None}


def test_shards_that_were_scored_later_do_not_move_the_scores(tmp_path: Path) -> None:
    """minmax(a) stays what it was when the step judged by it, though a later shard holds larger values."""
    run = write_run(tmp_path / "run", {"a": [0.0, 1.0, 2.0, 4.0, 100.0, -50.0]}, shards=3)
    parts = [run.index_path("00002"), run.path / "scores" / "given-0000000000000000" / "00002.parquet"]
    for part in parts:
        part.rename(part.with_suffix(".tomorrow"))
    subset = tamis.select(run.path, {"select": [{"at_least": {"score": "minmax(a)", "value": 0.6}}]}, partial=True)
    subset.save(tmp_path / "mine.parquet")
    for part in parts:
        part.with_suffix(".tomorrow").rename(part)
    grown = Subset.load(tmp_path / "mine.parquet", Run(run.path))
    assert tamis.export(grown, "dropped", tmp_path / "out") == 5
    later = (None, "scored after the subset was chosen", None)
    assert [(row["step"], row["reason"], row["score"]) for row in pq.read_table(tmp_path / "out").to_pylist()] == [
        *((1, "minmax(a) below 0.6", score) for score in (0.0, 0.25, 0.5)), later, later,
    ]  # fmt: skip


def test_a_subset_without_reasons_or_scores_is_an_error_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    subset = tamis.select(run, RECIPE)
    subset.save(tmp_path / "old.parquet")
    pq.write_table(pq.read_table(tmp_path / "old.parquet"), tmp_path / "old.parquet")  # as another program would
    by_hand = Subset(run=run, keep=subset.keep, recipe={"name": "mine"})
    for each in (Subset.load(tmp_path / "old.parquet", run), by_hand):
        with pytest.raises(RunError, match="again with `tamis select`"):
            tamis.export(each, "dropped", tmp_path / "out")
    small = write_run(tmp_path / "run", {"a": [1.0, 2.0]})
    tamis.select(small, {"select": [{"at_least": {"score": "a", "value": 2}}]}).save(tmp_path / "mine.parquet")
    shutil.rmtree(small.path / "scores")
    with pytest.raises(RunError, match="unknown score column 'a'"):
        tamis.export(Subset.load(tmp_path / "mine.parquet", Run(small.path)), "dropped", tmp_path / "out")
    assert not (tmp_path / "out").exists()
