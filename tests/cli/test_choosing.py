"""select, export, report: what they print, and what they write."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from command_line import Tamis
from factories import pair, write_pool, write_run, write_tar

import tamis as package


def test_selecting_prints_a_funnel_and_writes_a_subset(tamis: Tamis, scored: Path) -> None:
    done = tamis("select", "run", "--recipe", "random", "--out", "half.parquet")
    assert done.code == 0
    assert re.search(r"random: every pair +21 +100\.0 %", done.out)
    assert re.search(r"random 50 % of the survivors \(seed 0\) +11 +52\.4 % +10 not drawn", done.out)
    assert done.err == "wrote half.parquet\n"
    assert len(package.Subset.load("half.parquet", package.open_run(scored))) == 11


def test_the_funnel_as_json(tamis: Tamis, scored: Path) -> None:
    done = tamis("select", "run", "-r", "random", "-o", "x", "--json", "--set", "select.random_fraction.fraction=0.1")
    found = json.loads(done.out)
    assert (found["name"], found["pool"], found["kept"]) == ("random", 21, 2)
    assert found["funnel"][0]["dropped"] == {"not drawn": 19}


@pytest.mark.parametrize(
    ("to", "out"), [("npy", "s.npy"), ("parquet", "s.parquet"), ("keys", "s.txt"), ("webdataset", "s")]
)
def test_exporting_says_how_much_it_wrote_on_stderr(tamis: Tamis, scored: Path, to: str, out: str) -> None:
    tamis("select", "run", "-r", "random", "-o", "half.parquet")
    done = tamis("export", "run", "half.parquet", out, "--to", to)
    assert (done.code, done.out, done.err) == (0, "", f"wrote 11 pairs to {out}\n")
    assert Path(out).exists()


def test_settings_of_a_format_are_given_with_set(tamis: Tamis, scored: Path) -> None:
    tamis("select", "run", "-r", "no-filter", "-o", "all.parquet")
    assert tamis("export", "run", "all.parquet", "s", "--to", "webdataset", "--set", "shard_size=10").code == 0
    assert sorted(path.name for path in Path("s").glob("*.tar")) == ["00000.tar", "00001.tar", "00002.tar"]


def test_reporting_writes_one_page(tamis: Tamis, scored: Path) -> None:
    tamis("select", "run", "-r", "random", "-o", "half.parquet")
    done = tamis("report", "run", "half.parquet", "--out", "page.html")
    assert (done.code, done.out, done.err) == (0, "", "wrote page.html\n")
    assert "<html" in Path("page.html").read_text()


def test_a_subset_of_another_run_with_shards_of_the_same_sizes_is_refused(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    write_pool(tmp_path / "second" / "pool", shards=1, first=5)
    (tmp_path / "second" / "pool" / "00005.tar").rename(tmp_path / "second" / "pool" / "00000.tar")
    for pool, run in (("pool", "one"), ("second/pool", "two")):
        tamis("score", pool, "--run", run, "--signals", "caption_length", "-q")
    tamis("select", "one", "-r", "random", "-o", "half.parquet")
    assert tamis("export", "two", "half.parquet", "x.npy", "--to", "npy").code == 2


def test_rows_without_a_score_stop_a_selection_with_advice(tamis: Tamis, tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [("a", pair(0)), ("b", pair(1) | {"txt": b" "})])
    tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    Path("mine.yaml").write_text("select:\n- at_least: {score: words, value: 1}\n")
    done = tamis("select", "run", "-r", "mine.yaml", "-o", "x")
    assert done.code == 2
    assert "1 of 2 rows have no value for 'words'" in done.err
    assert "missing: drop" in done.err
    assert not Path("x").exists()


def test_pairs_and_paths_with_brackets_are_printed_as_they_are(tamis: Tamis, tmp_path: Path) -> None:
    """Rich would take [red] for a colour."""
    write_run(tmp_path / "run", {"a": [1.0, 2.0]}, shards=1)
    Path("x.yaml").write_text(
        "name: '[red]mine[/red]'\nselect:\n- at_least: {score: 'a', value: 2}\n".replace("/", "-")
    )
    assert "[red]mine[-red]: every pair" in tamis("select", "run", "-r", "x.yaml", "-o", "[bold].parquet").out
    assert Path("[bold].parquet").exists()


def test_selecting_onto_a_file_of_another_kind_is_refused(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    before = (tmp_path / "pool" / "00000.tar").read_bytes()
    shutil.copy(tmp_path / "pool" / "00000.tar", "mine")
    for name, why in (("pool/00000.tar", "would hold parquet, not tar"), ("mine", "choose another name")):
        done = tamis("select", "run", "-r", "random", "-o", name)
        assert done.code == 2
        assert why in done.err
        assert Path(name).read_bytes() == before
    assert tamis("select", "run", "-r", "random", "-o", "half.parquet").code == 0
    done = tamis("select", "run", "-r", "no-filter", "-o", "half.parquet")
    assert (done.code, "half.parquet exists" in done.err) == (2, True)
    assert tamis("select", "run", "-r", "no-filter", "-o", "half.parquet", "--overwrite").code == 0


def test_clustering_names_the_columns_that_recipes_then_use(tamis: Tamis, tmp_path: Path, clip_model: str) -> None:
    write_pool(tmp_path / "pool", shards=1)
    done = tamis(
        *("score", "pool", "--run", "run", "--signals", "clip", "--set", f"signals.clip.model={clip_model}"),
        *("--keep", "embeddings", "-q"),
    )
    assert done.code == 0, done.err
    done = tamis("cluster", "run", "--clusters", "1")
    assert (done.code, done.out) == (0, "")
    assert done.err == "7 rows have the columns cluster.cluster and cluster.centroid_cosine\n"
    assert set(package.open_run(tmp_path / "run").to_numpy("cluster")) == {0.0}
    done = tamis("cluster", "run", "--embedding", "lost")
    assert done.code == 2
