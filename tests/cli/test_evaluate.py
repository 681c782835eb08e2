"""`tamis evaluate zero-shot` and `tamis lab make-tasks` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Tamis


def test_the_labs_tasks_are_drawn_and_a_model_is_measured_on_them(
    tamis: Tamis, tmp_path: Path, clip_model: str
) -> None:
    drawn = tamis("lab", "make-tasks", str(tmp_path / "tasks"), "--size", "12")
    assert drawn.code == 0
    assert "wrote 5 tasks of 12 images each" in drawn.err
    arguments = (
        "evaluate",
        "zero-shot",
        clip_model,
        "--tasks",
        str(tmp_path / "tasks"),
        "--out",
        str(tmp_path / "out"),
    )
    done = tamis(*arguments, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert len(found["tasks"]) == 5
    table = tamis(*arguments, "-q")
    assert table.code == 0
    assert "acc1" in table.out
