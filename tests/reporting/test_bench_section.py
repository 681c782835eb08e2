"""The section of the report that shows the last bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser_view import parsed
from factories import write_run

from tamis.errors import RunError
from tamis.reporting.charts import interval
from tamis.reporting.context import Context
from tamis.reporting.sections import bench
from tamis.store.records import with_hash


def measured(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half, "n": 3}


def contender(name: str, kept: int, gain: dict[str, float] | None) -> dict[str, Any]:
    return {
        "name": name, "kept": kept, "usable": kept, "epochs": 24.0, "scores": {"0": 0.3}, "score": measured(0.3, 0.1),
        "tasks": {"objects": measured(0.25, 0.1)}, "gain": gain, "kinds": {"visual": [kept // 2, 3]},
        "scoring_seconds": None, "training_seconds": 61.7,
    }  # fmt: skip


def written(folder: Path, **changes: Any) -> Context:
    run = write_run(folder / "run", {"x": [1.0, 2.0, 3.0, 4.0]})
    facts = {
        "kind": "tamis bench", "format": 1, "rows": 4, "baseline": "no-filter", "seeds": [0, 1, 2],
        "training": {"samples": 24576, "model": "convnet"}, "failed": {"<b>, seed 1": "its process died"},
        "contenders": [contender("<b>", 2, measured(-0.02, 0.05)), contender("no-filter", 4, None)],
        "overlap": {"<b>": {"<b>": 1.0, "no-filter": 0.5}, "no-filter": {"<b>": 0.5, "no-filter": None}},
    }  # fmt: skip
    (run.path / "bench.json").write_text(json.dumps(with_hash(facts | changes)))
    return Context(run, [], None)


def test_a_run_without_a_bench_has_no_section(tmp_path: Path) -> None:
    assert bench.gather(Context(write_run(tmp_path / "run", {"x": [1.0]}), [], None)) is None


def test_the_section_says_scores_gains_kinds_and_overlap(tmp_path: Path) -> None:
    found = bench.gather(written(tmp_path))
    assert found is not None
    assert [(line.subset.label, line.share, line.gain is None) for line in found.lines] == [
        ("<b>", 0.5, False), ("no-filter", 1.0, True),
    ]  # fmt: skip
    assert found.overlap == [[1.0, 0.5], [0.5, None]]
    tags, attributes, text = parsed(bench.draw(found))
    assert "b" not in tags  # a recipe's name is no markup
    for said in ("24,576 samples", "0.300", "0.200 to 0.400", "−0.020", "−0.070 to +0.030", "62 s", "33.3 %", "0.50"):
        assert said in text
    assert "<b>, seed 1 has no result: its process died" in text
    assert tags.count("svg") == 3  # two scores, one gain
    assert ("class", "cut") in attributes
    assert not any(name == "style" and "#" in str(value) for name, value in attributes)  # colours are the style's


@pytest.mark.parametrize("change", [{"format": 2}, {"kind": "another"}])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(RunError, match=r"bench.json is no bench that this version of tamis reads"):
        bench.gather(written(tmp_path, **change))


def test_an_interval_stands_where_its_numbers_are() -> None:
    drawn = parsed(interval(-1.0, 0.0, 1.0, ends=(-1.0, 3.0), mark=0.0, describe="gain"))[1]
    # The scale's ends lie at 2 and 98: -1 is 2, 0 is a quarter of the way, 1 half of it.
    assert [value for name, value in drawn if name == "x1"] == ["2.00", "2.00", "50.00", "26.00", "26.00"]
    flat = parsed(interval(1.0, 1.0, 1.0, ends=(1.0, 1.0), mark=None, describe="score"))[1]
    assert [value for name, value in flat if name == "x1"] == ["2.00"] * 4
