"""select, export, cluster and report: what a transcript does not show."""

from __future__ import annotations

import re
from pathlib import Path

from command_line import Tamis
from factories import write_pool, write_run


def test_a_subset_of_another_run_with_shards_of_the_same_sizes_is_refused(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    write_pool(tmp_path / "second" / "pool", shards=1, first=5)
    (tmp_path / "second" / "pool" / "00005.tar").rename(tmp_path / "second" / "pool" / "00000.tar")
    for pool, run in (("pool", "one"), ("second/pool", "two")):
        tamis("score", pool, "--run", run, "--signals", "caption_length", "-q")
    tamis("select", "one", "-r", "random", "-o", "half.parquet")
    assert tamis("export", "two", "half.parquet", "x.npy", "--to", "npy").code == 2


def test_pairs_and_paths_with_brackets_are_printed_as_they_are(tamis: Tamis, tmp_path: Path) -> None:
    """Rich would take [red] for a colour."""
    write_run(tmp_path / "run", {"a": [1.0, 2.0]}, shards=1)
    Path("x.yaml").write_text(
        "name: '[red]mine[/red]'\nselect:\n- at_least: {score: 'a', value: 2}\n".replace("/", "-")
    )
    assert "[red]mine[-red]: every pair" in tamis("select", "run", "-r", "x.yaml", "-o", "[bold].parquet").out
    assert Path("[bold].parquet").exists()


def test_a_step_that_drops_one_of_many_does_not_keep_all(tamis: Tamis, tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"a": [0.0, *[1.0] * 1_999]}, shards=1)
    Path("one.yaml").write_text("select:\n- at_least: {score: a, value: 1}\n")
    assert re.search(r"1,999 +>99\.9 %", tamis("select", "run", "-r", "one.yaml", "-o", "one.parquet").out)
