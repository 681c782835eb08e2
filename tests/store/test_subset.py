"""The subset file: rows, how often each is kept, and why the others are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import write_run

import tamis
from tamis.store import Run
from tamis.store.reasons import NO_REASONS, Reason, Verdict
from tamis.store.subset import Subset

NAN = float("nan")
X = [0.1, 0.5, NAN, 0.9, 0.3, 0.7, 0.2]
RECIPE = {
    "name": "mine",
    "columns": {"mine": "x"},
    "select": [
        {"at_least": {"score": "mine", "value": 0.2, "missing": "drop"}},
        {"top_n": {"score": "2*mine", "n": 2}},
    ],
}
WHY = [
    "Step 1: mine below 0.2", "Step 2: 2*mine below the cut", "Step 1: no value for mine", "",
    "Step 2: 2*mine below the cut", "", "Step 2: 2*mine below the cut",
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", {"x": X}, shards=4)


def why(subset: Subset) -> list[str]:
    assert subset.verdict.dropped_by is not None
    return [subset.verdict.reasons[code] for code in subset.verdict.dropped_by.tolist()]


def saved(subset: Subset, path: Path) -> Subset:
    subset.save(path)
    return Subset.load(path, subset.run)


def test_a_subset_knows_why_each_other_row_is_not_in_it(run: Run) -> None:
    subset = tamis.select(run, RECIPE)
    assert why(subset) == WHY
    assert subset.verdict.problem == ""
    assert subset.verdict.names == {"mine": "x"}
    assert [(cut.score, cut.low) for cut in subset.verdict.cuts] == [
        ("mine", float(np.float32(0.2))), ("2*mine", 2 * float(np.float32(0.7))),
    ]  # fmt: skip
    assert subset.verdict.ranking == subset.verdict.cuts[1]


def test_the_ranking_is_the_last_line_that_some_row_fell_at(run: Run) -> None:
    steps = [RECIPE["select"][0], {"at_most": {"score": "x", "value": 99}}]  # type: ignore[index]
    ranking = tamis.select(run, {"columns": {"mine": "x"}, "select": steps}).verdict.ranking
    assert ranking is not None
    assert ranking.step == "mine >= 0.2"


def test_a_file_gives_everything_back(run: Run, tmp_path: Path) -> None:
    subset = tamis.select(run, RECIPE)
    again = saved(subset, tmp_path / "mine.parquet")
    assert again.keep.tolist() == subset.keep.tolist()
    assert (again.recipe, again.funnel, again.reads) == (subset.recipe, subset.funnel, subset.reads)
    assert why(again) == WHY
    assert replace(again.verdict, dropped_by=None) == replace(subset.verdict, dropped_by=None)
    assert again.times is None


@pytest.mark.parametrize("n", [0, 7])
def test_nothing_and_everything_can_be_kept(run: Run, tmp_path: Path, n: int) -> None:
    subset = tamis.select(run, {"select": [{"top_n": {"score": "min(x, 0)", "n": n, "missing": "drop"}}]})
    again = saved(subset, tmp_path / "mine.parquet")
    assert again.keep.tolist() == [bool(n) and value == value for value in X]
    assert why(again) == why(subset)


def test_a_run_without_rows_has_a_subset(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "run", {"x": []}, shards=2)
    again = saved(tamis.select(empty, RECIPE), tmp_path / "mine.parquet")
    assert (len(again), why(again)) == (0, [])


def test_other_readers_find_the_kept_rows_and_nothing_else(run: Run, tmp_path: Path) -> None:
    tamis.select(run, RECIPE).save(tmp_path / "mine.parquet")
    table = pq.read_table(tmp_path / "mine.parquet")
    assert table.to_pydict() == {"shard": ["00002", "00003"], "row": [0, 0]}
    assert pq.ParquetFile(tmp_path / "mine.parquet").read(columns=["row"]).num_rows == 2


def test_a_subset_without_reasons_says_so(run: Run, tmp_path: Path) -> None:
    mine = Subset(run=run, keep=tamis.select(run, RECIPE).keep, recipe={"name": "by hand"})
    assert mine.verdict == Verdict(problem=NO_REASONS)
    assert saved(mine, tmp_path / "again.parquet").verdict.problem == NO_REASONS


def test_more_than_255_reasons_come_back(run: Run, tmp_path: Path) -> None:
    codes = np.array([300, 0, 256, 1, 0, 255, 2], np.uint16)
    verdict = Verdict(why=tuple(Reason(text=str(code)) for code in range(1, 301)), dropped_by=codes)
    again = saved(Subset(run=run, keep=codes == 0, verdict=verdict), tmp_path / "many.parquet")
    assert again.verdict.dropped_by is not None
    assert again.verdict.dropped_by.tolist() == codes.tolist()


def test_a_file_that_another_program_wrote_anew_keeps_its_rows_and_loses_its_reasons(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    tamis.select(run, RECIPE).save(path)
    table, footer = pq.read_table(path), pq.read_metadata(path).metadata
    for rows in (table, table.slice(1), table.replace_schema_metadata(footer), table.slice(1, 0)):
        pq.write_table(rows, path)  # the footer's texts come along, or some of them; what they lead to does not
        again = Subset.load(path, run)
        assert len(again) == rows.num_rows
        assert again.verdict.dropped_by is None
        assert "written again by another program" in again.verdict.problem


def test_rows_of_shards_that_were_scored_later_are_not_in_it_and_say_so(run: Run, tmp_path: Path) -> None:
    parts = [run.index_path("00001"), run.path / "scores" / "given-0000000000000000" / "00001.parquet"]
    for part in parts:  # the day before rows 1 and 2 were scored
        part.rename(part.with_suffix(".tomorrow"))
    subset = tamis.select(run.path, RECIPE, partial=True)
    subset.save(tmp_path / "mine.parquet")
    for part in parts:
        part.with_suffix(".tomorrow").rename(part)
    grown = Subset.load(tmp_path / "mine.parquet", Run(run.path))
    later = "scored after the subset was chosen"
    assert why(grown) == [why(subset)[0], later, later, *why(subset)[1:]]
    assert len(grown) == len(subset) == 2
    again = saved(grown, tmp_path / "again.parquet")
    assert (why(again), again.verdict.why) == (why(grown), grown.verdict.why)


def kept_often(run: Run) -> Subset:
    times = np.array([0, 3, 0, 1, 0, 0, 2], np.uint16)
    return Subset(run=run, keep=times > 0, times=times, recipe={"name": "often"})


def test_a_row_may_be_kept_several_times(run: Run) -> None:
    subset = kept_often(run)
    rows = [1, 1, 1, 3, 6, 6]
    assert len(subset) == 6
    assert subset.rows().tolist() == rows
    every = list(zip(*(half.tolist() for half in run.table().uids(np.arange(7))), strict=True))
    assert list(zip(*(half.tolist() for half in subset.uids()), strict=True)) == [every[row] for row in rows]
    assert subset.to_numpy().tolist() == [every[row] for row in rows]
    assert subset.to_arrow(["x"])["x"].to_pylist() == pytest.approx([np.float32(X[row]) for row in rows])
    starts = dict(zip(run.shards, np.concatenate([[0], np.cumsum(run.sizes)]).tolist(), strict=False))
    assert [starts[shard] + row for shard, some in subset.rows_by_shard() for row in some.tolist()] == rows


def test_a_file_keeps_how_often(run: Run, tmp_path: Path) -> None:
    again = saved(kept_often(run), tmp_path / "often.parquet")
    assert again.times is not None
    assert again.times.tolist() == [0, 3, 0, 1, 0, 0, 2]
    table = pq.read_table(tmp_path / "often.parquet")
    assert table.column_names == ["shard", "row", "times"]
    assert table["times"].to_pylist() == [3, 1, 2]  # a kept row stands once, whoever does not know of times


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"times": np.array([1, 1, 1, 1, 1, 1, 0], np.uint16)}, "times must be above 0"),
        ({"times": np.ones(3, np.uint16)}, "times must be above 0"),
        ({"keep": np.ones(7, bool)}, "the verdict drops other rows than keep"),
        ({"keep": np.ones(3, bool)}, "the verdict drops other rows than keep"),
    ],
)
def test_what_does_not_go_together_is_refused(run: Run, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(tamis.select(run, RECIPE), **changed)
