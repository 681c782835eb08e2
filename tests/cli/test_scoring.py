"""score: settings reach signals by one path."""

from __future__ import annotations

from pathlib import Path

from command_line import Tamis
from factories import write_pool

import tamis as package


def test_settings_reach_signals_by_the_same_path_with_and_without_a_recipe(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    (tmp_path / "mine.yaml").write_text("signals: [caption_length, {image_size: {label: other}}]")
    setting = ["--set", "signals.image_size.of=stored"]
    alone = tamis("score", "pool", "--run", "alone", "--signals", "image_size,caption_length", *setting, "-q")
    beside = tamis("score", "pool", "--run", "beside", "--recipe", "basic", "--signals", "image_size", *setting, "-q")
    assert (alone.code, beside.code) == (0, 0), alone.err + beside.err
    for run in ("alone", "beside"):
        groups = package.open_run(tmp_path / run).scores
        assert {group.facts["settings"].get("of") for group in groups.values()} == {None, "stored"}
    given = ["score", "pool", "--run", "new", "--recipe", "mine.yaml", "--signals", "image_size", "--dry-run"]
    assert "2 entries are called 'image_size': use a number" in tamis(*given, *setting).err
    assert tamis(*given, "--set", "signals.2.image_size.of=stored").code == 0
    assert "no entry is called 'language'" in tamis(*given, "--set", "signals.language.model=lid176").err
