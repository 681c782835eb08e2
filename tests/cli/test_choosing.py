"""score, select, export, cluster and report: what a transcript does not show."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import Tamis
from factories import write_pool, write_run

import tamis as package
from tamis.core.errors import RunError


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


def test_repeats_are_said_in_rows_and_times_and_exported_as_such(tamis: Tamis, tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"a": [float(n) for n in range(200)]})
    recipe = "name: often\nselect:\n- sample: {score: a, fraction: 3, std: 1.0}\n- at_least: {score: a, value: 150}\n"
    Path("often.yaml").write_text(recipe)
    out = tamis("select", "run", "-r", "often.yaml", "-o", "often.parquet").out
    counts = [int(count) for count in re.search(r"(\d+) rows (\d+) times +25\.0 %", out).groups()]  # type: ignore[union-attr]
    assert re.search(
        r"600 copies|3 copies per row of the survivors by a, soft cap, alpha 0\.15 +\d+ rows 600 times", out
    )
    found = json.loads(tamis("select", "run", "-r", "often.yaml", "-o", "again.parquet", "--json").out)
    assert [found[name] for name in ("pool", "kept", "times")] == [200, *counts]
    assert found["funnel"][-1]["times"] == counts[1] > counts[0]
    assert f"wrote {counts[1]} pairs" in tamis("export", "run", "often.parquet", "often.npy").err
    assert np.load("often.npy").size == counts[1]
    tamis.ok("report", "run", "often.parquet", "-o", "page.html")
    page = Path("page.html").read_text()
    assert f"{counts[1]} with repeats" in page
    assert re.search(r"<b class=\"stays\">kept \d+ times</b>", page)
    done = tamis("select", "run", "-r", "soft-cap", "-o", "x.parquet", "--set", "select.sample.alfa=0.3")
    assert "unknown setting 'alfa' (did you mean 'alpha'?)" in done.err


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
    tamis.ok(*given, "--set", "signals.2.image_size.of=stored")
    assert "no entry is called 'language'" in tamis(*given, "--set", "signals.language.model=lid176").err


def test_a_subset_goes_into_the_run_and_is_found_by_its_name(tamis: Tamis, scored: Path) -> None:
    for _ in range(2):  # the same command replaces its own
        done = tamis.ok("select", "run", "-r", "random")
        assert "wrote run/subsets/random.parquet\nsee its pairs: tamis explore run random\n" in done.err
        assert "tamis export run random random.npy" in done.err
    tenth = ("select", "run", "-r", "random", "--set", "select.random_fraction.fraction=0.1")
    assert "run has another subset called 'random': keep both with --set name=NEW" in tamis.refused(*tenth)
    tamis.ok(*tenth, "--set", "name=tenth")
    tamis.ok("export", "run", "random", "random.npy")
    tamis.ok(*tenth, "--overwrite")
    assert [np.load("random.npy").size, len(package.Subset.load("random", package.open_run("run")))] == [11, 2]
    tamis.ok("audit", "run", "tenth", "--by", "words")
    tamis.ok("report", "run", "random", "tenth", "-o", "page.html")
    assert "`tamis select run --recipe basic`" in tamis.refused("export", "run", "basic", "basic.npy")
    Path("run/subsets/random.parquet").write_bytes(b"PAR1 is all that is left")
    assert "was not written by tamis as a subset file" in tamis.refused("select", "run", "-r", "random")


def test_a_subset_that_other_scores_chose_is_kept(tmp_path: Path) -> None:
    recipe = {"name": "best", "select": [{"top_n": {"score": "a", "n": 1}}]}
    write_run(tmp_path / "run", {"a": [1.0, 2.0]}, shards=1)
    first = package.select(tmp_path / "run", recipe)
    assert first.save() == first.save() == tmp_path / "run" / "subsets" / "best.parquet"
    with pytest.raises(RunError, match="another subset called 'best'"):
        dataclasses.replace(first, used=[{"column": "another"}]).save()
