"""The command line: exit codes, what goes where, and errors without tracebacks."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main
import yaml
from factories import pair, write_pool, write_run, write_tar

import tamis as package
from tamis import cli
from tamis.features.text_boxes import TextBoxes
from tamis.recipe import shipped


@dataclass(frozen=True)
class Done:
    """What one command did."""

    code: int
    out: str
    err: str


Tamis = Callable[..., Done]


@pytest.fixture
def tamis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Tamis:
    """Runs the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["tamis", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def scored(tamis: Tamis, tmp_path: Path) -> Path:
    """The folder `run`, scored from `pool`: three shards of seven pairs."""
    write_pool(tmp_path / "pool")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length,image_size", "--quiet")
    assert done.code == 0, done.err
    return tmp_path / "run"


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def commands() -> dict[str, Any]:
    """Every command by what one types, those of groups included."""
    found: dict[str, Any] = {}

    def visit(prefix: str, group: Any) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                visit(f"{prefix}{name} ", command)
            else:
                found[f"{prefix}{name}"] = command

    visit("", typer.main.get_command(cli.app))
    return found


# ---- help


def test_the_commands_are_these() -> None:
    assert {"score", "select", "export", "report", "run", "status", "list", "check", "lab make-pool"} <= set(commands())


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_commands_help_has_an_example_that_the_command_understands(tamis: Tamis, command: str) -> None:
    done = tamis(*command.split(), "--help")
    assert (done.code, done.err) == (0, "")
    text = commands()[command].help
    example = re.search(r"Example: tamis (.*)", text)
    assert example is not None
    assert example[1].startswith(command)
    assert "Example: tamis" in done.out
    import shlex

    words = shlex.split(example[1])[len(command.split()) :]
    commands()[command].make_context(command, words)  # parses it; a wrong option or a missing argument raises


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_option_and_argument_has_a_help_text(command: str) -> None:
    for parameter in commands()[command].params:
        assert parameter.help, parameter.name


def test_no_command_prints_the_help() -> None:
    done = subprocess.run([sys.executable, "-m", "tamis"], capture_output=True, text=True)
    assert "Usage:" in done.stdout + done.stderr
    assert "make-pool" not in done.stdout  # that is the lab's
    assert "select" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_version_goes_to_stdout(tamis: Tamis) -> None:
    done = tamis("--version")
    assert (done.code, done.out, done.err) == (0, f"{package.__version__}\n", "")


# ---- the line


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


def test_status_tells_how_far_a_run_is(tamis: Tamis, scored: Path) -> None:
    done = tamis("status", "run")
    assert done.code == 0
    assert "index      3/3 shards, 21 pairs" in done.out
    assert done.err == ""
    found = json.loads(tamis("status", "run", "--json").out)
    assert (found["rows"], found["statuses"]) == (21, {"ok": 21})
    assert tamis("status", "run", "--watch").code == 0


def test_a_whole_recipe_runs_from_one_file(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool")
    recipe = {
        "name": "mine",
        "pool": "pool/{00000..00002}.tar",
        "run": "runs/mine",
        "scores": ["caption_length"],
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
    Path("mine.yaml").write_text("pool: pool\nrun: run\nscores: [caption_length]\n")
    assert tamis("run", "mine.yaml", "-q").code == 0
    assert Path("run/report.html").exists()


@pytest.mark.parametrize("command", ["score", "run"])
def test_a_dry_run_prints_the_plan_and_creates_nothing(tamis: Tamis, tmp_path: Path, command: str) -> None:
    write_pool(tmp_path / "pool")
    Path("mine.yaml").write_text("pool: pool\nrun: run\nscores: [caption_length]\nselect: []\nexport: [npy: x.npy]\n")
    before = everything(tmp_path)
    arguments = {"score": ("pool", "--run", "run", "--signals", "caption_length"), "run": ("mine.yaml",)}[command]
    done = tamis(command, *arguments, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert "pool      webdataset, 3 shards" in done.out
    assert "run       run (new)" in done.out
    assert re.search(r"scores    scores/caption_length-[0-9a-f]{16}: 3 shards to do", done.out)
    assert everything(tmp_path) == before
    assert not Path("run").exists()


def test_a_dry_run_on_a_finished_run_has_nothing_to_do_and_changes_nothing(tamis: Tamis, scored: Path) -> None:
    before = everything(scored)
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length,language", "--dry-run")
    assert re.search(r"scores/caption_length-\w+: 0 shards to do", done.out)
    assert re.search(r"scores/language-\w+: 3 shards to do", done.out)
    assert everything(scored) == before


def test_the_labs_pool_can_be_scored(tamis: Tamis) -> None:
    done = tamis("lab", "make-pool", "lab", "--pairs", "6", "--shard-size", "4", "--seed", "1")
    assert (done.code, done.out) == (0, "")
    assert "wrote 6 pairs to lab" in done.err
    assert tamis("score", "lab", "--run", "run", "--signals", "caption_length", "-q").code == 0


# ---- lists and checks


@pytest.mark.parametrize("what", ["signals", "recipes", "steps", "exports"])
def test_lists_are_tables_or_json(tamis: Tamis, what: str) -> None:
    table, data = tamis("list", what), tamis("list", what, "--json")
    assert (table.code, table.err, data.code, data.err) == (0, "", 0, "")
    rows = json.loads(data.out)
    assert len(rows) >= 2
    assert all(isinstance(value, str) and value for row in rows for key, value in row.items() if key != "settings")
    for row in rows:
        assert str(next(iter(row.values()))) in table.out


def test_models_are_listed_by_kind_or_as_json(tamis: Tamis) -> None:
    table, data = tamis("list", "models"), tamis("list", "models", "--json")
    assert (table.code, table.err, data.code, data.err) == (0, "", 0, "")
    for row in json.loads(data.out):
        assert row["model"] in table.out
        assert row["size_mb"] is None or row["size_mb"] > 0
    assert re.search(r"^minilm +sentence encoder +92 +Apache-2.0 +no *$", table.out, re.MULTILINE)
    assert len(re.findall(r"^model +job +MB +licence", table.out, re.MULTILINE)) >= 3  # a table of each kind


def test_the_lists_hold_what_there_is(tamis: Tamis) -> None:
    assert [row["recipe"] for row in json.loads(tamis("list", "recipes", "--json").out)] == shipped()
    signals = {row["signal"]: row for row in json.loads(tamis("list", "signals", "--json").out)}
    assert signals["image_size"]["columns"] == "shorter_side, aspect_ratio"
    assert signals["image_size"]["settings"] == "of=original"
    assert signals["text_area"]["settings"] == ", ".join(
        f"boxes.{name}={value}" for name, value in dataclasses.asdict(TextBoxes()).items()
    )
    assert signals["clip"]["settings"] == "model"


@pytest.mark.parametrize("name", shipped())
def test_shipped_recipes_pass_the_check(tamis: Tamis, name: str) -> None:
    done = tamis("check", name)
    assert done.code == 0
    assert done.out.startswith(f"{name}: ")
    assert done.err == "the recipe is good\n"


def test_checking_against_a_run_names_columns_it_lacks(tamis: Tamis, scored: Path) -> None:
    done = tamis("check", "clip-30", "--run", "run")
    assert done.code == 2
    assert "unknown score column 'clip'" in done.err
    assert tamis("check", "no-filter", "--run", "run").code == 0


def test_checking_describes_the_steps(tamis: Tamis) -> None:
    done = tamis("check", "clip-30", "--set", "select.top_fraction.fraction=0.2", "--set", "export=[{npy: a.npy}]")
    assert "  score   clip\n" in done.out
    assert "  select  top 20 % of the pool by clip\n" in done.out
    assert "  export  npy to a.npy\n" in done.out


# ---- errors


def broken_pool(folder: Path) -> None:
    write_pool(folder, shards=2)
    data = (folder / "00001.tar").read_bytes()
    (folder / "00001.tar").write_bytes(data[: len(data) // 2])


def test_a_shard_that_failed_is_named_and_the_exit_code_is_one(tamis: Tamis, tmp_path: Path) -> None:
    broken_pool(tmp_path / "pool")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    assert (done.code, done.out) == (1, "")
    assert re.search(r"shard 00001 failed: .*00001\.tar", done.err)
    assert "the rest is complete; mend or replace what failed" in done.err
    assert tamis("status", "run").code == 1
    assert json.loads(tamis("status", "run", "--json").out)["shards"]["failed"] == 1


def test_a_recipe_goes_on_with_what_could_be_read_and_still_exits_with_one(tamis: Tamis, tmp_path: Path) -> None:
    broken_pool(tmp_path / "pool")
    Path("mine.yaml").write_text(
        "pool: pool\nrun: run\nscores: [caption_length]\nselect:\n- top_n: {score: words, n: 3, missing: drop}\n"
        "export: [npy: x.npy]\n"
    )
    done = tamis("run", "mine.yaml", "-q")
    assert done.code == 1
    assert np.load("x.npy").shape == (3,)
    assert Path("run/report.html").exists()


def test_what_a_step_reads_beside_the_run_is_looked_for_before_anything_is_scored(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool")
    Path("mine.yaml").write_text(
        "pool: pool\nrun: run\nscores: [language]\n"
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


def prepare(folder: Path) -> None:
    """Files for the errors below, beside a scored run."""
    write_run(folder / "other", {"a": [1.0, 2.0]}, shards=1)
    package.select(folder / "other", "no-filter").save(folder / "others.parquet")
    package.select(folder / "run", "no-filter").save(folder / "all.parquet")
    pq.write_table(pa.table({"a": [1]}), folder / "plain.parquet")
    (folder / "text.txt").write_text("hello")
    (folder / "latin.yaml").write_bytes(b"about: caf\xe9\nselect: []\n")
    (folder / "bad.yaml").write_text("select:\n- top_fractoin: {score: words, fraction: 0.1}\n")
    (folder / "lost.yaml").write_text("scores: [caption_length]\nselect: []\n")
    (folder / "homeless.yaml").write_text("pool: pool\nscores: [caption_length]\n")
    (folder / "empty").mkdir()
    (folder / "newer").mkdir()
    (folder / "newer" / "run.json").write_text('{"format": 99}')
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")


ERRORS: list[tuple[str, str]] = [
    ("select nowhere -r basic -o x", "nowhere is no run folder: it does not exist"),
    ("select empty -r basic -o x", "empty is no run folder: it holds no run.json"),
    ("select newer -r basic -o x", "newer has format 99, this version of tamis reads 1"),
    ("select damaged -r basic -o x", "damaged"),
    ("select text.txt -r basic -o x", "text.txt is no run folder"),
    ("select run -r basik -o x", "unknown recipe 'basik' (did you mean 'basic'?)"),
    ("select run -r missing.yaml -o x", "there is no recipe file 'missing.yaml'"),
    ("select run -r latin.yaml -o x", "the recipe 'latin.yaml' cannot be read"),
    ("select run -r bad.yaml -o x", "unknown step 'top_fractoin' (did you mean 'top_fraction'?)"),
    ("select run -r empty -o x", "unknown recipe 'empty'"),
    ("select run -r all.parquet -o x", "the recipe 'all.parquet'"),
    ("select run -r clip-30 -o x", "unknown score column 'clip'"),
    ("select run -r random -o x --set select.random_fraction.fraction=7", "a fraction lies between 0 and 1, got 7"),
    ("select run -r random -o x --set nonsense", "--set takes name=value, got 'nonsense'"),
    ("select run -r random -o empty", "empty"),
    ("select run -r random -o text.txt/x", "cannot write text.txt/x"),
    ("export run missing.parquet x --to npy", "there is no subset at missing.parquet"),
    ("export run plain.parquet x --to npy", "plain.parquet is no subset file of tamis"),
    ("export run text.txt x --to npy", "text.txt is no subset file of tamis"),
    ("export run empty x --to npy", "empty"),
    ("export run others.parquet x --to npy", "others.parquet was chosen from"),
    ("export other all.parquet x --to npy", "all.parquet was chosen from"),
    ("export run all.parquet x --to nyp", "unknown export format 'nyp' (did you mean 'npy'?)"),
    ("export run all.parquet x --to webdataset --set shard_siez=3", "unknown setting 'shard_siez'"),
    ("export run all.parquet x --to webdataset --set shard_size=0", "shard_size must be at least 1, got 0"),
    ("export run all.parquet x --to webdataset --set shard_size=[", "the value is no YAML"),
    ("export run all.parquet x --to webdataset --set shard_size", "--set takes name=value"),
    ("export run all.parquet empty --to npy", "empty"),
    ("export run all.parquet pool --to webdataset", "pool is not empty and holds no export of tamis"),
    ("report nowhere", "nowhere is no run folder"),
    ("report run missing.parquet", "there is no subset at missing.parquet"),
    ("report run others.parquet", "others.parquet was chosen from"),
    ("report run --out empty", "empty"),
    ("status nowhere", "nowhere is no run folder"),
    ("status nowhere --watch", "nowhere is no run folder"),
    ("score nowhere --run new --signals caption_length", "nowhere': nothing is there"),
    ("score empty --run new --signals caption_length", "empty': the folder holds no *.tar"),
    ("score text.txt --run new --signals caption_length", "text.txt"),
    ("score pool/{00002..00007}.tar --run new --signals caption_length", "pool/00003.tar'; fetch them"),
    (
        "score pool --run new --signals captoin_length",
        "unknown scorer 'captoin_length' (did you mean 'caption_length'?)",
    ),
    ("score pool --run new --signals clip", "the setting 'model' is missing"),
    ("score pool --run new --recipe basik", "unknown recipe 'basik'"),
    ("score pool --run new", "say what to score: --signals caption_length,language or --recipe NAME"),
    ("score pool --run new --signals caption_length --format tar", "format: Input should be 'auto'"),
    ("score pool --run new --signals caption_length --keep embedings", "unknown thing to keep 'embedings'"),
    ("score pool --run new --signals caption_length --precision fp8", "unknown precision 'fp8'; known: float32, bf16"),
    ("score pool --run new --signals caption_length --batch-size 0", "Invalid value for '--batch-size'"),
    ("score pool --run text.txt --signals caption_length", "the run folder text.txt cannot be written to"),
    ("score pool --run text.txt/new --signals caption_length", "cannot be written to"),
    ("score pool --run run --signals caption_length --caption json:long", "made with the pool setting caption = None"),
    ("score pool --run new --recipe clip-30 --set scores.clip.model=no/such-model", "no/such-model"),
    ("score pool --run new --recipe clip-30 --set scores.clip.model=nosuch", "unknown model 'nosuch'"),
    ("run lost.yaml", "the recipe 'lost' names no pool: add 'pool: PATH'"),
    ("run homeless.yaml", "the recipe 'homeless' names no run folder: add 'run: runs/NAME'"),
    ("run missing.yaml", "there is no recipe file 'missing.yaml'"),
    ("run bad.yaml", "unknown step 'top_fractoin'"),
    ("check bad.yaml", "unknown step 'top_fractoin'"),
    ("check basic --run nowhere", "nowhere is no run folder"),
    ("list signal", "unknown list 'signal' (did you mean 'signals'?); known: exports, models, recipes, signals, steps"),
    ("lab make-pool new --mix lion", "unknown mix 'lion' (did you mean 'laion'?)"),
    ("slect run", "slect"),
    ("select run", "Missing option"),
    ("select run -r basic -o x --nonsense", "nonsense"),
    ("score pool --run new --signals caption_length --workers 0", "workers"),
]


@pytest.mark.parametrize(("command", "message"), ERRORS, ids=[command for command, _ in ERRORS])
def test_a_users_error_is_one_line_on_stderr_and_exit_code_two(
    tamis: Tamis, scored: Path, tmp_path: Path, command: str, message: str
) -> None:
    prepare(tmp_path)
    before = everything(tmp_path)
    done = tamis(*command.split())  # an exception that gets out is the traceback that a user would see
    assert message in re.sub(r"[│\s]+", " ", done.err)
    assert done.code == 2
    assert done.out == "" or command.startswith("status nowhere --watch")
    after = everything(tmp_path)
    assert {name: after.get(name) for name in before if name != "run/lock"} == {
        name: data for name, data in before.items() if name != "run/lock"
    }
    assert set(after) - set(before) <= {"new/lock"}


def test_a_subset_of_another_run_with_shards_of_the_same_sizes_is_refused(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    write_pool(tmp_path / "second" / "pool", shards=1, first=5)
    (tmp_path / "second" / "pool" / "00005.tar").rename(tmp_path / "second" / "pool" / "00000.tar")
    for pool, run in (("pool", "one"), ("second/pool", "two")):
        tamis("score", pool, "--run", run, "--signals", "caption_length", "-q")
    tamis("select", "one", "-r", "random", "-o", "half.parquet")
    assert tamis("export", "two", "half.parquet", "x.npy", "--to", "npy").code == 2


def test_errors_leave_no_half_made_run(tamis: Tamis, scored: Path) -> None:
    for signals in ("captoin_length", "clip"):
        tamis("score", "pool", "--run", "new", "--signals", signals)
        assert not Path("new").exists()
    tamis("score", "nowhere", "--run", "new", "--signals", "caption_length")
    assert not Path("new").exists()


def test_a_run_in_use_is_refused(tamis: Tamis, scored: Path) -> None:
    from tamis.store.lock import locked

    with locked(scored):
        done = tamis("score", "pool", "--run", "run", "--signals", "caption_length")
    assert done.code == 2
    assert f"in use by process {os.getpid()}" in done.err


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


# ---- as a process


def test_the_installed_command_works(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "tamis"
    done = subprocess.run([command, "list", "recipes", "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert [row["recipe"] for row in json.loads(done.stdout)] == shipped()


def test_an_interrupt_ends_with_130_and_a_word(tmp_path: Path) -> None:
    code = (
        "import time\nimport tamis.run.status as status\nfrom tamis.cli import main\n"
        "def follow(path):\n    print('at work', flush=True)\n    time.sleep(60)\n"
        "    yield {}\nstatus.follow = follow\nmain()\n"
    )
    command = [sys.executable, "-c", code, "status", "run", "--watch"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "at work\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "tamis: interrupted" in err
    assert "Traceback" not in err


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tamis.cli import main; main()", "list", "signals", "--json"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    running.wait(30)
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_a_recipe_that_reads_what_nobody_scores_stops_before_work(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    (tmp_path / "r.yaml").write_text(
        "pool: pool\nrun: run\nscores: [caption_length]\nselect:\n  - at_least: {score: wrods, value: 3}\n"
    )
    done = tamis("run", "r.yaml")
    assert done.code == 2
    assert "did you mean 'words'?" in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("device", "says"), [("cup", "did you mean 'cpu'?"), ("cuda:7", "torch sees no such GPU")])
def test_a_device_that_is_not_here_is_one_line(tamis: Tamis, tmp_path: Path, device: str, says: str) -> None:
    write_pool(tmp_path / "pool", shards=1)
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length", "--device", device)
    assert done.code == 2
    assert says in done.err


def test_a_missing_model_leaves_no_run_folder_behind(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    done = tamis("score", "pool", "--run", "run", "--signals", "clip", "--set", "scores.clip.model=owner/absent")
    assert done.code == 2
    assert "hf download owner/absent" in done.err
    assert not (tmp_path / "run").exists()


def test_selecting_onto_a_file_of_another_kind_is_refused(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    before = (tmp_path / "pool" / "00000.tar").read_bytes()
    done = tamis("select", "run", "-r", "random", "-o", "pool/00000.tar")
    assert done.code == 2
    assert "choose another name" in done.err
    assert (tmp_path / "pool" / "00000.tar").read_bytes() == before
    assert tamis("select", "run", "-r", "random", "-o", "half.parquet").code == 0
    assert tamis("select", "run", "-r", "random", "-o", "half.parquet").code == 0


def test_control_characters_in_file_names_reach_no_terminal(tamis: Tamis, tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "a\x1b[31mred.tar").write_bytes(b"no tar")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    assert done.code == 1
    assert "\x1b" not in done.err
    assert "\\x1b[31mred" in done.err


def test_watching_without_a_terminal_prints_plain_text(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    done = tamis("status", "run", "--watch")
    assert done.code == 0
    assert done.out.splitlines()[0] == "run: done"
