"""Which lines the report can draw of a subset."""

from __future__ import annotations

import shutil
from pathlib import Path

from factories import write_run

import tamis
from tamis.reporting.lines import verdict_on
from tamis.store import Run
from tamis.store.subset import Subset

STEPS = [
    {"at_least": {"score": "mine", "value": 1.5}},
    {"top_n": {"score": "minmax(mine)", "n": 2}},
    {"at_most": {"score": "width", "value": 100, "missing": "drop"}},
]
RECIPE = {"name": "mine", "columns": {"mine": "given.x"}, "select": STEPS}


def test_every_line_of_a_fresh_subset_can_be_drawn(tmp_path: Path) -> None:
    subset = tamis.select(write_run(tmp_path / "run", {"x": [1, 2, 3, 4]}), RECIPE)
    found = verdict_on(subset)
    assert found == subset.verdict
    assert [cut.score for cut in found.cuts] == ["mine", "minmax(mine)", "width"]
    assert found.names["mine"] == "given.x"


def test_a_line_on_a_score_that_has_left_the_run_is_not_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1, 2, 3, 4]})
    subset = tamis.select(run, RECIPE)
    subset.save(tmp_path / "mine.parquet")
    shutil.rmtree(run.path / "scores")
    found = verdict_on(Subset.load(tmp_path / "mine.parquet", Run(run.path)))
    assert [cut.score for cut in found.cuts] == ["width"]
    assert found.reasons == subset.verdict.reasons
    page = tamis.report(run.path, [Subset.load(tmp_path / "mine.parquet", Run(run.path))], out=tmp_path / "page.html")
    assert "Step 1: mine below 1.5" in page.read_text()


def test_a_line_that_depends_on_the_whole_pool_is_not_drawn_on_a_larger_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1, 2, 3, 4, 5, 6]}, shards=3)
    parts = [run.index_path("00002"), run.path / "scores" / "given-0000000000000000" / "00002.parquet"]
    for part in parts:
        part.rename(part.with_suffix(".tomorrow"))
    subset = tamis.select(run.path, RECIPE, partial=True)
    subset.save(tmp_path / "mine.parquet")
    for part in parts:
        part.with_suffix(".tomorrow").rename(part)
    found = verdict_on(Subset.load(tmp_path / "mine.parquet", Run(run.path)))
    assert [cut.score for cut in found.cuts] == ["mine", "width"]
