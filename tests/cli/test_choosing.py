"""select, export, cluster and report: what a transcript does not show."""

from __future__ import annotations

from pathlib import Path

from command_line import Tamis
from factories import write_pool, write_run

import tamis as package


def test_what_is_printed_is_what_is_written(tamis: Tamis, scored: Path) -> None:
    assert tamis("select", "run", "--recipe", "random", "--out", "half.parquet").code == 0
    assert len(package.Subset.load("half.parquet", package.open_run(scored))) == 11
    for to, out in (("npy", "s.npy"), ("parquet", "s.parquet"), ("keys", "s.txt"), ("webdataset", "s")):
        more = ("--set", "shard_size=10") if to == "webdataset" else ()
        assert tamis("export", "run", "half.parquet", out, "--to", to, *more).code == 0
    assert len(Path("s.txt").read_text().splitlines()) == 11
    assert sorted(path.name for path in Path("s").glob("*.tar")) == ["00000.tar", "00001.tar"]
    assert tamis("report", "run", "half.parquet", "--out", "page.html").code == 0
    assert "<html" in Path("page.html").read_text()


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
