"""score, run, status: what goes where, dry runs, shards that fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import Tamis, everything
from factories import write_pool

import tamis as package


def test_scoring_reports_to_stderr_and_leaves_stdout_to_results(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length")
    assert (done.code, done.out) == (0, "")
    assert re.search(r"21 pairs in 3 shards, \w+ on \w+: 21 ok", done.err)
    assert sorted(package.open_run(tmp_path / "run").scores) == ["caption_length"]


def test_the_same_command_again_adds_what_is_missing(tamis: Tamis, scored: Path) -> None:
    before = everything(scored / "scores")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length,image_size", "-q")
    assert done.code == 0
    assert everything(scored / "scores") == before
    tamis("score", "pool", "--run", "run", "--recipe", "no-filter", "--signals", "language", "-q")
    assert sorted(package.open_run(scored).scores) == ["caption_length", "image_size", "language"]


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


def test_status_tells_how_far_a_run_is(tamis: Tamis, scored: Path) -> None:
    done = tamis("status", "run")
    assert done.code == 0
    assert "index      3/3 shards, 21 pairs" in done.out
    assert done.err == ""
    found = json.loads(tamis("status", "run", "--json").out)
    assert (found["rows"], found["statuses"]) == (21, {"ok": 21})
    assert tamis("status", "run", "--watch").code == 0


def test_watching_without_a_terminal_prints_plain_text(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    done = tamis("status", "run", "--watch")
    assert done.code == 0
    assert done.out.splitlines()[0] == "run: done"


def test_a_whole_recipe_runs_from_one_file(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool")
    recipe = {
        "name": "mine",
        "pool": "pool/{00000..00002}.tar",
        "run": "runs/mine",
        "signals": ["caption_length"],
        "select": [{"top_fraction": {"score": "words", "fraction": 0.5}}],
        "export": [
            {"npy": "out/subset.npy"},
            {"webdataset": {"out": "out/shards", "shard_size": 4}},
            {"keys": "out/keys"},
        ],
        "report": "out/page.html",
    }
    Path("mine.yaml").write_text(yaml.safe_dump(recipe))
    done = tamis("run", "mine.yaml", "-q", "--set", "select.top_fraction.fraction=0.29")
    assert done.code == 0, done.err
    assert re.search(r"top 29 % of the survivors by words +6 +28\.6 %", done.out)
    assert np.load("out/subset.npy").shape == (6,)
    assert len(Path("out/keys").read_text().splitlines()) == 6
    assert sorted(path.name for path in Path("out/shards").glob("*.tar")) == ["00000.tar", "00001.tar"]
    assert Path("out/page.html").stat().st_size > 1000
    subset = package.Subset.load("runs/mine/subsets/mine.parquet", package.open_run("runs/mine"))
    assert subset.recipe["select"][0]["top_fraction"]["fraction"] == 0.29
    again = tamis("run", "mine.yaml", "-q", "--set", "select.top_fraction.fraction=0.29")
    assert again.code == 0, again.err


def test_a_recipe_without_select_is_scored_and_reported(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool")
    Path("mine.yaml").write_text("pool: pool\nrun: run\nsignals: [caption_length]\n")
    assert tamis("run", "mine.yaml", "-q").code == 0
    assert Path("run/report.html").exists()


@pytest.mark.parametrize("command", ["score", "run"])
def test_a_dry_run_prints_the_plan_and_creates_nothing(tamis: Tamis, tmp_path: Path, command: str) -> None:
    write_pool(tmp_path / "pool")
    Path("mine.yaml").write_text("pool: pool\nrun: run\nsignals: [caption_length]\nselect: []\nexport: [npy: x.npy]\n")
    before = everything(tmp_path)
    arguments = {"score": ("pool", "--run", "run", "--signals", "caption_length"), "run": ("mine.yaml",)}[command]
    done = tamis(command, *arguments, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert "pool      webdataset, 3 shards" in done.out
    assert "run       run (new)" in done.out
    assert re.search(r"scores    scores/caption_length-[0-9a-f]{16}: 3 shards to do", done.out)
    assert everything(tmp_path) == before
    assert not Path("run").exists()


def test_a_dry_run_prints_the_plan_of_the_api(tamis: Tamis, scored: Path) -> None:
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length,language", "--dry-run")
    assert done.out == f"{package.plan('pool', run='run', signals=['caption_length', 'language'])}\n"
    Path("mine.yaml").write_text("pool: pool\nrun: run\nsignals: [caption_length]\n")
    done = tamis("run", "mine.yaml", "--dry-run", "--set", "signals=[image_size, language]")
    assert done.out == f"{package.plan(recipe='mine.yaml', settings=['signals=[image_size, language]'])}\n"


def test_a_dry_run_stops_at_a_recipe_that_could_not_run(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    Path("r.yaml").write_text(
        "pool: pool\nrun: run\nsignals: [caption_length]\nselect:\n- at_least: {score: wrods, value: 3}\n"
    )
    done = tamis("run", "r.yaml", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert "did you mean 'words'?" in done.err


def test_a_recipe_tells_its_results_in_the_order_of_its_work(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    Path("mine.yaml").write_text(
        "pool: pool\nrun: run\nsignals: [caption_length]\n"
        "select:\n- top_n: {score: words, n: 3}\nexport: [npy: x.npy]\n"
    )
    done = tamis("run", "mine.yaml", "-q", "--device", "cpu", "--precision", "float32")
    assert done.code == 0
    assert done.err.splitlines() == [
        "7 pairs in 1 shards, float32 on cpu: 7 ok",
        "wrote 3 pairs to x.npy",
        "wrote run/report.html",
    ]
    assert re.search(r"top 3 by words +3 +42\.9 %", done.out)


def test_a_dry_run_on_a_finished_run_has_nothing_to_do_and_changes_nothing(tamis: Tamis, scored: Path) -> None:
    before = everything(scored)
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length,language", "--dry-run")
    assert re.search(r"scores/caption_length-\w+: 0 shards to do", done.out)
    assert re.search(r"scores/language-\w+: 3 shards to do", done.out)
    assert everything(scored) == before


def broken_pool(folder: Path) -> None:
    write_pool(folder, shards=2)
    data = (folder / "00001.tar").read_bytes()
    (folder / "00001.tar").write_bytes(data[: len(data) // 2])


def test_a_shard_that_failed_is_named_and_the_exit_code_is_one(tamis: Tamis, tmp_path: Path) -> None:
    broken_pool(tmp_path / "pool")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    assert (done.code, done.out) == (1, "")
    assert re.search(r"shard 00001 failed: .*00001\.tar", done.err)
    assert "1 of 2 shards are complete. Fix or replace what failed" in done.err
    assert tamis("status", "run").code == 1
    assert json.loads(tamis("status", "run", "--json").out)["shards"]["failed"] == 1


def test_a_recipe_goes_on_with_what_could_be_read_and_still_exits_with_one(tamis: Tamis, tmp_path: Path) -> None:
    broken_pool(tmp_path / "pool")
    Path("mine.yaml").write_text(
        "pool: pool\nrun: run\nsignals: [caption_length]\nselect:\n- top_n: {score: words, n: 3, missing: drop}\n"
        "export: [npy: x.npy]\n"
    )
    done = tamis("run", "mine.yaml", "-q")
    assert done.code == 1
    assert np.load("x.npy").shape == (3,)
    assert Path("run/report.html").exists()


def test_what_a_step_reads_beside_the_run_is_looked_for_before_anything_is_scored(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool")
    Path("mine.yaml").write_text(
        "pool: pool\nrun: run\nsignals: [language]\n"
        "select:\n- image_based: {reference: lost.npy, embedding: top_language}\n"
    )
    done = tamis("run", "mine.yaml", "-q")
    assert done.code == 2
    assert "image_based: lost.npy is neither a run folder nor" in done.err
    assert not Path("run").exists()
    checked = tamis("check", "mine.yaml")
    assert checked.code == 0
    assert "not there yet: image_based: lost.npy" in checked.out
    assert "not there yet: image_based: runs/imagenet" in tamis("check", "image-based").out


def test_a_recipe_that_reads_what_nobody_scores_stops_before_work(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    (tmp_path / "r.yaml").write_text(
        "pool: pool\nrun: run\nsignals: [caption_length]\nselect:\n  - at_least: {score: wrods, value: 3}\n"
    )
    done = tamis("run", "r.yaml")
    assert done.code == 2
    assert "did you mean 'words'?" in done.err
    assert not (tmp_path / "run").exists()
